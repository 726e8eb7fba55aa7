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
from typing import Any, Protocol

import pynvml

from tocsin.domain.errors import Unavailable

MEMORY_V2 = 33_554_472
"""``nvmlMemory_v2``: size and version of the structure in which ``used`` leaves out what the driver reserves."""
ALL_LINKS = 0xFFFF_FFFF
"""Scope of a link field that sums over all links."""
XID_EVENTS = 0x8
"""``nvmlEventTypeXidCriticalError``."""


class Code(IntEnum):
    """The values of ``nvmlReturn_t`` that Tocsin tells apart (nvml.h)."""

    SUCCESS = 0
    UNINITIALIZED = 1
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
    ARGUMENT_VERSION_MISMATCH = 25
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


class NvmlFailure(Exception):
    """NVML said no; `code` is its ``nvmlReturn_t``."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code = code
        super().__init__(text or f"NVML error {code}")


@dataclass(frozen=True, slots=True)
class FieldAnswer:
    """One entry of a batch of field values: `value` is None unless `code` is SUCCESS."""

    code: int
    value: float | int | None


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One event; `device` is the `Nvml.key` of the GPU's handle."""

    device: int
    kind: int
    data: int


class Nvml(Protocol):
    """What the NVML source needs of a driver. Every method but `key` raises `NvmlFailure`."""

    def open(self) -> None:
        """Load and initialise the library."""
        ...

    def close(self) -> None:
        """Release the library and all its handles."""
        ...

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one function by its NVML name; structures come back as objects with attributes."""
        ...

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[FieldAnswer]:
        """One batched ``nvmlDeviceGetFieldValues`` of (field id, scope id) pairs; entries fail one by one."""
        ...

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        """The next event of the set; None where none came in time."""
        ...

    def key(self, handle: Any) -> int:
        """A number that identifies the GPU behind a handle while the library stays open."""
        ...


_UNION_MEMBER = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of ``nvmlValue_t`` by ``nvmlValueType_t``, which counts from 0."""


def decode(entry: Any) -> FieldAnswer:
    """The value of one ``nvmlFieldValue_t`` by its own return code and value type."""
    if entry.nvmlReturn != Code.SUCCESS:
        return FieldAnswer(entry.nvmlReturn, None)
    if not 0 <= entry.valueType < len(_UNION_MEMBER):
        return FieldAnswer(Code.UNKNOWN, None)
    value: float | int = getattr(entry.value, _UNION_MEMBER[entry.valueType])
    return FieldAnswer(Code.SUCCESS, value)


def _filled(function: Callable[..., Any], *structures: str) -> Callable[[Any], Any]:
    """`function`, which fills a caller's structure, as one that returns it; older versions are tried in turn."""

    def call(handle: Any) -> Any:
        for structure in structures[:-1]:
            answer = getattr(pynvml, structure)()
            try:
                function(handle, ctypes.byref(answer))
            except pynvml.NVMLError as error:
                if error.value != Code.ARGUMENT_VERSION_MISMATCH:
                    raise
            else:
                return answer
        answer = getattr(pynvml, structures[-1])()
        function(handle, ctypes.byref(answer))
        return answer

    return call


_STRUCTURES = {
    "nvmlDeviceGetSramEccErrorStatus": ("c_nvmlEccSramErrorStatus_v1_t",),
    "nvmlDeviceGetGpuFabricInfoV": ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"),
}
"""Functions that fill a structure of the caller, and its versions, newest first."""


class PynvmlLibrary:
    """The driver's own NVML through nvidia-ml-py."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def open(self) -> None:
        self.call("nvmlInit")

    def close(self) -> None:
        self.call("nvmlShutdown")

    def call(self, function: str, *arguments: Any) -> Any:
        try:
            return self._function(function)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlFailure(error.value, str(error)) from None
        except pynvml.NVMLLibraryMismatchError as error:
            raise NvmlFailure(Code.FUNCTION_NOT_FOUND, str(error)) from None

    def _function(self, name: str) -> Callable[..., Any]:
        found = self._functions.get(name)
        if found is None:
            found = getattr(pynvml, name, None)
            if found is None:
                raise NvmlFailure(Code.FUNCTION_NOT_FOUND, f"nvidia-ml-py has no {name}")
            if name in _STRUCTURES:
                found = _filled(found, *_STRUCTURES[name])
            self._functions[name] = found
        return found

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[FieldAnswer]:
        return [decode(entry) for entry in self.call("nvmlDeviceGetFieldValues", handle, list(wanted))]

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        try:
            event = self.call("nvmlEventSetWait_v2", event_set, timeout_ms)
        except NvmlFailure as failure:
            if failure.code == Code.TIMEOUT:
                return None
            raise
        return DeviceEvent(self.key(event.device), event.eventType, event.eventData)

    def key(self, handle: Any) -> int:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0


def unavailable(failure: NvmlFailure) -> Unavailable:
    """What an operator reads where NVML cannot be opened: what is missing, and the remedy, in one line."""
    if failure.code == Code.LIBRARY_NOT_FOUND:
        return Unavailable(
            "NVML is missing: libnvidia-ml.so.1 was not found; install the NVIDIA driver, or give the container "
            "the driver with NVIDIA_DRIVER_CAPABILITIES=utility"
        )
    if failure.code == Code.DRIVER_NOT_LOADED:
        return Unavailable(
            "the NVIDIA kernel driver is not loaded: libnvidia-ml.so.1 is there but finds no driver; load it with "
            "`modprobe nvidia` and see `dmesg` where that fails"
        )
    if failure.code == Code.LIB_RM_VERSION_MISMATCH:
        return Unavailable(
            "the NVIDIA driver was replaced while its old library was loaded; restart the agent, and reboot where "
            "`nvidia-smi` says the same"
        )
    if failure.code == Code.NO_PERMISSION:
        return Unavailable(
            "NVML may not open the GPUs: no access to /dev/nvidiactl; run with access to the /dev/nvidia* files"
        )
    return Unavailable(f"NVML cannot be opened: {failure} (code {failure.code}); see whether `nvidia-smi` works")
