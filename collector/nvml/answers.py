"""Answers by metric, and a reason for each that did not come."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.collector.nvml.decode import BLANK_FROM
from tocsin.collector.nvml.library import LIBRARY_CODES, Code, NvmlFailure
from tocsin.collector.nvml.decode import metric_of
from tocsin.domain.missing import Missing

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
    reason = _REASONS.get(code, Missing.BLANK)
    if reason is Missing.LOST:
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
        """The same reason for several keys."""
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
