"""The exporter's text, byte for byte. TOCSIN_UPDATE_GOLDEN=1 writes the file anew."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from tocsin.collector.exporter import FleetCollector
from tocsin.domain.clock import ManualClock
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin_testing.builders import T0, gpu

GOLDEN = Path(__file__).parents[1] / "data" / "exporter" / "metrics.prom"

FLEET = [
    Reading(
        gpu(0),
        T0,
        {
            "gpu_temperature_celsius": 63.0,
            "gpu_energy_joules_total": 123456789.25,
            "gpu_utilization_ratio": 0.57,
            "gpu_memory_used_bytes": 68719476736.0,
            'gpu_nvlink_recovery_errors_total{link="0"}': 0.0,
            'gpu_nvlink_recovery_errors_total{link="11"}': 3.0,
            'gpu_xid_events_total{xid="79"}': 1.0,
            'gpu_process_memory_used_bytes{pid="4711"}': 1073741824.0,
            "gpu_recovery_action": 0.0,
        },
        {"gpu_fan_speed_ratio": Missing.UNSUPPORTED, "gpu_ecc_sram_threshold_exceeded": Missing.DENIED},
    ),
    Reading(gpu(1), T0, {}, {"gpu_temperature_celsius": Missing.LOST, "gpu_power_watts": Missing.LOST}),
    Reading(
        Gpu("MIG-7", "node-1", 0, "NVIDIA A100-SXM4-80GB", parent="GPU-00000000", mig_profile="1g.10gb"),
        T0,
        {"gpu_memory_used_bytes": 1048576.0},
    ),
    Reading(gpu(2, host="sim-1", simulated=True, pool="demo"), T0, {"gpu_temperature_celsius": 41.5}),
]


def test_text_is_the_recorded_one() -> None:
    collector = FleetCollector(ManualClock(T0), max_age_seconds=60.0)
    collector.update("nvml", FLEET)
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    if os.environ.get("TOCSIN_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
