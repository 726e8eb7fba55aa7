"""The only door to pynvml.

Everything that the NVML source does goes through the `Nvml` protocol, so that recorded answers can stand in for a
driver. Functions are called by their NVML name: one that this pynvml, this driver or this GPU lacks is an `NvmlFailure`
like any other.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import pynvml

from tocsin.domain.errors import Unavailable

# Calls that are made on every reading have everything that ctypes needs laid out once. A call through nvidia-ml-py
# builds its structures anew each time and looks into each field of an array on its own; here a call's arguments and
# its answer's memory live as long as the handle, and an array of answers is decoded in one step.

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
        if code := self._function(self._handle, self._count, self._reference):
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
            if code := self._allocate(ctypes.byref(sample)):
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
        if code := self._get(self._reference):
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
    return lambda: (function(*given), answer.value)


def bind_pair(function: Callable[..., int], handle: Any) -> Callable[[], tuple[int, Any]]:
    """``function(handle, unsigned *, unsigned *)`` as a call that gives its code and both numbers."""
    first, second = ctypes.c_uint(), ctypes.c_uint()
    given = (handle, ctypes.byref(first), ctypes.byref(second))
    return lambda: (function(*given), (first.value, second.value))


def bind_structure(
    function: Callable[..., int], handle: Any, answer: Any, member: str = ""
) -> Callable[[], tuple[int, Any]]:
    """``function(handle, structure *)`` as a call that gives its code and `answer`, or its `member`.

    The structure is the same object each time: what it says holds until the next call.
    """
    given = (handle, ctypes.byref(answer))
    return lambda: (function(*given), getattr(answer, member) if member else answer)


MEMORY_V2 = 33_554_472
"""``nvmlMemory_v2``: size and version of the structure in which ``used`` leaves out what the driver reserves."""
ALL_LINKS = 0xFFFF_FFFF
"""Scope of a link field that sums over all links."""
WHOLE_GPU = 0xFFFF_FFFF
"""Instance id of an event that belongs to no MIG instance."""
MOST_GPUS = 64
"""More than any node has. What the driver says beyond it is not believed."""
MOST_INSTANCES = 64
"""More MIG instances than any GPU has."""
_MOST_PLACEMENTS = 64


class Code(IntEnum):
    """The values of ``nvmlReturn_t`` that Tocsin tells apart (nvml.h)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    VGPU_ECC_NOT_SUPPORTED = 22
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


LIBRARY_CODES = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH})
"""Codes that say nothing of a GPU: the library itself is gone."""


class EventType(IntEnum):
    """The bits of the driver's events that Tocsin listens to (nvml.h, ``nvmlEventType...``)."""

    XID = 0x8
    ECC_STORM = 0x200
    DRAM_RETIREMENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON = 0x1000
    FATAL_POISON = 0x2000
    GPU_UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


XID_EVENTS = int(EventType.XID)
ALL_EVENTS = sum(EventType)


class NvmlFailure(Exception):
    """NVML said no; `code` is its ``nvmlReturn_t``."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code = code
        super().__init__(text or f"NVML error {code}")


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One event; `device` is the `Nvml.key` of the GPU's handle, `instance` the MIG instance's id where it has one."""

    device: int
    kind: int
    data: int
    instance: int | None = None


class Gpm(Protocol):
    """Two samples of a GPU's performance counters. A code is an ``nvmlReturn_t``."""

    def allocate(self) -> int:
        """Get memory for the samples; the code."""

    def sample(self) -> int:
        """Take one sample in place of the older; the code."""

    def metrics(self) -> tuple[int, Sequence[int], Sequence[float]]:
        """The code, then a code and a value for each metric, between the two samples."""

    def free(self) -> None:
        """Give the memory back."""


class Nvml(Protocol):
    """What the NVML source needs of a driver. Every method but `key` raises `NvmlFailure`."""

    def open(self) -> None:
        """Load and initialise the library."""

    def close(self) -> None:
        """Release the library and all its handles, however often it was opened."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one function by its NVML name; structures come back as objects with attributes."""

    def bind(self, function: str, handle: Any, *arguments: Any) -> Callable[[], tuple[int, Any]]:
        """The same call, to be made again and again: gives its code and, where that is 0, the answer.

        An answer with attributes holds until the next call.
        """

    def batch(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> Callable[[], tuple[int, FieldReplies | None]]:
        """One batched ``nvmlDeviceGetFieldValues`` of (field id, scope id) pairs, to be made again and again.

        Gives the code of the call as a whole and, where that is 0, the replies, which fail one by one.
        """

    def gpm(self, handle: Any, instance: int | None, metrics: Sequence[int]) -> Gpm:
        """GPM samples of a GPU, or of the MIG instance with that id on it."""

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        """The next event of the set; None where none came in time."""

    def key(self, handle: Any) -> int:
        """A number that identifies the GPU behind a handle while the library stays open."""


def _filled(function: Callable[..., Any], by_reference: bool, *structures: str) -> Callable[[Any], Any]:
    """`function`, which fills a caller's structure, as one that returns it; older versions are tried in turn."""

    def fill(handle: Any, structure: str) -> Any:
        answer = getattr(pynvml, structure)()
        function(handle, ctypes.byref(answer) if by_reference else answer)
        return answer

    def call(handle: Any) -> Any:
        for structure in structures[:-1]:
            try:
                return fill(handle, structure)
            except pynvml.NVMLError as error:
                if error.value != Code.ARGUMENT_VERSION_MISMATCH:
                    raise
        return fill(handle, structures[-1])

    return call


def _placements(handle: Any, profile: int) -> list[tuple[int, int]]:
    """First slice and number of slices of each place that a GPU has for a MIG profile."""
    count = ctypes.c_uint(_MOST_PLACEMENTS)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places[: count.value]]


def _vgpu_memory(instance: Any) -> int:
    """Bytes that a vGPU uses: nvidia-ml-py gives the driver four bytes to write eight into."""
    used = ctypes.c_ulonglong()
    pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer("nvmlVgpuInstanceGetFbUsage")(instance, ctypes.byref(used)))
    return used.value


_STRUCTURES = {
    "nvmlDeviceGetSramEccErrorStatus": ("c_nvmlEccSramErrorStatus_v1_t",),
    "nvmlDeviceGetGpuFabricInfoV": ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"),
    "nvmlDeviceGetMemoryLimits_v1": ("c_nvmlGetMemoryLimits_v1_t",),
}
"""Functions that fill a structure of the caller, and its versions, newest first."""
_TAKES_REFERENCE = frozenset({"nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetGpuFabricInfoV"})
"""Those of them to which nvidia-ml-py passes on what it is given; the others it gives a reference itself."""
_WRITTEN_HERE: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetGpuInstancePossiblePlacements": _placements,
    "nvmlVgpuInstanceGetFbUsage": _vgpu_memory,
}

_SCALARS: dict[str, type[Any]] = {
    "nvmlDeviceGetClockInfo": ctypes.c_uint,
    "nvmlDeviceGetCurrentClocksEventReasons": ctypes.c_ulonglong,
    "nvmlDeviceGetPerformanceState": ctypes.c_uint,
    "nvmlDeviceGetFanSpeed_v2": ctypes.c_uint,
    "nvmlDeviceGetPowerUsage": ctypes.c_uint,
    "nvmlDeviceGetTotalEnergyConsumption": ctypes.c_ulonglong,
    "nvmlDeviceGetPowerManagementLimit": ctypes.c_uint,
    "nvmlDeviceGetEnforcedPowerLimit": ctypes.c_uint,
    "nvmlDeviceGetPcieReplayCounter": ctypes.c_uint,
    "nvmlDeviceGetNvLinkState": ctypes.c_uint,
    "nvmlDeviceGetNvLinkErrorCounter": ctypes.c_ulonglong,
}
"""Functions that are asked often and answer one number, by its C type."""
_PAIRS = frozenset(
    {
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetDecoderUtilization",
        "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization",
    }
)
_BOUND_STRUCTURES: dict[tuple[str, tuple[Any, ...]], tuple[str, str, dict[str, int], str]] = {
    ("nvmlDeviceGetTemperatureV", (0,)): (
        "nvmlDeviceGetTemperatureV",
        "c_nvmlTemperature_v1_t",
        {"version": 0x100_000C, "sensorType": 0},
        "temperature",
    ),
    ("nvmlDeviceGetMarginTemperature", ()): (
        "nvmlDeviceGetMarginTemperature",
        "c_nvmlMarginTemperature_v1_t",
        {"version": 0x100_0008},
        "marginTemperature",
    ),
    ("nvmlDeviceGetUtilizationRates", ()): ("nvmlDeviceGetUtilizationRates", "c_nvmlUtilization_t", {}, ""),
    ("nvmlDeviceGetBAR1MemoryInfo", ()): ("nvmlDeviceGetBAR1MemoryInfo", "c_nvmlBAR1Memory_t", {}, ""),
    ("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)): (
        "nvmlDeviceGetMemoryInfo_v2",
        "c_nvmlMemory_v2_t",
        {"version": MEMORY_V2},
        "",
    ),
}
"""Functions that are asked often and fill a structure: symbol, structure, what it must say, member that is meant."""


_UNFORESEEN = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    ctypes.ArgumentError,
)
"""What nvidia-ml-py raises on an answer that it does not expect, such as a list of 2^32 processes."""


class PynvmlLibrary:
    """The driver's own NVML through nvidia-ml-py."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._times = 0

    def open(self) -> None:
        self.call("nvmlInit")
        self._times += 1

    def close(self) -> None:
        # NVML counts its openings, and lets go with the last closing: one that came back late must not keep it open.
        times, self._times = self._times, 0
        for _ in range(times):
            self.call("nvmlShutdown")

    def call(self, function: str, *arguments: Any) -> Any:
        try:
            return self._function(function)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlFailure(error.value, str(error)) from None
        except pynvml.NVMLLibraryMismatchError as error:
            raise NvmlFailure(Code.FUNCTION_NOT_FOUND, str(error)) from None
        except _UNFORESEEN as error:
            # What nvidia-ml-py makes of an unforeseen answer must cost one call, not the GPU's whole reading.
            raise NvmlFailure(Code.UNKNOWN, f"{function}: {error}") from None

    def _function(self, name: str) -> Callable[..., Any]:
        if (found := self._functions.get(name)) is None:
            if (found := _WRITTEN_HERE.get(name) or getattr(pynvml, name, None)) is None:
                raise NvmlFailure(Code.FUNCTION_NOT_FOUND, f"nvidia-ml-py has no {name}")
            if name in _STRUCTURES:
                found = _filled(found, name in _TAKES_REFERENCE, *_STRUCTURES[name])
            self._functions[name] = found
        return found

    def _symbol(self, name: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = pynvml._nvmlGetFunctionPointer(name)
        except pynvml.NVMLError as error:
            raise NvmlFailure(error.value, str(error)) from None
        return function

    def bind(self, function: str, handle: Any, *arguments: Any) -> Callable[[], tuple[int, Any]]:
        if (kind := _SCALARS.get(function)) is not None:
            return bind_scalar(self._symbol(function), handle, arguments, kind)
        if function in _PAIRS:
            return bind_pair(self._symbol(function), handle)
        if (filled := _BOUND_STRUCTURES.get((function, arguments))) is not None:
            symbol, structure, said, member = filled
            answer = getattr(pynvml, structure)()
            for name, value in said.items():
                setattr(answer, name, value)
            return bind_structure(self._symbol(symbol), handle, answer, member)
        return coded(partial(self.call, function, handle, *arguments))

    def batch(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> Callable[[], tuple[int, FieldReplies | None]]:
        return FieldBatch(self._symbol("nvmlDeviceGetFieldValues"), handle, wanted)

    def gpm(self, handle: Any, instance: int | None, metrics: Sequence[int]) -> Gpm:
        take = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        functions = (
            self._symbol("nvmlGpmSampleAlloc"),
            self._symbol("nvmlGpmSampleFree"),
            self._symbol(take),
            self._symbol("nvmlGpmMetricsGet"),
        )
        target = (handle,) if instance is None else (handle, ctypes.c_uint(instance))
        return GpmPair(functions, target, pynvml.c_nvmlGpmMetricsGet_t(), pynvml.c_nvmlGpmSample_t, metrics)

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        try:
            event = self.call("nvmlEventSetWait_v2", event_set, timeout_ms)
        except NvmlFailure as failure:
            if failure.code == Code.TIMEOUT:
                return None
            raise
        instance = None if event.gpuInstanceId == WHOLE_GPU else event.gpuInstanceId
        return DeviceEvent(self.key(event.device), event.eventType, event.eventData, instance)

    def key(self, handle: Any) -> int:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0


def coded(call: Callable[[], Any]) -> Callable[[], tuple[int, Any]]:
    """`call`, which raises NvmlFailure, as one that gives its code and its answer."""

    def ask() -> tuple[int, Any]:
        try:
            return Code.SUCCESS, call()
        except NvmlFailure as failure:
            # nvidia-ml-py raises success where a list is empty at once.
            return failure.code or Code.NOT_FOUND, None

    return ask


def text(value: Any) -> str:
    """A string that NVML gave, as text; empty where it gave none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def attempt(library: Nvml, function: str, *arguments: Any) -> Any:
    """The answer of an attribute's call; None where this GPU does not have it.

    Raises NvmlFailure where the GPU or the library is gone.
    """
    try:
        return library.call(function, *arguments)
    except NvmlFailure as failure:
        if failure.code in (Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.GPU_IS_LOST):
            raise
        return None


_UNAVAILABLE: dict[int, str] = {
    Code.LIBRARY_NOT_FOUND: "NVML is missing: libnvidia-ml.so.1 was not found; install the NVIDIA driver, or give the "
    "container the driver with NVIDIA_DRIVER_CAPABILITIES=utility",
    Code.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: libnvidia-ml.so.1 is there but finds no driver; "
    "load it with `modprobe nvidia` and see `dmesg` where that fails",
    Code.LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was replaced while its old library was loaded; restart the agent, "
    "and reboot where `nvidia-smi` says the same",
    Code.NO_PERMISSION: "NVML may not open the GPUs: no access to /dev/nvidiactl; run with access to the "
    "/dev/nvidia* files",
    Code.TIMEOUT: "NVML did not open: {failure}; see whether `nvidia-smi` hangs as well, and reboot then",
}


def unavailable(failure: NvmlFailure) -> Unavailable:
    """What is missing, and the remedy, in one line."""
    other = "NVML cannot be opened: {failure} (code {failure.code}); see whether `nvidia-smi` works"
    return Unavailable(_UNAVAILABLE.get(failure.code, other).format(failure=failure))
