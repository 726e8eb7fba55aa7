"""A step of the wall clock, in either direction, neither shortens nor lengthens what the actions wait for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.questions import Question
from tocsin.actions.model.steady import STEP_MS, SteadyInstants
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import TICK, World, settings
from tocsin_testing.builders import T0

REST = 30 * MINUTE
STEPS = [-30 * DAY, -HOUR, HOUR, 30 * DAY]


def begun(world: World) -> list[int]:
    """When cordons were begun."""
    starts = world.journal.of(EntryKind.EXECUTION_STARTED)
    return [entry.at_ms for entry in starts if entry.payload["action"] == ActionKind.CORDON]


def unseen_cordon(**more: object) -> World:
    """A cordon that ran and is not seen to work: it is tried again after its rest."""
    world = World(settings(cooldown_seconds=REST / SECOND, settle_seconds=0.0, time_box_seconds=60.0, **more))
    world.executor.seen = False
    world.break_gpu("GPU-0-0")
    while not begun(world):
        world.step()
    return world


def jump(world: World, by: int) -> None:
    world.clock.set(world.clock.now_ms() + by)


@pytest.mark.parametrize("by", STEPS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_of_the_clock_ends_no_rest(by: int, restarted: bool) -> None:
    """Before: a jump of an hour gave a second cordon at once, one backwards kept the GPU waiting for as long."""
    world = unseen_cordon()
    if restarted:
        world.restart()
    passed = 0
    for count in range(3 * REST // TICK):
        if count == 10:
            jump(world, by)
        world.step()
        passed += TICK
        if len(begun(world)) > 1:
            break
    assert REST - STEP_MS - TICK <= passed <= REST + 5 * TICK


def test_a_clock_that_was_ahead_before_a_restart_holds_a_rest_no_longer_than_the_rest() -> None:
    world = World(settings(cooldown_seconds=REST / SECOND, settle_seconds=0.0, time_box_seconds=60.0))
    jump(world, 400 * DAY)
    world.restart()
    world.executor.seen = False
    world.break_gpu("GPU-0-0")
    while not begun(world):
        world.step()
    jump(world, -400 * DAY)
    world.restart()
    world.faults.clear()
    world.break_gpu("GPU-0-0")
    passed = 0
    while len(begun(world)) < 2 and passed < 2 * REST:
        world.step()
        passed += TICK
    assert REST - TICK <= passed <= REST + 5 * TICK


@pytest.mark.parametrize("by", STEPS)
def test_a_step_of_the_clock_ends_no_hold_off(by: int) -> None:
    world = World(settings(hold_off_seconds=REST / SECOND))
    world.loop.operator.release(Subject(SubjectKind.HOST, "node-0", "node-0"), "anna")
    world.step()
    jump(world, by)
    world.break_gpu("GPU-0-0")
    passed = TICK
    while not begun(world) and passed < 3 * REST:
        world.step()
        passed += TICK
    assert REST - STEP_MS <= passed <= REST + 2 * TICK


@pytest.mark.parametrize("by", STEPS)
def test_a_step_of_the_clock_neither_ends_nor_prolongs_a_time_box(by: int) -> None:
    world = World(settings(mode=Mode.PROPOSE, time_box_seconds=REST / SECOND))
    world.break_gpu("GPU-0-0")
    world.step()
    made = world.only()
    jump(world, by)
    passed = 0
    while passed < 3 * REST:
        world.step()
        passed += TICK
        now = next(one for one in world.loop.statuses() if one.decision.key == made.decision.key)
        if now.state is DecisionState.EXPIRED:
            break
    assert REST - STEP_MS - TICK <= passed <= REST + 2 * TICK


@pytest.mark.parametrize("by", STEPS)
def test_a_step_of_the_clock_hides_no_root_cause_from_the_breaker(by: int) -> None:
    world = World(settings(breaker_root_causes=2, breaker_window_seconds=REST / SECOND))
    world.break_gpu("GPU-0-0")
    world.step()
    jump(world, by)
    world.break_gpu("GPU-1-0")
    world.step()
    assert world.loop.controls().breaker is not None


turns = st.lists(
    st.tuples(st.sampled_from(["passes", "jumps", "writes"]), st.integers(-40 * DAY, 40 * DAY)), max_size=30
)


@given(turns=turns)
def test_the_age_of_what_was_written_is_what_has_passed(turns: list[tuple[str, int]]) -> None:
    """Law: by the steady instant an entry is as old as the monotonic clock says, whatever the wall clock did."""
    clock = ManualClock(T0)
    steady = SteadyInstants(clock)
    written: dict[int, float] = {}
    for seq, (what, by) in enumerate(turns):
        if what == "passes":
            clock.advance(abs(by) // 1000)
        elif what == "jumps":
            clock.set(max(0, clock.now_ms() + by))
        elif clock.now_ms() not in written:
            steady.note(Entry(seq, 1, clock.now_ms(), "decision", "tocsin", {}, False, "", ""))
            written[clock.now_ms()] = clock.monotonic()
        for at_ms, since in written.items():
            age = clock.now_ms() - steady.today(at_ms)
            assert abs(age - (clock.monotonic() - since) * SECOND) <= 2 * STEP_MS + 1


@given(st.sampled_from(STEPS))
def test_a_step_of_the_clock_asks_nothing_sooner_or_later(step_ms: int) -> None:
    clock = ManualClock(T0)
    steady = SteadyInstants(clock)
    clock.advance(MINUTE)
    asked = Controls(questions={"memory_full|training": Question("key", T0)})
    clock.set(clock.now_ms() + step_ms)
    assert clock.now_ms() - steady.controls(asked).questions["memory_full|training"].at_ms == MINUTE
