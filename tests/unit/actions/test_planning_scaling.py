"""Pools that grow before a node is drained, shrink where they idle, and follow demand without swinging."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tocsin.actions.planning.drill import DrillSpec, Way, drill
from tocsin.actions.planning.plan import StepKind
from tocsin.actions.planning.scaling import (
    PoolDemand,
    ScalingPolicy,
    demand_of,
    follow_demand,
    replace_before_drain,
    scale_in,
)
from tocsin.actions.planning.state import FleetState, Pool
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.finding import Evidence, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin_testing.planning import fleet, on, work

LIMITS, POLICY = PlanLimits(), ScalingPolicy()
NOW = 10 * HOUR


def pool(**more: object) -> dict[str, Pool]:
    return {"p": Pool("p", **more)}  # type: ignore[arg-type]


def kinds(plan: object) -> list[StepKind]:
    return [step.kind for step in plan.steps]  # type: ignore[attr-defined]


def test_where_the_floor_holds_a_node_is_drained_at_once() -> None:
    plan = replace_before_drain(fleet(3, [work("a", on("n0", 0))], pools=pool(floor_gpus=16)), ["n0"], LIMITS)
    assert kinds(plan) == [StepKind.CORDON, StepKind.MOVE, StepKind.DRAIN]
    assert plan.after["ready_gpus p"] == 16


def test_where_it_does_not_a_node_is_added_and_waited_for_first() -> None:
    works = [work("a", on("n0", 0), lost_s=900.0, checkpoint_s=20.0)]
    state = fleet(3, works, pools=pool(floor_gpus=24))
    state = state.with_nodes([replace(state.nodes["n0"], risk=0.4)])
    plan = replace_before_drain(state, ["n0"], LIMITS)
    assert kinds(plan) == [
        StepKind.SCALE_OUT,
        StepKind.WAIT_READY,
        StepKind.CORDON,
        StepKind.CHECKPOINT,
        StepKind.MOVE,
        StepKind.DRAIN,
    ]
    assert "40% likely to fail" in plan.steps[2].sentence
    assert plan.steps[0].hosts == ("new-p-1",)
    assert "Add 1 node and drain 1 of 1 node" in plan.sentence


def test_nodes_are_added_where_only_the_work_lacks_room() -> None:
    works = [work(f"w{number}", on(f"n{number}", *range(8))) for number in range(2)]
    plan = replace_before_drain(fleet(2, works, pools=pool()), ["n0"], LIMITS)
    assert plan.steps[0].kind is StepKind.SCALE_OUT
    assert {hold.gpu.partition("/")[0] for step in plan.steps for move in step.moves for hold in move.target} == {
        "new-p-1"
    }


def test_two_bad_nodes_get_two_new_ones_and_no_work_of_each_other() -> None:
    works = [work(f"w{number}", on(f"n{number}", *range(8))) for number in range(2)]
    plan = replace_before_drain(fleet(2, works, pools=pool(floor_gpus=16)), ["n0", "n1"], LIMITS)
    added = [host for step in plan.steps if step.kind is StepKind.SCALE_OUT for host in step.hosts]
    assert added == ["new-p-1", "new-p-2"]
    assert [step.subject for step in plan.steps if step.kind is StepKind.DRAIN] == ["n0", "n1"]


def test_a_pool_that_may_not_grow_keeps_its_bad_node() -> None:
    plan = replace_before_drain(fleet(2, [], pools=pool(floor_gpus=16, most_nodes=2)), ["n0", "gone"], LIMITS)
    assert plan.steps == ()
    assert [refusal.subject for refusal in plan.refused] == ["n0", "gone"]
    assert "may have 2" in plan.refused[0].reason
    unknown = replace_before_drain(fleet(1, [work("a", on("n0", 0))], pools={}), ["n0"], LIMITS)
    assert kinds(unknown) == [StepKind.CORDON]
    assert "fits nowhere" in unknown.refused[0].reason


def idle(**more: object) -> FleetState:
    works = [work("dear", on("n0", 0), lost_s=9000.0), work("cheap", on("n1", 0)), work("other", on("n2", 0, 1))]
    return fleet(4, works, pools=pool(**{"utilisation": 0.15, **more}), at_ms=NOW)


def test_the_node_whose_removal_loses_least_goes() -> None:
    plan = scale_in(idle(), POLICY, LIMITS)
    assert kinds(plan) == [StepKind.CORDON, StepKind.SCALE_IN]
    assert plan.steps[-1].subject == "n3", "it is empty"
    state = idle()
    state = state.with_works([work("more", on("n3", *range(7)))])
    assert [step.subject for step in scale_in(state, POLICY, LIMITS).steps] == ["n1", "cheap", "n1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"utilisation": None}, "is unknown"),
        ({"utilisation": 0.3}, "30% busy, not below 30%"),
        ({"waiting_gpus": 2.0}, "work waits for 2 GPUs"),
        ({"changed_ms": NOW - 10 * MINUTE}, "a short while ago"),
        ({"floor_gpus": 25}, "its floor is 25"),
    ],
)
def test_why_a_pool_keeps_its_size(change: dict[str, object], reason: str) -> None:
    plan = scale_in(idle(**change), POLICY, LIMITS)
    assert plan.steps == ()
    assert reason in plan.refused[0].reason


def test_a_pool_whose_rest_would_be_too_busy_keeps_its_size() -> None:
    state = fleet(2, [], pools=pool(utilisation=0.29))
    assert scale_in(state, replace(POLICY, most_after=0.5), LIMITS).refused[0].reason == "the rest would be 58% busy"
    stuck = fleet(2, [work(f"d{n}", on(f"n{n}", 0), movable=False) for n in range(2)], pools=pool(utilisation=0.1))
    assert "no node can be emptied" in scale_in(stuck, POLICY, LIMITS).refused[0].reason


def ahead(minutes: float, gpus: float) -> PoolDemand:
    return PoolDemand("p", ((NOW + int(minutes * MINUTE), gpus, gpus),))


def test_demand_within_the_time_that_a_node_takes_adds_nodes() -> None:
    state = fleet(4, [], pools=pool(), at_ms=NOW)
    plan = follow_demand(state, [ahead(15, 40.0)], POLICY, LIMITS)
    assert kinds(plan) == [StepKind.SCALE_OUT]
    assert plan.steps[0].amount == 3.0, "40 GPUs are 80 % of 50, 32 are there"
    assert follow_demand(state, [ahead(60, 40.0)], POLICY, LIMITS).steps == (), "not yet"
    assert follow_demand(state, [ahead(15, 25.6)], POLICY, LIMITS).steps == ()


def test_growth_is_bounded_and_rests() -> None:
    small = fleet(4, [], pools=pool(most_nodes=5), at_ms=NOW)
    assert follow_demand(small, [ahead(5, 90.0)], POLICY, LIMITS).steps[0].amount == 1.0
    full = fleet(4, [], pools=pool(most_nodes=4), at_ms=NOW)
    assert "may have no more" in follow_demand(full, [ahead(5, 90.0)], POLICY, LIMITS).refused[0].reason
    fresh = fleet(4, [], pools=pool(changed_ms=NOW - 2 * MINUTE), at_ms=NOW)
    assert "2 min ago" in follow_demand(fresh, [ahead(5, 90.0)], POLICY, LIMITS).refused[0].reason


def test_a_pool_shrinks_only_where_demand_stays_low_for_long() -> None:
    state = fleet(4, [], pools=pool(), at_ms=NOW)
    assert StepKind.SCALE_IN in kinds(follow_demand(state, [ahead(5, 10.0)], POLICY, LIMITS))
    soon_busy = PoolDemand("p", ((NOW, 5.0, 10.0), (NOW + 100 * MINUTE, 15.0, 20.0)))
    assert "neither" in follow_demand(state, [soon_busy], POLICY, LIMITS).refused[0].reason
    fresh = fleet(4, [], pools=pool(changed_ms=NOW - 10 * MINUTE), at_ms=NOW)
    assert "10 min ago" in follow_demand(fresh, [ahead(5, 10.0)], POLICY, LIMITS).refused[0].reason
    floor = fleet(4, [], pools=pool(floor_gpus=32), at_ms=NOW)
    assert "floor" in follow_demand(floor, [ahead(5, 10.0)], POLICY, LIMITS).refused[0].reason
    assert "nothing is known" in follow_demand(state, [PoolDemand("q", ())], POLICY, LIMITS).refused[0].reason
    assert "of the demand" in follow_demand(state, [PoolDemand("p", ())], POLICY, LIMITS).refused[0].reason


def test_no_demand_makes_a_pool_swing() -> None:
    """What follows a change under the same demand changes nothing again, even without any rest."""
    for gpus in range(0, 60, 2):
        state = fleet(4, [], pools=pool(), at_ms=NOW)
        sizes = []
        for _ in range(6):
            plan = follow_demand(state, [ahead(5, float(gpus))], POLICY, LIMITS)
            for step in plan.steps:
                if step.kind is StepKind.SCALE_OUT:
                    state = _ready(state, step.hosts)
                elif step.kind is StepKind.SCALE_IN:
                    state = _without(state, step.subject)
            sizes.append(len(state.nodes))
        steps = [later - sooner for sooner, later in pairwise(sizes)]
        assert all(change <= 0 for change in steps) or all(change >= 0 for change in steps), (gpus, sizes)


def _without(state: FleetState, host: str) -> FleetState:
    nodes = {name: node for name, node in state.nodes.items() if name != host}
    return replace(state, nodes=nodes, gpus={uuid: slot for uuid, slot in state.gpus.items() if slot.host != host})


def _ready(state: FleetState, hosts: tuple[str, ...]) -> FleetState:
    for host in hosts:
        node = replace(state.nodes["n0"], host=host)
        slots = [replace(slot, uuid=f"{host}/{i}", host=host) for i, slot in enumerate(state.by_host["n0"])]
        state = state.with_nodes([node], slots)
    return state


def forecast(target: str, metric: str, value: float, eta_ms: int | None, status: PredictionStatus) -> Prediction:
    return Prediction(
        Subject(SubjectKind.POOL, "p"),
        target,
        NOW,
        24 * HOUR,
        status,
        "capacity",
        "1",
        "s",
        metric,
        eta_ms=eta_ms,
        evidence=(Evidence(metric, "peak", NOW + 3 * HOUR, value),),
    )


def test_forecasts_of_pools_become_demand() -> None:
    state = fleet(4, [], at_ms=NOW)
    busy, waits = "pool_utilization_ratio", "pool_pending_gpus"
    crossing, none = PredictionStatus.CROSSING, PredictionStatus.NO_CROSSING
    found = demand_of(
        [
            forecast(f"time_to_threshold:{busy}", busy, 0.95, NOW + HOUR, crossing),
            forecast(f"time_to_threshold:{waits}", waits, 6.0, None, none),
            forecast(f"time_below:{busy}", busy, 0.1, NOW + HOUR, crossing),
            forecast(f"time_to_threshold:{busy}", busy, 9.0, None, PredictionStatus.NOT_ENOUGH_DATA),
        ],
        state,
    )
    assert found == [PoolDemand("p", ((NOW + HOUR, 0.95 * 32, 0.95 * 32), (NOW + 3 * HOUR, 38.0, 38.0)))]
    assert found[0].most(NOW, NOW + HOUR) == pytest.approx(30.4)
    assert found[0].most(NOW, NOW) is None


def test_capacity_never_drops_below_the_floor_in_a_hundred_runs() -> None:
    """Every failure is warned of an hour ahead; a new node takes up to 15 minutes, and one request in ten fails."""
    runs = [drill(seed, Way.SCALE_FIRST) for seed in range(100)]
    assert all(run.least >= run.floor for run in runs)
    assert sum(run.seconds_below for run in runs) == 0
    assert sum(run.drained for run in runs) == 500
    assert sum(run.lost_works for run in runs) == 0
    beside = [drill(seed, Way.DRAIN_FIRST) for seed in range(20)]
    assert all(run.least < run.floor and run.broken_by_action for run in beside)


def test_failures_without_warning_lower_it_but_no_action_of_ours() -> None:
    spec = DrillSpec(surprises=0.3)
    runs = [drill(seed, Way.SCALE_FIRST, spec) for seed in range(40)]
    beside = [drill(seed, Way.DRAIN_FIRST, spec) for seed in range(40)]
    assert sum(run.broken_by_action for run in runs) == 0
    assert any(run.least < run.floor for run in runs), "nobody can foresee these"
    assert sum(run.seconds_below for run in runs) < sum(run.seconds_below for run in beside) / 2
    assert drill(3, Way.SCALE_FIRST, spec) == drill(3, Way.SCALE_FIRST, spec)
