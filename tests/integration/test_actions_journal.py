"""The loop over the real journal: closed and opened again, verified, nothing repeated."""

from __future__ import annotations

from pathlib import Path

from tocsin.actions.loop.loop import ActionLoop
from tocsin.domain.decision import DecisionState
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.action_world import World, settings


def _open(world: World, path: Path) -> Journal:
    journal = Journal.open(path, world.clock)
    world.loop = ActionLoop(journal, [world.executor], world.clock, world.policy, world.notifier)
    return journal


def test_restart_over_the_file_continues_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    world = World(settings(breaker_root_causes=2))
    journal = _open(world, path)
    world.break_gpu("GPU-0-0")
    world.step()
    world.break_gpu("GPU-1-0")
    world.step()
    world.loop.operator.pause("ann")
    before, controls = world.loop.statuses(), world.loop.controls()
    journal.close()

    journal = _open(world, path)
    assert world.loop.statuses() == before
    assert world.loop.controls() == controls
    assert controls.breaker is not None
    world.loop.operator.resume("ann")
    world.loop.operator.reset_breaker("ann")
    for _ in range(4):
        world.step()
    journal.close()
    assert len(world.executor.done) == 2
    states = {s.decision.key: s.state for s in world.loop.statuses() if s.decision.key in world.executor.done}
    assert set(states.values()) == {DecisionState.DONE}
    result = verify(path)
    assert result.ok, result.problem


def test_simulated_decisions_are_marked_in_the_journal(tmp_path: Path) -> None:
    world = World()
    journal = _open(world, tmp_path / "journal.db")
    world.break_gpu("GPU-0-0", simulated=True)
    world.step()
    assert {entry.simulated for entry in journal.entries()} == {True}
    journal.close()
