"""Undoing at a person's word: through the guards, on record under a name, refused with one reason."""

from __future__ import annotations

import pytest

from tocsin.actions.loop.loop import ActionLoop
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import DecisionState, Mode, OutcomeStatus
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind, Category
from tocsin_testing.action_world import World, settings


def done(world: World, **more: object) -> str:
    """The id of a decision that was carried out and whose effect lasts."""
    world.break_gpu("GPU-0-0", **more)  # type: ignore[arg-type]
    for _ in range(4):
        world.step()
    status = next(s for s in world.loop.statuses() if s.decision.action is not ActionKind.NOTIFY)
    assert status.state is DecisionState.DONE
    return status.decision.id


def status_of(world: World, identity: str) -> object:
    return next(s for s in world.loop.statuses() if s.decision.id == identity)


def test_undoing_runs_the_inverse_though_the_cause_is_still_there() -> None:
    world = World()
    first = done(world)
    effect = world.loop.controls().effects
    assert len(effect) == 1
    undoing = world.loop.operator.undo(first, "ann", "its job ends at noon")
    for _ in range(4):
        world.step()
    found = status_of(world, undoing)
    assert found.decision.action is ActionKind.UNCORDON  # type: ignore[attr-defined]
    assert found.outcome.status is OutcomeStatus.RESTORED  # type: ignore[attr-defined]
    assert "ann undoes what was done: its job ends at noon" in found.decision.sentence  # type: ignore[attr-defined]
    assert world.loop.controls().effects == {}
    assert world.executor.done[-1] == found.decision.key  # type: ignore[attr-defined]


def test_undoing_is_on_record_under_the_name_of_who_asked() -> None:
    world = World()
    first = done(world)
    undoing = world.loop.operator.undo(first, "ann", "why not")
    mine = [(e.kind, e.payload.get("id", "")) for e in world.journal.log if e.actor == "ann"]
    assert mine == [("hold_off", ""), ("decision", undoing)]


def test_what_was_undone_is_not_done_again_for_the_same_cause() -> None:
    world = World()
    world.loop.operator.undo(done(world), "ann")
    for _ in range(12):
        world.step(advance=600_000)
    assert len(world.executor.done) == 2


def test_where_people_are_asked_the_undoing_is_approved_by_who_asks_for_it() -> None:
    world = World(settings(mode="propose"))
    world.break_gpu("GPU-0-0")
    world.step()
    first = next(s.decision.id for s in world.loop.statuses() if s.decision.action is ActionKind.CORDON)
    world.loop.operator.approve(first, "bob")
    for _ in range(4):
        world.step()
    undoing = world.loop.operator.undo(first, "ann")
    assert status_of(world, undoing).approved_by == "ann"  # type: ignore[attr-defined]
    for _ in range(4):
        world.step()
    assert status_of(world, undoing).state is DecisionState.DONE  # type: ignore[attr-defined]


def test_the_guards_are_asked_about_an_undoing_too() -> None:
    world = World()
    first = done(world)
    world.stale.add("GPU-0-0")
    undoing = world.loop.operator.undo(first, "ann")
    world.step(advance=HOUR // 4)
    held = {v.guard for v in status_of(world, undoing).verdicts if v.ruling != "allow"}  # type: ignore[attr-defined]
    assert "proof" in held
    assert len(world.executor.done) == 1


def test_a_pause_holds_an_undoing() -> None:
    world = World()
    first = done(world)
    world.loop.operator.pause("bob")
    undoing = world.loop.operator.undo(first, "ann")
    world.step()
    assert status_of(world, undoing).state is DecisionState.HELD  # type: ignore[attr-defined]
    world.loop.operator.resume("bob")
    for _ in range(4):
        world.step()
    assert status_of(world, undoing).state is DecisionState.DONE  # type: ignore[attr-defined]


def test_an_undoing_that_waits_survives_a_restart() -> None:
    world = World()
    first = done(world)
    world.loop.operator.pause("bob")
    undoing = world.loop.operator.undo(first, "ann")
    world.loop = ActionLoop(world.journal, [world.executor], world.clock, world.policy, world.notifier)
    world.loop.operator.resume("bob")
    for _ in range(4):
        world.step()
    assert status_of(world, undoing).state is DecisionState.DONE  # type: ignore[attr-defined]


def test_a_recovery_that_waits_already_is_approved_instead() -> None:
    world = World(settings(mode="propose"))
    world.break_gpu("GPU-0-0")
    world.step()
    first = next(s.decision.id for s in world.loop.statuses() if s.decision.action is ActionKind.CORDON)
    world.loop.operator.approve(first, "bob")
    for _ in range(4):
        world.step()
    world.faults.clear()
    world.step()
    due = next(s.decision.id for s in world.loop.statuses() if s.decision.action is ActionKind.UNCORDON)
    assert world.loop.operator.undo(first, "ann") == due
    assert status_of(world, due).approved_by == "ann"  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match=f"is being undone already, by decision {due}"):
        world.loop.operator.undo(first, "ann")


def test_asking_twice_is_refused_and_asking_again_after_a_failure_is_not() -> None:
    world = World()
    first = done(world)
    good = world.executor.result
    world.executor.result = type(good)(False, "no answer")
    undoing = world.loop.operator.undo(first, "ann")
    with pytest.raises(Conflict, match="is being undone already"):
        world.loop.operator.undo(first, "ann")
    world.step()
    assert status_of(world, undoing).state is DecisionState.FAILED  # type: ignore[attr-defined]
    world.executor.result = good
    again = world.loop.operator.undo(first, "ann")
    assert again != undoing
    for _ in range(4):
        world.step()
    assert status_of(world, again).state is DecisionState.DONE  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("action", "says"),
    [(ActionKind.RESET_GPU, "nothing undoes reset gpu"), (ActionKind.CHECKPOINT, "nothing undoes checkpoint")],
)
def test_an_action_without_inverse_is_refused(action: ActionKind, says: str) -> None:
    world = World()
    identity = done(world, action=action, category=Category.HARDWARE)
    before = len(world.journal.log)
    with pytest.raises(Conflict, match=says):
        world.loop.operator.undo(identity, "ann")
    assert len(world.journal.log) == before


def test_what_has_not_been_done_is_refused() -> None:
    world = World(settings(mode="propose"))
    world.break_gpu("GPU-0-0")
    world.step()
    waiting = next(s.decision.id for s in world.loop.statuses() if s.decision.action is ActionKind.CORDON)
    with pytest.raises(Conflict, match="cordon was not done: the decision is held"):
        world.loop.operator.undo(waiting, "ann")


def test_what_is_in_effect_no_more_is_refused() -> None:
    world = World()
    first = done(world)
    world.faults.clear()
    for _ in range(6):
        world.step()
    with pytest.raises(Conflict, match="cordon is in effect no more"):
        world.loop.operator.undo(first, "ann")


def test_who_only_watches_undoes_nothing() -> None:
    world = World()
    first = done(world)
    world.loop.operator.policy = type(world.policy)(settings(mode=Mode.OBSERVE))
    with pytest.raises(Conflict, match="rule hot only watches"):
        world.loop.operator.undo(first, "ann")


def test_nobody_undoes_nothing() -> None:
    world = World()
    with pytest.raises(Conflict, match="no decision 0000 is known"):
        world.loop.operator.undo("0000", "ann")
    with pytest.raises(InputError, match="person's name"):
        world.loop.operator.undo("0000", " ")


def test_the_journal_s_entries_about_a_decision_are_known() -> None:
    world = World()
    first = done(world)
    steps = status_of(world, first).steps  # type: ignore[attr-defined]
    kinds = [entry.kind for entry in world.journal.log if entry.seq in steps]
    assert kinds == ["decision", "verdict", "execution_started", "verification", "verification", "outcome"]
