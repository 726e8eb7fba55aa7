"""The committed alerts: complete, tested one by one, explained, and about metrics that there are."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import yaml

from tocsin.domain.metrics import BY_DCGM_NAME, METRICS
from tocsin.rules.xid import xid
from tocsin_grafana.alert import filled, only_metric
from tocsin_grafana.alerts_xid import codes
from tocsin_grafana.rulebook import level
from tocsin_grafana.rules_yaml import files
from tocsin_grafana.variables import ANCHOR
from tocsin_testing.dashboards import ROOT, labels_of, series_in

FOLDER = ROOT / "grafana" / "alerts"
NAMES = ("gpu", "xid", "forecast", "service", "dcgm_exporter")
DCGM_LABELS = {"UUID", "gpu", "Hostname", "hostname", "modelName", "xid"}


def rules(name: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


ALERTS = [(name, rule) for name in NAMES for rule in rules(name)]
each_alert = pytest.mark.parametrize(("name", "rule"), ALERTS, ids=[rule["alert"] for _, rule in ALERTS])


def test_every_file_is_made() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(NAMES) == set(files())


def test_names_are_unique() -> None:
    counts = Counter(rule["alert"] for _, rule in ALERTS)
    assert [name for name, count in counts.items() if count > 1] == []


@each_alert
def test_it_says_what_how_bad_and_what_to_do(name: str, rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["labels"]["tier"] in ("cause", "symptom", "service")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert len(rule["annotations"]["description"]) > 40
    assert not rule["annotations"]["summary"].endswith(".")


@each_alert
def test_its_runbook_is_in_the_documentation(name: str, rule: dict[str, Any]) -> None:
    page, anchor = rule["annotations"]["runbook_url"].rsplit("/", 2)[1:]
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert anchor.removeprefix("#") in {found.lower() for found in re.findall(r"^### (\w+)$", text, re.MULTILINE)}


@each_alert
def test_it_asks_for_metrics_and_labels_that_there_are(name: str, rule: dict[str, Any]) -> None:
    if name == "dcgm_exporter":
        metrics = set(re.findall(r"\bDCGM_\w+", rule["expr"]))
        assert metrics - {"DCGM_EXP_XID_ERRORS_COUNT"} <= set(BY_DCGM_NAME)
        known = DCGM_LABELS
    else:
        found = list(series_in(rule["expr"]))
        assert found
        for metric, labels in found:
            assert set(labels) <= labels_of(metric)
        known = set().union(*(labels_of(metric) for metric, _ in found))
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert shown <= known


@each_alert
def test_it_is_seen_to_fire_and_to_rest(name: str, rule: dict[str, Any]) -> None:
    """promtool runs these; here it is that there are some."""
    tests = yaml.safe_load((FOLDER / "tests" / f"{name}.test.yaml").read_text())["tests"]
    asked = [one for test in tests for one in test["alert_rule_test"] if one["alertname"] == rule["alert"]]
    assert any(one["exp_alerts"] for one in asked), "a case in which it fires"
    assert any(not one["exp_alerts"] for one in asked), "a case in which it does not"


@pytest.mark.parametrize(
    ("matter", "wanted"),
    {
        "XID classes": {"GpuXidBus", "GpuXidMemory", "GpuXidNvlink", "GpuXidFirmware", "GpuXidPower"},
        "recovery action": {"GpuRecoveryAction"},
        "remaps": {"GpuRowRemapPending", "GpuMemoryBeyondRepair", "GpuRowsRemapped"},
        "ECC": {"GpuEccUncorrectable"},
        "thermal margin": {"GpuThermalMarginLow", "GpuThermalMarginGone"},
        "power brake": {"GpuPowerBrake"},
        "NVLink recovery": {"GpuNvlinkRecovery", "GpuNvlinkRecoverySeveralLinks"},
        "stale or frozen": {"GpuTelemetryStopped", "GpuTelemetryFrozen", "GpuValuesFrozen", "TocsinGpusStale"},
        "predictions": {"GpuFaultPredicted", "GpuOutOfMemoryPredicted", "GpuTemperaturePredicted"},
        "itself": {"TocsinBrainGone", "TocsinAgentGone", "TocsinEvaluationStalled", "TocsinStoreWritesFail"},
    }.items(),
)
def test_nothing_that_matters_is_left_out(matter: str, wanted: set[str]) -> None:
    assert wanted <= {rule["alert"] for _, rule in ALERTS}, matter


def test_xids_of_an_alert_are_those_of_its_class() -> None:
    bus = codes("xid_bus")
    assert 79 in bus
    assert all(xid(code).xid_class == "bus" and str(xid(code).severity) == "critical" for code in bus)
    (rule,) = [rule for _, rule in ALERTS if rule["alert"] == "GpuXidBus"]
    assert "|".join(map(str, bus)) in rule["expr"]


def test_no_xid_of_a_program_condemns_a_gpu() -> None:
    numbers = {
        code for rule in ("xid_bus", "xid_memory", "xid_nvlink", "xid_firmware", "xid_power") for code in codes(rule)
    }
    assert not any(xid(code).application for code in numbers)


def test_levels_are_those_of_the_rules() -> None:
    assert level("thermal_margin_low") == 2
    assert level("temperature_high", "gpu_temperature_celsius") == 85
    with pytest.raises(LookupError):
        level("temperature_high", "gpu_power_watts")
    with pytest.raises(KeyError):
        level("no_such_rule")


def test_words_are_filled_in_as_prometheus_does() -> None:
    text = "{{ $labels.host }} GPU {{ $labels.gpu_index }}: {{ $value | humanize }} °C{{ $labels.none }}."
    assert filled(text, {"host": "n1", "gpu_index": "3"}, "88") == "n1 GPU 3: 88 °C."


@pytest.mark.parametrize("expr", ["up == 1", "gpu_power_watts > gpu_power_limit_default_watts"])
def test_an_alert_on_one_metric_names_exactly_one(expr: str) -> None:
    assert only_metric(f"increase({ANCHOR}[5m]) > 0 or {ANCHOR} > 0", METRICS) == ANCHOR
    with pytest.raises(ValueError, match="values to unpack"):
        only_metric(expr, METRICS)
