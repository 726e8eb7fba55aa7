"""Where MIG instances lie is read off labels, or worked out; what is not wholly known is left out and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.defragment import repack_mig
from tocsin.actions.planning.layouts import MigLayout, layouts_of, profile_of, running_demand
from tocsin.actions.planning.plan import StepKind
from tocsin.actions.planning.scaling import ScalingPolicy, replace_before_drain, scale_in
from tocsin.actions.planning.state import GpuHold, GpuMode, Pool
from tocsin.actions.planning.statefile import parse_state, state_json
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.reading import MIG_START, Owner, Reading
from tocsin_testing.builders import T0, gpu

WHOLE = gpu(0, model="NVIDIA H100 80GB HBM3")
TOTAL = {"gpu_memory_total_bytes": 80.0 * 2**30, "gpu_mig_fragmentation_ratio": 0.0}


def part(number: int, profile: str, start: str | None, owner: Owner | None = None) -> Reading:
    labels = {} if start is None else {MIG_START: start}
    one = replace(gpu(number), uuid=f"MIG-{number}", parent=WHOLE.uuid, mig_profile=profile, labels=labels)
    return Reading(one, T0, {}, {}, () if owner is None else (owner,))


def whole(**more: float) -> Reading:
    return Reading(WHOLE, T0, TOTAL | more)


def test_instances_are_placed_and_their_work_with_them() -> None:
    readings = [whole(), part(1, "3g.40gb", "4", Owner(7, slurm_job="9")), part(2, "1g.10gb", "0")]
    layouts = layouts_of(readings)
    assert layouts == {WHOLE.uuid: MigLayout({"MIG-1": ("3g", 4), "MIG-2": ("1g", 0)})}
    state = fleet_state_from(readings, [], [], T0, Knowledge(layouts=layouts))
    assert state.gpus[WHOLE.uuid].mode is GpuMode.MIG
    assert state.works["slurm/9"].holds == (GpuHold(WHOLE.uuid, 1.0, 4),)
    assert state.layout(WHOLE.uuid) == (("3g", 4),)
    assert running_demand([layouts[WHOLE.uuid].placed or {}]) == {"1g": 0.5, "3g": 0.5}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([part(1, "3g.40gb", None)], "several layouts of its MIG instances agree"),
        ([part(1, "3g.40gb", "x")], "several layouts of its MIG instances agree"),
        ([part(1, "9g.80gb", "0")], "MIG-1 has a shape that is not known"),
        ([part(1, "", "0")], "MIG-1 has a shape that is not known"),
        ([part(1, "3g.40gb", "4"), part(2, "3g.40gb", "4")], "contradictory placements: 3g@4 overlaps"),
        ([part(number, "4g.40gb", None) for number in (1, 2)], "the placement of its MIG instances is unknown"),
    ],
)
def test_a_gpu_of_which_not_all_is_known_is_left_out_and_says_why(parts: list[Reading], why: str) -> None:
    readings = [whole(), *parts, Reading(gpu(9, host=WHOLE.host), T0, {})]
    known = Knowledge(layouts=layouts_of(readings), pools={WHOLE.pool: Pool(WHOLE.pool, node_gpus=1)})
    state = fleet_state_from(readings, [], [], T0, known)
    assert WHOLE.uuid not in state.gpus
    assert why in state.left_out[WHOLE.uuid].reason
    assert parse_state(state_json(state)).left_out == state.left_out
    refused = {one.subject: one.reason for one in repack_mig(state, PlanLimits()).refused}
    assert refused == {WHOLE.uuid: state.left_out[WHOLE.uuid].reason}
    plan = scale_in(state, ScalingPolicy(), PlanLimits())
    assert not plan.steps, "what it does is not known, so its node stays"
    drain = replace_before_drain(state, [WHOLE.host], PlanLimits())
    assert StepKind.DRAIN not in {step.kind for step in drain.steps}


def test_the_numbers_of_instances_leave_one_layout() -> None:
    counts = {'gpu_mig_instances{profile="3g.40gb"}': 2.0}
    readings = [whole(**counts), part(1, "3g.40gb", None, Owner(7, slurm_job="9")), part(2, "3g.40gb", None)]
    (found,) = layouts_of(readings).values()
    assert found.placed == {"MIG-1": ("3g", 0), "MIG-2": ("3g", 4)}
    assert (found.count, found.guessed) == (1, {"MIG-1", "MIG-2"}), "which of the two has which place is not known"
    state = fleet_state_from(readings, [], [], T0, Knowledge(layouts=layouts_of(readings)))
    assert state.works["slurm/9"].stays
    assert not repack_mig(state, PlanLimits()).steps
    (alone,) = layouts_of([whole(), part(1, "7g.80gb", None)]).values()
    assert (alone.placed, alone.guessed) == ({"MIG-1": ("7g", 0)}, frozenset())


def test_layouts_into_which_the_same_fits_are_as_good_as_one() -> None:
    fits = {"1g.10gb": 5, "2g.20gb": 2, "3g.40gb": 1, "4g.40gb": 1}
    values = {'gpu_mig_instances{profile="1g.10gb"}': 2.0}
    values |= {f'gpu_mig_remaining_capacity{{profile="{name}"}}': float(number) for name, number in fits.items()}
    readings = [whole(**values)]
    (found,) = layouts_of(readings).values()
    assert found.count > 1
    assert found.placed is not None
    assert all(start >= 4 for _, start in found.placed.values())
    known = Knowledge(layouts=layouts_of(readings), at_work=frozenset({WHOLE.uuid}))
    state = fleet_state_from(readings, [], [], T0, known)
    assert len(state.layout(WHOLE.uuid)) == 2, "at work, and nobody tells which of them"
    assert all(work.stays for work in state.works.values())
    idle = fleet_state_from(readings, [], [], T0, Knowledge(layouts=layouts_of(readings)))
    assert not idle.works


def test_a_gpu_in_mig_mode_without_instances_is_empty() -> None:
    assert layouts_of([whole()]) == {WHOLE.uuid: MigLayout({})}
    told = {'gpu_mig_instance_memory_used_ratio{instance="MIG-1"}': 0.5}
    (found,) = layouts_of([Reading(WHOLE, T0, TOTAL | told)]).values()
    assert found.placed is None, "an instance that is read nowhere"
    assert layouts_of([Reading(WHOLE, T0, {})]) == {}, "not in MIG mode"


@pytest.mark.parametrize(
    ("named", "profile"),
    [("1g.10gb", "1g"), ("1g.20gb", "1g.double"), ("1g.10gb+me", "1g+me"), ("7g.80gb", "7g"), ("2g.20gb", "2g")],
)
def test_drivers_names_become_profiles(named: str, profile: str) -> None:
    assert profile_of(part(1, named, "0"), whole()) == profile
