"""Executions that go on: called again until they end, held by a pause, resumed after a restart, never in the way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tocsin.actions.loop.execution import INTERRUPTED, Threads, judged
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.loop.routing import Routing, build_routing
from tocsin.actions.model.decision_json import dump_decision
from tocsin.actions.model.executor import ExecutionResult, went
from tocsin.actions.model.goals import NEW_ERRORS, POWER_LIMIT
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import (
    ActionGoal,
    Decision,
    DecisionState,
    GoalSense,
    Mode,
    OutcomeStatus,
    RestoreParameters,
    encode,
)
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.phrase import say
from tocsin_testing.action_world import FakeExecutor, World, settings, subject_of
from tocsin_testing.builders import T0

GOING = ExecutionResult(True, "2 pods left", pending=True)


class Later:
    """Workers of which a test says when they have done."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Future[Any]]] = []

    def submit(self, work: Callable[[], Any], /) -> Future[Any]:
        self.waiting.append((work, Future()))
        return self.waiting[-1][1]

    def close(self) -> None:
        """Nothing to end."""

    def finish(self, place: int = 0) -> None:
        work, future = self.waiting.pop(place)
        future.set_result(work())


def _of(world: World, kind: EntryKind) -> int:
    return len(world.journal.of(kind))


def test_what_goes_on_is_called_again_until_it_ends() -> None:
    world = World()
    world.values["GPU-0-0"] = {"gpu_power_watts": 700.0}
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.only().state is DecisionState.EXECUTING
    world.step()
    world.step()
    world.values["GPU-0-0"] = {"gpu_power_watts": 70.0}
    world.executor.result = ExecutionResult(True, "drained", effect={"drain_seconds": 45.0})
    world.step()
    assert world.only().state is DecisionState.VERIFYING
    assert len(set(world.executor.done)) == 1
    assert len(world.executor.done) == 4
    assert _of(world, EntryKind.EXECUTION_STARTED) == 1
    for _ in range(3):
        world.step()
    outcome = world.only().outcome
    assert outcome is not None
    assert outcome.status is OutcomeStatus.SUCCEEDED
    assert outcome.effect == {"drain_seconds": 45.0}, "the load that left with the work is no effect"


def test_an_end_is_told_in_chinese_too_where_the_executor_is() -> None:
    ends: list[tuple[str, str]] = []
    for result in (went(True, say("{node} is drained{said}", node="n0", said="")), ExecutionResult(True, "drained")):
        world = World()
        world.executor.result, world.executor.seen = result, True
        world.break_gpu("GPU-0-0")
        for _ in range(4):
            world.step()
        outcome = world.only().outcome
        assert outcome is not None
        ends.append((outcome.detail_zh, outcome.next_step_zh))
        assert world.journal.of(EntryKind.OUTCOME)[0].payload["outcome"].get("detail_zh", "") == outcome.detail_zh
    (told, then), (silent, then_too) = ends
    assert told.startswith("n0 已排空；已看到效果")
    assert silent == "", "a manager that speaks English alone is not mixed with Chinese"
    assert then == then_too == "原因消失后即撤销"


def test_where_it_stands_is_on_record_once_a_while() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    for left in range(10, 0, -1):
        world.executor.result = ExecutionResult(True, f"{left} pods left", pending=True)
        world.step()
    told = [entry.payload["detail"] for entry in world.journal.of(EntryKind.EXECUTION_GOES_ON)]
    assert told == ["10 pods left", "6 pods left", "2 pods left"]


def test_a_pause_holds_what_goes_on_too() -> None:
    world = World()
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    world.step()
    world.loop.operator.pause("ann")
    calls = len(world.executor.done)
    world.step()
    world.step()
    assert len(world.executor.done) == calls
    world.loop.operator.resume("ann")
    world.step()
    assert len(world.executor.done) == calls + 1


def test_its_time_is_limited_and_then_its_effect_is_unknown() -> None:
    world = World(settings(execution_seconds=60.0))
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    for _ in range(6):
        world.step()
    status = world.only()
    assert status.state is DecisionState.FAILED
    assert status.reason == "did not end within 60 s: 2 pods left"
    assert status.decision.key in world.loop.controls().effects


def test_after_a_restart_a_resumable_executor_goes_on() -> None:
    world = World()
    world.executor.resumable = True
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    world.step()
    world.restart()
    assert world.only().state is DecisionState.EXECUTING
    world.executor.result = ExecutionResult(True, "drained")
    world.step()
    assert world.only().state is DecisionState.VERIFYING
    assert len(set(world.executor.done)) == 1
    assert _of(world, EntryKind.EXECUTION_STARTED) == 1


def test_after_a_restart_another_executor_does_not() -> None:
    world = World()
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    world.step()
    world.restart()
    assert world.only().reason == INTERRUPTED
    world.step()
    assert len(world.executor.done) == 1


def test_a_slow_manager_holds_up_no_other_subject() -> None:
    world = World()
    later = Later()
    world.loop = ActionLoop(world.journal, [world.executor], world.clock, world.policy, world.notifier, later)
    world.break_gpu("GPU-0-0")
    world.step()
    world.break_gpu("GPU-1-0")
    report = world.step()
    assert len(report.executed) == 1
    assert len(later.waiting) == 2
    later.finish(1)
    world.step()
    states = {
        status.decision.subject.name: status.state
        for status in world.loop.statuses()
        if status.decision.action is ActionKind.CORDON
    }
    assert states["GPU-0-0"] is DecisionState.EXECUTING
    assert states["GPU-1-0"] is DecisionState.VERIFYING
    assert len(later.waiting) == 1


def test_a_slow_post_check_is_waited_for() -> None:
    world = World(settings(settle_seconds=0.0))
    later = Later()
    world.loop = ActionLoop(world.journal, [world.executor], world.clock, world.policy, world.notifier, later)
    world.break_gpu("GPU-0-0")
    world.step()
    later.finish()
    world.step()
    world.step()
    assert world.only().state is DecisionState.VERIFYING
    assert len(later.waiting) == 1
    later.finish()
    world.step()
    assert world.only().state is DecisionState.DONE


def test_threads_run_beside_each_other_and_give_up_what_has_not_begun() -> None:
    workers = Threads(1)
    done = workers.submit(lambda: ExecutionResult(True, "done"))
    assert done.result(10) == ExecutionResult(True, "done")
    workers.close()


class Other(FakeExecutor):
    """Carries out throttles of one GPU alone."""

    name = "other"

    def supports(self, action: ActionKind) -> bool:
        return action is ActionKind.THROTTLE

    def serves(self, decision: Decision) -> bool:
        return decision.subject.name == "GPU-0-0"


def test_the_first_that_takes_a_decision_for_its_own_gets_it() -> None:
    world = World()
    other = Other()
    world.loop = ActionLoop(world.journal, [other, world.executor], world.clock, world.policy, world.notifier)
    for uuid in ("GPU-0-0", "GPU-1-0"):
        world.break_gpu(uuid, action=ActionKind.THROTTLE)
    world.break_gpu("GPU-2-0")
    world.step()
    assert [key.split("|")[1] for key in other.done] == ["gpu:GPU-0-0"]
    assert sorted(key.split("|")[1] for key in world.executor.done) == ["gpu:GPU-1-0", "gpu:GPU-2-0"]


def test_a_pool_may_have_executors_of_its_own() -> None:
    built: list[str] = []

    def build(name: str) -> FakeExecutor:
        built.append(name)
        made = FakeExecutor()
        made.name = name
        return made

    wanted = ActionSettings(executors=["node", "kubernetes"], pool_executors={"default": ["slurm", "node"]})
    routing = build_routing(wanted, build)
    assert sorted(built) == ["kubernetes", "node", "slurm"]
    world = World()
    world.break_gpu("GPU-0-0")
    world.step()
    chosen = routing.executor_for(world.only().decision)
    assert chosen is not None
    assert chosen.name == "slurm"
    assert routing.named("gone") is None
    assert len(routing.executors) == 3


def test_an_action_that_nobody_carries_out_is_held() -> None:
    world = World()
    world.loop = ActionLoop(world.journal, Routing([Other()]), world.clock, world.policy, world.notifier)
    world.break_gpu("GPU-1-0")
    world.step(advance=HOUR // 60)
    assert world.verdict("executor").reason == "no executor carries out cordon"


def test_the_end_takes_in_what_ends_in_time() -> None:
    world = World()
    workers = Threads(2)
    world.loop = ActionLoop(world.journal, [world.executor], world.clock, world.policy, world.notifier, workers)
    world.break_gpu("GPU-0-0")
    world.step()
    world.loop.close()
    world.restart()
    assert world.only().state is DecisionState.VERIFYING


def test_a_brain_that_lost_its_lease_goes_on_with_nothing() -> None:
    world = World()
    world.executor.result = GOING
    world.break_gpu("GPU-0-0")
    world.step()
    world.active = False
    calls = len(world.executor.done)
    world.step()
    assert len(world.executor.done) == calls
    world.active = True
    world.step()
    assert len(world.executor.done) == calls + 1


def test_what_cannot_be_read_is_denied_once_and_the_loop_goes_on() -> None:
    """As a journal of another version, or of another hand, may have it."""
    world = World(settings(mode="propose"))
    world.break_gpu("GPU-0-0")
    world.step()
    waiting = world.only().decision
    texts = encode(waiting.parameters) | {"deadline_ms": "soon", "colour": "red"}
    world.journal.append(EntryKind.DECISION, dump_decision(waiting) | {"parameters": texts})
    world.restart()
    world.loop.operator.approve(waiting.id, "ann")
    world.break_gpu("GPU-1-0")
    world.step()
    status = next(one for one in world.loop.statuses() if one.decision.id == waiting.id)
    assert (status.state, status.reason) == (
        DecisionState.REJECTED,
        "deadline_ms = 'soon' is no instant in milliseconds",
    )
    assert encode(status.decision.parameters) == texts
    assert not world.executor.done
    actions = [one for one in world.loop.statuses() if one.decision.action is not ActionKind.NOTIFY]
    assert {one.decision.subject.name for one in actions} == {"GPU-0-0", "GPU-1-0"}


def test_what_cannot_be_read_keeps_no_node_out_of_service() -> None:
    """A recovery inherits the texts of what it gives back."""
    world = World()
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step()
    done = world.only().decision
    texts = encode(done.parameters) | {"deadline_ms": "soon"}
    world.journal.append(EntryKind.DECISION, dump_decision(done) | {"parameters": texts})
    world.restart()
    assert world.loop.controls().effects[done.key].parameters.problem == ""
    undoing = world.loop.operator.undo(done.id, "ann")
    for _ in range(4):
        world.step()
    found = next(one for one in world.loop.statuses() if one.decision.id == undoing)
    assert (found.state, found.decision.parameters.problem) == (
        DecisionState.DONE,
        "deadline_ms = 'soon' is no instant in milliseconds",
    )
    assert world.loop.controls().effects == {}


def restored(answer: bool | None) -> tuple[bool | None, float | None]:
    """What is made of a cap that was given back while a lower limit, for heat, is still in force."""
    world = World()
    world.values["GPU-0-0"] = {POWER_LIMIT: 600.0}
    decision = Decision(
        rule="cap",
        subject=subject_of(world.gpus["GPU-0-0"]),
        action=ActionKind.RESTORE,
        mode=Mode.ACT,
        severity=Severity.INFO,
        category=Category.POWER,
        at_ms=T0,
        expires_ms=T0 + HOUR,
        key="cap|restore",
        sentence="",
        findings=(),
        parameters=RestoreParameters(power_limit_watts=700.0),
        goal=ActionGoal(POWER_LIMIT, GoalSense.AT_LEAST, 699.0, "watts"),
    )
    return judged(LedgerEntry(decision, T0), answer, world.view())


def test_a_limit_that_was_given_back_is_back_though_a_lower_one_is_in_force() -> None:
    assert restored(True) == (True, 600.0)
    assert restored(False) == (False, 600.0)
    assert restored(None) == (False, 600.0)


def test_a_reset_is_not_over_before_its_gpu_is_read_again() -> None:
    world = World(settings(goal_seconds=900.0))
    world.executor.seen = None
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU, category=Category.HARDWARE)
    world.step()
    world.stale.add("GPU-0-0")
    for _ in range(5):
        world.step()
    status = world.only(ActionKind.RESET_GPU)
    assert status.decision.goal is not None
    assert status.decision.goal.measure == NEW_ERRORS
    assert status.state is DecisionState.VERIFYING
