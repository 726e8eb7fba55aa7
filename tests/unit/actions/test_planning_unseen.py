"""A busy GPU whose owner nobody knows is free to no planner: not scaled in, not filled, not moved."""

from __future__ import annotations

import pytest

from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.defragment import defragment
from tocsin.actions.planning.facts import WorkloadFacts
from tocsin.actions.planning.placement import place
from tocsin.actions.planning.plan import StepKind
from tocsin.actions.planning.scaling import ScalingPolicy, replace_before_drain, scale_in
from tocsin.actions.planning.state import FleetState, Pool, Workload
from tocsin.actions.planning.units import PlanLimits
from tocsin.config.planning import PlanningSettings
from tocsin.domain.fragmentation import TaskClass
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.fleet_state import at_work
from tocsin.runtime.brain.plan_watch import PlanInputs, Planner
from tocsin_testing.builders import T0

BUSY = {"gpu_utilization_ratio": 0.9, "gpu_processes": 1.0}
IDLE = {"gpu_utilization_ratio": 0.0, "gpu_processes": 0.0}
UNKNOWN = {"gpu_temperature_celsius": 50.0}
JOB = (Owner(7, slurm_job="1"),)


def reading(host: str, index: int, values: dict[str, float], owners: tuple[Owner, ...] = ()) -> Reading:
    return Reading(Gpu(f"{host}/{index}", host, index, "H100", pool="p"), T0, values, {}, owners)


def fleet(values: dict[str, float]) -> FleetState:
    """n0 has one GPU with `values` and no owner beside an idle one, n1 a job that could leave, n2 and n3 nothing."""
    readings = [
        reading("n0", 0, values),
        reading("n0", 1, IDLE),
        reading("n1", 0, BUSY, JOB),
        *(reading(host, index, IDLE) for host, index in (("n1", 1), ("n2", 0), ("n2", 1), ("n3", 0), ("n3", 1))),
    ]
    known = Knowledge(
        {"slurm/1": WorkloadFacts(lost_s=0.0)},
        pools={"p": Pool("p", node_gpus=2, node_model="H100")},
        at_work=at_work(readings),
        mix=(TaskClass(2.0),),
        restart_s=1.0,
    )
    return fleet_state_from(readings, [], [], T0, known)


@pytest.mark.parametrize("values", [BUSY, UNKNOWN], ids=["busy", "nobody knows"])
def test_no_planner_takes_it_for_free(values: dict[str, float]) -> None:
    state = fleet(values)
    assert state.free("n0/0") == 0
    assert state.pools["p"].utilisation == 2 / 8
    for plan in (defragment(state, PlanLimits(effort=500)), scale_in(state, ScalingPolicy(), PlanLimits())):
        assert plan.steps
        assert not [m for step in plan.steps for m in step.moves if m.work == "unseen/n0/0"]
        assert "n0/0" not in {hold.gpu for step in plan.steps for m in step.moves for hold in m.target}
        assert "n0" not in {step.subject for step in plan.steps if step.kind is StepKind.SCALE_IN}
    waiting = state.with_works([Workload(f"new-{number}", gpus=2.0) for number in range(4)])
    filled = {hold.gpu for step in place(waiting, PlanLimits()).steps for move in step.moves for hold in move.target}
    assert filled == {"n2/0", "n2/1", "n3/0", "n3/1"}


def test_its_node_is_closed_and_never_drained() -> None:
    plan = replace_before_drain(fleet(BUSY), ["n0"], PlanLimits())
    assert [step.kind for step in plan.steps] == [StepKind.CORDON]
    assert [(one.subject, one.reason) for one in plan.refused] == [("unseen/n0/0", "its owner is unknown")]
    assert StepKind.DRAIN in {step.kind for step in replace_before_drain(fleet(IDLE), ["n0"], PlanLimits()).steps}


def test_the_plan_watch_leaves_it_alone() -> None:
    wanted = PlanningSettings.model_validate({"follow": ["defragment", "scale_in"], "effort": 500})
    for values, free in ((BUSY, False), (IDLE, True)):
        planner, state = Planner(wanted), fleet(values)
        planner.look(state, PlanInputs(), T0)
        found, _ = planner.look(state, PlanInputs(), T0 + 60_000)
        assert found, "there is something to do elsewhere"
        removed = {plan.steps[-1].subject for plan in (scale_in(state, ScalingPolicy(), PlanLimits()),)}
        assert ("n0" in removed) == free
        assert all("unseen" not in one.sentence for one in found)
        if not free:
            assert not any(one.subject.host == "n0" or one.subject.name == "n0" for one in found)
