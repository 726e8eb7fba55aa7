"""`step_columns` says exactly what `step` says, without the readings."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.decision import parameters_of
from tocsin.domain.finding import ActionKind
from tocsin.domain.metrics import split_variant, variant
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0

METRICS = (
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_utilization_ratio",
    "gpu_power_watts",
    "gpu_ecc_corrected_volatile_total",
    "gpu_row_remap_correctable_total",
    "gpu_retired_pages_corrected_total",
    "gpu_fan_speed_ratio",
    "gpu_mig_fragmentation_ratio",
    variant("gpu_pcie_errors_total", "kind", "bad_tlp"),
    variant("gpu_nvlink_symbol_errors_total", "link", "13"),
    variant("gpu_nvlink_symbol_errors_total", "link", "0"),
)
PLAIN = ("gpu_allocator_external_fragmentation_ratio", "gpu_mig_instance_memory_used_ratio")


def pair(seed: int, scale: float) -> tuple[SimulatedFleet, SimulatedFleet]:
    spec = FleetSpec(256, seed, T0, HOUR, scale)
    return SimulatedFleet(spec), SimulatedFleet(spec)


@pytest.mark.parametrize("seed", [3, 4])
def test_values_and_events_are_those_of_readings(seed: int) -> None:
    one, other = pair(seed, 300.0)
    one.inject("frozen_telemetry", "5")
    other.inject("frozen_telemetry", "5")
    one.inject("fallen_off_bus", "9")
    other.inject("fallen_off_bus", "9")
    for _ in range(30):
        batch = one.step()
        columns, events = other.step_columns(METRICS)
        assert events == batch.events
        assert columns.gpus == tuple(sorted(reading.gpu.uuid for reading in batch.readings))
        readings = {reading.gpu.uuid: reading for reading in batch.readings}
        rows = [readings[columns.gpus[number]] for number in columns.gpu]
        expected = np.array([[reading.values.get(name, np.nan) for name in METRICS] for reading in rows])
        np.testing.assert_array_equal(columns.values, expected)
        assert set(columns.at_ms.tolist()) == {one.now_ms}
    assert one.faults == other.faults


def test_metrics_of_processes_and_instances_go_by_their_plain_names() -> None:
    one, other = pair(5, 0.0)
    for _ in range(4):
        batch = one.step()
        columns, _ = other.step_columns(PLAIN)
    readings = {reading.gpu.uuid: reading.values for reading in batch.readings}
    seen = 0
    for uuid, row in zip(columns.gpus, columns.values, strict=True):
        for place, name in enumerate(PLAIN):
            found = [value for key, value in readings[uuid].items() if split_variant(key)[0] == name]
            assert row[place] == max(found) if found else np.isnan(row[place])
            seen += bool(found)
    assert seen > 100


def test_a_metric_that_nobody_has_is_missing() -> None:
    fleet = SimulatedFleet(FleetSpec(8, 1, T0, MINUTE))
    columns, _ = fleet.step_columns(["gpu_fan_speed_ratio", "gpu_no_such_thing"])
    assert np.isnan(columns.values).all()


def test_power_limits_slow_the_traffic_along_the_curve() -> None:
    free, capped = pair(6, 0.0)
    for fleet in (free, capped):
        fleet.step_columns(("gpu_power_watts",))
    assert capped.apply(ActionKind.THROTTLE, "0", parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "490"}))
    metric = "gpu_nvlink_bandwidth_bytes_per_second"
    uuid = free.gpus[0].uuid
    moved = []
    for fleet in (free, capped):
        columns, _ = fleet.step_columns((metric,))
        moved.append(float(columns.values[columns.gpus.index(uuid), 0]))
    assert moved[1] / moved[0] == pytest.approx(0.77, abs=1e-6)
