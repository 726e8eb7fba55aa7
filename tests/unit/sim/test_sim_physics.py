"""The physics of the normal: first-order heat, capped power, exact energy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.decision import parameters_of
from tocsin.domain.finding import ActionKind
from tocsin.sim import thermal
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.inventory import INLET_C, TAU_S, build
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0
from tocsin_testing.simulated import fleet, watch


def test_relaxation_reaches_63_percent_in_one_time_constant() -> None:
    start, end = np.array([30.0]), np.array([80.0])
    after = thermal.relax(start, end, TAU_S)
    assert float(after[0]) == pytest.approx(80 - 50 / math.e)


def test_relaxation_in_many_steps_is_that_in_one() -> None:
    whole = thermal.relax(np.array([30.0]), np.array([80.0]), 60.0)
    parts = np.array([30.0])
    for _ in range(60):
        parts = thermal.relax(parts, np.array([80.0]), 1.0)
    assert float(parts[0]) == pytest.approx(float(whole[0]))


def test_steady_temperature_is_inlet_plus_resistance_times_power() -> None:
    simulated = fleet(gpus=64)
    inventory = build(simulated.spec)
    for gpu in (0, 17, 33):
        simulated.apply(ActionKind.DRAIN, str(gpu))
    idle = [simulated.step() for _ in range(15)][-1].readings
    for gpu in (0, 17, 33):
        inlet = float(thermal.inlet(inventory, simulated.now_ms)[gpu])
        expected = inlet + float(inventory.resistance[gpu]) * idle[gpu].values["gpu_power_watts"]
        assert idle[gpu].values["gpu_temperature_celsius"] == pytest.approx(expected, abs=1.2)


def test_a_fleet_whose_gpus_have_lost_heat_transfer_begins_as_warm_as_it_stays() -> None:
    """Precursors of a thermal drift are under way when it begins: no GPU leaps to its temperature."""
    spec = FleetSpec(1024, 103, T0, MINUTE, fault_rate_scale=600.0, software_rate_scale=0.0, under_way=True)
    simulated = SimulatedFleet(spec)
    temperatures = [simulated.step_columns(("gpu_temperature_celsius",))[0].values[:, 0] for _ in range(10)]
    drifting = {fault.gpu for fault in simulated.faults if fault.kind == "thermal_drift" and fault.started_ms < T0}
    places = [place for place, uuid in enumerate(simulated.step_columns(())[0].gpus) if uuid in drifting]
    assert len(places) > 10
    leaps = np.abs(temperatures[-1] - temperatures[0])
    assert np.nanmedian(leaps[places]) <= np.nanmedian(leaps) + 1.0


def test_a_drained_gpu_cools_with_the_time_constant() -> None:
    simulated = fleet(gpus=8, interval_ms=10 * SECOND)
    hot = watch(simulated, 0, 30).series("gpu_temperature_celsius")[-1]
    simulated.apply(ActionKind.DRAIN, "0")
    cooling = watch(simulated, 0, 90).series("gpu_temperature_celsius")
    end = cooling[-1]
    steps = round(TAU_S / 10)
    assert hot - end > 20
    assert (cooling[steps - 1] - end) / (hot - end) == pytest.approx(1 / math.e, abs=0.06)


def test_slots_differ_by_a_few_degrees_at_equal_load() -> None:
    simulated = fleet(gpus=8)
    last = [simulated.step() for _ in range(10)][-1].readings
    temperatures = [reading.values["gpu_temperature_celsius"] for reading in last]
    assert 1 < max(temperatures) - min(temperatures) < 15
    assert np.mean(temperatures[1::2]) > np.mean(temperatures[0::2])


def test_energy_integrates_power_exactly() -> None:
    simulated = fleet(gpus=64, interval_ms=7 * SECOND)
    before = simulated.step().readings
    for _ in range(20):
        after = simulated.step().readings
        for old, new in zip(before, after, strict=True):
            grown = new.values["gpu_energy_joules_total"] - old.values["gpu_energy_joules_total"]
            assert grown == pytest.approx(new.values["gpu_power_watts"] * 7, rel=1e-9, abs=1e-6)
        before = after


def test_power_keeps_to_its_limit_and_says_why() -> None:
    simulated = fleet(gpus=8)
    simulated.step()
    assert simulated.apply(ActionKind.THROTTLE, "0", parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "450"}))
    seen = watch(simulated, 0, 20)
    assert max(seen.series("gpu_power_watts")) <= 450 * 1.011
    masks = [int(mask) for mask in seen.series("gpu_clocks_event_reasons_bitmask")]
    assert any(mask & thermal.REASON_POWER_CAP for mask in masks)
    assert seen.series("gpu_power_cap_seconds_total")[-1] > 600
    assert min(seen.series("gpu_sm_clock_hertz")) < 0.9 * seen.readings[0].values["gpu_sm_clock_max_hertz"]


def test_lost_cooling_is_held_by_slowdown_at_any_length_of_step() -> None:
    ends = []
    for interval in (10 * SECOND, MINUTE, 10 * MINUTE):
        simulated = fleet(gpus=8, interval_ms=interval)
        simulated.step()
        simulated.inject("fan_failure", "0")
        seen = watch(simulated, 0, 30 * MINUTE // interval)
        assert max(seen.series("gpu_temperature_celsius")) < 95
        assert seen.series("gpu_hw_thermal_slowdown_seconds_total")[-1] > 300
        ends.append(seen.series("gpu_temperature_celsius")[-1])
    assert max(ends) - min(ends) <= 3


def test_inlet_is_within_what_a_data_centre_supplies() -> None:
    inventory = build(FleetSpec(gpus=4096, seed=1))
    for hour in range(24):
        inlet = thermal.inlet(inventory, hour * 60 * MINUTE)
        assert float(np.abs(inlet - INLET_C).max()) <= 2.5 + 1e-9
