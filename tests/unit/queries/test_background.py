"""Long reckonings beside the service: one at a time by name, kept for a while, bounded in time."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tocsin.domain.clock import ManualClock, SystemClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.queries.background import BackgroundTasks
from tocsin_testing.builders import T0


def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def fails(number: int) -> int:
    raise InputError("number", number, "is wrong", "give another")


def dies(number: int) -> int:
    os._exit(number)


def hangs(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_an_answer_is_kept_and_made_anew_once_it_is_old() -> None:
    clock, asked = ManualClock(T0), []
    desk = BackgroundTasks(clock, apart=False, keep_s=60.0)

    def part() -> int:
        asked.append(1)
        return len(asked)

    assert desk.ask("a", double, part).value[0] == 2
    assert desk.ask("a", double, part).value[0] == 2
    assert desk.ask("b", double, part).value[0] == 4
    clock.advance(61_000)
    assert desk.ask("a", double, part).value[0] == 6


def test_it_is_done_in_another_process_that_ends() -> None:
    desk = BackgroundTasks(SystemClock(), apart=True, wait_s=60.0)
    made = desk.ask("a", double, lambda: 21)
    assert made.value[0] == 42
    assert made.value[1] != os.getpid()
    assert made.took_s > 0
    with pytest.raises(OSError, match="No such process"):
        os.kill(made.value[1], 0)


@pytest.mark.parametrize(("work", "says"), [(fails, "number = 1: is wrong"), (dies, "process died")])
def test_a_failure_is_told_in_words(work: object, says: str) -> None:
    desk = BackgroundTasks(SystemClock(), apart=True, wait_s=60.0)
    with pytest.raises(Unavailable, match=says):
        desk.ask("a", work, lambda: 1)  # type: ignore[arg-type]


def test_what_takes_too_long_is_ended() -> None:
    desk = BackgroundTasks(SystemClock(), apart=True, wait_s=60.0, limit_s=0.01)
    with pytest.raises(Unavailable, match="took longer than"):
        desk.ask("a", hangs, lambda: 600.0)


def test_nobody_waits_longer_than_agreed_and_no_more_than_two_run() -> None:
    desk = BackgroundTasks(SystemClock(), apart=True, wait_s=0.01, limit_s=60.0)
    held = threading.Event()

    def part() -> float:
        held.wait(60.0)
        return 0.0

    for name in ("a", "b", "a"):
        with pytest.raises(Unavailable, match=f"{name} is being worked out"):
            desk.ask(name, hangs, part)
    with pytest.raises(Unavailable, match="other plans and forecasts"):
        desk.ask("c", hangs, part)
    held.set()


def test_a_failure_of_what_is_asked_for_is_told_too() -> None:
    def part() -> int:
        raise Unavailable("the store does not answer")

    desk = BackgroundTasks(SystemClock(), apart=True, wait_s=60.0)
    with pytest.raises(Unavailable, match="the store does not answer"):
        desk.ask("a", double, part)
