"""Which GPUs the driver counts, which of them open, and who the others are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.collector.nvml.device import Device, Place, open_device
from tocsin.collector.nvml.library import LIBRARY_CODES, Code, Nvml, NvmlFailure, attempt, text
from tocsin.collector.nvml.proc import driver_gpus, name_closed
from tocsin.telemetry.log import logger

_log = logger("nvml")

_NOT_OURS = frozenset({Code.NO_PERMISSION, Code.TIMEOUT})
"""Why a GPU may not open although nothing is wrong with it: it is somebody else's, or a call to it hangs."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one enumeration found.

    `count` GPUs are there by the driver's count; `devices` opened, the indices `closed` did not. `left` are those of
    the enumeration before, and of the start, that are still counted but give no handle. `present` are the PCI
    addresses of the GPUs that the kernel's driver holds, by its files.
    """

    count: int
    devices: tuple[Device, ...]
    closed: Mapping[int, NvmlFailure]
    left: Mapping[str, Device]
    present: frozenset[str]
    driver: str


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when GPUs are listed: those of the enumeration before by UUID, and in which of them calls hang.

    `same_opening` is whether their handles are still good.
    """

    devices: Mapping[str, Device]
    hanging: Collection[str]
    same_opening: bool


def list_gpus(library: Nvml, place: Place, known: Known, driver_files: Path) -> Listing:
    """Ask the driver which GPUs there are and open them. Raises NvmlFailure where the library itself is gone."""
    count = int(library.call("nvmlDeviceGetCount"))
    # Opening a GPU in which a call hangs would hang as well; it keeps its place.
    hanging = {known.devices[uuid].gpu.index for uuid in known.hanging if uuid in known.devices}
    devices: list[Device] = []
    closed: dict[int, NvmlFailure] = {}
    for index in range(count):
        if index in hanging:
            closed[index] = NvmlFailure(Code.TIMEOUT, "a call to this GPU hangs")
            continue
        try:
            devices.append(open_device(library, index, place, known.devices if known.same_opening else {}))
        except NvmlFailure as failure:
            if failure.code in LIBRARY_CODES:
                raise
            closed[index] = failure
            _log.warning("GPU cannot be opened", index=index, problem=str(failure), code=failure.code)
    opened = {device.gpu.uuid for device in devices}
    # A GPU that fell off the bus keeps its place in the count but gives no handle: its UUID is known from before, and
    # the handle of before must not be used again.
    left = {u: device for u, device in known.devices.items() if u not in opened and device.gpu.index in closed}
    taken = {device.gpu.index for device in left.values()}
    unknown = [index for index, why in closed.items() if index not in taken and why.code not in _NOT_OURS]
    left |= _never_opened(library, place, unknown, opened | known.devices.keys(), driver_files)
    driver = text(attempt(library, "nvmlSystemGetDriverVersion"))
    return Listing(count, tuple(devices), closed, left, _present(driver_files), driver)


def _present(driver_files: Path) -> frozenset[str]:
    try:
        return frozenset(folder.name for folder in driver_files.iterdir())
    except OSError:
        return frozenset()


def _never_opened(
    library: Nvml, place: Place, indices: Collection[int], named_already: Collection[str], driver_files: Path
) -> dict[str, Device]:
    """GPUs that the driver counts but that gave no handle since the start, as devices without one."""
    if not indices:
        return {}
    named = name_closed(indices, named_already, driver_gpus(driver_files))
    found: dict[str, Device] = {}
    for index in indices:
        told = named.get(index)
        uuid = (told.uuid if told is not None else "") or f"GPU-unknown-{place.host}-{index}"
        model, bus = (told.model, told.pci_bus_id) if told is not None else ("", "")
        found[uuid] = Device(library, None, place.gpu(uuid, index=index, model=model, pci_bus_id=bus), ())
    return found
