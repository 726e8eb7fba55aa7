"""Every fault kind shows its precursor, strikes with its events and leaves its marks."""

from __future__ import annotations

import pytest

from tocsin.domain.clock import HOUR
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin.sim.faults import FAULT_KINDS, fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin_testing.builders import T0
from tocsin_testing.simulated import Watched, first_suited, fleet, watch


def rehearse(kind: str, steps: int = 70, gpus: int = 64, model: str = "") -> tuple[SimulatedFleet, int, Watched]:
    simulated = fleet(gpus)
    gpu = first_suited(kind, gpus, model)
    seen = watch(simulated, gpu, 3)
    simulated.inject(kind, str(gpu))
    return simulated, gpu, watch(simulated, gpu, steps, seen)


def uuid_of(simulated: SimulatedFleet, gpu: int) -> str:
    return simulated.gpus[gpu].uuid


def grows(values: list[float], times: float = 2.0) -> bool:
    """Whether the second half grew more than the first by `times`."""
    half = len(values) // 2
    return values[-1] - values[half] > times * (values[half] - values[0])


def test_kinds_are_found_and_explained() -> None:
    assert len(FAULT_KINDS) == len(fault_kinds()) >= 16
    assert all(len(text) > 20 for text in FAULT_KINDS.values())


@pytest.mark.parametrize("kind", sorted(fault_kinds()))
def test_a_rehearsal_strikes_within_the_hour_and_tells_the_truth(kind: str) -> None:
    simulated, gpu, _ = rehearse(kind, steps=60)
    (fault,) = simulated.faults
    assert (fault.kind, fault.gpu, fault.injected, fault.benign) == (kind, uuid_of(simulated, gpu), True, False)
    assert fault.onset_ms is not None
    assert fault.started_ms <= fault.onset_ms <= fault.started_ms + HOUR
    assert fault.abrupt == (fault.started_ms == fault.onset_ms) == (not fault_kinds()[kind].precursor)


@pytest.mark.parametrize("kind", sorted(fault_kinds()))
def test_every_fault_ends_and_the_gpu_recovers(kind: str) -> None:
    simulated, gpu, _ = rehearse(kind, steps=1, gpus=64 if kind == "mig_fragmentation" else 16)
    after = watch(simulated, gpu, 10 * 60)
    (fault,) = simulated.faults
    assert fault.ended_ms is not None
    last = after.readings[-1].values
    assert last["gpu_recovery_action"] == 0
    assert not any(reason is Missing.LOST for reason in after.readings[-1].missing.values())


def test_thermal_drift_heats_up_at_equal_power_until_it_slows_down() -> None:
    _, _, seen = rehearse("thermal_drift")
    celsius = seen.series("gpu_temperature_celsius")
    assert celsius[38] > celsius[0] + 8
    assert seen.series("gpu_power_watts")[30] == pytest.approx(seen.series("gpu_power_watts")[0], rel=0.15)
    assert max(celsius) > 85
    assert seen.series("gpu_hw_thermal_slowdown_seconds_total")[-1] > 0
    assert seen.series("gpu_sw_thermal_slowdown_seconds_total")[5] == 0


def test_fan_failure_heats_the_whole_host_and_no_other() -> None:
    simulated, gpu, _ = rehearse("fan_failure", steps=10)
    last = simulated.step().readings
    host = simulated.gpus[gpu].host
    for reading in last:
        hot = reading.values["gpu_temperature_celsius"] > 82
        assert hot == (reading.gpu.host == host)


@pytest.mark.parametrize(
    ("kind", "sequence", "action", "flag"),
    [
        ("row_remap", [92, 48, 63, 94, 45, 154], 1.0, "gpu_row_remap_pending"),
        ("row_remap_failure", [92, 48, 64, 95, 45, 154], 4.0, "gpu_row_remap_failure"),
    ],
)
def test_corrected_errors_grow_before_rows_fail(kind: str, sequence: list[int], action: float, flag: str) -> None:
    simulated, gpu, seen = rehearse(kind, steps=40)
    corrected = seen.series("gpu_ecc_dram_corrected_volatile_total")[:30]
    assert corrected[-1] > 20
    assert grows(corrected)
    assert seen.xids(uuid_of(simulated, gpu)) == sequence
    last = seen.readings[-1].values
    assert (last[flag], last["gpu_recovery_action"]) == (1.0, action)
    assert last["gpu_ecc_uncorrected_volatile_total"] == 1.0
    assert last['gpu_row_remap_banks{availability="max"}'] < 640
    assert sum(value for name, value in last.items() if name.startswith("gpu_row_remap_banks{")) == 640


def test_sram_error_comes_without_warning() -> None:
    simulated, gpu, seen = rehearse("sram_error", steps=5)
    assert seen.xids(uuid_of(simulated, gpu)) == [48, 172, 95, 154]
    assert seen.readings[-1].values["gpu_ecc_sram_uncorrected_volatile_total"] == 1.0


def test_replays_grow_and_lanes_drop_before_a_gpu_falls_off_the_bus() -> None:
    simulated, gpu, seen = rehearse("fallen_off_bus", steps=40)
    replays = seen.series("gpu_pcie_replay_total")
    assert replays[-1] > 300
    assert grows(replays)
    assert seen.series("gpu_pcie_link_width")[0] == 16
    assert seen.series("gpu_pcie_link_width")[-1] == 8
    assert seen.xids(uuid_of(simulated, gpu)) == [79, 45, 154]
    assert EventKind.GPU_LOST in {event.kind for event in seen.events}
    last = seen.readings[-1]
    assert not last.values
    assert set(last.missing.values()) == {Missing.LOST}
    assert len(last.missing) > 100


def test_a_lost_gpu_comes_back_with_counters_from_zero() -> None:
    simulated, gpu, _ = rehearse("fallen_off_bus", steps=40)
    after = watch(simulated, gpu, 150)
    assert [event.kind for event in after.events] == [EventKind.DRIVER_RELOAD, EventKind.GPU_FOUND]
    assert after.series("gpu_pcie_replay_total")[0] <= 1


def test_frozen_telemetry_repeats_the_last_values_under_new_dates() -> None:
    simulated, gpu, seen = rehearse("frozen_telemetry", steps=20)
    assert seen.xids(uuid_of(simulated, gpu)) == [79, 45, 154]
    frozen = seen.readings[3:]
    assert all(reading.values == seen.readings[2].values for reading in frozen)
    assert [reading.at_ms for reading in frozen] == sorted({reading.at_ms for reading in frozen})
    assert seen.readings[0].values != seen.readings[1].values


def test_nvlink_recoveries_grow_on_one_link_before_xid_74() -> None:
    simulated, gpu, seen = rehearse("nvlink_recovery", steps=30)
    recoveries = {name: values[-1] for name, values in seen.variants("gpu_nvlink_recovery_errors_total").items()}
    struck = [name for name, value in recoveries.items() if value > 0]
    assert len(struck) == 1
    link = struck[0].split('"')[1]
    assert seen.readings[-1].values[f'gpu_nvlink_up{{link="{link}"}}'] == 0
    assert seen.xids(uuid_of(simulated, gpu)) == [74, 45, 154]
    peers = {event.gpu for event in seen.events if event.code == 74} - {uuid_of(simulated, gpu)}
    assert len(peers) == 1


@pytest.mark.parametrize(("model", "gpus", "peers"), [("NVIDIA B200", 64, 7), ("NVIDIA GB200", 256, 63)])
def test_nvlink_5_failure_echoes_on_every_peer_of_the_domain(model: str, gpus: int, peers: int) -> None:
    simulated, gpu, seen = rehearse("nvlink_recovery", steps=25, gpus=gpus, model=model)
    assert seen.xids(uuid_of(simulated, gpu)) == [149, 154]
    echoes = [event for event in seen.events if event.code == 145]
    assert len({event.gpu for event in echoes}) == len(echoes) == peers
    struck_at = next(event.at_ms for event in seen.events if event.code == 149)
    assert all(0 < event.at_ms - struck_at < 5_000 for event in echoes)
    assert seen.readings[-1].values['gpu_nvlink_link_recovery_total{result="failed"}'] == 1
    symbols = seen.variants("gpu_nvlink_symbol_errors_total")
    assert sum(values[-1] > 1_000 for values in symbols.values()) == 1


@pytest.mark.parametrize(("kind", "code"), [("gsp_timeout", 119), ("gsp_error", 120)])
def test_gsp_faults_repeat_and_hang(kind: str, code: int) -> None:
    simulated, gpu, seen = rehearse(kind, steps=10)
    assert seen.xids(uuid_of(simulated, gpu)) == [code, code, code, 154]
    assert seen.readings[-1].values[f'gpu_xid_events_total{{xid="{code}"}}'] == 3
    assert seen.readings[-1].values["gpu_sm_active_ratio"] == 0


def test_hang_is_full_utilisation_at_idle_power_without_an_event() -> None:
    _, _, seen = rehearse("hang", steps=10)
    last = seen.readings[-1].values
    assert (last["gpu_utilization_ratio"], last["gpu_sm_active_ratio"]) == (1.0, 0.0)
    assert last["gpu_power_watts"] < 1.1 * 70
    assert not seen.events


def test_power_brake_hits_a_whole_host_at_once_without_xid() -> None:
    simulated, gpu, seen = rehearse("power_brake", steps=3)
    braked = {r.gpu.host for r in simulated.step().readings if int(r.values["gpu_clocks_event_reasons_bitmask"]) & 0x80}
    assert braked == {simulated.gpus[gpu].host}
    assert seen.readings[-1].values["gpu_hw_power_brake_seconds_total"] == 180
    assert not seen.events


def test_memory_leak_fills_the_memory_and_kills_the_job() -> None:
    _, _, seen = rehearse("memory_leak", steps=50)
    ratio = seen.series("gpu_memory_used_ratio")
    filling = ratio[3:43]
    assert filling == sorted(filling)
    assert max(ratio) > 0.99
    assert ratio[-1] < 0.1
    assert max(max(values) for values in seen.variants("gpu_allocator_ooms_total").values()) == 1


def test_allocator_fragmentation_follows_from_the_largest_free_block() -> None:
    _, _, seen = rehearse("allocator_fragmentation", steps=40)
    (ratios,) = seen.variants("gpu_allocator_external_fragmentation_ratio").values()
    assert ratios[0] < 0.2
    assert ratios[-1] > 0.5
    last = {name.split("{")[0]: value for name, value in seen.readings[-1].values.items() if "allocator" in name}
    free = last["gpu_allocator_reserved_bytes"] - last["gpu_allocator_allocated_bytes"]
    assert last["gpu_allocator_largest_free_block_bytes"] / free == pytest.approx(1 - ratios[-1])
    assert last["gpu_allocator_retries_total"] > 5


def test_mig_fragmentation_grows_with_the_layout() -> None:
    _, _, seen = rehearse("mig_fragmentation", steps=20)
    index = seen.series("gpu_mig_fragmentation_ratio")
    assert index[0] == pytest.approx(0.0)
    assert index == sorted(index)
    assert index[-1] > 0.3
    assert seen.readings[-1].values['gpu_mig_remaining_capacity{profile="3g.40gb"}'] == 0


def test_an_application_crash_condemns_nothing() -> None:
    simulated, gpu, seen = rehearse("app_crash", steps=5)
    assert seen.xids(uuid_of(simulated, gpu))[0] in {13, 31}
    assert seen.xids(uuid_of(simulated, gpu))[1:] == [45, 43]
    assert seen.readings[-1].values["gpu_recovery_action"] == 0


def test_events_are_dated_when_they_happen_and_come_in_order() -> None:
    simulated = fleet()
    simulated.inject("gsp_timeout", "3")
    before = T0
    for _ in range(6):
        batch = simulated.step()
        dates = [event.at_ms for event in batch.events]
        assert dates == sorted(dates)
        assert all(before < date <= simulated.now_ms for date in dates)
        before = simulated.now_ms
