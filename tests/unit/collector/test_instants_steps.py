"""No instant twice, whatever the wall clock does."""

from __future__ import annotations

from tocsin.collector import instants as module
from tocsin.collector.instants import Instants
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0


def made() -> tuple[ManualClock, OwnMetrics, Instants]:
    clock, own = ManualClock(T0), OwnMetrics()
    return clock, own, Instants(clock, own)


def test_readings_are_dated_by_the_clock() -> None:
    clock, own, instants = made()
    for n in range(5):
        assert instants.next() == T0 + n * 10 * SECOND
        clock.advance(10 * SECOND)
    assert own.value("tocsin_clock_steps_total", direction="back") == 0
    assert own.value("tocsin_clock_steps_total", direction="forward") == 0


def test_an_instant_that_comes_again_moves_to_the_next_free_millisecond() -> None:
    clock, _own, instants = made()
    seen = [instants.next() for _ in range(3)]
    assert seen == [T0, T0 + 1, T0 + 2]
    clock.advance(2)
    assert instants.next() == T0 + 3


def test_a_step_back_by_whole_intervals_meets_no_instant_again() -> None:
    clock, own, instants = made()
    seen = []
    for n in range(1_000):
        if n in (300, 700):
            clock.set(clock.now_ms() - HOUR)
        seen.append(instants.next())
        clock.advance(10 * SECOND)
    assert len(set(seen)) == 1_000
    assert max(abs(at - expected) for at, expected in zip(seen[:300], range(T0, T0 + HOUR, 10_000), strict=False)) == 0
    assert min(seen[300:]) >= T0 - HOUR, "time that was corrected is not held up"
    assert own.value("tocsin_clock_steps_total", direction="back") == 2


def test_steps_are_counted_by_direction_and_small_ones_are_not() -> None:
    clock, own, instants = made()
    for offset in (0, 400, -400, HOUR, -HOUR, -HOUR):
        clock.set(clock.now_ms() + offset)
        instants.next()
        clock.advance(SECOND)
    assert own.value("tocsin_clock_steps_total", direction="forward") == 1
    assert own.value("tocsin_clock_steps_total", direction="back") == 2


def test_memory_is_bounded() -> None:
    clock, _, instants = made()
    for _ in range(module.KEPT + 2 * module.SLACK):
        instants.next()
        clock.advance(SECOND)
    assert len(instants._used) <= module.KEPT + module.SLACK
    clock.set(clock.now_ms() - HOUR)
    assert instants.next() == clock.now_ms() + 1, "what is kept is the newest"
