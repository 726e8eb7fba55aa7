"""Asking one NVML handle: answers by metric, and a reason for each that did not come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from tocsin.collector.nvml_library import Code, FieldAnswer, Nvml, NvmlFailure
from tocsin.collector.nvml_probes import CallProbe, FieldProbe, metric_of, scaled, unpack_ber
from tocsin.domain.missing import Missing

BLANK_FROM = 0x7FFF_FFFF_FFFF_FFF0
"""Integers from here on are sentinels: DCGM's blanks, and NVML's all-ones for "not available"."""
_SIZE_RETRIES = 3
"""Lists can grow between the two calls in which pynvml reads them."""

_REASONS = {
    2: Missing.UNSUPPORTED,  # invalid argument: this driver does not know the field or threshold
    Code.NOT_SUPPORTED: Missing.UNSUPPORTED,
    Code.NO_PERMISSION: Missing.DENIED,
    Code.TIMEOUT: Missing.TIMED_OUT,
    Code.FUNCTION_NOT_FOUND: Missing.UNSUPPORTED,
    Code.GPU_IS_LOST: Missing.LOST,
    Code.RESET_REQUIRED: Missing.RESET_REQUIRED,
    Code.OPERATING_SYSTEM: Missing.DENIED,
    22: Missing.UNSUPPORTED,  # ECC of a vGPU
    Code.ARGUMENT_VERSION_MISMATCH: Missing.UNSUPPORTED,
    26: Missing.UNSUPPORTED,  # deprecated
    Code.GPU_NOT_FOUND: Missing.LOST,
}
_LIBRARY_CODES = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH})


class GpuLost(Exception):
    """The GPU does not answer any more; what it may still answer from caches is not to be trusted."""


def reason_of(code: int) -> Missing:
    """The reason behind an ``nvmlReturn_t``; any code that says nothing better is a blank.

    Raises GpuLost where the GPU is gone and NvmlFailure where the library itself is.
    """
    if code in _LIBRARY_CODES:
        raise NvmlFailure(code)
    reason = _REASONS.get(code, Missing.BLANK)
    if reason is Missing.LOST:
        raise GpuLost
    return reason


class Answers:
    """Values by key, and reasons by key for what failed; a value beats a reason, any reason beats "unsupported"."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._failed: dict[str, Missing] = {}

    def add(self, key: str, value: float | None) -> None:
        """Keep a value; None and sentinels are blank."""
        if value is None or value >= BLANK_FROM:
            self.fail(key, Missing.BLANK)
        else:
            self.values[key] = float(value)

    def fail(self, key: str, reason: Missing) -> None:
        """Note why `key` has no value; an earlier reason stays, unless it was "unsupported"."""
        if self._failed.get(key, Missing.UNSUPPORTED) is Missing.UNSUPPORTED:
            self._failed[key] = reason

    def missing(self) -> dict[str, Missing]:
        """The reasons of what has no value. What no variant of a metric supports is told once, by the plain name."""
        answered = {metric_of(key) for key in self.values}
        reasons: dict[str, Missing] = {}
        for key, reason in self._failed.items():
            name = metric_of(key)
            if key in self.values:
                continue
            if reason is not Missing.UNSUPPORTED:
                reasons[key] = reason
            elif name not in answered:
                reasons.setdefault(name, reason)
        return reasons


class Asker:
    """One handle. Remembers what it does not support, so that it is asked once only."""

    def __init__(self, library: Nvml, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._unsupported: set[Hashable] = set()

    def fields(self, probes: Iterable[FieldProbe], answers: Answers) -> None:
        """Ask for all `probes` in one batch."""
        asked: list[FieldProbe] = []
        for probe in probes:
            if probe in self._unsupported:
                answers.fail(probe.key, Missing.UNSUPPORTED)
            else:
                asked.append(probe)
        if not asked:
            return
        for probe, reply in zip(asked, self._batch(asked), strict=True):
            if reply.code != Code.SUCCESS or reply.value is None:
                self._fail(probe, (probe.key,), reply.code or Code.UNKNOWN, answers)
            elif reply.value >= BLANK_FROM:
                answers.fail(probe.key, Missing.BLANK)
            else:
                value = unpack_ber(reply.value) if probe.packed else scaled(reply.value, probe.scale)
                answers.add(probe.key, value)

    def _batch(self, probes: Sequence[FieldProbe]) -> list[FieldAnswer]:
        try:
            return self._library.fields(self._handle, [(probe.field, probe.scope) for probe in probes])
        except NvmlFailure as failure:
            return [FieldAnswer(failure.code, None)] * len(probes)

    def calls(self, probes: Iterable[CallProbe], answers: Answers) -> None:
        """Make each call one of whose metrics has no value yet."""
        for probe in probes:
            wanted = [metric for metric in probe.metrics if metric not in answers.values]
            if not wanted:
                continue
            if probe in self._unsupported:
                self._blame(wanted, Missing.UNSUPPORTED, answers)
                continue
            try:
                reply = self._call(probe)
            except NvmlFailure as failure:
                self._fail(probe, wanted, failure.code, answers)
            else:
                self._keep(probe, reply, wanted, answers)

    def _call(self, probe: CallProbe) -> Any:
        for _ in range(_SIZE_RETRIES):
            try:
                return self._library.call(probe.function, self._handle, *probe.arguments)
            except NvmlFailure as failure:
                if failure.code != Code.INSUFFICIENT_SIZE:
                    raise
        return self._library.call(probe.function, self._handle, *probe.arguments)

    def _keep(self, probe: CallProbe, reply: Any, wanted: Sequence[str], answers: Answers) -> None:
        try:
            values = probe.read(reply)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            # A driver that answers in another shape must not cost the metrics beside it.
            self._blame(wanted, Missing.BLANK, answers)
            return
        for key, value in values.items():
            if key not in answers.values:
                answers.add(key, value)

    def _fail(self, probe: FieldProbe | CallProbe, keys: Sequence[str], code: int, answers: Answers) -> None:
        reason = reason_of(code)
        if reason is Missing.UNSUPPORTED:
            self._unsupported.add(probe)
        self._blame(keys, reason, answers)

    def _blame(self, keys: Sequence[str], reason: Missing, answers: Answers) -> None:
        for key in keys:
            answers.fail(key, reason)
