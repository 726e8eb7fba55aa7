"""The alerts before the tools of Prometheus and Alertmanager, and the example of routes before a real Alertmanager."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tocsin_testing import needs
from tocsin_testing.dashboards import ROOT
from tocsin_testing.servers import alertmanager

pytestmark = pytest.mark.server

FOLDER = ROOT / "grafana" / "alerts"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
EXAMPLE = FOLDER / "alertmanager.example.yml"


def run(program: str, package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [needs.program(program, package), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", FILES)
def test_promtool_accepts_the_rules(name: str) -> None:
    done = run("promtool", "prometheus", "check", "rules", str(FOLDER / name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_every_alert_fires_and_rests_as_it_should(name: str) -> None:
    done = run("promtool", "prometheus", "test", "rules", str(FOLDER / "tests" / f"{Path(name).stem}.test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    """The check above can fail: an alert with another level is caught by its tests."""
    (tmp_path / "tests").mkdir()
    text = (FOLDER / "gpu.yaml").read_text()
    assert "gpu_thermal_margin_celsius <= 2)" in text
    (tmp_path / "gpu.yaml").write_text(
        text.replace("gpu_thermal_margin_celsius <= 2)", "gpu_thermal_margin_celsius <= 3)")
    )
    (tmp_path / "tests" / "gpu.test.yaml").write_text((FOLDER / "tests" / "gpu.test.yaml").read_text())
    done = run("promtool", "prometheus", "test", "rules", str(tmp_path / "tests" / "gpu.test.yaml"))
    assert done.returncode != 0
    assert "GpuThermalMarginLow rests" in done.stdout + done.stderr


def test_amtool_accepts_the_example() -> None:
    done = run("amtool", "prometheus-alertmanager", "check-config", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("severity=critical tier=cause", "oncall"),
        ("severity=warning tier=symptom", "tickets"),
        ("severity=info tier=symptom", "nobody"),
        ("severity=critical simulated=true", "nobody"),
    ],
)
def test_alerts_go_where_they_should(labels: str, receiver: str) -> None:
    done = run(
        "amtool", "prometheus-alertmanager", "config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()
    )
    assert done.stdout.strip() == receiver


def alert(name: str, tier: str, severity: str, **labels: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "labels": {"alertname": name, "tier": tier, "severity": severity, **labels},
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(minutes=5)).isoformat(),
    }


def until(met: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(300):
        if met():
            return
        never.wait(0.1)
    raise AssertionError("it did not come about within 30 s")


def test_a_cause_silences_what_follows_from_it_on_its_gpu_alone(tmp_path: Path) -> None:
    config = yaml.safe_load(EXAMPLE.read_text())
    with alertmanager(tmp_path, yaml.safe_dump(config)) as url:
        sent = [
            alert("GpuXidBus", "cause", "critical", gpu_uuid="GPU-1", host="n1"),
            alert("GpuTelemetryStopped", "symptom", "warning", gpu_uuid="GPU-1", host="n1"),
            alert("GpuTemperatureHigh", "symptom", "warning", gpu_uuid="GPU-2", host="n1"),
            alert("DcgmXidBus", "cause", "critical", UUID="GPU-3", Hostname="n2"),
            alert("DcgmTemperatureHigh", "symptom", "warning", UUID="GPU-4", Hostname="n2"),
            alert("TocsinPushStalled", "service", "warning", instance="n1:9835"),
            alert("GpuThermalMarginGone", "symptom", "critical", gpu_uuid="GPU-5", host="n3"),
            alert("GpuThermalMarginLow", "symptom", "warning", gpu_uuid="GPU-5", host="n3"),
        ]
        httpx2.post(f"{url}/api/v2/alerts", json=sent).raise_for_status()

        def suppressed() -> set[str]:
            found = httpx2.get(f"{url}/api/v2/alerts").json()
            return {each["labels"]["alertname"] for each in found if each["status"]["state"] == "suppressed"}

        until(lambda: suppressed() == {"GpuTelemetryStopped", "GpuThermalMarginLow"})
