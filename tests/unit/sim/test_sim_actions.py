"""Actions have the effects that a post-check looks for."""

from __future__ import annotations

import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import parameters_of
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Missing
from tocsin.sim.fleet import SimulatedFleet
from tocsin_testing.simulated import first_suited, fleet, watch


def struck(kind: str, steps: int = 45) -> tuple[SimulatedFleet, int]:
    simulated = fleet()
    gpu = first_suited(kind)
    simulated.step()
    simulated.inject(kind, str(gpu))
    watch(simulated, gpu, steps)
    return simulated, gpu


def test_throttle_lowers_power_and_temperature_and_restore_undoes_it() -> None:
    simulated, calm = fleet(), fleet()
    simulated.step()
    first = calm.step().readings
    gpu = max(range(64), key=lambda number: first[number].values["gpu_power_watts"])
    for _ in range(4):
        assert simulated.apply(ActionKind.THROTTLE, str(gpu))
    throttled = watch(simulated, gpu, 4).readings[-1].values
    untouched = watch(calm, gpu, 4).readings[-1].values
    limit = untouched["gpu_power_limit_default_watts"]
    assert throttled["gpu_power_limit_enforced_watts"] == pytest.approx(0.7 * limit)
    assert throttled["gpu_temperature_celsius"] < untouched["gpu_temperature_celsius"] - 5
    assert simulated.apply(ActionKind.RESTORE, str(gpu))
    assert simulated.step().readings[gpu].values["gpu_power_limit_watts"] == limit


def test_throttle_has_a_floor_and_says_when_it_is_reached() -> None:
    simulated = fleet()
    assert simulated.apply(ActionKind.THROTTLE, "0", parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "1"}))
    assert simulated.step().readings[0].values["gpu_power_limit_watts"] == pytest.approx(420)
    assert not simulated.apply(ActionKind.THROTTLE, "0")


@pytest.mark.parametrize("value", ["hot", "-5", "nan", "0"])
def test_a_parameter_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="power_limit_watts"):
        fleet().apply(ActionKind.THROTTLE, "0", parameters_of(ActionKind.THROTTLE, {"power_limit_watts": value}))


def test_throttle_cools_a_drifting_gpu() -> None:
    simulated, gpu = struck("thermal_drift", 60)
    hot = simulated.step().readings[gpu].values["gpu_temperature_celsius"]
    simulated.apply(ActionKind.THROTTLE, str(gpu), parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "430"}))
    assert watch(simulated, gpu, 10).series("gpu_temperature_celsius")[-1] < hot - 6


def test_defragment_mends_the_allocator() -> None:
    simulated, gpu = struck("allocator_fragmentation", 20)
    assert simulated.apply(ActionKind.DEFRAGMENT, str(gpu))
    (ratios,) = watch(simulated, gpu, 2).variants("gpu_allocator_external_fragmentation_ratio").values()
    assert max(ratios) < 0.2
    assert simulated.faults[-1].ended_ms is not None


def test_defragment_repacks_mig() -> None:
    simulated, gpu = struck("mig_fragmentation", 20)
    assert simulated.apply(ActionKind.DEFRAGMENT, str(gpu))
    assert watch(simulated, gpu, 5).series("gpu_mig_fragmentation_ratio")[-1] == pytest.approx(0.0)


@pytest.mark.parametrize("kind", ["row_remap", "gsp_timeout", "nvlink_recovery", "sram_error", "hang"])
def test_reset_clears_what_a_reset_can_clear(kind: str) -> None:
    simulated, gpu = struck(kind)
    assert simulated.apply(ActionKind.RESET_GPU, str(gpu))
    after = watch(simulated, gpu, 3)
    last = after.readings[-1].values
    assert EventKind.DRIVER_RELOAD in {event.kind for event in after.events} or kind == "hang"
    assert (last["gpu_recovery_action"], last["gpu_row_remap_pending"]) == (0, 0)
    assert last["gpu_ecc_uncorrected_volatile_total"] == 0
    assert not (last["gpu_utilization_ratio"] == 1 and last["gpu_sm_active_ratio"] == 0)
    assert simulated.faults[-1].ended_ms is not None


def test_a_reset_does_not_stop_a_precursor() -> None:
    simulated, gpu = struck("row_remap", 10)
    simulated.apply(ActionKind.RESET_GPU, str(gpu))
    watch(simulated, gpu, 25)
    assert simulated.faults[-1].onset_ms is not None


def test_a_lost_gpu_needs_the_node_rebooted() -> None:
    simulated, gpu = struck("fallen_off_bus", 25)
    assert not simulated.apply(ActionKind.RESET_GPU, str(gpu))
    assert not simulated.apply(ActionKind.THROTTLE, str(gpu))
    assert set(simulated.step().readings[gpu].missing.values()) == {Missing.LOST}
    assert simulated.apply(ActionKind.REBOOT_NODE, str(gpu))
    batch = simulated.step()
    assert batch.readings[gpu].values
    assert EventKind.GPU_FOUND in {event.kind for event in batch.events}


@pytest.mark.parametrize(("action", "steps"), [(ActionKind.DRAIN, 1), (ActionKind.CORDON, 17)])
def test_drain_and_cordon_empty_the_host_until_uncordoned(action: ActionKind, steps: int) -> None:
    simulated = fleet()
    simulated.step()
    assert simulated.apply(action, "9")
    for _ in range(steps):
        readings = simulated.step().readings
    assert all(reading.values["gpu_utilization_ratio"] == 0 for reading in readings[8:16])
    assert any(reading.values["gpu_processes"] > 0 for reading in readings[:8] + readings[16:])
    assert simulated.apply(ActionKind.UNCORDON, "9")
    watch(simulated, 9, 60)
    assert simulated.step().readings[9].values["gpu_utilization_ratio"] > 0


def test_migrate_empties_one_gpu() -> None:
    simulated = fleet()
    simulated.step()
    assert simulated.apply(ActionKind.MIGRATE, simulated.gpus[41].uuid)
    readings = simulated.step().readings
    assert readings[41].values["gpu_processes"] == 0
    assert readings[40].values["gpu_processes"] == 1


def test_a_place_elsewhere_closes_the_gpu_to_new_work_only() -> None:
    simulated = fleet()
    simulated.step()
    assert simulated.apply(ActionKind.PLACE_ELSEWHERE, "0")
    assert simulated.step().readings[0].values["gpu_processes"] == 1
    simulated.step(DAY)
    assert simulated.step().readings[0].values["gpu_processes"] == 0


def test_scaling_out_takes_work_that_waits() -> None:
    simulated = fleet(start_ms=13 * HOUR)
    simulated.step(HOUR)
    waiting = {pool.name: pool.pending_gpus for pool in simulated.pools()}["inference"]
    assert waiting
    assert simulated.apply(ActionKind.SCALE_OUT, "inference", parameters_of(ActionKind.SCALE_OUT, {"gpus": "2"}))
    assert {pool.name: pool.pending_gpus for pool in simulated.pools()}["inference"] == max(0.0, waiting - 2)
    assert simulated.apply(ActionKind.SCALE_IN, "inference", parameters_of(ActionKind.SCALE_IN, {"gpus": "2"}))
    assert not simulated.apply(ActionKind.SCALE_IN, "inference")
    assert {pool.name: pool.pending_gpus for pool in simulated.pools()}["inference"] == waiting


def test_scaling_in_gives_back_what_nobody_asks_for_and_no_more() -> None:
    simulated = fleet(start_ms=0)
    simulated.step()
    (before,) = [pool.gpus for pool in simulated.pools() if pool.name == "inference"]
    while simulated.apply(ActionKind.SCALE_IN, "inference", parameters_of(ActionKind.SCALE_IN, {"gpus": "2"})):
        pass
    (after,) = [pool for pool in simulated.pools() if pool.name == "inference"]
    assert before is not None
    assert after.gpus is not None
    assert 0 < after.gpus < before
    assert after.pending_gpus == 0.0
    simulated.step(13 * HOUR)
    (by_day,) = [pool for pool in simulated.pools() if pool.name == "inference"]
    assert by_day.pending_gpus


def test_an_unknown_pool_or_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="nearest is inference"):
        fleet().apply(ActionKind.SCALE_OUT, "inferense")
    with pytest.raises(InputError, match="no such GPU"):
        fleet().apply(ActionKind.DRAIN, "99")


@pytest.mark.parametrize("action", [ActionKind.NOTIFY, ActionKind.CHECKPOINT, ActionKind.RMA_TICKET])
def test_what_touches_no_gpu_changes_nothing(action: ActionKind) -> None:
    one, other = fleet(), fleet()
    assert one.apply(action, "0")
    assert one.step() == other.step()
