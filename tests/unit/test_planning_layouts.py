"""Where MIG instances lie is read off their labels; what is not wholly known is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.layouts import layouts_of, profile_of, running_demand
from tocsin.actions.planning.state import GpuMode, Hold
from tocsin.domain.identity import MIG_START
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading
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
    assert layouts == {WHOLE.uuid: {"MIG-1": ("3g", 4), "MIG-2": ("1g", 0)}}
    state = fleet_state_from(readings, [], [], T0, Knowledge(layouts=layouts))
    assert state.gpus[WHOLE.uuid].mode is GpuMode.MIG
    assert state.works["slurm/9"].holds == (Hold(WHOLE.uuid, 1.0, 4),)
    assert state.layout(WHOLE.uuid) == (("3g", 4),)
    assert running_demand(layouts.values()) == {"1g": 0.5, "3g": 0.5}


@pytest.mark.parametrize(
    "parts",
    [
        [part(1, "3g.40gb", None)],
        [part(1, "3g.40gb", "x")],
        [part(1, "9g.80gb", "0")],
        [part(1, "", "0")],
        [part(1, "3g.40gb", "4"), part(2, "3g.40gb", "4")],
    ],
)
def test_a_gpu_of_which_not_all_is_known_is_left_out(parts: list[Reading]) -> None:
    readings = [whole(), *parts]
    assert layouts_of(readings) == {}
    assert not fleet_state_from(readings, [], [], T0).gpus


def test_a_gpu_in_mig_mode_without_instances_is_empty() -> None:
    assert layouts_of([whole()]) == {WHOLE.uuid: {}}
    told = {'gpu_mig_instance_memory_used_ratio{instance="MIG-1"}': 0.5}
    assert layouts_of([Reading(WHOLE, T0, TOTAL | told)]) == {}, "an instance that is read nowhere"
    assert layouts_of([Reading(WHOLE, T0, {})]) == {}, "not in MIG mode"


@pytest.mark.parametrize(
    ("named", "profile"),
    [("1g.10gb", "1g"), ("1g.20gb", "1g.double"), ("1g.10gb+me", "1g+me"), ("7g.80gb", "7g"), ("2g.20gb", "2g")],
)
def test_drivers_names_become_profiles(named: str, profile: str) -> None:
    assert profile_of(part(1, named, "0"), whole()) == profile
