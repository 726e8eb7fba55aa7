"""The report of a real fleet: what its journal can tell, and a reason where it cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from tocsin.actions.loop.notifications import UNWANTED
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.pager_journal import (
    MOST_DECIDED,
    JournalSpan,
    breaker_trips,
    decided,
    journal_report,
    muted_shares,
    settled_cases,
    trips_by_forecast,
)
from tocsin.queries.pager_score import BreakerTrip
from tocsin.queries.series_cache import FEW_TOGETHER
from tocsin.queries.statement_score import score_statements
from tocsin.store.memory import MemoryStore
from tocsin.store.port import Columns, Series

T0 = 1_760_000_000_000
END = T0 + 2 * DAY


def entry(what: str, at_ms: int, /, **payload: Any) -> Entry:
    return Entry(1, 1, at_ms, what, "tocsin", payload, False, "", "")


def told(at_ms: int, gpu: str, severity: Severity = Severity.CRITICAL) -> DecisionStatus:
    decision = Decision(
        rule="xid_bus",
        subject=Subject(SubjectKind.GPU, gpu, "n1"),
        action=ActionKind.NOTIFY,
        mode=Mode.OBSERVE,
        severity=severity,
        category=Category.HARDWARE,
        at_ms=at_ms,
        expires_ms=at_ms + HOUR,
        key=f"{gpu}|{at_ms}",
        sentence="",
        findings=(),
    )
    return DecisionStatus(decision, (), Ruling.ALLOW, DecisionState.DONE, None, "", at_ms)


def xid(at_ms: int, gpu: str, code: int = 79) -> Event:
    return Event(EventKind.XID, gpu, "n1", at_ms, code)


def sent(status: DecisionStatus, level: str = "page", **payload: Any) -> Entry:
    """The entry that a receiver got the notification, alone or in the message that `payload` names."""
    about = {"decision": status.decision.id, "key": status.decision.key}
    return entry(
        EntryKind.NOTIFICATION,
        status.decision.at_ms,
        **({"channel": "chat", "ok": True, "level": level} | about | payload),
    )


def span(statuses: list[DecisionStatus], events: list[Event], entries: list[Entry] | None = None) -> JournalSpan:
    return JournalSpan(entries or [], statuses, events, [], T0, END, frozenset({"memory_forecast"}))


def test_hardware_events_of_a_gpu_within_ten_minutes_are_one_fault() -> None:
    events = [xid(T0 + HOUR, "GPU-a"), xid(T0 + HOUR + 5 * MINUTE, "GPU-a", 48), xid(T0 + 8 * HOUR, "GPU-a")]
    page = told(T0 + HOUR + MINUTE, "GPU-a")
    report = journal_report(span([page], events, [sent(page)]), [])
    assert (report.hard_faults, report.recall, report.prompt_recall) == (2, 0.5, 0.5)
    assert [(one.kind, one.faults, one.paged) for one in report.faults] == [("xid 79", 2, 1)]
    assert (report.pages, report.pages_right, report.pages_per_cause) == (1, 1, 1.0)


def test_a_page_about_either_end_of_a_link_is_about_its_one_fault() -> None:
    events = [xid(T0 + HOUR, "GPU-a", 74), xid(T0 + HOUR + SECOND, "GPU-b", 74)]
    for named in ("GPU-a", "GPU-b"):
        page = told(T0 + HOUR + MINUTE, named)
        report = journal_report(span([page], events, [sent(page)]), [])
        assert [(one.kind, one.faults, one.paged) for one in report.faults] == [("xid 74", 1, 1)]


def test_a_crash_of_a_program_is_no_hard_fault() -> None:
    report = journal_report(span([], [xid(T0 + HOUR, "GPU-a", 31)]), [])
    assert report.hard_faults == 0
    assert report.recall is None
    assert "recall" in report.unknown


def test_what_the_field_cannot_tell_is_null_with_a_reason() -> None:
    page = told(T0 + HOUR, "GPU-a")
    report = journal_report(span([page], [], [sent(page)]), [])
    assert report.pages == 1
    assert report.precision is None
    assert report.pages_per_cause is None
    assert not report.nulls
    assert {"precision", "pages_per_cause", "nulls", "early", "wrong", "hard_faults"} <= set(report.unknown)
    assert all(report.unknown.values())


def test_warnings_and_notes_are_counted_by_level() -> None:
    note = {"rule": "memory_full", "subject": {"name": "GPU-a"}, "severity": "warning", "level": "note"}
    entries = [
        entry(EntryKind.FINDING_OPENED, T0 + HOUR, id="f1", finding=note),
        entry(EntryKind.INCIDENT_OPENED, T0 + HOUR, id="f1", root="f1"),
        entry(EntryKind.FINDING_OPENED, T0 + HOUR, id="f2", finding=note | {"level": None}),
        entry(EntryKind.INCIDENT_OPENED, T0 + HOUR, id="f2", root="f2"),
    ]
    warning, failed = told(T0 + HOUR, "GPU-a", Severity.WARNING), told(T0 + HOUR, "GPU-b")
    entries += [sent(warning, level=""), sent(failed, ok=False)]
    report = journal_report(span([warning, failed], [], entries), [])
    assert (report.pages, report.warnings, report.notes) == (0, 1, 1)


def test_a_message_counts_once_however_many_notifications_and_receivers_it_has() -> None:
    statuses = [told(T0 + HOUR, f"GPU-{n}") for n in range(3)]
    gathered = {"page": "summary", "page_key": "more"}
    entries = [sent(one, channel=channel, **gathered) for one in statuses for channel in ("chat", "mail")]
    unwanted = told(T0 + 2 * HOUR, "GPU-9")
    entries += [
        sent(statuses[0], ended=[statuses[0].decision.key]),
        sent(unwanted, channel="journal", outcome={"detail": UNWANTED}),
    ]
    report = journal_report(span([*statuses, unwanted], [xid(T0 + HOUR, "GPU-2")], entries), [])
    assert (report.pages, report.pages_right) == (1, 1)


def test_a_trip_counts_as_a_forecasts_where_a_forecast_was_among_its_causes() -> None:
    def counted(rule: str) -> list[Entry]:
        return [
            entry(EntryKind.DECISION, T0, id="d1", rule=rule),
            entry(EntryKind.VERDICT, T0, decision="d1", cause="host:n1"),
            entry(EntryKind.BREAKER_TRIPPED, T0, causes=["host:n1", "host:n2"]),
        ]

    assert trips_by_forecast(counted("memory_forecast"), frozenset({"memory_forecast"})) == 1
    assert trips_by_forecast(counted("xid_bus"), frozenset({"memory_forecast"})) == 0


def made(name: str, at_ms: int = T0, rule: str = "xid_bus", action: str = "cordon", host: str = "n1") -> Entry:
    subject = {"kind": "gpu", "name": f"GPU-{name}", "host": host}
    return entry(EntryKind.DECISION, at_ms, id=name, rule=rule, action=action, subject=subject)


def verdict(name: str, at_ms: int, *holding: str, **more: Any) -> Entry:
    verdicts = [{"guard": guard, "ruling": "hold"} for guard in holding] + [{"guard": "evidence", "ruling": "allow"}]
    return entry(EntryKind.VERDICT, at_ms, decision=name, verdicts=verdicts, **more)


def test_a_trip_names_the_places_that_its_causes_were_counted_for_within_the_window() -> None:
    entries = [
        made("a"),
        made("b", host="n2"),
        made("c", host="n3"),
        verdict("a", T0, cause="host:n1"),
        verdict("b", T0 + HOUR, cause="hardware|rack:r1"),
        verdict("c", T0 + 2 * HOUR, cause="hardware|rack:r1"),
        entry(EntryKind.BREAKER_TRIPPED, T0 + 2 * HOUR, causes=["hardware|rack:r1", "host:n1"]),
    ]
    named = (frozenset({"GPU-b", "n2", "GPU-c", "n3"}), frozenset[str]())
    assert breaker_trips(entries, 3, 90 * MINUTE) == [BreakerTrip(T0 + 2 * HOUR, T0 + 30 * MINUTE, 3, named)], (
        "the cause of two hours ago is out of the window"
    )


def test_decisions_are_counted_by_rule_action_and_end() -> None:
    entries = [
        made("told", action=str(ActionKind.NOTIFY)),
        made("begun"),
        entry(EntryKind.EXECUTION_STARTED, T0, decision="begun"),
        made("denied"),
        verdict("denied", T0, "opt_out", state="rejected"),
        made("refused"),
        verdict("refused", T0, "approval"),
        entry(EntryKind.REJECTION, T0, decision="refused"),
        made("unheard"),
        verdict("unheard", T0, "boot_grace", "approval"),
        verdict("unheard", T0, "approval", "mode"),
        verdict("unheard", T0, "limits", state="expired"),
        made("open"),
        verdict("open", T0, "approval"),
        made("late"),
        verdict("late", T0, "boot_grace", "approval", state="expired"),
        made("in vain"),
        verdict("in vain", T0, "approval"),
        entry(EntryKind.APPROVAL, T0, decision="in vain"),
        verdict("in vain", T0, "limits", state="expired"),
        made("waits", rule="memory_full", action="drain"),
        verdict("waits", T0, "limits"),
        verdict("of before", T0, "limits", state="expired"),
        made("waits", rule="memory_full", action="drain"),
    ]
    told = [(one.rule, one.action, one.end, one.count) for one in decided(entries)]
    assert told == [
        ("xid_bus", "cordon", "expired", 2),
        ("xid_bus", "cordon", "proposed", 2),
        ("xid_bus", "cordon", "rejected", 2),
        ("memory_full", "drain", "held", 1),
        ("xid_bus", "cordon", "executed", 1),
    ]
    assert [one.model_dump() for one in journal_report(span([], [], entries), []).decided] == [
        dict(zip(("rule", "action", "end", "count"), one, strict=True)) for one in told
    ]


def test_the_count_of_decisions_is_bounded() -> None:
    found = decided([made(str(n), rule=f"r{n}") for n in range(MOST_DECIDED + 50)] + [made("more", rule="r149")])
    assert len(found) == MOST_DECIDED
    assert (found[0].rule, found[0].count) == ("r149", 2), "the most frequent stay"


def test_the_muted_share_is_of_the_time_in_the_span() -> None:
    entries = [
        entry("forecast_muted", T0, kind="a"),
        entry("forecast_heard", T0 + 6 * HOUR, kind="a"),
        entry("forecast_muted", T0 + 36 * HOUR, kind="a"),
        entry("forecast_muted", T0 + DAY, kind="b"),
        entry("forecast_heard", T0 + DAY, kind="c"),
    ]
    assert muted_shares(entries, T0, END) == {"a": 18 / 48, "b": 0.5}


FLEET = [Gpu(f"GPU-{n * 37 % 100:03d}", f"n{n // 8}") for n in range(FEW_TOGETHER + 6)]


def fault_said(of: Gpu, status: PredictionStatus, probability: float) -> Prediction:
    subject = Subject(SubjectKind.GPU, of.uuid, of.host)
    return Prediction(subject, "hardware_fault", T0, DAY, status, "hazard", "1", "", probability=probability)


def test_statements_about_faults_are_settled_by_the_onsets_of_the_fleet() -> None:
    store, (warned, struck, quiet, silent) = MemoryStore(), FLEET[:4]
    store.write(Batch(readings=[Reading(one, T0 + 6 * HOUR, {}) for one in FLEET[:4]]))
    store.write(Batch(readings=[Reading(one, T0 + 20 * HOUR, {}) for one in (warned, struck, quiet)]))
    store.write(Batch(events=[xid(T0 + HOUR, struck.uuid), xid(T0 + HOUR, quiet.uuid, 31)]))
    store.write(Batch(predictions=[fault_said(one, PredictionStatus.LIKELY, 0.5) for one in (warned, struck)]))
    store.write(Batch(predictions=[fault_said(one, PredictionStatus.UNLIKELY, 0.1) for one in (quiet, silent)]))
    (score,) = score_statements(settled_cases(store, FLEET, T0, END), {})
    assert (score.kind, score.settled, score.right) == ("hardware_fault by hazard", 2, 1)
    assert score.observed == pytest.approx(1 / 3), "the one that went silent is in no figure"
    assert score.brier == pytest.approx((0.25 + 0.25 + 0.01) / 3)
    assert not [case for case in settled_cases(store, FLEET, T0, T0 + HOUR) if case.settled]


class Reads(MemoryStore):
    """Counts reads of columns; refuses those of one series."""

    columns_read = 0

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        self.columns_read += 1
        return super().columns(metrics, start_ms, end_ms, gpus)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        raise AssertionError("one by one")


def test_each_series_is_read_once_however_many_statements_there_are() -> None:
    store, metrics = Reads(), ("gpu_memory_used_ratio", "gpu_temperature_celsius")
    left = Gpu("GPU-left", "n1")
    for at_ms in range(T0, END, HOUR):
        store.write(Batch(readings=[Reading(one, at_ms, dict.fromkeys(metrics, 0.6)) for one in (*FLEET, left)]))
    made = [
        Prediction(
            subject=Subject(SubjectKind.GPU, one.uuid, one.host),
            target=f"time_to_threshold:{metric}",
            at_ms=T0 + hour * HOUR,
            horizon_ms=6 * HOUR,
            status=PredictionStatus.CROSSING,
            model="line",
            model_version="1",
            sentence="",
            metric=metric,
            threshold=0.9,
            value=0.6,
            probability=0.7,
            eta_ms=T0 + hour * HOUR + HOUR,
            eta_low_ms=T0 + hour * HOUR + MINUTE,
            eta_high_ms=T0 + hour * HOUR + 2 * HOUR,
            coverage=0.8,
        )
        for one in (*FLEET, left)
        for metric in metrics
        for hour in (0, 12, 24)
    ]
    store.write(Batch(predictions=made))
    cases = settled_cases(store, FLEET, T0, END)
    assert len(cases) == len(made)
    assert [case.said.at_ms for case in cases] == sorted(case.said.at_ms for case in cases)
    assert store.columns_read == len(metrics) * 3, "the fleet in two parts, and the one that has left"
