"""The injector's errors name what is wrong and what to use instead."""

from __future__ import annotations

import pytest

from tocsin.domain.errors import Conflict, InputError
from tocsin_testing.simulated import first_suited, fleet


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest is thermal_drift") as caught:
        fleet().inject("termal_drift", "0")
    assert caught.value.field == "kind"


@pytest.mark.parametrize("gpu", ["64", "-1", "GPU-nonsense", "", "²"])
def test_an_unknown_gpu_names_the_nearest(gpu: str) -> None:
    with pytest.raises(InputError, match="nearest is GPU-") as caught:
        fleet().inject("hang", gpu)
    assert (caught.value.field, caught.value.value) == ("gpu", gpu)


@pytest.mark.parametrize(
    ("kind", "model"),
    [("nvlink_recovery", "L40S"), ("mig_fragmentation", "B200"), ("allocator_fragmentation", "L40S")],
)
def test_a_gpu_that_the_kind_cannot_befall_is_refused_with_one_that_it_can(kind: str, model: str) -> None:
    simulated = fleet()
    unfit = next(gpu for gpu in simulated.gpus if model in gpu.model)
    with pytest.raises(InputError) as caught:
        simulated.inject(kind, unfit.uuid)
    assert caught.value.remedy.endswith(f"GPU {first_suited(kind)}")
    assert caught.value.value == f"{unfit.host} GPU {unfit.index}"


def test_a_fleet_without_a_suited_gpu_says_so() -> None:
    with pytest.raises(InputError, match="none in this fleet"):
        fleet(gpus=8).inject("mig_fragmentation", "0")


def test_uuid_and_number_are_the_same_gpu() -> None:
    simulated = fleet()
    uuid = simulated.gpus[5].uuid
    assert simulated.inject("hang", "5").gpu == simulated.inject("gsp_error", uuid).gpu == uuid


def test_the_same_fault_twice_is_a_conflict() -> None:
    simulated = fleet()
    simulated.inject("hang", "5")
    with pytest.raises(Conflict, match="sim-node-0000 GPU 5 already has hang"):
        simulated.inject("hang", "5")


def test_a_lost_gpu_takes_no_further_fault() -> None:
    simulated = fleet()
    simulated.inject("fallen_off_bus", "5")
    for _ in range(25):
        simulated.step()
    with pytest.raises(Conflict, match="lost"):
        simulated.inject("hang", "5")


def test_a_refused_injection_leaves_no_trace() -> None:
    simulated = fleet()
    with pytest.raises(InputError):
        simulated.inject("nonsense", "0")
    assert simulated.faults == []
