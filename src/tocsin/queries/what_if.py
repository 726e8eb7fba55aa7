"""What if: which held decisions of the past a changed limit or mode would have let run, and what came of the GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.actions.model.decision_json import VERDICTS
from tocsin.actions.model.decision_log import KEEP_FINAL
from tocsin.actions.model.ledger_entry import APPROVAL, FINAL, DecisionStatus
from tocsin.actions.model.policy import least
from tocsin.client.models_what_if import (
    LIMITED_GUARDS,
    WhatIfAfter,
    WhatIfAnswer,
    WhatIfDecision,
    WhatIfOut,
    WhatIfRequest,
)
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling, Verdict
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.queries.live import LiveBrain
from tocsin.queries.scoreboard import HORIZON_MS, confirmation

SPAN_MS = 30 * DAY
MOST_ENTRIES = 100_000
"""Entries that one question reads; own choice: some seconds."""
MOST_ITEMS = 200
_ROUNDING = 1e-9
_MODE = "mode"
NOT_RECORDED = "the figure that {guard} saw was not recorded"
ZERO_LIMIT = "under a limit of 0 max_share does not say whether one host was all that would be out"
EARNING = "whether the record of rule {rule} had earned act then is not recorded"
_ORDER = (WhatIfAnswer.WOULD_RUN, WhatIfAnswer.NOT_KNOWN, WhatIfAnswer.STILL_HELD)


@dataclass(frozen=True)
class Change:
    """One change: of the guard `guard` to `limit`, or of the rule `rule` to `mode`, in effect `bounded` by the mode of
    the service. `waived` says that the rule may act without a record."""

    guard: str = ""
    limit: float = 0.0
    rule: str = ""
    mode: Mode = Mode.OBSERVE
    bounded: Mode = Mode.OBSERVE
    waived: bool = False

    @property
    def sentence(self) -> str:
        """The change in words."""
        if self.guard:
            return f"guard {self.guard} with limit {self.limit:g}"
        told = "" if self.bounded is self.mode else f", bounded to {self.bounded} by actions.mode"
        return f"rule {self.rule} in mode {self.mode}{told}"


@dataclass(frozen=True, slots=True)
class Judged:
    """What a change makes of one set of verdicts."""

    answer: WhatIfAnswer
    held_by: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class WhatIfInputs:
    """Decisions of [`start_ms`, `end_ms`), the entries about verdicts and deeds by hand, and hardware events."""

    statuses: Sequence[DecisionStatus]
    entries: Iterable[Entry]
    events: Sequence[Event]
    start_ms: int
    end_ms: int


def change_of(asked: WhatIfRequest, service_mode: Mode, known: Callable[[str], bool], waived: bool) -> Change:
    """The change that is asked about; `known` says of a rule whether there is one. Raises InputError."""
    if bool(asked.guard) == bool(asked.rule):
        raise InputError("guard", asked.guard, "needs one change", "give either guard and limit, or rule and mode")
    if asked.guard:
        if asked.guard not in LIMITED_GUARDS:
            raise InputError(
                "guard", asked.guard, "is no guard with a limit", f"use one of {', '.join(LIMITED_GUARDS)}"
            )
        if asked.limit is None or not math.isfinite(asked.limit) or asked.mode is not None:
            raise InputError("limit", str(asked.limit), "a guard needs a limit alone", "give a number, 0 or above")
        return Change(guard=asked.guard, limit=asked.limit)
    if asked.mode is None or asked.limit is not None:
        raise InputError("mode", str(asked.mode), "a rule needs a mode alone", "give observe, propose or act")
    if not known(asked.rule):
        raise InputError("rule", asked.rule, "is no rule of this service", "tocsin rules record lists them")
    return Change(rule=asked.rule, mode=asked.mode, bounded=least(asked.mode, service_mode), waived=waived)


def what_if(inputs: WhatIfInputs, change: Change) -> WhatIfOut:
    """The answer for each action that was decided in the span, was held at some time, and never began."""
    held = {
        one.decision.id: one
        for one in inputs.statuses
        if one.decision.action is not ActionKind.NOTIFY
        and one.decision.at_ms >= inputs.start_ms
        and one.outcome is None
        and one.state not in (DecisionState.EXECUTING, DecisionState.VERIFYING)
        and (not change.rule or one.decision.rule == change.rule)
    }
    best: dict[str, Judged] = {}
    hands: dict[tuple[str, str], list[int]] = {}
    read = 0
    for entry in inputs.entries:
        if entry.at_ms < inputs.start_ms:
            continue
        if (read := read + 1) > MOST_ENTRIES:
            break
        _take(entry, held, best, hands, change)
    items = [_item(held[name], judged, hands, inputs) for name, judged in best.items()]
    items.sort(key=lambda one: (-_ms(held, one), one.decision))
    items.sort(key=lambda one: _ORDER.index(one.answer))
    counts = Counter(one.answer for one in items)
    ended = [one.decision.at_ms for one in inputs.statuses if one.state in FINAL]
    return WhatIfOut(
        start=to_iso(inputs.start_ms),
        end=to_iso(inputs.end_ms),
        change=change.sentence,
        decisions=len(items),
        would_run=counts[WhatIfAnswer.WOULD_RUN],
        still_held=counts[WhatIfAnswer.STILL_HELD],
        not_known=counts[WhatIfAnswer.NOT_KNOWN],
        after=dict(Counter(one.after for one in items if one.answer is WhatIfAnswer.WOULD_RUN)),
        complete=read <= MOST_ENTRIES and (len(ended) < KEEP_FINAL or min(ended) < inputs.start_ms),
        items=items[:MOST_ITEMS],
    )


def _ms(held: Mapping[str, DecisionStatus], one: WhatIfDecision) -> int:
    return held[one.decision].decision.at_ms


def _take(
    entry: Entry,
    held: Mapping[str, DecisionStatus],
    best: dict[str, Judged],
    hands: dict[tuple[str, str], list[int]],
    change: Change,
) -> None:
    """Take one entry in: of the verdicts on a decision the ones that come nearest to letting it run count."""
    if entry.kind == EntryKind.MANUAL_ACTION:
        subject = entry.payload.get("subject")
        if isinstance(subject, dict) and entry.payload.get("status") == "succeeded":
            hands.setdefault((str(subject.get("kind")), str(subject.get("name"))), []).append(entry.at_ms)
        return
    name = str(entry.payload.get("decision", ""))
    if name not in held:
        return
    verdicts = VERDICTS.validate_python(entry.payload["verdicts"])
    if all(one.ruling is Ruling.ALLOW for one in verdicts):
        return
    judged, before = judge(held[name].decision, verdicts, change), best.get(name)
    if before is None or _nearness(judged) < _nearness(before):
        best[name] = judged


def _nearness(judged: Judged) -> tuple[int, int]:
    return _ORDER.index(judged.answer), len(judged.held_by)


def judge(decision: Decision, verdicts: Sequence[Verdict], change: Change) -> Judged:
    """What `change` makes of the verdicts that were on record together."""
    stays: list[str] = []
    doubts: list[tuple[str, str]] = []
    for one in verdicts:
        if one.ruling is Ruling.ALLOW:
            # A mode that is lowered holds what it allowed.
            if _now_held(one, decision, change):
                stays.append(one.guard)
            continue
        passes = _passes(one, decision, change)
        if isinstance(passes, str):
            doubts.append((one.guard, passes))
        elif not passes:
            stays.append(one.guard)
    if stays:
        return Judged(WhatIfAnswer.STILL_HELD, tuple(stays))
    if doubts:
        return Judged(WhatIfAnswer.NOT_KNOWN, tuple(guard for guard, _ in doubts), "; ".join(why for _, why in doubts))
    return Judged(WhatIfAnswer.WOULD_RUN)


def _now_held(verdict: Verdict, decision: Decision, change: Change) -> bool:
    if verdict.guard == _MODE:
        return decision.rule == change.rule and change.bounded is Mode.OBSERVE
    return verdict.guard == APPROVAL and decision.rule == change.rule and change.bounded is Mode.PROPOSE


def _passes(verdict: Verdict, decision: Decision, change: Change) -> bool | str:
    """Whether a verdict that held would allow under `change`; a sentence where that is not known."""
    if change.guard and verdict.guard == change.guard:
        if verdict.observed is None or verdict.limit is None:
            return NOT_RECORDED.format(guard=verdict.guard)
        if verdict.guard == "max_share" and verdict.limit <= 0 < change.limit:
            return ZERO_LIMIT
        if LIMITED_GUARDS[verdict.guard]:
            return verdict.observed <= change.limit + _ROUNDING
        return verdict.observed >= change.limit - _ROUNDING
    if change.rule and verdict.guard == _MODE:
        return change.bounded is not Mode.OBSERVE
    if change.rule and verdict.guard == APPROVAL and verdict.ruling is Ruling.HOLD and change.bounded is Mode.ACT:
        # Behind the request for a yes stands why a person is asked whatever the mode: the last host, or the record.
        if ";" in verdict.reason:
            return False
        return True if change.waived else EARNING.format(rule=decision.rule)
    return False


def _item(
    status: DecisionStatus, judged: Judged, hands: Mapping[tuple[str, str], Sequence[int]], inputs: WhatIfInputs
) -> WhatIfDecision:
    decision = status.decision
    return WhatIfDecision(
        decision=decision.id,
        at=to_iso(decision.at_ms),
        rule=decision.rule,
        action=decision.action,
        subject=decision.subject,
        answer=judged.answer,
        held_by=list(judged.held_by),
        why=judged.why,
        after=_after(status, hands, inputs),
    )


def _after(status: DecisionStatus, hands: Mapping[tuple[str, str], Sequence[int]], inputs: WhatIfInputs) -> WhatIfAfter:
    decision, subject = status.decision, status.decision.subject
    until_ms = decision.at_ms + HORIZON_MS
    # A hardware event is known at once, its absence only when the time is over.
    if confirmation(status, inputs.events, until_ms) == "confirmed":
        return WhatIfAfter.FAILED
    places = {(str(subject.kind), subject.name), (str(SubjectKind.HOST), subject.host)}
    deeds = [at_ms for place in places for at_ms in hands.get(place, ())]
    if any(decision.at_ms < at_ms <= until_ms for at_ms in deeds):
        return WhatIfAfter.REPAIRED
    return WhatIfAfter.NOT_KNOWN if inputs.end_ms < until_ms else WhatIfAfter.NOTHING


def what_if_now(brain: LiveBrain, asked: WhatIfRequest) -> WhatIfOut:
    """The answer of a running brain over the last 30 days. Raises InputError and StoreUnavailable."""
    policy, now_ms = brain.actions.policy, brain.clock.now_ms()
    statuses = brain.statuses()
    names = {one.decision.rule for one in statuses} | {rule.name for rule in brain.ruleset}
    change = change_of(asked, brain.settings.actions.mode, names.__contains__, policy.is_waived(asked.rule))
    start_ms = now_ms - SPAN_MS
    kinds = {EntryKind.VERDICT, EntryKind.MANUAL_ACTION}
    entries = brain.journal.entries(after=brain.journal.number_before(start_ms), kinds=kinds)
    events = brain.store.events(start_ms, now_ms + 1)
    return what_if(WhatIfInputs(statuses, entries, events, start_ms, now_ms), change)
