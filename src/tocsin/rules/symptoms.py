"""What a finding is a symptom of, and which of several symptoms explains the others: causes before effects."""

from __future__ import annotations

from enum import StrEnum

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Category, Finding, Severity, SubjectKind
from tocsin.domain.node_fault import NETWORK_FAULTS
from tocsin.rules.conditions.xid_class import XID_METRIC
from tocsin.rules.sxid import SxidSpec, shipped_sxids
from tocsin.rules.xid import APPLICATION_CLASSES, xid
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
    Category.VERSIONS: 97,
}
_DRIVER_VERDICT = 70
_MINOR = 15
"""Added for a finding that is less than critical, so that a warning does not stand before the failure it came with."""

_HARMLESS = 60
"""Added for an NVLink event that is not fatal by its sub-code: it explains nothing that failed."""

_GPU_LOST = "gpu_lost:"
_RECOVERY_METRIC = "gpu_recovery_action"
_SXID = "sxid:"
_NODE_FAULT = f"{EventKind.NODE_FAULT}:"
_DEVICE_FAULT = f"{EventKind.DEVICE_FAULT}:"
_LOST_EVIDENCE = frozenset({f"{_DEVICE_FAULT}{int(DeviceFault.LOST)}"})


class Symptom(StrEnum):
    """The kinds of symptoms that one cause shows alike wherever it is seen."""

    BUS = "bus"
    """The GPU is lost to its host."""
    DARK = "dark"
    """Nothing reports any more."""
    NVLINK = "nvlink"
    """A link failed here: an XID that the GPU at the failed end reports."""
    NVLINK_SIDE = "nvlink_side"
    """An NVLink error that either end may report: a cause where nothing explains it."""
    NVLINK_ECHO = "nvlink_echo"
    """What other GPUs of the domain see of a failure elsewhere."""
    SWITCH = "switch"
    """A fatal error of an NVSwitch."""
    NETWORK = "network"
    """A port of the network beyond the host, its card, or what it hears from the other end."""
    MEMORY = "memory"
    FIRMWARE = "firmware"
    HANG = "hang"
    POWER = "power"
    HEAT = "heat"
    PROGRAM = "program"
    CLEANUP = "cleanup"
    """What the driver ends after something else went wrong: 43 and 45."""
    RESET = "reset"
    """The card was reset, most often for something else that went wrong on it or on a peer."""
    VERDICT = "verdict"
    """The driver's own word on how to recover."""
    STALE = "stale"
    """Values that repeat, or a family of metrics that is gone."""
    FORECAST = "forecast"
    ALONE = "alone"
    """Load, memory in use, fragmentation: no fault."""
    DRIFT = "drift"
    """Versions that differ where they are meant to be equal: no fault."""
    UNKNOWN = "unknown"
    """A fault by a code or text that no table has."""
    OTHER = "other"


_AT_THE_FAILED_END = frozenset({136, 149, 155})
_ECHOES = frozenset({108, 137, 145})
_CLEAN_UP = frozenset({43, 45})
_BY_CLASS = {
    "bus": Symptom.BUS,
    "memory": Symptom.MEMORY,
    "firmware": Symptom.FIRMWARE,
    "security": Symptom.FIRMWARE,
    "hang": Symptom.HANG,
    "power": Symptom.POWER,
    "verdict": Symptom.VERDICT,
}
_BY_DEVICE_FAULT = {
    DeviceFault.MEMORY_UNCORRECTED: Symptom.MEMORY,
    DeviceFault.MEMORY_WORN_OUT: Symptom.MEMORY,
    DeviceFault.LINK: Symptom.NVLINK_ECHO,
    DeviceFault.LOST: Symptom.BUS,
    DeviceFault.TOO_HOT: Symptom.HEAT,
    DeviceFault.RESET: Symptom.RESET,
    DeviceFault.HANG: Symptom.HANG,
    DeviceFault.UNKNOWN: Symptom.UNKNOWN,
}
_DEVICE_CODES = frozenset(str(int(fault)) for fault in DeviceFault)
_STANDING_ALONE = frozenset({Category.MEMORY, Category.FRAGMENTATION, Category.CAPACITY, Category.VERSIONS})
_MEMORY_METRICS = ("gpu_ecc", "gpu_bad_pages", "gpu_row_remap", "gpu_retired", "gpu_memory_unrepairable", "gpu_repair")
_LINK_METRICS = ("gpu_nvlink", "gpu_fabric")
_NETWORK_METRICS = ("network_",)
_HANG_METRICS = ("gpu_utilization", "gpu_sm_active")


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


def symptom_of(finding: Finding) -> Symptom:
    """What kind of symptom `finding` is."""
    if finding.expected:
        return Symptom.FORECAST
    code = code_of(finding)
    if code is not None:
        return _of_xid(code, finding.severity)
    if finding.category in _STANDING_ALONE:
        return Symptom.DRIFT if finding.category is Category.VERSIONS else Symptom.ALONE
    for item in finding.evidence:
        if item.name.startswith(_GPU_LOST):
            return Symptom.BUS
        if item.name.startswith(_SXID):
            return Symptom.SWITCH if any(spec.fatal for spec in switch_errors(finding)) else Symptom.OTHER
        if item.name.startswith(_NODE_FAULT) and item.value in NETWORK_FAULTS:
            return Symptom.NETWORK
        if item.name.startswith(_DEVICE_FAULT):
            return _of_device_fault(item.name)
    if is_verdict(finding):
        return Symptom.VERDICT
    return _of_category(finding)


def _of_device_fault(evidence: str) -> Symptom:
    """By the evidence ``device_fault:1``: its value may be a number of events."""
    code = evidence.removeprefix(_DEVICE_FAULT)
    return _BY_DEVICE_FAULT.get(DeviceFault(int(code)), Symptom.OTHER) if code in _DEVICE_CODES else Symptom.OTHER


def is_standing(finding: Finding) -> bool:
    """Whether it is a state that comes and goes and breaks nothing, now or as a forecast has it: load, fragmentation or
    versions of a pool or the fleet, and memory in use or free memory in pieces on GPUs where that is a note."""
    if finding.told or finding.category not in _STANDING_ALONE:
        return False
    noted = finding.subject.kind is SubjectKind.GPU and finding.alert_level is AlertLevel.NOTE
    return noted or finding.subject.kind in (SubjectKind.POOL, SubjectKind.FLEET)


def _of_xid(code: int, severity: Severity) -> Symptom:
    if code in _CLEAN_UP:
        return Symptom.CLEANUP
    spec = xid(code)
    if spec.xid_class == NVLINK_CLASS:
        if code in _ECHOES or severity is not Severity.CRITICAL:
            return Symptom.NVLINK_ECHO
        return Symptom.NVLINK if code in _AT_THE_FAILED_END else Symptom.NVLINK_SIDE
    if spec.xid_class in APPLICATION_CLASSES:
        return Symptom.PROGRAM
    if spec.xid_class == "bus" and severity is not Severity.CRITICAL:
        return Symptom.OTHER
    return _BY_CLASS.get(spec.xid_class, Symptom.OTHER)


def _of_category(finding: Finding) -> Symptom:
    if finding.category is Category.POWER:
        return Symptom.POWER
    if finding.category is Category.THERMAL:
        return Symptom.HEAT
    if finding.category is Category.TELEMETRY:
        return Symptom.DARK if "silent" in finding.rule else Symptom.STALE
    if finding.category is Category.APPLICATION:
        return Symptom.PROGRAM
    if finding.metric.startswith(_MEMORY_METRICS):
        return Symptom.MEMORY
    if finding.metric.startswith(_LINK_METRICS):
        return Symptom.NVLINK_ECHO
    if finding.metric.startswith(_NETWORK_METRICS):
        return Symptom.NETWORK
    return Symptom.HANG if finding.metric.startswith(_HANG_METRICS) else Symptom.OTHER


def cause_rank(finding: Finding) -> int:
    """Place between cause and effect, least first.

    Loss of the bus comes before a power brake, that before a fatal NVLink event (XID 149) and that before its echo on
    peers (145); an uncorrectable memory error (48) before its handling (63, 64, 94, 95); clean-up (45) is last.
    """
    code = code_of(finding)
    if code is not None:
        harmless = code in DECODED_CODES and finding.severity is not Severity.CRITICAL
        return xid(code).cause_rank + (_HARMLESS if harmless else 0)
    if any(item.name in _LOST_EVIDENCE or item.name.startswith(_GPU_LOST) for item in finding.evidence):
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
