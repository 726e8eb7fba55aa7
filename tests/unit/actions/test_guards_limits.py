"""Cool-down, attempts, maintenance, limits and the breaker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.guards.maintenance import is_open, next_start
from tocsin.actions.loop.decide import decide
from tocsin.actions.model.catalogue import ACTIONS, DISRUPTIVE, Scope
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.scope import taken_out
from tocsin.actions.planning.foresight import Foresight
from tocsin.config.settings import LimitSettings, MaintenanceWindow
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import (
    DefragmentParameters,
    GpuPlace,
    MigrateParameters,
    Rank,
    Ruling,
    ScaleInParameters,
    Verdict,
)
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Evidence, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World, finding, fleet, settings, subject_of
from tocsin_testing.builders import T0
from tocsin_testing.planning import fleet as planned_fleet
from tocsin_testing.planning import on, work

MIDNIGHT = T0 - T0 % DAY


def _held(world: World, guard: str) -> list[Verdict]:
    verdicts = [v for s in world.loop.statuses() for v in s.verdicts if v.guard == guard]
    return [v for v in verdicts if v.ruling is Ruling.HOLD]


def _subjects(world: World) -> list[str]:
    return [key.split("|")[1] for key in world.executor.done]


def test_cooldown_rests_between_two_actions_of_a_kind() -> None:
    world = World(settings(cooldown_seconds=1800.0, settle_seconds=0.0))
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU)
    world.step()
    world.step()
    world.faults.clear()
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU)
    world.step()
    assert _held(world, "cooldown")[0].until_ms == T0 + 15_000 + 30 * MINUTE
    world.step(advance=30 * MINUTE)
    assert len(world.executor.done) == 2


def test_attempts_are_capped_within_a_day() -> None:
    world = World(settings(settle_seconds=0.0, limits={"attempts_per_day": 2}))
    world.executor.result = ExecutionResult(False, "no", certain=True)
    world.break_gpu("GPU-0-0")
    for _ in range(6):
        world.step()
    assert len(world.executor.done) == 2
    assert len(set(world.executor.done)) == 2
    assert "tried 2 times" in _held(world, "attempts")[0].reason
    world.step(advance=DAY)
    world.step()
    assert len(world.executor.done) > 2


@pytest.mark.parametrize(
    ("start", "end", "minute", "opened"),
    [
        ("00:00", "23:59", 0, True),
        ("00:00", "23:59", 1439, True),
        ("22:00", "02:00", 1320, True),
        ("22:00", "02:00", 120, True),
        ("22:00", "02:00", 121, False),
        ("09:00", "17:00", 539, False),
        ("09:00", "17:00", 540, True),
    ],
)
def test_maintenance_window(start: str, end: str, minute: int, opened: bool) -> None:
    window = MaintenanceWindow(start=start, end=end)
    now_ms = MIDNIGHT + minute * MINUTE
    assert is_open(window, now_ms) == opened
    assert is_open(window, next_start(window, now_ms))
    assert now_ms < next_start(window, now_ms) <= now_ms + DAY


def test_outside_the_window_disruptive_actions_wait_and_others_do_not() -> None:
    world = World(settings(maintenance=[{"start": "00:00", "end": "00:10"}]))
    world.clock.set(MIDNIGHT + HOUR)
    world.restart()
    world.break_gpu("GPU-0-0")
    world.break_gpu("GPU-1-0", action=ActionKind.THROTTLE)
    world.step()
    assert _subjects(world) == ["gpu:GPU-1-0"]
    assert _held(world, "maintenance")[0].until_ms == MIDNIGHT + DAY


def test_absolute_limit() -> None:
    world = World(settings(limits={"max_concurrent": 2}))
    for host in range(4):
        world.break_gpu(f"GPU-{host}-0")
    for _ in range(5):
        world.step()
    assert len(world.executor.done) == 2
    assert "at most 2 at once" in _held(world, "max_concurrent")[0].reason


def test_share_counts_whole_hosts() -> None:
    world = World(settings(limits={"max_concurrent_ratio": 0.5}))
    for host in range(4):
        world.break_gpu(f"GPU-{host}-0")
    world.step()
    assert len(world.executor.done) == 2
    assert "6 of 8 managed GPUs would be out of service, at most 4 (50%)" in _held(world, "max_share")[0].reason


def test_share_of_nothing_is_nothing() -> None:
    world = World(settings(limits={"max_concurrent_ratio": 0.0}))
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU)
    world.step()
    assert "1 of 8 managed GPUs would be out of service, at most 0 (0%)" in _held(world, "max_share")[0].reason


SHIPPED = LimitSettings().model_dump()


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_one_host_of_several_may_be_drained_by_the_shipped_limits_and_not_a_second(hosts: int) -> None:
    world = World(settings(limits=SHIPPED), fleet(hosts, 8))
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN)
    world.step()
    assert _subjects(world) == ["gpu:GPU-0-0"]
    world.break_gpu("GPU-1-3", action=ActionKind.DRAIN)
    world.step()
    assert _subjects(world) == ["gpu:GPU-0-0"]
    assert _held(world, "max_share")


def test_the_only_host_is_drained_once_a_person_approves() -> None:
    world = World(settings(limits=SHIPPED), fleet(1, 8))
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN)
    world.step()
    made = world.only(ActionKind.DRAIN)
    assert [v.guard for v in made.verdicts if v.ruling is not Ruling.ALLOW] == ["approval"]
    assert "host node-0 is the only one that is managed" in world.verdict("approval", ActionKind.DRAIN).reason
    world.loop.operator.approve(made.decision.id, "ann")
    world.step()
    assert _subjects(world) == ["gpu:GPU-0-0"]


def test_a_host_that_holds_all_of_a_pool_is_drained_once_a_person_approves() -> None:
    gpus = fleet(8, 8)
    gpus = {uuid: replace(gpu, pool="default" if gpu.host != "node-0" else "lone") for uuid, gpu in gpus.items()}
    world = World(settings(limits=SHIPPED, managed_pools=["default", "lone"]), gpus)
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN)
    world.step()
    assert world.executor.done == []
    assert "host node-0 holds all of pool lone" in world.verdict("approval", ActionKind.DRAIN).reason
    world.loop.operator.approve(world.only(ActionKind.DRAIN).decision.id, "ann")
    world.step()
    assert _subjects(world) == ["gpu:GPU-0-0"]


def test_a_step_within_a_drained_host_takes_nothing_more_out() -> None:
    world = World(settings(limits={**SHIPPED, "max_per_host": 9}), fleet(8, 8))
    world.elsewhere.update(f"GPU-0-{index}" for index in range(8))
    world.elsewhere.add("GPU-1-0")
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU)
    world.step()
    assert not _held(world, "max_share")
    world.break_gpu("GPU-1-1", action=ActionKind.RESET_GPU)
    world.step()
    assert "10 of 64 managed GPUs would be out of service" in _held(world, "max_share")[0].reason


def test_moving_named_work_takes_out_the_gpus_that_it_leaves_alone() -> None:
    state = planned_fleet(8, [work("a", on("n0", 0, 1)), work("b", on("n1", 0))])
    gpus = {slot.uuid: Gpu(slot.uuid, slot.host, index=0) for slot in state.gpus.values()}
    world = World(gpus=gpus)
    whole = Subject(SubjectKind.FLEET, "fleet")
    world.faults["all"] = finding(whole, world.clock.now_ms(), action=ActionKind.DEFRAGMENT)
    made = next(
        one
        for one in decide(world.view().incidents, [], world.view(), world.policy)
        if one.subject == whole and one.action is ActionKind.DEFRAGMENT
    )
    view = replace(world.view(), foresight=Foresight(state=state))
    assert len(taken_out(made, view)) == 64, "nothing is named: all of it"
    named = replace(made, parameters=DefragmentParameters(work=("a",), to_host=(("n1",),)))
    assert taken_out(named, view) == {"n0/0", "n0/1"}
    unknown = replace(made, parameters=DefragmentParameters(work=("a", "gone"), to_host=(("n1",), ("n1",))))
    assert len(taken_out(unknown, view)) == 64
    some = DefragmentParameters(work=("a", "gone"), to_host=(("n1",), ("n1",)), ranks=(Rank("n0", "n0/0"),))
    assert len(taken_out(replace(made, parameters=some), view)) == 64, "some work is known, not all"
    leaves = MigrateParameters(work=("b",), source=(GpuPlace("n1/0"),))
    moved = replace(made, action=ActionKind.MIGRATE, subject=subject_of(gpus["n0/0"]), parameters=leaves)
    assert taken_out(moved, view) == {"n1/0"}


def test_host_limit() -> None:
    world = World(settings(limits={"max_per_host": 1}), fleet(hosts=2, per_host=4))
    for index in range(3):
        world.break_gpu(f"GPU-0-{index}", action=ActionKind.RESET_GPU)
    world.step()
    assert len(world.executor.done) == 1
    assert "host node-0" in _held(world, "max_per_host")[0].reason


def test_keeping_work_off_one_gpu_takes_that_gpu_out_and_its_host_s_others_not() -> None:
    spec = ACTIONS[ActionKind.CORDON_GPU]
    assert (spec.scope, spec.disruptive, spec.lasting) == (Scope.SUBJECT, True, True)
    assert (spec.inverse, spec.recovery) == (ActionKind.UNCORDON_GPU, False)
    back = ACTIONS[ActionKind.UNCORDON_GPU]
    assert (back.scope, back.recovery) == (Scope.NOTHING, True)
    assert ActionKind.CORDON_GPU in DISRUPTIVE
    assert ActionKind.UNCORDON_GPU not in DISRUPTIVE


@pytest.mark.parametrize(
    ("limits", "guard", "done", "said"),
    [
        ({"max_concurrent": 1}, "max_concurrent", 1, "1 under action already, at most 1 at once"),
        ({"max_per_host": 1}, "max_per_host", 2, " has 1 under action already, at most 1"),
        ({"max_per_rack": 2}, "max_per_rack", 2, "rack rack-0 has 2 under action already, at most 2"),
        ({"max_concurrent_ratio": 0.25}, "max_share", 2, "3 of 8 managed GPUs would be out of service, at most 2"),
        ({"min_available_ratio": 0.75}, "capacity", 2, "pool default would keep 5 of 8 GPUs in service, at least 6"),
    ],
)
def test_keeping_work_off_single_gpus_is_held_by_each_limit(
    limits: dict[str, float], guard: str, done: int, said: str
) -> None:
    world = World(settings(limits=limits), fleet(hosts=2, per_host=4))
    for uuid in ("GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"):
        world.break_gpu(uuid, action=ActionKind.CORDON_GPU)
    for _ in range(3):
        world.step()
    assert [key.split("|")[2] for key in world.executor.done] == ["cordon_gpu"] * done
    assert said in _held(world, guard)[0].reason


def test_rack_limit() -> None:
    world = World(settings(limits={"max_per_rack": 1}))
    for uuid in ("GPU-0-0", "GPU-1-0", "GPU-2-0"):
        world.break_gpu(uuid)
    world.step()
    assert sorted(subject[:-2] for subject in _subjects(world)) in (
        ["gpu:GPU-0", "gpu:GPU-2"],
        ["gpu:GPU-1", "gpu:GPU-2"],
    )
    assert "rack rack-0" in _held(world, "max_per_rack")[0].reason


def test_capacity_counts_sick_and_unseen_gpus_as_gone() -> None:
    world = World(settings(limits={"min_available_ratio": 0.5}))
    world.sick.add("GPU-3-0")
    world.stale.add("GPU-3-1")
    for host in range(3):
        world.break_gpu(f"GPU-{host}-0")
    world.step()
    assert len(world.executor.done) == 1
    reason = _held(world, "capacity")[0].reason
    assert "pool default would keep 2 of 8 GPUs in service, at least 4 (50%)" in reason


def test_what_takes_nothing_usable_away_is_allowed_where_little_is_left() -> None:
    world = World(settings(limits={"min_available_ratio": 1.0}))
    world.sick.add("GPU-0-0")
    world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU)
    world.step()
    assert len(world.executor.done) == 1


def test_what_others_took_out_counts() -> None:
    world = World(settings(limits={"max_concurrent": 2}))
    world.elsewhere.update({"GPU-3-0", "GPU-3-1"})
    world.break_gpu("GPU-0-0")
    world.step()
    assert "2 under action already" in _held(world, "max_concurrent")[0].reason


def test_scaling_a_pool_in_counts_as_its_largest_host() -> None:
    world = World(settings(limits={"max_concurrent_ratio": 0.25, "min_available_ratio": 0.75}))
    pool = Subject(SubjectKind.POOL, "default")
    world.faults["idle"] = finding(pool, world.clock.now_ms(), action=ActionKind.SCALE_IN, category=Category.CAPACITY)
    world.step()
    assert _subjects(world) == ["pool:default"]
    world.break_gpu("GPU-0-0")
    world.step()
    assert _held(world, "max_share")


def test_a_pool_that_has_lost_its_largest_host_is_not_scaled_in_as_if_that_went() -> None:
    world = World(settings(limits={"max_concurrent_ratio": 0.25, "min_available_ratio": 0.25}))
    world.elsewhere.update({"GPU-3-0", "GPU-3-1"})
    pool = Subject(SubjectKind.POOL, "default")
    world.faults["idle"] = finding(pool, world.clock.now_ms(), action=ActionKind.SCALE_IN, category=Category.CAPACITY)
    world.step()
    assert _subjects(world) == []
    assert "4 of 8 managed GPUs" in _held(world, "max_share")[0].reason


def test_a_node_that_is_named_to_go_is_what_scaling_in_takes() -> None:
    world = World()
    pool = Subject(SubjectKind.POOL, "default")
    world.faults["idle"] = finding(pool, world.clock.now_ms(), action=ActionKind.SCALE_IN, category=Category.CAPACITY)
    decided = decide(world.view().incidents, [], world.view(), world.policy)
    made = next(one for one in decided if one.action is ActionKind.SCALE_IN)
    named = replace(made, parameters=ScaleInParameters(node="node-1"))
    assert taken_out(made, world.view()) == {"GPU-3-0", "GPU-3-1"}
    assert taken_out(named, world.view()) == {"GPU-1-0", "GPU-1-1"}


def test_an_action_on_the_whole_fleet_is_never_within_the_share() -> None:
    world = World(settings(limits={"max_concurrent_ratio": 0.9}))
    whole = Subject(SubjectKind.FLEET, "fleet")
    world.faults["all"] = finding(whole, world.clock.now_ms(), action=ActionKind.DRAIN)
    world.step()
    assert world.executor.done == []
    assert _held(world, "max_share")


def test_breaker_trips_on_distinct_causes_before_the_last_of_them_runs() -> None:
    world = World(settings(breaker_root_causes=3))
    world.break_gpu("GPU-0-0")
    world.step()
    world.break_gpu("GPU-1-0")
    world.step()
    assert len(world.executor.done) == 2
    world.break_gpu("GPU-2-0")
    world.step()
    assert len(world.executor.done) == 2
    assert "3 root causes" in _held(world, "breaker")[0].reason
    world.restart()
    world.break_gpu("GPU-3-0")
    world.step(advance=2 * HOUR)
    world.step()
    assert len(world.executor.done) == 2
    told = [d for d in world.notifier.told if d.rule == "breaker"]
    assert len(told) == 1


def test_all_that_one_host_reports_is_one_cause_for_the_breaker() -> None:
    world = World(settings(breaker_root_causes=2), fleet(4, 8))
    for i in range(8):
        world.break_gpu(f"GPU-0-{i}")
    world.step()
    assert world.loop.controls().breaker is None
    assert len(world.executor.done) == 8
    world.break_gpu("GPU-1-0")
    world.step()
    assert world.loop.controls().breaker is not None


def test_forecasts_do_not_trip_the_breaker() -> None:
    world = World(settings(breaker_root_causes=1))
    said = (Evidence(f"{PREDICTION_EVIDENCE}model 1", "soon", T0, 0.9),)
    for host in range(4):
        subject = subject_of(world.gpus[f"GPU-{host}-0"])
        world.faults[f"soon|{host}"] = finding(subject, world.clock.now_ms(), category=Category.HARDWARE, evidence=said)
    world.step()
    assert world.loop.controls().breaker is None
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.loop.controls().breaker is not None


def test_breaker_is_reset_by_a_named_person_only() -> None:
    world = World(settings(breaker_root_causes=1))
    with pytest.raises(Conflict, match="not tripped"):
        world.loop.operator.reset_breaker("ann")
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.executor.done == []
    for nobody in ("", "  ", "tocsin"):
        with pytest.raises(InputError, match="actor"):
            world.loop.operator.reset_breaker(nobody)
    world.loop.operator.reset_breaker("ann")
    world.step()
    assert len(world.executor.done) == 1


def test_one_flapping_cause_is_one_cause() -> None:
    world = World(settings(breaker_root_causes=2, limits={"max_concurrent": 0}))
    for _ in range(4):
        world.break_gpu("GPU-0-0")
        world.step()
        world.faults.clear()
        world.step()
    assert _held(world, "breaker") == []


def test_causes_spread_over_more_than_the_window_do_not_trip() -> None:
    world = World(settings(breaker_root_causes=2, breaker_window_seconds=600.0))
    for host in range(3):
        world.break_gpu(f"GPU-{host}-0")
        world.step(advance=11 * MINUTE)
    assert len(world.executor.done) == 3


def test_what_is_only_observed_or_not_managed_does_not_trip() -> None:
    for more in ({"mode": "observe"}, {"managed_pools": []}, {"confirmations": 9}):
        world = World(settings(breaker_root_causes=1, **more))
        world.break_gpu("GPU-0-0")
        world.step()
        assert _held(world, "breaker") == []


def test_giving_back_runs_while_the_breaker_is_tripped() -> None:
    world = World(settings(breaker_root_causes=2))
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step()
    world.break_gpu("GPU-1-0")
    world.step()
    del world.faults["hot|GPU-0-0"]
    world.step()
    assert [key.rsplit("|", 1)[1] for key in world.executor.done][-1] == "uncordon"
