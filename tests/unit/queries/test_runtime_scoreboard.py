"""What would have been done, and what came of it."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.actions.model.ledger_entry import DecisionStatus, LedgerEntry, held_by
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling, Verdict
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.scoreboard import is_hardware, score_crossings, scoreboard
from tocsin.store.port import Series
from tocsin_testing.action_world import World, settings
from tocsin_testing.builders import T0, gpu, xid

SUBJECT = Subject(SubjectKind.GPU, gpu(1).uuid, "node-1")


def prediction(at_ms: int, lead_ms: int, *, threshold: float = 85.0, value: float = 60.0) -> Prediction:
    return Prediction(
        subject=SUBJECT,
        target="time_to_threshold:gpu_temperature_celsius",
        at_ms=at_ms,
        horizon_ms=4 * HOUR,
        status=PredictionStatus.CROSSING,
        model="m",
        model_version="1",
        sentence="",
        metric="gpu_temperature_celsius",
        threshold=threshold,
        value=value,
        eta_ms=at_ms + lead_ms,
        eta_low_ms=at_ms + lead_ms - MINUTE,
        eta_high_ms=at_ms + lead_ms + MINUTE,
    )


def rising_to_85_at(crossing_ms: int):  # type: ignore[no-untyped-def]
    def series_of(uuid: str, metric: str, start_ms: int, end_ms: int) -> Series:
        at = np.arange(start_ms, end_ms, MINUTE, dtype=np.int64)
        return Series(uuid, (metric,), at, np.where(at >= crossing_ms, 90.0, 60.0)[:, None])

    return series_of


def test_a_hit_has_a_lead_and_a_miss_has_none() -> None:
    made = [prediction(T0, 30 * MINUTE)]
    hit = score_crossings(made, rising_to_85_at(T0 + 30 * MINUTE), T0 + 10 * HOUR)[0]
    assert (hit.made, hit.hits, hit.misses, hit.pending) == (1, 1, 0, 0)
    assert (hit.lead_s, hit.within_interval) == ([1800.0], 1)
    miss = score_crossings(made, rising_to_85_at(T0 + 9 * HOUR), T0 + 10 * HOUR)[0]
    assert (miss.hits, miss.misses, miss.pending) == (0, 1, 0)
    waiting = score_crossings(made, rising_to_85_at(T0 + 9 * HOUR), T0 + HOUR)[0]
    assert (waiting.hits, waiting.misses, waiting.pending) == (0, 0, 1)


def test_a_crossing_counts_no_sooner_than_its_window_is_over() -> None:
    made = [prediction(T0, 30 * MINUTE)]
    early = score_crossings(made, rising_to_85_at(T0 + 30 * MINUTE), T0 + 2 * HOUR)[0]
    assert (early.made, early.hits, early.pending, early.lead_s) == (1, 0, 1, [])
    one, event = [status({"mode": Ruling.HOLD})], [xid(79, gpu(1), T0 + HOUR)]
    assert board(one, event, T0 + 2 * HOUR).rules[0].pending == 1


def test_repeating_a_prediction_counts_once() -> None:
    made = [prediction(T0 + n * 5 * MINUTE, HOUR) for n in range(20)]
    score = score_crossings(made, rising_to_85_at(T0 + HOUR), T0 + 10 * HOUR)[0]
    assert (score.made, score.hits, score.within_interval) == (1, 1, 1)


def test_what_is_already_crossed_is_no_prediction() -> None:
    score = score_crossings([prediction(T0, 0, value=90.0)], rising_to_85_at(T0 - HOUR), T0 + 10 * HOUR)[0]
    assert (score.made, score.hits) == (0, 0)


def test_a_falling_metric_crosses_downwards() -> None:
    made = [prediction(T0, 30 * MINUTE, threshold=5.0, value=40.0)]

    def falling(uuid: str, metric: str, start_ms: int, end_ms: int) -> Series:
        at = np.arange(start_ms, end_ms, MINUTE, dtype=np.int64)
        return Series(uuid, (metric,), at, np.where(at >= T0 + 30 * MINUTE, 4.0, 40.0)[:, None])

    assert score_crossings(made, falling, T0 + 10 * HOUR)[0].lead_s == [1800.0]


def status(guards: dict[str, Ruling], rule: str = "hot", at_ms: int = T0) -> DecisionStatus:
    decision = Decision(
        rule=rule,
        subject=SUBJECT,
        action=ActionKind.DRAIN,
        mode=Mode.OBSERVE,
        severity=Severity.CRITICAL,
        category=Category.HARDWARE,
        at_ms=at_ms,
        expires_ms=at_ms + HOUR,
        key=f"{rule}|{at_ms}",
        sentence="",
    )
    verdicts = tuple(Verdict(name, ruling) for name, ruling in guards.items())
    return DecisionStatus(decision, verdicts, Ruling.HOLD, DecisionState.HELD, None, "", at_ms)


def board(statuses: list[DecisionStatus], events: list[Event], now_ms: int):  # type: ignore[no-untyped-def]
    empty = score_crossings([], rising_to_85_at(T0), now_ms)[0]
    return scoreboard(statuses, events, empty, mode=Mode.OBSERVE, simulated=False, since_ms=T0, now_ms=now_ms)


def test_only_the_mode_in_the_way_means_would_have_acted() -> None:
    allow = {"pause": Ruling.ALLOW}
    found = board(
        [
            status(allow | {"mode": Ruling.HOLD}, at_ms=T0),
            status(allow | {"mode": Ruling.HOLD, "approval": Ruling.HOLD}, at_ms=T0 + 1),
            status(allow | {"mode": Ruling.HOLD, "managed": Ruling.HOLD}, at_ms=T0 + 2),
        ],
        [],
        T0 + HOUR,
    )
    assert (found.decisions, found.would_have_acted) == (3, 2)
    assert found.held_by == {"mode": 3, "approval": 1, "managed": 1}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_decision_that_waited_for_a_person_alone_counts_also_when_more_held_it_later(restarts: bool) -> None:
    made = World(settings(earn_waived=[]))
    made.break_gpu("GPU-0-0", action=ActionKind.CHECKPOINT)
    for _ in range(4):
        made.step()
    assert any(one.waits_for_person for one in made.loop.statuses())
    made.stale.add("GPU-0-0")
    made.step()
    made.faults.clear()
    made.step(advance=DAY)
    if restarts:
        made.restart()
    (one,) = (one for one in made.loop.statuses() if one.decision.action is not ActionKind.NOTIFY)
    assert (one.state, held_by(one.verdicts)) == (DecisionState.EXPIRED, {"approval", "fresh_data"})
    found = board([one], [], made.clock.now_ms())
    assert (found.would_have_acted, found.rules[0].would_have_acted) == (1, 1)
    assert {"approval": 1, "fresh_data": 1}.items() <= found.held_by.items()


def test_what_another_guard_held_as_long_as_it_lasted_would_not_have_acted() -> None:
    entry = LedgerEntry(status({}).decision, T0)
    for guards in ({"approval": Ruling.HOLD, "managed": Ruling.HOLD}, {"managed": Ruling.HOLD}):
        entry.hear(tuple(Verdict(name, ruling) for name, ruling in guards.items()), Ruling.HOLD)
    found = board([entry.status()], [], T0 + HOUR)
    assert (found.would_have_acted, found.held_by) == (0, {"approval": 1, "managed": 1})


def test_a_later_hardware_event_confirms_and_an_earlier_or_a_programs_fault_does_not() -> None:
    one = [status({"mode": Ruling.HOLD})]
    late = T0 + 100 * HOUR
    assert board(one, [xid(79, gpu(1), T0 + HOUR)], late).confirmed == 1
    assert board(one, [xid(79, gpu(1), T0 - HOUR)], late).confirmed == 0
    assert board(one, [xid(31, gpu(1), T0 + HOUR)], late).confirmed == 0
    assert board(one, [xid(79, gpu(2), T0 + HOUR)], late).confirmed == 0
    assert board(one, [xid(79, gpu(1), T0 + 49 * HOUR)], late).rules[0].unconfirmed == 1
    assert board(one, [], T0 + HOUR).rules[0].pending == 1


def test_what_counts_as_a_hardware_event() -> None:
    assert is_hardware(xid(79))
    assert is_hardware(xid(95))
    assert not is_hardware(xid(13))
    assert not is_hardware(xid(43))
