"""Laws of every store: events, findings and predictions are kept once, whole, and the last state of each wins."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence, Severity, Subject, SubjectKind
from tocsin.domain.prediction import PredictionStatus
from tocsin_testing.builders import gpu, xid
from tocsin_testing.law_words import T, finding, prediction
from tocsin_testing.stores import Harness


def test_events_come_back_once(h: Harness) -> None:
    lost = Event(EventKind.GPU_LOST, "", "node-1", T, 0, 'line one\nline "two" \\', "kmsg", True)
    written = [xid(48, gpu(0), T), xid(63, gpu(0), T), xid(48, gpu(1), T + 1), lost]
    for _ in range(2):
        h.store.write(Batch(events=written))
    h.settle()
    found = h.store.events(T, T + 2)
    assert sorted(found, key=lambda e: e.id) == sorted(written, key=lambda e: e.id)
    assert [e.at_ms for e in found] == [T, T, T, T + 1]
    assert {e.code for e in h.store.events(T, T + 2, "GPU-00000000")} == {48, 63}
    assert h.store.events(T, T + 2, "") == [lost]


def test_what_an_event_weighs_comes_back_and_its_last_state_wins(h: Harness) -> None:
    mild = replace(xid(149, gpu(0), T), severity=Severity.WARNING, remedy="ignore")
    for one in (xid(149, gpu(0), T), mild):
        h.store.write(Batch(events=[one]))
    h.settle()
    assert h.store.events(T, T + 1) == [mild]
    h.store.write(Batch(events=[xid(149, gpu(0), T)]))
    h.settle()
    assert h.store.events(T, T + 1) == [xid(149, gpu(0), T)]


def test_ranges_of_events_have_their_start_and_not_their_end(h: Harness) -> None:
    h.store.write(Batch(events=[xid(79, at_ms=T + step) for step in range(3)]))
    h.settle()
    assert [event.at_ms - T for event in h.store.events(T + 1, T + 2)] == [1]
    assert h.store.events(T + 1, T + 1) == []


def test_a_finding_is_kept_once_and_its_last_state_wins(h: Harness) -> None:
    first = finding(gpu(0), T, T)
    last = replace(first, last_ms=T + MINUTE, value=None, severity=Severity.CRITICAL, evidence=())
    other = finding(gpu(1), T - HOUR, T + 5, simulated=True, subject=Subject(SubjectKind.POOL, "p", detail="12"))
    for one in (first, other, last):
        h.store.write(Batch(findings=[one]))
    h.settle()
    assert h.store.findings(T, T + HOUR) == [other, last]
    assert h.store.findings(T + 6, T + HOUR) == [last]
    assert h.store.findings(T, T + 5) == []


def test_a_whole_number_is_as_good_as_a_float(h: Harness) -> None:
    written = finding(gpu(0), T, T, value=91, threshold=85)
    h.store.write(Batch(findings=[written]))
    h.store.write(Batch(findings=[replace(written, value=91.5)]))
    h.settle()
    assert h.store.findings(T, T + 1) == [replace(written, value=91.5)]


def test_predictions_come_back_once(h: Harness) -> None:
    written = [
        prediction(gpu(0), T),
        prediction(gpu(1), T + 1, status=PredictionStatus.NOT_ENOUGH_DATA, probability=None, eta_ms=None, reason="few"),
        prediction(gpu(0), T + 2, evidence=(Evidence("n", "t", T, 0.25),), value=1.0, threshold=85.0),
    ]
    for _ in range(2):
        h.store.write(Batch(predictions=written))
    h.settle()
    assert h.store.predictions(T, T + 3) == written
    assert h.store.predictions(T, T + 2, "GPU-00000000") == written[:1]
