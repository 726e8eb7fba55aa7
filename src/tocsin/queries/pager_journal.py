"""The pager's report of a running fleet, from journal and store: what they can tell, and why not the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.loop.notifications import OVER_WHILE_WITHHELD, UNWANTED
from tocsin.actions.model.ledger_entry import MODE_GUARDS, DecisionStatus
from tocsin.actions.notifications.report import is_report
from tocsin.client.models_pager import DecidedCount, PagerReport, StatementScore
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import DecisionState, Ruling
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.onsets import Onset
from tocsin.forecaster.live.outcomes import onsets_between, still_observed
from tocsin.queries.hardware_faults import HardwareFault, fabrics_of, hardware_faults
from tocsin.queries.live import LiveBrain
from tocsin.queries.pager_score import LATE_MS, BreakerTrip, Cause, PagerAlert, Truth, by_fault_kind, score_alerts
from tocsin.queries.series_cache import FEW_TOGETHER, SeriesCache
from tocsin.queries.statement_score import StatedCase, cases_of, score_statements
from tocsin.store.port import Store

NO_TRUTH = "a journal does not tell what was not wrong: tocsin rehearse fleet asks it of a simulated fleet"
ONLY_LINES = "counts faults with an event line alone: hangs, heat and power brakes have none"
REPORT_MS = 14 * DAY
UNKNOWN = {
    "precision": NO_TRUTH,
    "early": "precursors have no known beginning in the field",
    "nulls": NO_TRUTH,
    "wrong": NO_TRUTH,
    "hard_faults": ONLY_LINES,
}
"""Why figures are null, empty or partial."""
LEDGER = (
    EntryKind.FINDING_OPENED,
    EntryKind.INCIDENT_OPENED,
    EntryKind.DECISION,
    EntryKind.VERDICT,
    EntryKind.APPROVAL,
    EntryKind.REJECTION,
    EntryKind.EXECUTION_STARTED,
    EntryKind.NOTIFICATION,
    EntryKind.BREAKER_TRIPPED,
    "forecast_muted",
    "forecast_heard",
)
"""Kinds of entries that the report reads."""


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """What a journal has of a span. `expects` are the rules that rest on forecasts alone."""

    entries: Sequence[Entry]
    statuses: Sequence[DecisionStatus]
    events: Sequence[Event]
    gpus: Sequence[Gpu]
    start_ms: int
    end_ms: int
    expects: frozenset[str]


def journal_report(told: JournalSpan, statements: Sequence[StatementScore]) -> PagerReport:
    """The figures of a rehearsal as far as a real fleet can show them."""
    faults = hardware_faults(told.events, LATE_MS, fabrics_of(told.gpus))
    truth = Truth(map(_cause, faults), told.end_ms)
    alerts = [*_alerts(told), *_notes(told.entries)]
    score = score_alerts(alerts, truth)
    tripped = [entry for entry in told.entries if entry.kind == EntryKind.BREAKER_TRIPPED]
    figures = score.model_dump() | {"precision": None}
    unknown = dict(UNKNOWN)
    if score.pages_per_cause is None:
        unknown["pages_per_cause"] = "no page named a fault with an event line"
    if score.recall is None:
        unknown["recall"] = unknown["prompt_recall"] = "no fault with an event line came"
    return PagerReport(
        **figures,
        simulated=any(gpu.simulated for gpu in told.gpus),
        days=max(0.0, (told.end_ms - told.start_ms) / DAY),
        gpus=len(told.gpus),
        hard_faults=len(truth.due()),
        decisions=sum(status.decision.action is not ActionKind.NOTIFY for status in told.statuses),
        decided=decided(told.entries),
        breaker_trips=len(tripped),
        breaker_trips_by_forecast=trips_by_forecast(told.entries, told.expects),
        statements=list(statements),
        faults=by_fault_kind(alerts, truth),
        unknown=unknown,
    )


def _cause(fault: HardwareFault) -> Cause:
    """A fault as a cause: whichever of its GPUs or hosts a page names, it is right."""
    first, at_ms = fault.first, fault.first.at_ms
    kind = f"xid {first.code}" if first.kind is EventKind.XID else str(first.kind)
    places = frozenset(filter(None, (*fault.gpus, *fault.hosts)))
    return Cause(kind, places, at_ms, at_ms, at_ms, fault.last_ms, hard=True)


def _alerts(told: JournalSpan) -> list[PagerAlert]:
    """Every message that went out in the span: one, however many notifications it gathered and receivers it had."""
    decisions = {status.decision.id: status.decision for status in told.statuses}
    messages: dict[str, PagerAlert] = {}
    for entry in told.entries:
        if entry.kind != EntryKind.NOTIFICATION or not _is_message(entry.payload):
            continue
        decision = decisions.get(str(entry.payload["decision"]))
        if decision is None or is_report(decision):
            continue
        key = str(entry.payload.get("page_key") or entry.payload.get("message") or decision.key)
        # Entries of before there were levels have none.
        level = AlertLevel(str(entry.payload["level"])) if entry.payload.get("level") else decision.alert_level
        first = messages.setdefault(key, PagerAlert(entry.at_ms, level, decision.rule, frozenset()))
        messages[key] = replace(first, places=first.places | {decision.subject.name})
    return list(messages.values())


def _is_message(payload: Mapping[str, object]) -> bool:
    """Whether the entry says that a receiver got a message; one about an end, that nobody asked for, or that a silence
    held back until its cause was over, is none, and neither is a ticket, which calls nobody."""
    outcome = payload.get("outcome")
    unwanted = isinstance(outcome, dict) and outcome.get("detail") in (UNWANTED, OVER_WHILE_WITHHELD)
    return bool(payload.get("ok")) and not unwanted and payload.keys().isdisjoint(("ended", "ticket"))


def _notes(entries: Iterable[Entry]) -> list[PagerAlert]:
    """The incidents that opened as notes: those whose root is one."""
    notes: dict[str, PagerAlert] = {}
    found = []
    for entry in entries:
        if entry.kind == EntryKind.FINDING_OPENED:
            finding = entry.payload["finding"]
            assert isinstance(finding, dict)
            # Entries of before there were levels have none: what was for information is a note.
            if finding.get("level") == AlertLevel.NOTE or (not finding.get("level") and finding["severity"] == "info"):
                places = frozenset({str(finding["subject"]["name"])})
                notes[str(entry.payload["id"])] = PagerAlert(entry.at_ms, AlertLevel.NOTE, str(finding["rule"]), places)
        elif entry.kind == EntryKind.INCIDENT_OPENED and str(entry.payload["root"]) in notes:
            found.append(notes[str(entry.payload["root"])])
    return found


def trips_by_forecast(entries: Iterable[Entry], expects: frozenset[str]) -> int:
    """Trips of the breaker among whose causes is one that a rule in `expects` gave: forecasts alone."""
    rules: dict[str, str] = {}
    causes: dict[str, set[str]] = {}
    trips = 0
    for entry in entries:
        if entry.kind == EntryKind.DECISION:
            rules[str(entry.payload["id"])] = str(entry.payload["rule"])
        elif entry.kind == EntryKind.VERDICT and entry.payload.get("cause"):
            rule = rules.get(str(entry.payload["decision"]), "")
            causes.setdefault(str(entry.payload["cause"]), set()).add(rule)
        elif entry.kind == EntryKind.BREAKER_TRIPPED:
            named = entry.payload["causes"]
            assert isinstance(named, list)
            trips += any(causes.get(str(cause), set()) & expects for cause in named)
    return trips


def breaker_trips(entries: Iterable[Entry], asked: int, window_ms: int) -> list[BreakerTrip]:
    """The trips, each with the GPUs and hosts that its root causes were counted for within the window before it."""
    places: dict[str, frozenset[str]] = {}
    counted: dict[str, list[tuple[int, frozenset[str]]]] = {}
    trips = []
    for entry in entries:
        if entry.kind == EntryKind.DECISION:
            subject = entry.payload["subject"]
            assert isinstance(subject, dict)
            places[str(entry.payload["id"])] = frozenset(filter(None, (subject["name"], subject.get("host", ""))))
        elif entry.kind == EntryKind.VERDICT and entry.payload.get("cause"):
            where = places.get(str(entry.payload["decision"]), frozenset())
            counted.setdefault(str(entry.payload["cause"]), []).append((entry.at_ms, where))
        elif entry.kind == EntryKind.BREAKER_TRIPPED:
            causes, since_ms = entry.payload["causes"], entry.at_ms - window_ms
            assert isinstance(causes, list)
            named = [[where for at_ms, where in counted.get(cause, ()) if at_ms > since_ms] for cause in causes]
            trips.append(BreakerTrip(entry.at_ms, since_ms, asked, tuple(frozenset().union(*each) for each in named)))
    return trips


MOST_DECIDED = 100
"""Rows of decisions by rule, action and end."""


class _Course:
    """One decision on an action as its entries tell it."""

    def __init__(self, payload: Mapping[str, object]) -> None:
        self.rule, self.action = str(payload["rule"]), str(payload["action"])
        self._state = DecisionState.HELD
        self._ready = self._approved = self._begun = False

    def take(self, entry: Entry) -> None:
        if entry.kind == EntryKind.VERDICT:
            verdicts = entry.payload["verdicts"]
            assert isinstance(verdicts, list)
            holding = {one["guard"] for one in verdicts if one["ruling"] != Ruling.ALLOW}
            self._ready = self._ready or (bool(verdicts) and holding <= MODE_GUARDS)
            self._state = DecisionState(str(entry.payload.get("state") or self._state))
        elif entry.kind == EntryKind.REJECTION:
            self._state = DecisionState.REJECTED
        elif entry.kind == EntryKind.APPROVAL:
            self._approved = True
        elif entry.kind == EntryKind.EXECUTION_STARTED:
            self._begun = True

    @property
    def end(self) -> str:
        """One of those that `DecidedCount` names."""
        if self._begun:
            return "executed"
        if self._state is DecisionState.REJECTED:
            return "rejected"
        if self._ready and not self._approved:
            return "proposed"
        return "expired" if self._state is DecisionState.EXPIRED else "held"


def decided(entries: Iterable[Entry]) -> list[DecidedCount]:
    """Decisions on actions that were made in `entries`, by rule, action and end."""
    courses: dict[str, _Course] = {}
    for entry in entries:
        if entry.kind == EntryKind.DECISION and entry.payload["action"] != ActionKind.NOTIFY:
            courses.setdefault(str(entry.payload["id"]), _Course(entry.payload))
        elif (course := courses.get(str(entry.payload.get("decision", "")))) is not None:
            course.take(entry)
    counts = Counter((one.rule, one.action, one.end) for one in courses.values())
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_DECIDED]
    return [DecidedCount(rule=rule, action=action, end=end, count=count) for (rule, action, end), count in ordered]


def muted_shares(entries: Iterable[Entry], start_ms: int, end_ms: int) -> Mapping[str, float]:
    """Share of the span for which each kind of statement was muted; kinds that never were are not in it."""
    since: dict[str, int] = {}
    muted_ms: dict[str, int] = {}
    for entry in entries:
        kind = str(entry.payload.get("kind", ""))
        if entry.kind == "forecast_muted":
            since.setdefault(kind, max(entry.at_ms, start_ms))
        elif entry.kind == "forecast_heard" and kind in since:
            muted_ms[kind] = muted_ms.get(kind, 0) + max(0, entry.at_ms - since.pop(kind))
    for kind, at_ms in since.items():
        muted_ms[kind] = muted_ms.get(kind, 0) + max(0, end_ms - at_ms)
    return {kind: min(1.0, total / max(1, end_ms - start_ms)) for kind, total in muted_ms.items()}


def report_of(brain: LiveBrain, now_ms: int) -> PagerReport:
    """The report of a running brain over the last `REPORT_MS`, or as much of it as the journal has."""
    entries = list(brain.journal.entries(kinds=set(LEDGER)))
    first = next(brain.journal.entries(limit=1), None)
    start_ms = max(now_ms - REPORT_MS, now_ms if first is None else first.at_ms)
    told = JournalSpan(
        entries=[entry for entry in entries if entry.at_ms >= start_ms],
        statuses=brain.statuses(),
        events=brain.store.events(start_ms, now_ms + 1),
        gpus=brain.gpus,
        start_ms=start_ms,
        end_ms=now_ms,
        expects=frozenset(rule.name for rule in brain.ruleset if rule.expects),
    )
    cases = settled_cases(brain.store, brain.gpus, start_ms, now_ms)
    return journal_report(told, score_statements(cases, muted_shares(entries, start_ms, now_ms)))


def settled_cases(store: Store, gpus: Sequence[Gpu], start_ms: int, now_ms: int) -> list[StatedCase]:
    """What was said since `start_ms`, and what came by the same measure as in the record of the forecasts: faults by
    their onsets, less those of GPUs that were observed no more. Raises StoreUnavailable."""
    # What is asked of a statement begins an hour before it.
    series = SeriesCache(store, gpus, start_ms - HOUR, now_ms, FEW_TOGETHER)
    truth = Truth(map(_struck, onsets_between(store, start_ms, now_ms)), now_ms)
    cases = cases_of(store.predictions(start_ms, now_ms + 1), series.between, now_ms, truth)
    quiet = [case.said for case in cases if case.settled and case.came_ms is None and not case.said.metric]
    unknown = {id(one) for one in quiet} - still_observed(store, quiet)
    return [case for case in cases if id(case.said) not in unknown]


def _struck(onset: Onset) -> Cause:
    return Cause(onset.fault_class, frozenset({onset.device}), onset.at_ms, onset.at_ms, onset.at_ms, None, hard=True)
