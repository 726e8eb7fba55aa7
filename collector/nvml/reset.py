"""What NVML knows of a GPU that is to be reset: what runs on it, and which GPUs must be reset with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.collector.nvml.library import MOST_GPUS, MOST_INSTANCES, Code, Nvml, NvmlFailure, attempt, text

HOPPER = 9
"""``NVML_DEVICE_ARCH_HOPPER``: from here on a GPU on NVSwitch is reset alone; older ones go with their NVLink peers."""
MOST_LINKS = 18
_NONE = frozenset({Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.NOT_FOUND, Code.INVALID_ARGUMENT})
"""Errors that say that there is no such link or instance."""
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


@dataclass(frozen=True, slots=True)
class ResetCheck:
    """One GPU: what runs on it, how many MIG instances it is split into, and which GPUs are reset with it, by UUID."""

    processes: tuple[str, ...]
    mig_instances: int
    peers: tuple[str, ...]


def reset_check(library: Nvml, handle: Any) -> ResetCheck:
    """The standing of a GPU. A list of processes that cannot be had counts as one process: a reset needs proof.

    Raises NvmlFailure where the GPU or the library is gone.
    """
    return ResetCheck(_processes(library, handle), _instances(library, handle), _peers(library, handle))


def _processes(library: Nvml, handle: Any) -> tuple[str, ...]:
    found: set[str] = set()
    for function in _LISTS:
        try:
            found |= {f"process {process.pid}" for process in library.call(function, handle)}
        except NvmlFailure as failure:
            found.add(f"{function} does not tell ({failure})")
    return tuple(sorted(found))


def _instances(library: Nvml, handle: Any) -> int:
    if (mode := attempt(library, "nvmlDeviceGetMigMode", handle)) is None or not mode[0]:
        return 0
    most = attempt(library, "nvmlDeviceGetMaxMigDeviceCount", handle)
    if most is None or not 0 <= int(most) <= MOST_INSTANCES:
        # MIG is on and nobody says what there is, or says what cannot be: something may be.
        return 1
    return sum(_is_there(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, n) for n in range(int(most)))


def _is_there(library: Nvml, function: str, *arguments: Any) -> bool:
    """Whether there is one, or an error that is no plain no: a reset needs proof."""
    try:
        return library.call(function, *arguments) not in (None, 0)
    except NvmlFailure as failure:
        return failure.code not in _NONE


def _linked(library: Nvml, handle: Any) -> bool:
    return any(_is_there(library, "nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_LINKS))


def _peers(library: Nvml, handle: Any) -> tuple[str, ...]:
    own = text(library.call("nvmlDeviceGetUUID", handle))
    generation = attempt(library, "nvmlDeviceGetArchitecture", handle)
    if (generation is not None and int(generation) >= HOPPER) or not _linked(library, handle):
        return (own,)
    found = {own}
    if not 0 <= (count := int(library.call("nvmlDeviceGetCount"))) <= MOST_GPUS:
        raise NvmlFailure(Code.UNKNOWN, f"the driver counts {count} GPUs, which no node has")
    for index in range(count):
        # One that does not answer cannot be shown to be free, and is reset with the others where they are linked.
        other = library.call("nvmlDeviceGetHandleByIndex", index)
        if _linked(library, other):
            found.add(text(library.call("nvmlDeviceGetUUID", other)))
    return tuple(sorted(found))
