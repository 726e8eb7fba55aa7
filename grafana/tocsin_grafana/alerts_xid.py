"""Alerts about XIDs, one for each of the shipped rules about them."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from tocsin.domain.finding import Severity as Grade
from tocsin.rules.xid import shipped_catalogue
from tocsin_grafana.alert import EXPECTED_GPU, ONE_GPU, WHERE, Alert, Case, Severity, Tier, grown
from tocsin_grafana.alerts_gpu import DRAIN, RULE, WINDOW
from tocsin_grafana.rulebook import summary

METRIC = "tocsin_xids_total"
_KEYS = "gpu_uuid, gpu_index, host, pool, simulated, xid"


def codes(rule: str) -> list[int]:
    """Numbers of the shipped catalogue that the XID condition of `rule` means."""
    text = resources.files("tocsin.rules").joinpath("defaults.toml").read_text(encoding="utf-8")
    (found,) = [each for each in tomllib.loads(text)["rules"] if each["name"] == rule]
    (condition,) = [each for each in found["all"] if each["kind"] in ("xid", "event_count")]
    return [spec.code for spec in shipped_catalogue().specs() if _means(condition, spec.xid_class, spec)]


def _means(condition: dict[str, Any], xid_class: str, spec: Any) -> bool:
    least, most = Grade(condition.get("least", "info")), Grade(condition.get("most", "critical"))
    return (
        xid_class in condition.get("classes", [])
        and least.rank <= spec.severity.rank <= most.rank
        and spec.code not in condition.get("except_codes", [])
    )


def _alert(name: str, rule: str, severity: Severity, tier: Tier, headline: str, remedy: str) -> Alert:
    numbers = codes(rule)
    other = next(code for code in (13, 79, 31) if code not in numbers)
    one = numbers[0]
    where = 'xid=~"' + "|".join(map(str, numbers)) + '"'
    return Alert(
        name,
        f"max by ({_KEYS}) ({grown(METRIC, '1h', where)})",
        "0s",
        severity,
        tier,
        headline + " on {{ $labels.host }}",
        WHERE + ": XID {{ $labels.xid }} within the last hour. " + summary(rule),
        remedy + " `tocsin xid {{ $labels.xid }}` says what the number means.",
        f"{RULE.format(rule)} Classes are those of src/tocsin/rules/xid_catalogue.csv. {WINDOW}",
        Case({f'{METRIC}{{{ONE_GPU},xid="{one}"}}': "_x10 1x30"}, "30m", EXPECTED_GPU | {"xid": str(one)}),
        Case(
            {f'{METRIC}{{{ONE_GPU},xid="{one}"}}': "1x200", f'{METRIC}{{{ONE_GPU},xid="{other}"}}': "_x150 1x50"},
            "180m",
        ),
    )


def alerts() -> list[Alert]:
    """One for each class of errors that the GPU is to blame for, and one for programs that fail over and over."""
    watch = "Watch it: the GPU goes on."
    repeated = codes("xid_application_repeated")
    where = 'xid=~"' + "|".join(map(str, repeated)) + '"'
    series = f'{METRIC}{{{ONE_GPU},xid="31"}}'
    return [
        _alert(
            "GpuXidBus",
            "xid_bus",
            "critical",
            "cause",
            "A GPU fell off the bus",
            "Look at the machine; a reboot may bring the GPU back. " + DRAIN,
        ),
        _alert("GpuXidMemory", "xid_memory", "critical", "cause", "Uncorrectable memory error", DRAIN),
        _alert("GpuXidMemoryRepair", "xid_memory_repair", "warning", "symptom", "Memory was repaired", watch),
        _alert(
            "GpuXidNvlink",
            "xid_nvlink",
            "critical",
            "cause",
            "NVLink failed",
            "Look at the links of this GPU and of its peers. " + DRAIN,
        ),
        _alert("GpuXidFirmware", "xid_firmware", "critical", "cause", "Firmware of a GPU stopped answering", DRAIN),
        _alert(
            "GpuXidPower",
            "xid_power",
            "critical",
            "cause",
            "Power to a GPU is missing",
            "Look at power cables and supply. " + DRAIN,
        ),
        Alert(
            "GpuXidApplicationRepeated",
            f"sum by (gpu_uuid, gpu_index, host, pool, simulated) (increase({METRIC}{{{where}}}[24h])) >= 10",
            "0s",
            "warning",
            "symptom",
            "Programs fail again and again on {{ $labels.host }}",
            WHERE + ": {{ $value | humanize }} XIDs of programs within a day.",
            "Look for one program that fails over and over; if it is many, test the GPU.",
            RULE.format("xid_application_repeated"),
            Case({series: "1+1x60"}, "60m", EXPECTED_GPU, "61"),
            Case({series: "1x30 5x60"}, "60m"),
        ),
    ]
