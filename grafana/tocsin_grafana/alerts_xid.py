"""Alerts about XIDs, one for each of the shipped rules about them."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from tocsin.domain.finding import Severity as Grade
from tocsin.rules.xid import shipped_catalogue
from tocsin_grafana.alert import (
    DRAIN,
    EXPECTED_GPU,
    GPU_LABELS,
    ONE_GPU,
    RULE,
    WHERE,
    Alert,
    Case,
    Severity,
    Tier,
    grown,
)
from tocsin_grafana.rulebook import summary

METRIC = "tocsin_xids_total"
WINDOW = "Own choice: an hour, so that an alert ends after the work is done; the finding in Tocsin goes on for a day."


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


def among(numbers: list[int]) -> str:
    """The selector of series whose XID is one of `numbers`."""
    return f'xid=~"{"|".join(map(str, numbers))}"'


def _series(code: int) -> str:
    return f'{METRIC}{{{ONE_GPU},xid="{code}"}}'


def _kind(name: str, rule: str, severity: Severity, tier: Tier, headline: str, remedy: str) -> Alert:
    """Any XID that `rule` means; it rests for XIDs of another kind, and for one that was counted long ago."""
    numbers = codes(rule)
    one, other = numbers[0], next(code for code in (13, 79, 31) if code not in numbers)
    return Alert(
        name,
        f"max by ({GPU_LABELS}, xid) ({grown(METRIC, '1h', among(numbers))})",
        "0s",
        severity,
        tier,
        headline + " on {{ $labels.host }}",
        WHERE + ": XID {{ $labels.xid }} within the last hour. " + summary(rule),
        remedy + " `tocsin xid {{ $labels.xid }}` says what the number means.",
        f"{RULE.format(rule)} Classes are those of src/tocsin/rules/xid_catalogue.csv. {WINDOW}",
        Case({_series(one): "_x10 1x30"}, "30m", EXPECTED_GPU | {"xid": str(one)}),
        Case({_series(one): "1x200", _series(other): "_x150 1x50"}, "180m"),
    )


def _repeated(rule: str) -> Alert:
    return Alert(
        "GpuXidApplicationRepeated",
        f"sum by ({GPU_LABELS}) (increase({METRIC}{{{among(codes(rule))}}}[24h])) >= 10",
        "0s",
        "warning",
        "symptom",
        "Programs fail again and again on {{ $labels.host }}",
        WHERE + ": {{ $value | humanize }} XIDs of programs within a day.",
        "Look for one program that fails over and over; if it is many, test the GPU.",
        RULE.format(rule),
        Case({_series(31): "1+1x60"}, "60m", EXPECTED_GPU, "61"),
        Case({_series(31): "1x30 5x60"}, "60m"),
    )


_BUS = f"Look at the machine; a reboot may bring the GPU back. {DRAIN}"
_PEERS = f"Look at the links of this GPU and of its peers. {DRAIN}"
_WATCH = "Watch it: the GPU goes on."
_POWER = f"Look at power cables and supply. {DRAIN}"


def alerts() -> list[Alert]:
    """One for each class of errors that the GPU is to blame for, and one for programs that fail over and over."""
    return [
        _kind("GpuXidBus", "xid_bus", "critical", "cause", "A GPU fell off the bus", _BUS),
        _kind("GpuXidMemory", "xid_memory", "critical", "cause", "Uncorrectable memory error", DRAIN),
        _kind("GpuXidMemoryRepair", "xid_memory_repair", "warning", "symptom", "Memory was repaired", _WATCH),
        _kind("GpuXidNvlink", "xid_nvlink", "critical", "cause", "NVLink failed", _PEERS),
        _kind("GpuXidFirmware", "xid_firmware", "critical", "cause", "Firmware of a GPU stopped answering", DRAIN),
        _kind("GpuXidPower", "xid_power", "critical", "cause", "Power to a GPU is missing", _POWER),
        _repeated("xid_application_repeated"),
    ]
