"""Work in threads: when it is called, what wakes it, and how often it looks at the clock meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tocsin.domain.clock import Clock, ManualClock, SystemClock
from tocsin.domain.errors import Unavailable
from tocsin.runtime.brain.periodic import Periodic

PATIENT = 30.0


class Looked(SystemClock):
    """The machine's clock, which counts how often somebody looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


class Work:
    """Says when it was called."""

    def __init__(self) -> None:
        self.called = threading.Semaphore(0)

    def __call__(self) -> None:
        self.called.release()

    def waits(self, seconds: float = PATIENT) -> bool:
        return self.called.acquire(timeout=seconds)


def running(work: Callable[[], None], seconds: float, clock: Clock, **more: object) -> Periodic:
    made = Periodic("work", work, seconds, clock, **more)  # type: ignore[arg-type]
    made.start()
    return made


def test_the_machine_s_clock_is_slept_through() -> None:
    clock, work = Looked(), Work()
    thread = running(work, 0.2, clock)
    assert all(work.waits() for _ in range(4))
    thread.stop()
    # Looking every 50 ms would be 4 looks more for each call; there is one before a call and one after it.
    assert clock.looks <= 4 * thread.calls + 2


def test_a_clock_that_is_stepped_is_followed() -> None:
    clock, work = ManualClock(), Work()
    thread = running(work, 3600.0, clock)
    assert work.waits(), "the first call is due at once"
    clock.advance(3_600_000)
    assert work.waits()
    thread.stop()
    assert thread.calls == 2


def test_what_wakes_it_is_done_at_once_however_far_the_next_call_is() -> None:
    clock, work, woken, wake = SystemClock(), Work(), Work(), threading.Event()
    thread = running(work, 86_400.0, clock, wake=wake, on_wake=woken)
    assert work.waits()
    wake.set()
    assert woken.waits()
    thread.stop()
    assert not thread._thread.is_alive()


@pytest.mark.parametrize("error", [Unavailable("the store is away"), ValueError("odd")])
def test_a_failure_is_counted_told_and_no_end(error: Exception) -> None:
    failed, work = list[str](), Work()

    def fail() -> None:
        work()
        raise error

    thread = running(fail, 0.01, SystemClock(), on_failure=failed.append)
    assert all(work.waits() for _ in range(3))
    thread.stop()
    assert thread.failures == thread.calls == len(failed) >= 3
    assert set(failed) == {"work"}
