"""Calls that are made on every reading, with everything that ctypes needs laid out once.

A call through nvidia-ml-py builds its structures anew each time and looks into each field of an array on its own; here
a call's arguments and its answer's memory live as long as the handle, and an array of answers is decoded in one step.
Nothing here loads NVML: functions and structures come from `nvml_library`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

SUCCESS = 0
UNKNOWN = 999


class FieldReplies(NamedTuple):
    """Answers of one batch, entry by entry: ``nvmlReturn_t`` codes, and values that mean nothing where a code is not 0.

    `latency_us` is the longest time in microseconds that the driver says it took for one entry.
    """

    codes: Sequence[int]
    values: Sequence[float]
    latency_us: int


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``, its union as eight bytes (nvml.h)."""

    _fields_ = (
        ("fieldId", ctypes.c_uint32),
        ("scopeId", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latencyUsec", ctypes.c_int64),
        ("valueType", ctypes.c_uint32),
        ("nvmlReturn", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
    )


_UNION = ("d", "I4x", "Q", "Q", "q", "i4x", "H6x")
"""Member of ``nvmlValue_t`` by ``nvmlValueType_t``, which counts from 0; the union's unused bytes are skipped."""
_PER_FIELD = 4
"""Numbers that are unpacked of one entry: latency, type, code, value."""
_PER_METRIC = 2
"""Numbers that are unpacked of one GPM metric: code, value."""


@lru_cache(maxsize=256)
def _layout(types: tuple[int, ...]) -> struct.Struct:
    known = range(len(_UNION))
    return struct.Struct("=" + "".join(f"16xqII{_UNION[kind] if kind in known else 'Q'}" for kind in types))


class FieldBatch:
    """One ``nvmlDeviceGetFieldValues`` of (field id, scope id) pairs; calling it asks the driver.

    A value is decoded by the type that the driver gives with it; a type that is not known is code 999.
    """

    def __init__(self, function: Callable[..., int], handle: Any, wanted: Sequence[tuple[int, int]]) -> None:
        self._function = function
        self._handle = handle
        self._entries = (FieldValue * len(wanted))()
        for entry, (field, scope) in zip(self._entries, wanted, strict=True):
            entry.fieldId, entry.scopeId = field, scope
        self._count = ctypes.c_int32(len(wanted))
        self._reference = ctypes.byref(self._entries)
        self._types = (0,) * len(wanted)
        self._layout = _layout(self._types)

    def __call__(self) -> tuple[int, FieldReplies | None]:
        """The code of the call as a whole, and the replies where it is 0."""
        code = self._function(self._handle, self._count, self._reference)
        if code:
            return code, None
        numbers = self._layout.unpack_from(self._entries)
        types = numbers[1::_PER_FIELD]
        if types != self._types:
            self._types = types
            self._layout = _layout(types)
            numbers = self._layout.unpack_from(self._entries)
        codes: Sequence[int] = numbers[2::_PER_FIELD]
        if max(types) >= len(_UNION):
            codes = [
                UNKNOWN if code == SUCCESS and kind >= len(_UNION) else code
                for code, kind in zip(codes, types, strict=True)
            ]
        return SUCCESS, FieldReplies(codes, numbers[3::_PER_FIELD], max(numbers[0::_PER_FIELD]))


class GpmPair:
    """Two samples of one GPU or MIG instance and the metrics between them.

    `functions` are ``nvmlGpmSampleAlloc``, ``nvmlGpmSampleFree``, the call that takes a sample (its arguments before
    the sample are `target`) and ``nvmlGpmMetricsGet``; `request` is a ``nvmlGpmMetricsGet_t``.
    """

    def __init__(
        self,
        functions: tuple[Callable[..., int], Callable[..., int], Callable[..., int], Callable[..., int]],
        target: tuple[Any, ...],
        request: Any,
        sample: type[Any],
        metrics: Sequence[int],
    ) -> None:
        self._allocate, self._free, self._take, self._get = functions
        self._target = target
        self._request = request
        self._samples = [sample(), sample()]
        self._allocated = 0
        request.version = 1
        request.numMetrics = len(metrics)
        for entry, number in zip(request.metrics, metrics, strict=False):
            entry.metricId = number
        self._layout = struct.Struct("=" + "4xId24x" * len(metrics))
        self._offset = type(request).metrics.offset
        self._reference = ctypes.byref(request)

    def allocate(self) -> int:
        """Memory for both samples; the ``nvmlReturn_t``."""
        for sample in self._samples[self._allocated :]:
            code = self._allocate(ctypes.byref(sample))
            if code:
                return code
            self._allocated += 1
        return SUCCESS

    def sample(self) -> int:
        """Take a sample over the older of the two; the ``nvmlReturn_t``. After a failure the newer one stays."""
        code = self._take(*self._target, self._samples[0])
        if code == SUCCESS:
            self._samples.reverse()
        return code

    def metrics(self) -> tuple[int, Sequence[int], Sequence[float]]:
        """The code of the call, then a code and a value for each metric, over the time between the samples."""
        older, newer = self._samples
        self._request.sample1, self._request.sample2 = older, newer
        code = self._get(self._reference)
        if code:
            return code, (), ()
        numbers = self._layout.unpack_from(self._request, self._offset)
        return SUCCESS, numbers[0::_PER_METRIC], numbers[1::_PER_METRIC]

    def free(self) -> None:
        """Give the samples' memory back; not to be used after."""
        for sample in self._samples[: self._allocated]:
            self._free(sample)
        self._allocated = 0


def bind_scalar(
    function: Callable[..., int], handle: Any, arguments: tuple[int, ...], kind: type[Any]
) -> Callable[[], tuple[int, Any]]:
    """``function(handle, *arguments, kind *)`` as a call that gives its code and the number."""
    answer = kind()
    given = (handle, *(ctypes.c_uint(argument) for argument in arguments), ctypes.byref(answer))

    def ask() -> tuple[int, Any]:
        return function(*given), answer.value

    return ask


def bind_pair(function: Callable[..., int], handle: Any) -> Callable[[], tuple[int, Any]]:
    """``function(handle, unsigned *, unsigned *)`` as a call that gives its code and both numbers."""
    first, second = ctypes.c_uint(), ctypes.c_uint()
    given = (handle, ctypes.byref(first), ctypes.byref(second))

    def ask() -> tuple[int, Any]:
        return function(*given), (first.value, second.value)

    return ask


def bind_structure(
    function: Callable[..., int], handle: Any, answer: Any, member: str = ""
) -> Callable[[], tuple[int, Any]]:
    """``function(handle, structure *)`` as a call that gives its code and `answer`, or its `member`.

    The structure is the same object each time: what it says holds until the next call.
    """
    given = (handle, ctypes.byref(answer))

    def ask() -> tuple[int, Any]:
        code = function(*given)
        return code, getattr(answer, member) if member else answer

    return ask
