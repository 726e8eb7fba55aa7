"""Which GPUs the kernel driver has, by its files under ``/proc``: names for those that NVML can no longer open."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.identity import normalise_pci_bus_id

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU, named by its PCI address, with a file ``information`` of lines ``Name: value``."""

_LINE = re.compile(r"^(Model|GPU UUID|Bus Location):\s*(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class DriverGpu:
    """One GPU as the driver's files name it; an empty `uuid` where the driver does not know it itself."""

    pci_bus_id: str
    uuid: str
    model: str


def driver_gpus(folder: Path = DRIVER_GPUS) -> list[DriverGpu]:
    """The GPUs by PCI address, which is NVML's order too; empty where there are no such files."""
    found: list[DriverGpu] = []
    try:
        paths = sorted(folder.glob("*/information"))
    except OSError:
        return []
    for path in paths:
        try:
            lines = dict(_LINE.findall(path.read_text(errors="replace")))
        except OSError:
            continue
        uuid = lines.get("GPU UUID", "")
        bus = normalise_pci_bus_id(lines.get("Bus Location") or path.parent.name)
        found.append(DriverGpu(bus, "" if "?" in uuid else uuid, lines.get("Model", "")))
    return sorted(found)


def name_closed(indices: Collection[int], opened: Collection[str], gpus: list[DriverGpu]) -> dict[int, DriverGpu]:
    """Which of `gpus` stands at each of NVML's `indices` that did not open; `opened` are the UUIDs of those that did.

    An index is left out where it cannot be told.
    """
    candidates = [gpu for gpu in gpus if gpu.uuid not in opened]
    if len(candidates) != len(indices):
        return {}
    return dict(zip(sorted(indices), candidates, strict=True))
