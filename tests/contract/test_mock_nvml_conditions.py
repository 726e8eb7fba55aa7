"""What ails a GPU, from ctypes on the mock library to the verdict of a scan, on every model that the mock has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.power import LimitFailure
from tocsin.runtime.agent.scan import NodeHealth, ScanReport, scan
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import a100, b200, h100, t4
from tocsin_testing.mock_nvml import MockFleet, MockGpu
from tocsin_testing.scan_page import RULES, TwoLooks, looked, shown_by

Change = Callable[[MockGpu], None]
Scan = Callable[..., ScanReport]
MODELS = {"a100": a100, "b200": b200, "h100": h100, "t4": t4}


@pytest.fixture
def scanned(tmp_path: Path) -> Scan:
    """Scans a GPU; `between` is what happens to it between the looks."""

    def run(gpu: MockGpu, between: Change = lambda _: None) -> ScanReport:
        fleet = MockFleet(tmp_path, [gpu])
        clock = ManualClock(T0)

        def pause(seconds: float) -> None:
            clock.advance(round(seconds * SECOND))
            between(gpu)
            fleet.apply()

        with fleet.loaded():
            source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"), 10.0)
            try:
                return scan(source, RULES, clock, pause)
            finally:
                source.close()

    return run


def rules_of(report: ScanReport) -> set[str]:
    return {finding.rule for finding in report.findings}


@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_without_a_fault_is_healthy_and_each_condition_that_it_shows_is_found(name: str, scanned: Scan) -> None:
    report = scanned(MODELS[name]())
    assert [finding.sentence for finding in report.findings] == []
    assert report.health is NodeHealth.HEALTHY
    reading = report.gpus[0].reading
    for row in shown_by(reading):
        found = looked(TwoLooks(reading.gpu, [{**reading.values, **row.first}, {**reading.values, **row.second}]))
        assert row.rule in rules_of(found), row
        assert found.health >= row.health, row


def test_500_nvlink_errors_a_second_are_found_by_one_scan(scanned: Scan) -> None:
    gpu = h100()
    gpu.field(38, 1000)
    report = scanned(gpu, lambda one: one.field(38, 1500))
    assert rules_of(report) == {"nvlink_errors"}
    assert report.health is NodeHealth.ATTENTION


@pytest.mark.parametrize(
    ("mask", "problem"), [(0b01, "degraded_bandwidth"), (0b01 << 4, "route_unhealthy"), (0b01 << 2, "route_recovery")]
)
def test_a_degraded_fabric_is_found(mask: int, problem: str, scanned: Scan) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetGpuFabricInfoV", to=(3, 0, 1, mask, 1, 3))
    report = scanned(gpu)
    assert rules_of(report) >= {"fabric_degraded"}
    assert problem in next(finding.sentence for finding in report.findings if finding.rule == "fabric_degraded")
    assert report.health is NodeHealth.ATTENTION


def test_a_thermal_slowdown_is_found_by_its_bit_alone(scanned: Scan) -> None:
    gpu = t4()
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        gpu.set(function, to=0x48)
    report = scanned(gpu)
    assert rules_of(report) == {"thermal_slowdown"}
    assert report.health is NodeHealth.ACT_NOW


def test_a_t4_at_its_shutdown_limit_calls_for_action(scanned: Scan) -> None:
    gpu = t4()
    for function in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):
        gpu.set(function, 0, to=96)
    report = scanned(gpu)
    assert "temperature_limit_reached" in rules_of(report)
    assert report.health is NodeHealth.ACT_NOW


def test_a_slowdown_temperature_of_0_is_none(scanned: Scan, tmp_path: Path) -> None:
    gpu = t4()
    gpu.set("nvmlDeviceGetTemperatureThreshold", 1, to=0)
    report = scanned(gpu)
    assert report.health is NodeHealth.HEALTHY
    assert "gpu_temperature_slowdown_celsius" in report.gpus[0].reading.missing
    with MockFleet(tmp_path, [gpu]).loaded():
        port = NvmlLimits(PynvmlLibrary())
        assert port.heat(gpu.uuid).margin is None
        port.release()


def test_a_power_limit_of_0_is_none(tmp_path: Path) -> None:
    gpu = t4()
    gpu.set("nvmlDeviceGetPowerManagementDefaultLimit", to=0)
    with MockFleet(tmp_path, [gpu]).loaded():
        port = NvmlLimits(PynvmlLibrary())
        with pytest.raises(LimitFailure, match="power limit of 0 W"):
            port.limits(gpu.uuid)
        port.release()


def test_a_registration_that_ended_with_an_error_has_failed(scanned: Scan) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetGpuFabricInfoV", to=(3, 999, 1, 0, 1, 3))
    report = scanned(gpu)
    assert report.gpus[0].reading.values["gpu_fabric_state"] == 4
    assert "fabric_not_ready" in rules_of(report)
    assert report.health is NodeHealth.ATTENTION


@pytest.mark.parametrize(("summary", "rule", "health"), [(2, "fabric_unhealthy", 2), (3, "fabric_limited", 1)])
def test_the_summary_of_the_fabric_has_a_rule(summary: int, rule: str, health: int, scanned: Scan) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetGpuFabricInfoV", to=(3, 0, 1, 0, summary, 3))
    report = scanned(gpu)
    assert rules_of(report) == {rule}
    assert report.health == health
