"""The one-shot check: verdicts, their exit codes, and what a scan says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.rules.load import load_rules
from tocsin.runtime.agent import scan as node_scan
from tocsin.runtime.agent.scan import PAUSE_SECONDS, NodeHealth, ScanReport, health_of, scan
from tocsin_testing.builders import T0, gpu

HEALTHY = {
    "gpu_temperature_celsius": 61.0,
    "gpu_power_watts": 400.0,
    "gpu_utilization_ratio": 0.5,
    "gpu_memory_used_ratio": 0.4,
    "gpu_row_remap_failure": 0.0,
    "gpu_recovery_action": 0.0,
}


class Scripted:
    """A source that gives one batch after another, dated at the reader's instant."""

    name = "scripted"

    def __init__(self, *batches: Sequence[Reading]) -> None:
        self._batches = list(batches)
        self.closed = 0

    def gpus(self) -> list[Gpu]:
        return [reading.gpu for reading in self._batches[0]]

    def read(self, now_ms: int) -> Batch:
        batch = self._batches.pop(0) if len(self._batches) > 1 else self._batches[0]
        return Batch([Reading(r.gpu, now_ms, r.values, r.missing) for r in batch])

    def close(self) -> None:
        self.closed += 1


def looked(source: Scripted, *events: Event) -> ScanReport:
    clock = ManualClock(T0)
    return scan(source, load_rules(), clock, lambda seconds: clock.advance(round(seconds * SECOND)), events)


def test_a_healthy_node_is_healthy() -> None:
    report = looked(Scripted([Reading(gpu(0), T0, HEALTHY), Reading(gpu(1), T0, HEALTHY)]))
    assert report.health is NodeHealth.HEALTHY
    assert report.findings == ()
    assert report.at_ms == T0 + round(PAUSE_SECONDS * 1000)


@pytest.mark.parametrize(
    ("values", "health", "rule"),
    [
        ({"gpu_temperature_celsius": 88.0}, NodeHealth.ATTENTION, "temperature_high"),
        ({"gpu_row_remap_failure": 1.0}, NodeHealth.ACT_NOW, "row_remap_failed"),
        ({"gpu_recovery_action": 1.0}, NodeHealth.ACT_NOW, "driver_recovery_action"),
    ],
)
def test_a_state_that_a_rule_names_is_found_at_once(values: dict[str, float], health: NodeHealth, rule: str) -> None:
    report = looked(Scripted([Reading(gpu(0), T0, HEALTHY), Reading(gpu(1), T0, {**HEALTHY, **values})]))
    assert report.health is health
    assert rule in [finding.rule for finding in report.findings]
    assert [each.health for each in report.gpus] == [NodeHealth.HEALTHY, health]


def test_an_xid_of_the_last_hours_counts() -> None:
    event = Event(EventKind.XID, gpu(0).uuid, "node-1", T0 - HOUR, 79, "GPU has fallen off the bus", "kernel_log")
    report = looked(Scripted([Reading(gpu(0), T0, HEALTHY)]), event)
    assert report.health is NodeHealth.ACT_NOW
    assert [each.code for each in report.events] == [79]


@pytest.mark.parametrize(
    ("reason", "health"),
    [
        (Missing.LOST, NodeHealth.ACT_NOW),
        (Missing.RESET_REQUIRED, NodeHealth.ACT_NOW),
        (Missing.TIMED_OUT, NodeHealth.CANNOT_SEE),
    ],
)
def test_a_gpu_without_values_is_never_healthy(reason: Missing, health: NodeHealth) -> None:
    dead = Reading(gpu(1), T0, {}, {"gpu_temperature_celsius": reason, "gpu_power_watts": reason})
    report = looked(Scripted([Reading(gpu(0), T0, HEALTHY), dead]))
    assert report.gpus[1].health is health
    assert report.health is health


def test_no_gpu_at_all_cannot_be_seen() -> None:
    assert looked(Scripted([])).health is NodeHealth.CANNOT_SEE


def test_what_calls_for_action_outranks_what_cannot_be_seen() -> None:
    blind = Reading(gpu(0), T0, {}, {"gpu_power_watts": Missing.TIMED_OUT})
    broken = Reading(gpu(1), T0, {**HEALTHY, "gpu_row_remap_failure": 1.0})
    assert looked(Scripted([blind, broken])).health is NodeHealth.ACT_NOW


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    denied = {"gpu_ecc_sram_threshold_exceeded": Missing.DENIED, "gpu_fan_speed_ratio": Missing.UNSUPPORTED}
    source = Scripted(
        [Reading(gpu(0), T0, HEALTHY, denied), Reading(gpu(1), T0, {**HEALTHY, "gpu_temperature_celsius": 88.0})]
    )
    monkeypatch.setattr(node_scan, "open_settled", lambda *_: source)
    monkeypatch.setattr("tocsin.runtime.agent.scan.PAUSE_SECONDS", 0.0)
    return source


def test_the_command_prints_a_table_and_ends_with_the_verdict(node: Scripted) -> None:
    result = CliRunner().invoke(cli, ["scan"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "2 GPUs read by scripted: attention" in result.output
    assert "88 °C" in result.output
    assert "[temperature_high; proposes: throttle]" in result.output
    assert "not seen (denied): gpu_ecc_sram_threshold_exceeded" in result.output
    assert "gpu_fan_speed_ratio" not in result.output
    assert node.closed == 1


def test_the_command_prints_json(node: Scripted) -> None:
    result = CliRunner().invoke(cli, ["scan", "--json"], catch_exceptions=False)
    report = json.loads(result.output)
    assert (report["health"], report["exit_code"]) == ("attention", result.exit_code)
    assert [each["health"] for each in report["gpus"]] == ["healthy", "attention"]
    assert report["gpus"][0]["missing"] == {"denied": 1, "unsupported": 1}
    assert report["findings"][0]["rule"] == "temperature_high"


def test_a_host_with_findings_and_no_gpu_cannot_be_seen() -> None:
    hot = looked(Scripted([Reading(gpu(0), T0, {**HEALTHY, "gpu_temperature_celsius": 88.0})]))
    report = replace(hot, gpus=())
    assert [health_of(finding) for finding in report.findings] == [NodeHealth.ATTENTION]
    assert report.health is NodeHealth.CANNOT_SEE


@pytest.mark.parametrize(
    "arguments",
    [["--source", "nonsense"], ["--bogus"], ["--since", "never"], ["--source", "replay"], ["--source", "nvidia_smi"]],
)
def test_a_scan_that_cannot_begin_never_says_act_now(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_AGENT__NVIDIA_SMI_COMMAND", '["/nonexistent/nvidia-smi"]')
    result = CliRunner().invoke(cli, ["scan", *arguments], standalone_mode=True)
    assert result.exit_code == NodeHealth.CANNOT_SEE
    assert result.stderr


def test_json_of_a_scan_that_cannot_begin_has_the_keys_of_one_that_can(node: Scripted) -> None:
    seen = json.loads(CliRunner().invoke(cli, ["scan", "--json"]).stdout)
    result = CliRunner().invoke(cli, ["--config", "/nonexistent/tocsin.toml", "scan", "--json"])
    blind = json.loads(result.stdout)
    assert list(blind) == list(seen)
    assert (blind["health"], blind["exit_code"], result.exit_code) == ("cannot see", 3, 3)
    assert "/nonexistent/tocsin.toml" in blind["blind"][0]


def test_without_any_gpu_there_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_scan, "open_settled", lambda *_: Scripted([]))
    monkeypatch.setattr("tocsin.runtime.agent.scan.PAUSE_SECONDS", 0.0)
    result = CliRunner().invoke(cli, ["scan"])
    assert result.exit_code == NodeHealth.CANNOT_SEE
    assert result.stdout.splitlines()[0] == "no GPU seen by scripted: cannot see"
    assert "metrics" not in result.stdout


def test_instances_without_their_gpu_are_counted_as_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = [replace(gpu(n), uuid=f"GPU-0/gi{n}", parent="GPU-0", mig_profile="1g.10gb") for n in range(2)]
    source = Scripted([Reading(one, T0, HEALTHY) for one in instances])
    monkeypatch.setattr(node_scan, "open_settled", lambda *_: source)
    monkeypatch.setattr("tocsin.runtime.agent.scan.PAUSE_SECONDS", 0.0)
    result = CliRunner().invoke(cli, ["scan"])
    assert "2 MIG instances read by scripted: healthy" in result.stdout


LATCHED = {**HEALTHY, "gpu_xid_last_code": 79.0}


def test_a_critical_number_in_a_latched_gauge_is_noted_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted([Reading(gpu(0), T0, HEALTHY), Reading(gpu(1), T0, LATCHED)])
    monkeypatch.setattr(node_scan, "open_settled", lambda *_: source)
    monkeypatch.setattr("tocsin.runtime.agent.scan.PAUSE_SECONDS", 0.0)
    note = "GPU 1: XID 79 stands in the last-XID gauge; when it came is unknown"
    result = CliRunner().invoke(cli, ["scan"])
    assert f"note: {note}" in result.stdout.splitlines()
    assert result.exit_code == NodeHealth.HEALTHY
    report = json.loads(CliRunner().invoke(cli, ["scan", "--json"]).stdout)
    assert (report["notes"], report["health"], report["findings"]) == ([note], "healthy", [])


def test_a_harmless_number_in_a_latched_gauge_is_no_news() -> None:
    assert looked(Scripted([Reading(gpu(0), T0, {**HEALTHY, "gpu_xid_last_code": 31.0})])).notes == ()


def test_a_latched_number_whose_event_was_seen_needs_no_note() -> None:
    def seen(number: int, code: int) -> tuple[str, ...]:
        event = Event(EventKind.XID, gpu(number).uuid, "node-1", T0 - HOUR, code, "text", "kernel_log")
        return looked(Scripted([Reading(gpu(0), T0, LATCHED), Reading(gpu(1), T0, HEALTHY)]), event).notes

    assert seen(0, 79) == ()
    assert len(seen(1, 79)) == len(seen(0, 48)) == 1


def test_a_note_names_instance_and_host_where_one_number_would_not_do() -> None:
    instance = replace(gpu(0), uuid="GPU-0/gi1", parent="GPU-0", mig_profile="1g.10gb")
    other = gpu(7, host="node-2")
    notes = looked(Scripted([Reading(instance, T0, LATCHED), Reading(other, T0, HEALTHY)])).notes
    assert notes == ("node-1 GPU 0/1g.10gb: XID 79 stands in the last-XID gauge; when it came is unknown",)
    event = Event(EventKind.XID, "GPU-0", "node-1", T0 - HOUR, 79, "text", "kernel_log")
    assert looked(Scripted([Reading(instance, T0, LATCHED)]), event).notes == ()


def test_several_hosts_have_a_column(monkeypatch: pytest.MonkeyPatch, node: Scripted) -> None:
    assert "host" not in CliRunner().invoke(cli, ["scan"]).stdout
    source = Scripted([Reading(gpu(0), T0, HEALTHY), Reading(gpu(1, host="node-2"), T0, HEALTHY)])
    monkeypatch.setattr(node_scan, "open_settled", lambda *_: source)
    rows = [line.split() for line in CliRunner().invoke(cli, ["scan"]).stdout.splitlines()[2:5]]
    assert [row[:2] for row in rows] == [["host", "GPU"], ["node-1", "0"], ["node-2", "1"]]
