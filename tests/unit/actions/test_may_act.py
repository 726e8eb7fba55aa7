"""Right before an executor is called the loop asks once more whether this brain may act."""

from __future__ import annotations

from tocsin.actions.loop.loop import ActionLoop
from tocsin.domain.decision import DecisionState
from tocsin.domain.entry import EntryKind
from tocsin_testing.action_world import World


class Stopped(World):
    """A brain that was stopped after a start was put on record: `may` is what its lease says when it goes on."""

    def __init__(self) -> None:
        self.may = True
        super().__init__()

    def restart(self) -> None:
        super().restart()
        self.loop = ActionLoop(
            self.journal, [self.executor], self.clock, self.policy, self.notifier, may_act=lambda: self.may
        )


def test_an_executor_is_not_called_once_the_lease_is_over_and_once_when_it_is_renewed() -> None:
    world = Stopped()
    world.break_gpu("GPU-0-0")
    world.may = False
    world.step()
    assert len(world.journal.of(EntryKind.EXECUTION_STARTED)) == 1
    assert world.executor.done == []
    assert world.only().state is DecisionState.EXECUTING
    world.may = True
    world.step()
    world.step()
    assert len(world.executor.done) == 1
    assert len(world.journal.of(EntryKind.EXECUTION_STARTED)) == 1


def test_one_that_does_not_lead_ends_nothing_and_follows() -> None:
    world = Stopped()
    world.break_gpu("GPU-0-0")
    world.may = False
    world.step()
    before = len(world.journal.log)
    other = ActionLoop(world.journal, [world.executor], world.clock, world.policy, leads=False)
    assert len(world.journal.log) == before, "what another has begun is not interrupted by who only looks on"
    assert [one.state for one in other.statuses() if one.decision.action == world.only().decision.action] == [
        DecisionState.EXECUTING
    ]
    world.loop.operator.pause("ann", "power works")
    other.follow(world.journal.log[before:])
    assert other.controls().paused is not None
    assert world.executor.done == []
