"""Which of several findings explains the others: causes before effects."""

from __future__ import annotations

from tocsin.domain.finding import Category, Finding, Severity
from tocsin.rules.conditions.xid_class import XID_METRIC
from tocsin.rules.sxid import SxidSpec, shipped_sxids
from tocsin.rules.xid import xid
from tocsin.rules.xid_nvlink import DECODED_CODES

NVLINK_CLASS = "nvlink"

_BUS_LOSS = 1
_BY_CATEGORY = {
    Category.POWER: 10,
    Category.HARDWARE: 55,
    Category.THERMAL: 65,
    Category.TELEMETRY: 80,
    Category.APPLICATION: 92,
    Category.MEMORY: 94,
    Category.FRAGMENTATION: 95,
    Category.CAPACITY: 96,
}
_DRIVER_VERDICT = 70
_MINOR = 15
"""Added for a finding that is less than critical, so that a warning does not stand before the failure it came with."""

_HARMLESS = 60
"""Added for an NVLink event that is not fatal by its sub-code: it explains nothing that failed."""

_GPU_LOST = "gpu_lost:"
_RECOVERY_METRIC = "gpu_recovery_action"
_SXID = "sxid:"


def code_of(finding: Finding) -> int | None:
    """The XID that `finding` is about; None where it is about none."""
    if finding.metric == XID_METRIC and finding.value is not None:
        return round(finding.value)
    return None


def switch_errors(finding: Finding) -> list[SxidSpec]:
    """The SXids that `finding` is about, nearest to the cause first."""
    codes = {item.value for item in finding.evidence if item.name.startswith(_SXID)}
    specs = [shipped_sxids().seen(round(code), finding.severity) for code in codes if code is not None]
    return sorted(specs, key=lambda spec: (spec.cause_rank, spec.code))


def is_verdict(finding: Finding) -> bool:
    """Whether `finding` is the driver's own recovery verdict."""
    return any(item.name.startswith((_RECOVERY_METRIC, "recovery_action:")) for item in finding.evidence)


def is_nvlink(finding: Finding) -> bool:
    """Whether `finding` is a fault of the NVLink fabric: an XID of its class or a fatal SXid."""
    code = code_of(finding)
    if code is not None:
        return xid(code).xid_class == NVLINK_CLASS
    return any(spec.fatal for spec in switch_errors(finding))


def cause_rank(finding: Finding) -> int:
    """Place between cause and effect, least first.

    Loss of the bus comes before a power brake, that before a fatal NVLink event (XID 149) and that before its echo on
    peers (145); an uncorrectable memory error (48) before its handling (63, 64, 94, 95); clean-up (45) is last.
    """
    code = code_of(finding)
    if code is not None:
        harmless = code in DECODED_CODES and finding.severity is not Severity.CRITICAL
        return xid(code).cause_rank + (_HARMLESS if harmless else 0)
    if any(item.name.startswith(_GPU_LOST) for item in finding.evidence):
        return _BUS_LOSS
    switches = switch_errors(finding)
    if switches:
        return switches[0].cause_rank
    if is_verdict(finding):
        return _DRIVER_VERDICT
    rank = _BY_CATEGORY[finding.category]
    minor = finding.category in (Category.POWER, Category.HARDWARE) and finding.severity is not Severity.CRITICAL
    return rank + _MINOR if minor else rank


def root_order(finding: Finding) -> tuple[int, int, int, str, str]:
    """Sort key under which the root cause comes first."""
    return (
        cause_rank(finding),
        -finding.severity.rank,
        finding.started_ms,
        finding.subject.key,
        finding.rule,
    )
