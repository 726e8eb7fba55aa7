"""The exporter before Prometheus' own tools: promtool finds nothing to complain about, a real server scrapes it."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.collector.exporter import FleetCollector, MetricsServer
from tocsin.domain.clock import ManualClock
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OWN_METRICS, OwnMetrics
from tocsin_testing import needs, servers
from tocsin_testing.builders import T0, gpu, reading

pytestmark = pytest.mark.server


def everything() -> tuple[FleetCollector, CollectorRegistry]:
    """An exporter that shows each metric of the table, and each of Tocsin's own, at least once."""
    own = OwnMetrics()
    for name, spec in OWN_METRICS.items():
        labels = dict.fromkeys(spec.labels, "x")
        if spec.kind == "counter":
            own.count(name, **labels)
        elif spec.kind == "histogram":
            own.observe(name, 0.2, **labels)
    collector = FleetCollector(ManualClock(T0), max_age_seconds=60.0)
    own.registry.register(collector)
    keys = [variant(s.name, s.label, "0") if s.label else s.name for s in METRICS.values()]
    values = dict.fromkeys(keys, 1.0)
    collector.update("nvml", [Reading(gpu(0), T0, values), Reading(gpu(1), T0, {}, {"gpu_power_watts": Missing.LOST})])
    return collector, own.registry


def test_promtool_has_no_complaint() -> None:
    _, registry = everything()
    text = generate_latest(registry)
    assert all(f"\n{name}".encode() in text for name in METRICS)
    command = [needs.program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    assert (done.stdout + done.stderr).decode() == ""
    assert done.returncode == 0


def test_promtool_does_complain_about_a_bad_name() -> None:
    """The check above can fail."""
    bad = b"# HELP gpu_process_count Processes.\n# TYPE gpu_process_count gauge\ngpu_process_count 1\n"
    command = [needs.program("promtool", "prometheus"), "check", "metrics"]
    assert subprocess.run(command, input=bad, capture_output=True, timeout=60, check=False).returncode != 0


def test_a_real_prometheus_scrapes_it(tmp_path: Path) -> None:
    collector, registry = everything()
    collector.update("nvml", [reading(gpu(0), temperature_celsius=66), reading(gpu(1), temperature_celsius=67)])
    server = MetricsServer(registry, "127.0.0.1", 0)
    config = (
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: tocsin, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}]\n"
    )
    try:
        with servers.prometheus(tmp_path, config) as url:
            found = poll(url, "gpu_temperature_celsius", 2)
            assert {r["metric"]["gpu_uuid"]: r["value"][1] for r in found} == {
                "GPU-00000000": "66",
                "GPU-00000001": "67",
            }
            assert poll(url, "tocsin_readings_total", 1)
            targets = httpx2.get(f"{url}/api/v1/targets").json()["data"]["activeTargets"]
            assert [target["lastError"] for target in targets] == [""]
            # Prometheus asks for OpenMetrics, in which the family of a counter has no suffix.
            kinds = httpx2.get(f"{url}/api/v1/metadata", params={"metric": "tocsin_dropped"}).json()["data"]
            assert kinds["tocsin_dropped"][0]["type"] == "counter"
            collector.update("nvml", [reading(gpu(0), temperature_celsius=68)])
            assert poll(url, "gpu_temperature_celsius", 1)[0]["metric"]["gpu_uuid"] == "GPU-00000000"
    finally:
        server.close()


def poll(url: str, query: str, series: int, tries: int = 300) -> list[dict[str, Any]]:
    """Ask until the query has that many series; fail after some 15 s."""
    never = threading.Event()
    found: list[dict[str, Any]] = []
    for _ in range(tries):
        found = httpx2.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]
        if len(found) == series:
            return found
        never.wait(0.05)
    raise AssertionError(f"{query} has {len(found)} series, not {series}")
