"""What NVML's answers mean: values by metric, and a reason for each that did not come.

Each decoding function turns one answer into values by metric, None where the driver gave a blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from operator import mul, truediv
from typing import Any
from uuid import UUID

from tocsin.collector.nvml.library import LIBRARY_CODES, Code, NvmlFailure
from tocsin.domain.metrics import split_variant, variant
from tocsin.domain.reading import Missing

Answer = Mapping[str, float | None]
Read = Callable[[Any], Answer]

BLANK_FROM = 0x7FFF_FFFF_FFFF_FFF0
"""Integers from here on are sentinels: DCGM's blanks, and NVML's all-ones for "not available"."""

PERCENT = 0.01
MILLI = 1e-3
NANO = 1e-9
KIBI = 1024.0
MEGA = 1e6

ROW_REMAP = (
    "gpu_row_remap_correctable_total",
    "gpu_row_remap_uncorrectable_total",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
)
SRAM_LOCATIONS = {
    "l2": "aggregateUncBucketL2",
    "sm": "aggregateUncBucketSm",
    "pcie": "aggregateUncBucketPcie",
    "microcontroller": "aggregateUncBucketMcu",
    "other": "aggregateUncBucketOther",
}
"""Where uncorrectable SRAM errors are counted, by member of ``nvmlEccSramErrorStatus_v1_t``."""
CLOCK_REASONS = {
    "gpu_clocks_idle": 0x1,
    "gpu_clocks_application_setting": 0x2,
    "gpu_clocks_sw_power_cap": 0x4,
    "gpu_clocks_hw_slowdown": 0x8,
    "gpu_clocks_sync_boost": 0x10,
    "gpu_clocks_sw_thermal_slowdown": 0x20,
    "gpu_clocks_hw_thermal_slowdown": 0x40,
    "gpu_clocks_hw_power_brake": 0x80,
    "gpu_clocks_display_setting": 0x100,
    "gpu_clocks_board_limit": 0x200,
    "gpu_clocks_reliability": 0x400,
}
"""Metric of each bit of the clock-event reasons (nvml.h, ``nvmlClocksEventReason...``)."""
FABRIC_PROBLEMS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
"""Place of each two-bit answer in the fabric's health mask: 0 not supported, 1 yes, 2 no (nvml.h)."""
_CONFIGURATION_SHIFT = 8
_CONFIGURATION_MASK = 0xF
_YES, _NO = 1, 2
REGISTERED, _FAILED = 3, 4
"""State of a GPU whose registration with the fabric has ended; 4, DCGM's number, where it ended with an error."""


def metric_of(key: str) -> str:
    """The canonical name of a metric or variant."""
    return split_variant(key)[0]


def scaled(value: float, scale: float) -> float:
    """`value` times `scale`; a scale below 1 divides by its inverse, so that 57 percent is exactly 0.57."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def divisor(scale: float) -> float:
    """The number to divide by in place of multiplying with `scale`, a power of two or below 1."""
    return 1 / scale if scale >= 1 else float(round(1 / scale))


def usable(values: Sequence[float]) -> bool:
    """Whether there is no sentinel, NaN or infinity among `values`; a NaN may hide from `max`, but not from a sum."""
    return max(values) < BLANK_FROM and isfinite(sum(values))


def unpack_ber(packed: float) -> float:
    """A bit-packed NVLink 5 error rate: bits 0 to 7 are the exponent, 8 to 11 the mantissa (nvml.h, fields 216 to 222).

    The rate is mantissa times ten to the minus exponent; a driver that gives a plain rate below 1 is taken at its word.
    """
    if packed < 1:
        return packed
    bits = int(packed)
    return float((bits >> 8) & 0xF) * 10.0 ** -(bits & 0xFF)


def one(metric: str, scale: float, part: str | int | None) -> Read:
    """Reads an answer that is one metric, or whose attribute or item `part` is."""

    apply, by = (mul, scale) if scale >= 1 else (truediv, round(1 / scale))

    def whole(answer: Any) -> Answer:
        return {metric: apply(answer, by) if answer is not None and answer < BLANK_FROM else None}

    def member(answer: Any) -> Answer:
        return whole(getattr(answer, part) if isinstance(part, str) else answer[part])

    return whole if part is None else member


def memory(answer: Any) -> Answer:
    """Version 2 of the memory structure."""
    total, used, reserved = answer.total, answer.used, answer.reserved
    usable = total - reserved if total < BLANK_FROM and reserved < BLANK_FROM and used < BLANK_FROM else 0
    return {
        "gpu_memory_total_bytes": total,
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": answer.free,
        "gpu_memory_reserved_bytes": reserved,
        "gpu_memory_used_ratio": used / usable if usable > 0 else None,
    }


def old_memory(answer: Any) -> Answer:
    """Version 1, which counts what the driver reserves as used: neither `used` nor a ratio can be had from it."""
    return {"gpu_memory_total_bytes": answer.total, "gpu_memory_free_bytes": answer.free}


def histogram(answer: Any) -> Answer:
    """Memory banks by how many spare rows they have."""
    grades = ("max", "high", "partial", "low", "none")
    return {variant("gpu_row_remap_banks", "availability", grade): getattr(answer, grade) for grade in grades}


def repair(answer: Any) -> Answer:
    """Channel and TPC repair."""
    return {variant("gpu_repair_pending", "unit", unit): answer[i] for i, unit in enumerate(("channel", "tpc"))}


def utilization(answer: Any) -> Answer:
    """Time with a kernel, and time with the memory controller busy."""
    return {
        "gpu_utilization_ratio": scaled(answer.gpu, PERCENT),
        "gpu_memory_copy_utilization_ratio": scaled(answer.memory, PERCENT),
    }


def rows(answer: Any) -> Answer:
    """The four numbers about remapped rows."""
    return dict(zip(ROW_REMAP, answer, strict=True))


def bar1(answer: Any) -> Answer:
    """The BAR1 window."""
    return {"gpu_bar1_used_bytes": answer.bar1Used, "gpu_bar1_total_bytes": answer.bar1Total}


def modes(current: str, pending: str) -> Read:
    """Reads the present and the pending state of a mode that changes with a reset."""
    return lambda answer: {current: answer[0], pending: answer[1]}


def sram(answer: Any) -> Answer:
    """The verdict on SRAM errors, and where they were."""
    values: dict[str, float | None] = {"gpu_ecc_sram_threshold_exceeded": answer.bThresholdExceeded}
    for location, member in SRAM_LOCATIONS.items():
        key = variant("gpu_ecc_sram_uncorrected_aggregate_total", "location", location)
        values[key] = getattr(answer, member, None)
    return values


def fabric(answer: Any) -> Answer:
    """Registration with the NVLink fabric, its health, and what ails it. Version 2 of the structure has no summary."""
    failed = answer.state == REGISTERED and getattr(answer, "status", 0)
    values: dict[str, float | None] = {
        "gpu_fabric_state": _FAILED if failed else answer.state,
        "gpu_fabric_health": getattr(answer, "healthSummary", None),
    }
    mask = getattr(answer, "healthMask", 0)
    for problem, shift in FABRIC_PROBLEMS.items():
        answer = (mask >> shift) & 0x3
        if answer in (_YES, _NO):
            values[variant("gpu_fabric_problem", "problem", problem)] = float(answer == _YES)
    if configuration := (mask >> _CONFIGURATION_SHIFT) & _CONFIGURATION_MASK:
        key = variant("gpu_fabric_problem", "problem", "incorrect_configuration")
        values[key] = float(configuration != _YES)
    return values


def nvlink_domain(answer: Any) -> str:
    """The NVLink domain that a GPU is registered with, ``clusterUuid.cliqueId`` as in label ``nvidia.com/gpu.clique``.

    Empty where registration has not ended well, and where the cluster has no UUID: then the domain is the host's own.
    """
    cluster = bytes(answer.clusterUuid)
    if answer.state != REGISTERED or getattr(answer, "status", 0) or not any(cluster):
        return ""
    return f"{UUID(bytes=cluster)}.{int(answer.cliqueId)}"


@cache
def _reasons(mask: int) -> Answer:
    bits = {metric: float(bool(mask & bit)) for metric, bit in CLOCK_REASONS.items()}
    return {"gpu_clocks_event_reasons_bitmask": mask, **bits}


def clock_reasons(answer: Any) -> Answer:
    """Why clocks are where they are: the mask, and each of its bits."""
    return _reasons(int(answer))


def link_up(state: float) -> float:
    """Whether a link is up, of ``NVML_NVLINK_STATE_*``: inactive, active, asleep (which wakes by itself) or off."""
    return float(state in (1, 2))


_REASONS: dict[int, Missing] = {
    Code.INVALID_ARGUMENT: Missing.UNSUPPORTED,  # this driver does not know the field or threshold
    Code.NOT_SUPPORTED: Missing.UNSUPPORTED,
    Code.NO_PERMISSION: Missing.DENIED,
    Code.TIMEOUT: Missing.TIMED_OUT,
    Code.FUNCTION_NOT_FOUND: Missing.UNSUPPORTED,
    Code.GPU_IS_LOST: Missing.LOST,
    Code.RESET_REQUIRED: Missing.RESET_REQUIRED,
    Code.OPERATING_SYSTEM: Missing.DENIED,
    Code.VGPU_ECC_NOT_SUPPORTED: Missing.UNSUPPORTED,
    Code.ARGUMENT_VERSION_MISMATCH: Missing.UNSUPPORTED,
    Code.DEPRECATED: Missing.UNSUPPORTED,
    Code.GPU_NOT_FOUND: Missing.LOST,
}
LASTING = frozenset(code for code, reason in _REASONS.items() if reason is Missing.UNSUPPORTED) | {Code.NO_PERMISSION}
"""Codes that the same question would bring again: it is not asked anew before the next enumeration."""


class GpuLost(Exception):
    """The GPU does not answer any more; what it may still answer from caches is not to be trusted."""


def reason_of(code: int) -> Missing:
    """The reason behind an ``nvmlReturn_t``; any code that says nothing better is a blank.

    Raises GpuLost where the GPU is gone and NvmlFailure where the library itself is.
    """
    if code in LIBRARY_CODES:
        raise NvmlFailure(code)
    if (reason := _REASONS.get(code, Missing.BLANK)) is Missing.LOST:
        raise GpuLost
    return reason


def quiet_reason(code: int) -> Missing:
    """`reason_of` for what is asked beside the readings: says lost or blank in place of raising."""
    try:
        return reason_of(code)
    except GpuLost:
        return Missing.LOST
    except NvmlFailure:
        return Missing.BLANK


class Answers:
    """Values by key, and reasons by key for what failed; a value beats a reason, any reason beats "unsupported"."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.failed: dict[str, Missing] = {}

    def add(self, key: str, value: float | None) -> None:
        """Keep a value; None and sentinels are blank."""
        if value is None or not value < BLANK_FROM:
            self.fail(key, Missing.BLANK)
        else:
            self.values[key] = float(value)

    def fail(self, key: str, reason: Missing) -> None:
        """Note why `key` has no value; an earlier reason stays, unless it was "unsupported"."""
        if self.failed.get(key, Missing.UNSUPPORTED) is Missing.UNSUPPORTED:
            self.failed[key] = reason

    def blame(self, keys: Iterable[str], reason: Missing) -> None:
        for key in keys:
            self.fail(key, reason)

    def missing(self) -> dict[str, Missing]:
        """The reasons of what has no value. What no variant of a metric supports is told once, by the plain name."""
        answered = {metric_of(key) for key in self.values}
        reasons: dict[str, Missing] = {}
        for key, reason in self.failed.items():
            name = metric_of(key)
            if key in self.values:
                continue
            if reason is not Missing.UNSUPPORTED:
                reasons[key] = reason
            elif name not in answered:
                reasons.setdefault(name, reason)
        return reasons
