"""The morning report: what happened, what Tocsin did, what it got wrong, what waits, and what to expect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.decision_log import KEEP_FINAL, RIGHT
from tocsin.actions.model.ledger_entry import FINAL, DecisionStatus
from tocsin.client.models import GpuState
from tocsin.client.models_cards import Card, CardState
from tocsin.client.models_report import MorningReport, ReportFigures, ReportSentence, ReportTopic
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.prediction import HARDWARE_FAULT, Prediction, most_urgent, soonest_each
from tocsin.queries.card_life import CauseRecord, read_record
from tocsin.queries.card_words import Names, Words, action_words, clock, expected_cause, headline
from tocsin.queries.heard import heard, least_heard
from tocsin.queries.live import LiveBrain
from tocsin.queries.report_words import listed, say, sentence
from tocsin.queries.statement_score import StatedCase, cases_of, is_claim
from tocsin.queries.views import waiting
from tocsin.rules.symptoms import Symptom

KINDS = frozenset(
    {EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED, EntryKind.INCIDENT_CLOSED, EntryKind.REJECTION}
)
"""Kinds of entries that the report reads."""
LONGEST_FORECAST_MS = 7 * DAY
"""How long before the span forecasts are looked at whose time ends in it."""
_NOTHING_BROKEN = (Symptom.FORECAST, Symptom.ALONE, Symptom.DRIFT)
"""What is only expected; load, memory in use and fragmentation; versions that differ."""


@dataclass(frozen=True)
class ReportInputs:
    """What the report is made of: `entries` of the kinds `KINDS` in [`start_ms`, `end_ms`), in order; the cards, the
    decisions, the controls and the forecasts as they are at `end_ms`; `cases` are forecasts and what came of them."""

    entries: Iterable[Entry]
    cards: Sequence[Card]
    statuses: Sequence[DecisionStatus]
    controls: Controls
    cases: Sequence[StatedCase]
    predictions: Sequence[Prediction]
    names: Names
    gpus: int
    mode: Mode
    simulated: bool
    start_ms: int
    end_ms: int


def morning_report(inputs: ReportInputs) -> MorningReport:
    """The report of [`inputs.start_ms`, `inputs.end_ms`); every sentence holds also where nothing is known."""
    told = _Told()
    for entry in inputs.entries:
        told.apply(entry)
    broken = told.broken()
    figures = _figures(inputs, told, broken)
    worst = max((one for found in broken.values() for one in found), key=_gravity, default=None)
    made = {
        ReportTopic.HAPPENED: _happened(inputs, figures, worst),
        ReportTopic.DID: _did(inputs, figures),
        ReportTopic.WRONG: _wrong(figures),
        ReportTopic.WAITS: _waits(inputs, figures),
        ReportTopic.EXPECT: _expect(inputs),
    }
    return MorningReport(
        start=to_iso(inputs.start_ms),
        end=to_iso(inputs.end_ms),
        simulated=inputs.simulated,
        mode=inputs.mode,
        sentences=[ReportSentence(topic=topic, text=words[0], text_zh=words[1]) for topic, words in made.items()],
        figures=figures,
    )


class _Told:
    """What the entries of a span tell of causes that began in it, and of what people rejected."""

    def __init__(self) -> None:
        self.began: dict[str, CauseRecord] = {}
        self.ended: set[str] = set()
        self.rejected = 0

    def apply(self, entry: Entry) -> None:
        """Take one entry in, in the order of the journal."""
        name = str(entry.payload.get("id", ""))
        if entry.kind == EntryKind.REJECTION:
            self.rejected += entry.payload.get("statement") != RIGHT
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            if entry.payload.get("into"):
                # Part of another incident now, which tells of it.
                self.began.pop(name, None)
            self.ended.add(name)
        elif entry.kind == EntryKind.INCIDENT_OPENED or name in self.began:
            record = read_record(entry.payload.get("card"))
            if record is not None:
                self.began[name] = record
                self.ended.discard(name)

    def broken(self) -> dict[str, list[CauseRecord]]:
        """What broke, by place: the incidents of one place are one card."""
        found: dict[str, list[CauseRecord]] = {}
        for record in self.began.values():
            if record.level is AlertLevel.PAGE or (
                record.level is not AlertLevel.NOTE and record.symptom not in _NOTHING_BROKEN
            ):
                found.setdefault(record.where, []).append(record)
        return found

    def over(self) -> int:
        """Places where something broke and all of it has ended."""
        still = {one.where for name, one in self.began.items() if name not in self.ended}
        return len(self.broken().keys() - still)


def _gravity(record: CauseRecord) -> tuple[tuple[int, int, bool], int, int]:
    return record.gravity, record.gpus, record.opened_ms


def _figures(inputs: ReportInputs, told: _Told, broken: dict[str, list[CauseRecord]]) -> ReportFigures:
    actions = [one for one in inputs.statuses if one.decision.action is not ActionKind.NOTIFY]
    ended = [
        one.state for one in actions if one.outcome is not None and inputs.start_ms <= one.outcome.at_ms < inputs.end_ms
    ]
    due = [one for one in inputs.cases if is_claim(one.said) and _came_due(one, inputs)]
    return ReportFigures(
        broke=len(broken),
        over=told.over(),
        open_cards=sum(one.state is not CardState.RESOLVED and one.hidden is None for one in inputs.cards),
        done=ended.count(DecisionState.DONE),
        goal_not_reached=ended.count(DecisionState.GOAL_NOT_REACHED),
        failed=ended.count(DecisionState.FAILED),
        running=sum(one.state in (DecisionState.EXECUTING, DecisionState.VERIFYING) for one in actions),
        forecasts_settled=len(due),
        forecasts_wrong=sum(one.came_ms is None for one in due),
        rejected=told.rejected,
        waiting=waiting(inputs.statuses),
        expected=len(_standing(inputs)),
    )


def _came_due(case: StatedCase, inputs: ReportInputs) -> bool:
    return case.settled and inputs.start_ms < case.said.at_ms + case.said.horizon_ms <= inputs.end_ms


def _standing(inputs: ReportInputs) -> list[Prediction]:
    """The forecasts that something will come, whose time has not come yet; a fault is not expected where one is."""
    failed = {
        card.subject.key
        for card in inputs.cards
        if card.state is not CardState.RESOLVED and card.health in (GpuState.LOST, GpuState.CRITICAL)
    }
    ahead = [one for one in inputs.predictions if one.warns and (one.eta_ms is None or one.eta_ms > inputs.end_ms)]
    return soonest_each(one for one in ahead if one.target != HARDWARE_FAULT or one.subject.key not in failed)


# ---------------------------------------------------------------------- the sentences


def _happened(inputs: ReportInputs, figures: ReportFigures, worst: CauseRecord | None) -> Words:
    span = say("span", hours=round((inputs.end_ms - inputs.start_ms) / HOUR))
    cards = say("cards", n=figures.open_cards) if figures.open_cards else say("no_cards")
    if worst is None:
        return sentence(say("quiet" if inputs.gpus else "no_gpus", span=span), cards)
    began = listed(say("broke", n=figures.broke, span=span), say("over", n=figures.over))
    return sentence(began, say("worst", what=headline(worst.trouble, inputs.names)), cards)


def _did(inputs: ReportInputs, figures: ReportFigures) -> Words:
    total = figures.done + figures.goal_not_reached + figures.failed
    runs = [say("running", n=figures.running)] if figures.running else []
    if not total:
        return sentence(say("watched" if inputs.mode is Mode.OBSERVE else "idle"), *runs)
    ended_ms = [one.updated_ms for one in inputs.statuses if one.state in FINAL]
    # Of more no decision is listed: what ended before the oldest of them is not known here.
    cut = len(ended_ms) >= KEEP_FINAL and min(ended_ms) >= inputs.start_ms
    counts = {"done": figures.done, "missed": figures.goal_not_reached, "failed": figures.failed}
    ends = listed(*(say(f"end_{key}", n=count) for key, count in counts.items() if count))
    return sentence(say("did_least" if cut else "did", n=total, ends=ends), *runs)


def _wrong(figures: ReportFigures) -> Words:
    settled, wrong = figures.forecasts_settled, figures.forecasts_wrong
    counts = {"rejected": figures.rejected, "missed": figures.goal_not_reached, "failed": figures.failed}
    parts = [say(key, n=count) for key, count in counts.items() if count]
    if not parts and not wrong:
        return sentence(say("all_right", n=settled) if settled else say("unsettled"))
    if settled and not wrong:
        return sentence(say("wrong", parts=listed(*parts)), say("came_true", n=settled))
    about = say("forecasts", n=settled, wrong=wrong) if settled else say("no_forecasts")
    return sentence(say("wrong", parts=listed(*([about, *parts] if settled else [*parts, about]))))


def _waits(inputs: ReportInputs, figures: ReportFigures) -> Words:
    controls = inputs.controls
    held = [say("paused")] if controls.paused is not None else []
    held += [say("tripped")] if controls.breaker is not None else []
    asking = [one for one in inputs.statuses if one.waits_for_person]
    if not asking:
        return sentence(say("no_wait"), *held)
    first = min(asking, key=lambda one: (controls.expiry_ms(one.decision), one.decision.id)).decision
    until = clock(controls.expiry_ms(first), inputs.end_ms)
    where = inputs.names.subject(first.subject)
    action = action_words(first.action)
    what = (f"{action[0]} {where[0]}", f"{action[1]} {where[1]}")
    then = say("first_wait" if len(asking) == 1 else "first_of", until=until, what=what)
    return sentence(say("waits", n=figures.waiting), then, *held)


def _expect(inputs: ReportInputs) -> Words:
    standing = _standing(inputs)
    soonest = most_urgent(standing)
    if soonest is None:
        return sentence(say("no_forecast"))
    parts = [say("expect", what=headline(expected_cause(soonest), inputs.names))]
    if soonest.eta_ms is not None:
        parts.append(say("at", at=clock(soonest.eta_ms, inputs.end_ms)))
    else:
        parts.append(say("within", hours=round(soonest.horizon_ms / HOUR)))
    if soonest.probability is not None:
        parts.append(say("chance", chance=_chance(soonest.probability)))
    more = [say("more", n=len(standing) - 1)] if len(standing) > 1 else []
    return sentence(listed(*parts), *more)


def _chance(probability: float) -> str:
    """A percentage that never claims certainty."""
    if probability > 0.99:
        return "> 99 %"
    return "< 1 %" if probability < 0.01 else f"{probability * 100:.0f} %"


# ---------------------------------------------------------------------- of a running brain


def stated_cases(brain: LiveBrain, hours: int) -> list[StatedCase]:
    """The forecasts of a running brain whose time ends in the last `hours`, and what came of them. It reads all that
    were stored in a week, which is most of what a report costs. Raises StoreUnavailable."""
    now_ms = brain.clock.now_ms()
    made = brain.store.predictions(now_ms - hours * HOUR - LONGEST_FORECAST_MS, now_ms + 1)
    return cases_of(made, lambda gpu, metric, *span: brain.store.series(gpu, [metric], *span), now_ms)


def report_now(brain: LiveBrain, cards: Sequence[Card], cases: Sequence[StatedCase], hours: int) -> MorningReport:
    """The report of a running brain over the last `hours`; `cases` may be somewhat older."""
    now_ms = brain.clock.now_ms()
    start_ms = now_ms - hours * HOUR
    after = brain.journal.number_before(start_ms)
    readings = brain.memory.latest()
    return morning_report(
        ReportInputs(
            entries=(one for one in brain.journal.entries(after=after, kinds=KINDS) if one.at_ms >= start_ms),
            cards=cards,
            statuses=brain.statuses(),
            controls=brain.actions.controls(),
            cases=cases,
            predictions=heard(brain.forecasts.current(now_ms), least_heard(brain.ruleset)),
            names=Names(readings),
            gpus=len(readings),
            mode=brain.settings.actions.mode,
            simulated=any(one.gpu.simulated for one in readings),
            start_ms=start_ms,
            end_ms=now_ms,
        )
    )
