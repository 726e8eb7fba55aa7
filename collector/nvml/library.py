"""The only door to pynvml.

Everything that the NVML source does goes through the `Nvml` protocol, so that recorded answers can stand in for a
driver. Functions are called by their NVML name: one that this pynvml, this driver or this GPU lacks is an `NvmlFailure`
like any other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

import pynvml

from tocsin.collector.nvml.marshal import FieldBatch, FieldReplies, GpmPair, bind_pair, bind_scalar, bind_structure

MEMORY_V2 = 33_554_472
"""``nvmlMemory_v2``: size and version of the structure in which ``used`` leaves out what the driver reserves."""
ALL_LINKS = 0xFFFF_FFFF
"""Scope of a link field that sums over all links."""
WHOLE_GPU = 0xFFFF_FFFF
"""Instance id of an event that belongs to no MIG instance."""
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
        ...

    def sample(self) -> int:
        """Take one sample in place of the older; the code."""
        ...

    def metrics(self) -> tuple[int, Sequence[int], Sequence[float]]:
        """The code, then a code and a value for each metric, between the two samples."""
        ...

    def free(self) -> None:
        """Give the memory back."""
        ...


class Nvml(Protocol):
    """What the NVML source needs of a driver. Every method but `key` raises `NvmlFailure`."""

    def open(self) -> None:
        """Load and initialise the library."""
        ...

    def close(self) -> None:
        """Release the library and all its handles, however often it was opened."""
        ...

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one function by its NVML name; structures come back as objects with attributes."""
        ...

    def bind(self, function: str, handle: Any, *arguments: Any) -> Callable[[], tuple[int, Any]]:
        """The same call, to be made again and again: gives its code and, where that is 0, the answer.

        An answer with attributes holds until the next call.
        """
        ...

    def batch(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> Callable[[], tuple[int, FieldReplies | None]]:
        """One batched ``nvmlDeviceGetFieldValues`` of (field id, scope id) pairs, to be made again and again.

        Gives the code of the call as a whole and, where that is 0, the replies, which fail one by one.
        """
        ...

    def gpm(self, handle: Any, instance: int | None, metrics: Sequence[int]) -> Gpm:
        """GPM samples of a GPU, or of the MIG instance with that id on it."""
        ...

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        """The next event of the set; None where none came in time."""
        ...

    def key(self, handle: Any) -> int:
        """A number that identifies the GPU behind a handle while the library stays open."""
        ...


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
        except (TypeError, ValueError, AttributeError, LookupError, ctypes.ArgumentError) as error:
            # What nvidia-ml-py makes of an unforeseen answer must cost one call, not the GPU's whole reading.
            raise NvmlFailure(Code.UNKNOWN, f"{function}: {error}") from None

    def _function(self, name: str) -> Callable[..., Any]:
        found = self._functions.get(name)
        if found is None:
            found = _WRITTEN_HERE.get(name) or getattr(pynvml, name, None)
            if found is None:
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
        kind = _SCALARS.get(function)
        if kind is not None:
            return bind_scalar(self._symbol(function), handle, arguments, kind)
        if function in _PAIRS:
            return bind_pair(self._symbol(function), handle)
        filled = _BOUND_STRUCTURES.get((function, arguments))
        if filled is not None:
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
