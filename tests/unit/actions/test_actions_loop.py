"""The loop: once per key, recorded before done, verified, escalated, rebuilt after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.loop.execution import INTERRUPTED
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.decision_json import VERDICTS
from tocsin.actions.model.decision_log import KEEP_FINAL, Ledger
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.view import FleetView
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import Decision, DecisionState, OutcomeStatus, Ruling, Verdict
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.phrase import in_chinese, say
from tocsin_testing.action_world import World, fleet, incident, settings
from tocsin_testing.journal_double import KilledError


def test_the_whole_way_of_a_decision() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    report = world.step()
    assert len(report.created) == 2
    assert len(report.executed) == 1
    assert len(report.notified) == 1
    assert world.only().state is DecisionState.VERIFYING
    world.step()
    assert world.only().state is DecisionState.VERIFYING
    world.step()
    status = world.only()
    assert status.state is DecisionState.DONE
    assert status.outcome is not None
    assert (status.outcome.status, status.outcome.executor) == (OutcomeStatus.SUCCEEDED, "fake")
    kinds = [entry.kind for entry in world.journal.log if entry.payload.get("key") == status.decision.key]
    assert kinds == ["decision", "verdict", "execution_started", "verification", "verification", "outcome"]


def test_steps_that_come_twice_change_nothing() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.step()
    entries = len(world.journal.log)
    for _ in range(3):
        world.step(advance=0)
    assert len(world.journal.log) == entries
    assert len(world.executor.done) == 1


def test_verdicts_are_recorded_when_a_ruling_changes_only() -> None:
    world = World(settings(confirmations=5))
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step()
    cordon = world.only().decision.key
    assert len([e for e in world.journal.of(EntryKind.VERDICT) if e.payload["key"] == cordon]) == 1
    evidence = world.verdict("evidence")
    assert evidence.reason == "seen 4 of 5 consecutive times"
    assert in_chinese(evidence.said) == "连续出现 4 次，需要 5 次"
    recorded = VERDICTS.validate_python(world.journal.of(EntryKind.VERDICT)[-1].payload["verdicts"])
    assert next(one.said for one in recorded if one.guard == "evidence") == say(
        "seen {n} of {wanted} consecutive times", n=1, wanted=5
    )
    world.step()
    assert len([e for e in world.journal.of(EntryKind.VERDICT) if e.payload["key"] == cordon]) == 2


def test_every_guard_is_heard_also_behind_one_that_holds() -> None:
    world = World(settings(mode="observe", managed_pools=[], confirmations=5))
    world.loop.operator.pause("ann")
    world.break_gpu("GPU-0-0")
    world.step()
    held = {v.guard for v in world.only().verdicts if v.ruling is Ruling.HOLD}
    assert held == {"mode", "pause", "managed", "evidence", "approval", "max_share"}
    assert world.only().overall is Ruling.HOLD


def test_at_most_one_thing_per_subject_and_step() -> None:
    world = World()
    world.executor.result = ExecutionResult(True, "done", lasting=False)
    world.break_gpu("GPU-0-0", rule="a", action=ActionKind.THROTTLE)
    world.break_gpu("GPU-0-0", rule="b", action=ActionKind.CHECKPOINT)
    counts = [len(world.step().executed) for _ in range(4)]
    assert counts == [1, 0, 1, 0]


def test_a_kill_during_execution_is_reported_and_not_repeated() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.executor.raises = KilledError()
    with pytest.raises(KilledError):
        world.step()
    world.executor.raises = None
    world.restart()
    status = world.only()
    assert status.state is DecisionState.FAILED
    assert status.outcome is not None
    assert status.outcome.detail == INTERRUPTED
    for _ in range(5):
        world.step(advance=HOUR)
    assert len(world.executor.done) == 1
    assert len(world.journal.of(EntryKind.OUTCOME)) == 1
    assert any("A person is needed" in d.sentence for d in world.notifier.told)


def test_an_executor_that_raises_stops_nothing_else() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.executor.raises = RuntimeError("boom")
    world.step()
    assert world.only().reason == "fake broke off: RuntimeError: boom"
    assert world.only().decision.key in world.loop.controls().effects
    assert len(world.notifier.told) == 2


def test_a_check_that_raises_holds_its_decision_alone() -> None:
    world = World()
    world.break_gpu("GPU-0-0")

    def check(decision: Decision, view: FleetView) -> Verdict:
        raise KeyError("node-0")

    world.executor.check = check  # type: ignore[method-assign]
    world.step()
    assert world.verdict("executor").reason == "fake could not check: KeyError: 'node-0'"
    assert len(world.notifier.told) == 1


def test_a_post_check_that_raises_has_seen_nothing() -> None:
    world = World(settings(settle_seconds=0.0))
    world.break_gpu("GPU-0-0")

    def verify(decision: Decision, view: FleetView) -> bool | None:
        raise ValueError("no number")

    world.executor.verify = verify  # type: ignore[method-assign]
    world.step()
    world.step()
    outcome = world.only().outcome
    assert outcome is not None
    assert outcome.detail == "done; its effect cannot be seen from here"


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_kill_at_any_entry_does_nothing_twice(cut: int) -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.journal.fail_after = cut
    died = False
    for _ in range(4):
        try:
            world.step()
        except KilledError:
            died = True
            world.journal.fail_after = None
            world.restart()
    assert died == (cut < 9)
    for _ in range(3):
        world.step()
    assert len(world.executor.done) == 1
    assert len(world.journal.of(EntryKind.OUTCOME)) == 1
    assert len(world.journal.of(EntryKind.NOTIFICATION)) >= 1


def test_a_failure_that_is_certain_is_tried_again_under_a_new_key_after_the_rest() -> None:
    world = World(settings(cooldown_seconds=600.0))
    world.executor.result = ExecutionResult(False, "answered 404", certain=True)
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.only().state is DecisionState.FAILED
    world.step()
    assert len(world.executor.done) == 1
    world.executor.result = ExecutionResult(True, "done")
    world.step(advance=10 * 60_000)
    assert len(world.executor.done) == 2
    assert len(set(world.executor.done)) == 2


def test_a_failure_that_may_have_worked_is_not_tried_again() -> None:
    world = World()
    world.executor.result = ExecutionResult(False, "no answer", certain=False)
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step(advance=HOUR)
    assert len(world.executor.done) == 1
    assert len(world.loop.controls().effects) == 1


def test_a_goal_that_is_not_reached_is_told_once_and_tried_again_later() -> None:
    world = World(settings(cooldown_seconds=1800.0))
    world.executor.seen = False
    world.break_gpu("GPU-0-0")
    for _ in range(5):
        world.step()
    status, again = sorted(
        (s for s in world.loop.statuses() if s.decision.action is ActionKind.CORDON), key=lambda s: s.decision.key
    )
    assert again.state is DecisionState.HELD
    assert status.state is DecisionState.GOAL_NOT_REACHED
    assert status.outcome is not None
    assert status.outcome.status is OutcomeStatus.GOAL_NOT_REACHED
    assert "it is tried again" in status.outcome.next_step
    escalated = [d for d in world.notifier.told if d.key.endswith("|escalate")]
    assert [d.severity for d in escalated] == [Severity.CRITICAL]
    world.restart()
    world.step()
    assert len([d for d in world.notifier.told if d.key.endswith("|escalate")]) == 1


def test_an_effect_that_cannot_be_seen_counts_as_done_and_says_so() -> None:
    world = World()
    world.executor.seen = None
    world.break_gpu("GPU-0-0")
    for _ in range(3):
        world.step()
    outcome = world.only().outcome
    assert outcome is not None
    assert outcome.detail == "done; its effect cannot be seen from here"


def test_settling_is_not_shortened_by_a_step_of_the_wall_clock() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.step()
    world.clock.set(world.clock.now_ms() + HOUR)
    world.step(advance=0)
    assert world.only().state is DecisionState.VERIFYING
    world.clock.set(world.clock.now_ms() - 2 * HOUR)
    world.step(advance=30_000)
    assert world.only().state is DecisionState.DONE


def test_a_restart_shows_the_same_decisions() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.break_gpu("GPU-1-0")
    for _ in range(3):
        world.step()
    before = world.loop.statuses()
    world.restart()
    assert world.loop.statuses() == before


def test_without_an_executor_the_decision_waits() -> None:
    world = World()
    world.loop = ActionLoop(world.journal, [], world.clock, world.policy, world.notifier)
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.verdict("executor").reason == "no executor carries out cordon"


def test_what_is_outranked_waits_and_takes_over() -> None:
    world = World(settings(confirmations=2))
    world.break_gpu("GPU-0-0", rule="mild", severity=Severity.WARNING, action=ActionKind.RESET_GPU)
    world.step()
    world.break_gpu("GPU-0-0", rule="grave")
    world.step()
    assert world.only(ActionKind.RESET_GPU).state is DecisionState.HELD
    assert world.verdict("selection", ActionKind.RESET_GPU).ruling is Ruling.HOLD
    del world.faults["grave|GPU-0-0"]
    world.step()
    assert [key.split("|")[0] for key in world.executor.done] == ["mild"]


def test_throttling_is_restored_when_the_heat_is_gone_and_not_while_another_cause_lives() -> None:
    world = World()
    world.break_gpu("GPU-0-0", rule="a", action=ActionKind.THROTTLE)
    world.break_gpu("GPU-0-0", rule="b", action=ActionKind.THROTTLE)
    for _ in range(8):
        world.step()
    assert len(world.executor.done) == 2
    del world.faults["a|GPU-0-0"]
    for _ in range(3):
        world.step()
    assert len(world.executor.done) == 2
    world.faults.clear()
    for _ in range(6):
        world.step()
    assert [key.rsplit("|", 1)[1] for key in world.executor.done[2:]] == ["restore"]
    assert world.loop.controls().effects == {}
    assert world.only(ActionKind.RESTORE).outcome.status is OutcomeStatus.RESTORED  # type: ignore[union-attr]


def test_failing_hardware_stays_cordoned_until_a_person_gives_it_back() -> None:
    world = World()
    world.break_gpu("GPU-0-0", category=Category.HARDWARE)
    for _ in range(4):
        world.step()
    world.faults.clear()
    for _ in range(5):
        world.step(advance=HOUR)
    assert len(world.executor.done) == 1
    assert len(world.loop.controls().effects) == 1


def test_old_decisions_leave_the_list_and_are_still_not_repeated() -> None:
    world = World(settings(mode="observe"))
    world.break_gpu("GPU-0-0")
    world.step()
    world.step(advance=HOUR)
    key = world.only().decision.key
    ledger = Ledger()
    for entry in world.journal.log:
        ledger.apply(entry)
    template = next(e for e in world.journal.of(EntryKind.DECISION) if e.payload["key"] == key)
    closing = [e for e in world.journal.of(EntryKind.VERDICT) if e.payload["key"] == key][-1]
    for n in range(KEEP_FINAL):
        for entry in (template, closing):
            ledger.apply(
                type(entry)(
                    **{f: getattr(entry, f) for f in entry.__slots__} | {"payload": {**entry.payload, "key": f"k{n}"}}
                )
            )
    assert key not in ledger.records
    assert key in ledger.known
    assert len(ledger.records) == KEEP_FINAL


def _throttled(
    metric: str = "gpu_temperature_celsius", before: float = 87.0, after: float = 73.0, threshold: float = 82.0
) -> World:
    """A hot GPU under full load is throttled, and cools: its finding ends at once."""
    world = World(settings(settle_seconds=0.0))
    world.values["GPU-0-0"] = {metric: before, "gpu_utilization_ratio": 1.0}
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE, metric=metric, value=before, threshold=threshold)
    world.step()
    world.values["GPU-0-0"] = {metric: after, "gpu_utilization_ratio": 1.0}
    world.faults.clear()
    for _ in range(6):
        world.step()
    return world


def _restores(world: World) -> list[str]:
    return [key for key in world.executor.done if key.endswith("|restore")]


@pytest.mark.parametrize(
    ("then", "restored"),
    [
        ({"gpu_temperature_celsius": 67.0, "gpu_utilization_ratio": 1.0}, True),  # the air flows again
        ({"gpu_temperature_celsius": 69.0, "gpu_utilization_ratio": 1.0}, False),
        ({"gpu_temperature_celsius": 69.0, "gpu_utilization_ratio": 0.0}, True),  # its work has ended
        ({"gpu_temperature_celsius": 69.0}, False),  # nothing says so
        ({"gpu_utilization_ratio": 1.0}, False),  # it has no temperature: nothing proves anything
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_throttle_that_cools_stays_until_the_gpu_keeps_cool_without_it(
    then: dict[str, float], restored: bool, restarted: bool
) -> None:
    world = _throttled()
    assert _restores(world) == []
    assert world.only(ActionKind.THROTTLE).outcome.next_step == (  # type: ignore[union-attr]
        "it is undone once the GPU keeps cool without it"
    )
    if restarted:
        world.restart()
    world.values["GPU-0-0"] = then
    world.step()
    assert _restores(world) == [], "it may be for a moment"
    for _ in range(6):
        world.step(advance=MINUTE)
    assert bool(_restores(world)) is restored
    assert bool(world.loop.controls().effects) is not restored


def test_a_restore_that_waits_is_held_where_the_gpu_would_be_too_hot_again() -> None:
    world = _throttled()
    world.loop.operator.pause("ann")
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 60.0, "gpu_utilization_ratio": 0.0}
    for _ in range(6):
        world.step(advance=MINUTE)
    assert world.only(ActionKind.RESTORE).state is DecisionState.HELD
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 73.0, "gpu_utilization_ratio": 1.0}
    world.step()
    said = "without the throttle it would be too hot again: gpu temperature 87.00 °C, goal at most 82.00 °C"
    assert world.verdict("still_live", ActionKind.RESTORE).reason == said


def test_what_a_throttle_buys_is_measured_once_the_temperature_stands() -> None:
    """At the goal it may have half of its way before it: each degree more would count as room for a restore."""
    world = World(settings(settle_seconds=0.0, goal_seconds=900.0))
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 87.0, "gpu_utilization_ratio": 1.0}
    hot = {"metric": "gpu_temperature_celsius", "value": 87.0, "threshold": 82.0}
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE, **hot)
    world.step()
    world.faults.clear()
    for celsius in (84, 82, 81, 80, 79, 78, 77, 76, 75, 74, 73):
        world.values["GPU-0-0"] = {"gpu_temperature_celsius": float(celsius), "gpu_utilization_ratio": 1.0}
        world.step()
        assert world.only(ActionKind.THROTTLE).outcome is None
    for _ in range(6):
        world.step()
    (cooled,) = world.loop.controls().cooled.values()
    assert (cooled.celsius, _restores(world)) == (14.0, [])


def test_what_a_throttle_bought_is_believed_for_a_day() -> None:
    """Air that came back while it was measured looks like its doing, and would keep it for ever."""
    world = _throttled()
    world.step(advance=DAY - 10 * MINUTE)
    world.step()
    assert _restores(world) == []
    world.step(advance=10 * MINUTE)
    world.step(advance=5 * MINUTE)
    world.step()
    assert len(_restores(world)) == 1


def test_a_job_that_saves_its_state_gives_no_throttle_back() -> None:
    world = _throttled()
    for minute in range(30):
        saves = minute % 5 == 0
        world.values["GPU-0-0"] = {"gpu_temperature_celsius": 60.0 if saves else 73.0, "gpu_utilization_ratio": 1.0}
        world.step(advance=MINUTE)
    assert _restores(world) == []


def test_memory_that_is_hot_is_judged_by_its_own_temperature() -> None:
    world = _throttled("gpu_memory_temperature_celsius", 110.0, 90.0, 95.0)
    assert [one.celsius for one in world.loop.controls().cooled.values()] == [20.0]
    world.step(advance=HOUR)
    assert _restores(world) == []


def test_a_checkpoint_of_before_it_was_kept_gives_back_no_throttle() -> None:
    world = _throttled()
    ledger = Ledger()
    for entry in world.journal.log:
        ledger.apply(entry)
    state = ledger.state()
    assert state["plain"].pop("cooled")
    assert Ledger.restored(state).controls().cooled == world.loop.controls().cooled


class FullMemory(World):
    """GPUs of one pool that hold their memory full: one incident that stands, and each with a finding of its own."""

    def __init__(self) -> None:
        super().__init__(settings(mode="propose"), fleet(3, 1))

    def fill(self, *uuids: str) -> None:
        for uuid in uuids:
            self.break_gpu(
                uuid, rule="memory_full", action=ActionKind.MIGRATE, category=Category.MEMORY, level=AlertLevel.NOTE
            )

    def empty(self, uuid: str) -> None:
        del self.faults[f"memory_full|{uuid}"]

    def view(self) -> FleetView:
        made = super().view()
        return replace(made, incidents=(incident(*made.findings.values()),) if made.findings else ())

    def asked(self) -> list[str]:
        """The GPUs about which a question waits."""
        return [one.decision.subject.name for one in self.loop.statuses() if one.state is DecisionState.HELD]


def test_the_next_question_about_full_memory_comes_a_shift_later_also_after_a_restart() -> None:
    world = FullMemory()
    first, second, third = world.gpus
    world.fill(first, second, third)
    world.step()
    (asked,) = world.asked()
    for _ in range(3):
        world.step()
    assert world.asked() == [asked]
    world.empty(asked)
    world.step()
    assert world.asked() == [], "its cause ended by itself"
    world.restart()
    world.step(advance=11 * HOUR)
    assert world.asked() == []
    world.step(advance=HOUR)
    (later,) = world.asked()
    assert later in {first, second, third} - {asked}
    (waits,) = (one.decision.id for one in world.loop.statuses() if one.state is DecisionState.HELD)
    world.loop.operator.reject(waits, "ann", "no")
    world.step()
    (last,) = world.asked()
    assert last not in (asked, later), "a person answered"
