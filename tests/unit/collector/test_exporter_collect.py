"""What the exporter shows of readings, and what it does not."""

from __future__ import annotations

import socket

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tocsin.collector.exporter import FleetCollector, MetricsServer
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading


def setup() -> tuple[FleetCollector, CollectorRegistry, ManualClock]:
    clock = ManualClock()
    collector = FleetCollector(clock, max_age_seconds=60.0)
    registry = CollectorRegistry()
    registry.register(collector)
    return collector, registry, clock


def gpus_of(registry: CollectorRegistry, name: str) -> set[str]:
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {sample.labels["gpu_uuid"] for sample in families[name].samples} if name in families else set()


def test_a_gpu_that_left_the_newest_update_vanishes() -> None:
    collector, registry, _ = setup()
    collector.update("nvml", [reading(gpu(0), temperature_celsius=40), reading(gpu(1), temperature_celsius=41)])
    assert gpus_of(registry, "gpu_temperature_celsius") == {"GPU-00000000", "GPU-00000001"}
    collector.update("nvml", [reading(gpu(1), temperature_celsius=42)])
    assert gpus_of(registry, "gpu_temperature_celsius") == {"GPU-00000001"}
    assert registry.get_sample_value("tocsin_gpus", {"source": "nvml"}) == 1


def test_of_several_readings_of_a_gpu_the_newest_counts() -> None:
    collector, registry, _ = setup()
    collector.update(
        "replay", [reading(gpu(0), T0 + at, temperature_celsius=40 + at) for at in (1, 3, 2)] + [reading(gpu(1), T0)]
    )
    text = generate_latest(registry).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("gpu_temperature_celsius{")]
    assert line.endswith(" 43.0")


def test_sources_do_not_replace_each_other() -> None:
    collector, registry, _ = setup()
    collector.update("nvml", [reading(gpu(0), temperature_celsius=40)])
    collector.update("dcgm", [reading(gpu(1), temperature_celsius=41)])
    assert gpus_of(registry, "gpu_temperature_celsius") == {"GPU-00000000", "GPU-00000001"}


def test_a_source_that_went_silent_vanishes() -> None:
    collector, registry, clock = setup()
    collector.update("nvml", [reading(gpu(0), temperature_celsius=40)])
    clock.advance(60_000)
    assert gpus_of(registry, "gpu_temperature_celsius") == {"GPU-00000000"}
    clock.advance(1)
    assert gpus_of(registry, "gpu_temperature_celsius") == set()
    assert registry.get_sample_value("tocsin_gpus", {"source": "nvml"}) == 0


def test_missing_has_no_value_and_is_counted_by_reason() -> None:
    collector, registry, _ = setup()
    collector.update(
        "nvml",
        [
            reading(gpu(0), missing={"gpu_temperature_celsius": Missing.LOST, "gpu_power_watts": Missing.LOST}),
            reading(gpu(1), missing={"gpu_fan_speed_ratio": Missing.UNSUPPORTED}, temperature_celsius=30),
        ],
    )
    assert gpus_of(registry, "gpu_temperature_celsius") == {"GPU-00000001"}
    assert registry.get_sample_value("tocsin_missing_readings", {"reason": "lost"}) == 2
    assert registry.get_sample_value("tocsin_missing_readings", {"reason": "unsupported"}) == 1
    assert registry.get_sample_value("tocsin_missing_readings", {"reason": "denied"}) == 0


def test_mig_instance_is_labelled_under_its_parent() -> None:
    collector, registry, _ = setup()
    instance = Gpu("MIG-1", "node-1", 0, "A100", parent="GPU-00000000", mig_profile="1g.5gb")
    collector.update("nvml", [Reading(instance, 0, {"gpu_memory_used_bytes": 5.0})])
    labels = {
        "gpu_uuid": "GPU-00000000",
        "gpu_index": "0",
        "model": "A100",
        "host": "node-1",
        "pool": "default",
        "mig_uuid": "MIG-1",
        "mig_profile": "1g.5gb",
    }
    assert registry.get_sample_value("gpu_memory_used_bytes", labels) == 5


def test_simulated_is_a_label_of_simulated_gpus_alone() -> None:
    collector, registry, _ = setup()
    collector.update("s", [reading(gpu(0), temperature_celsius=40), reading(gpu(1, simulated=True), power_watts=90)])
    text = generate_latest(registry).decode()
    marked = [line for line in text.splitlines() if 'simulated="true"' in line]
    assert len(marked) == 1
    assert "GPU-00000001" in marked[0]


def test_counter_has_its_suffix_once_and_variants_their_label() -> None:
    collector, registry, _ = setup()
    values = {'gpu_xid_events_total{xid="79"}': 2.0, "gpu_energy_joules_total": 1e9}
    collector.update("nvml", [Reading(gpu(0), 0, values)])
    text = generate_latest(registry).decode()
    assert "_total_total" not in text
    assert "# TYPE gpu_xid_events_total counter" in text
    (line,) = [line for line in text.splitlines() if line.startswith("gpu_xid_events_total{")]
    assert 'xid="79"' in line
    assert line.endswith(" 2.0")


def test_label_values_are_escaped() -> None:
    collector, registry, _ = setup()
    odd = 'a "quoted"\\path\nnext'
    collector.update("nvml", [reading(gpu(0, model=odd), temperature_celsius=40)])
    (family,) = [
        f
        for f in text_string_to_metric_families(generate_latest(registry).decode())
        if f.name == "gpu_temperature_celsius"
    ]
    assert family.samples[0].labels["model"] == odd


def test_server_takes_a_free_port_and_closes() -> None:
    own = OwnMetrics()
    server = MetricsServer(own.registry, "127.0.0.1", 0)
    assert server.port > 0
    answer = httpx2.get(server.url)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "tocsin_build_info" in answer.text
    server.close()
    server.close()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(server.url)


def test_address_in_use_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"agent\.listen = .*port 0 takes any"):
            MetricsServer(CollectorRegistry(), "127.0.0.1", taken.getsockname()[1])
