"""What a simulated fleet looks like from outside."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.reading import Missing
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.inventory import models
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0
from tocsin_testing.simulated import fleet, watch

OF_PROCESSES = {name for name, spec in METRICS.items() if spec.label in {"pid", "xid"}}


@pytest.mark.smoke
def test_everything_says_that_it_is_simulated() -> None:
    simulated = fleet()
    simulated.inject("sram_error", "0")
    batch = simulated.step()
    assert all(reading.gpu.simulated for reading in batch.readings)
    assert batch.events
    assert all(event.simulated for event in batch.events)


def test_one_reading_per_gpu_at_the_next_interval() -> None:
    simulated = fleet(gpus=13, interval_ms=10_000)
    batch = simulated.step()
    assert [reading.gpu for reading in batch.readings] == simulated.gpus
    assert {reading.at_ms for reading in batch.readings} == {T0 + 10_000} == {simulated.now_ms}
    assert simulated.step(2_500).readings[0].at_ms == T0 + 12_500


def test_places_and_names() -> None:
    gpus = fleet(gpus=256).gpus
    assert len({gpu.uuid for gpu in gpus}) == 256
    assert set(Counter(gpu.host for gpu in gpus).values()) == {8}
    assert set(Counter(gpu.rack for gpu in gpus).values()) == {32}
    assert {gpu.pool for gpu in gpus} == {"training", "inference", "batch"}
    assert {gpu.model for gpu in gpus} == set(models())
    managed = {gpu.host for gpu in gpus if gpu.labels.get("tocsin.io/managed") == "true"}
    assert len(managed) == 16


def test_at_least_eighty_metrics_and_python_floats() -> None:
    readings = fleet(gpus=64).step().readings
    names = {split_variant(name)[0] for reading in readings for name in reading.values}
    assert len(names) >= 80
    assert {type(value) for reading in readings for value in reading.values.values()} == {float}


def test_every_metric_of_a_gpu_has_a_value_or_a_reason_and_never_both() -> None:
    of_nodes = {"network", "cooling"}
    gpu_metrics = {name for name, spec in METRICS.items() if spec.entity == "gpu" and spec.family not in of_nodes}
    for reading in fleet(gpus=256).step().readings:
        present = {split_variant(name)[0] for name in reading.values}
        assert not present & set(reading.missing), reading.gpu.model
        assert gpu_metrics - present - set(reading.missing) <= OF_PROCESSES, reading.gpu.model


@pytest.mark.parametrize(
    ("model", "metric"),
    [
        ("NVIDIA L40S", "gpu_memory_temperature_celsius"),
        ("NVIDIA L40S", "gpu_nvlink_up"),
        ("NVIDIA A100-SXM4-80GB", "gpu_thermal_margin_celsius"),
        ("NVIDIA B200", "gpu_temperature_slowdown_celsius"),
        ("NVIDIA B200", "gpu_nvlink_recovery_errors_total"),
        ("NVIDIA L4", "gpu_mig_mode"),
        ("Tesla T4", "gpu_row_remap_pending"),
    ],
)
def test_models_lack_what_their_hardware_lacks(model: str, metric: str) -> None:
    readings = [reading for reading in fleet(gpus=256).step().readings if reading.gpu.model == model]
    assert readings
    for reading in readings:
        assert reading.missing[metric] is Missing.UNSUPPORTED
        assert metric not in {split_variant(name)[0] for name in reading.values}


def test_unsupported_metrics_are_metrics() -> None:
    for model in models().values():
        for mig_on in (False, True):
            assert model.unsupported(mig_on=mig_on) <= set(METRICS)


def test_mig_hides_utilisation_and_shows_instances() -> None:
    with_mig = [reading for reading in fleet().step().readings if reading.values.get("gpu_mig_mode") == 1.0]
    assert with_mig
    for reading in with_mig:
        assert reading.missing["gpu_utilization_ratio"] is Missing.UNSUPPORTED
        assert reading.values["gpu_mig_fragmentation_ratio"] == pytest.approx(0.0)
        instances = [name for name in reading.values if name.startswith("gpu_mig_instance_memory_used_ratio{")]
        counted = sum(value for name, value in reading.values.items() if name.startswith("gpu_mig_instances{"))
        assert len(instances) == counted > 0


def test_static_metrics_are_in_every_reading() -> None:
    seen = watch(fleet(), 0, 5)
    static = {name for name, spec in METRICS.items() if spec.static} - set(seen.readings[0].missing)
    assert len(static) > 8
    for name in static:
        assert len(set(seen.series(name))) == 1
        assert len(seen.series(name)) == 5


def test_waiting_work_follows_the_day() -> None:
    simulated = fleet(start_ms=T0 // (24 * HOUR) * 24 * HOUR)
    waiting: dict[str, list[float]] = {}
    for _ in range(24):
        simulated.step(HOUR)
        for pool in simulated.pools():
            assert pool.pending_gpus is not None
            waiting.setdefault(pool.name, []).append(pool.pending_gpus)
    assert waiting["inference"][13] > waiting["inference"][1] == 0
    assert waiting["batch"][1] > waiting["batch"][13] == 0
    assert {pool.name: pool.elastic for pool in simulated.pools()} == {
        "training": False,
        "inference": True,
        "batch": False,
    }


def test_a_healthy_day_comes_near_no_limit() -> None:
    simulated = fleet(interval_ms=10 * MINUTE)
    for _ in range(144):
        for reading in simulated.step().readings:
            values = reading.values
            assert values["gpu_temperature_celsius"] < 82
            assert values.get("gpu_thermal_margin_celsius", math.inf) > 5
            assert values["gpu_memory_used_ratio"] < 0.98
            assert values["gpu_sw_thermal_slowdown_seconds_total"] == 0
            assert all(value < 0.3 for name, value in values.items() if "fragmentation" in name)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 100_001}, "gpus"),
        ({"interval_ms": 0}, "interval_ms"),
        ({"fault_rate_scale": -1.0}, "fault_rate_scale"),
        ({"fault_rate_scale": math.nan}, "fault_rate_scale"),
        ({"software_rate_scale": -0.5}, "software_rate_scale"),
        ({"benign_rate_scale": math.inf}, "benign_rate_scale"),
    ],
)
def test_impossible_fleets_are_refused(more: dict[str, float], field: str) -> None:
    with pytest.raises(InputError) as caught:
        FleetSpec(**more)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_time_does_not_stand_still() -> None:
    simulated = SimulatedFleet(FleetSpec(gpus=1))
    with pytest.raises(InputError, match="interval_ms"):
        simulated.step(0)
    assert simulated.now_ms == 0
