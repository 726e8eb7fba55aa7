"""Where devices are on the PCI tree of a node, and which are near to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")

Way = tuple[str, ...]
"""From the root complex over bridges to a device: ``('pci0000:15', '0000:15:01.0', '0000:17:00.0')``."""


def device_way(link: Path) -> Way:
    """The way to the PCI device behind `link`; empty where it is none."""
    try:
        parts = link.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    start = next((i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    way = parts[start:]
    return tuple(part for i, part in enumerate(way) if i == 0 or _ADDRESS.match(part))


def way_to(sys: Path, bus: str) -> Way:
    """The way to the device of address `bus`, as `normalise_pci_bus_id` writes it; empty where it is not there."""
    return device_way(folder_of(sys, bus)) if bus else ()


def folder_of(sys: Path, bus: str) -> Path:
    """The folder of a device; the kernel writes the domain in 4 digits."""
    domain, _, rest = bus.partition(":")
    return sys / "bus/pci/devices" / f"{int(domain or '0', 16):04x}:{rest}"


def shared(one: Way, other: Way) -> int:
    """How many bridges two devices have in common, the root complex among them."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def nearest(way: Way, numa: int | None, gpus: Mapping[str, tuple[Way, int | None]]) -> list[str]:
    """The UUIDs of the GPUs that are nearest to a device, several where they are equally near, in order of `gpus`.

    Nearest is the one with most bridges in common; without any, those of the same NUMA node; else all.
    """
    common = {uuid: shared(way, other) for uuid, (other, _) in gpus.items()}
    most = max(common.values(), default=0)
    if most:
        return [uuid for uuid, length in common.items() if length == most]
    beside = [uuid for uuid, (_, node) in gpus.items() if numa is not None and node == numa]
    return beside or list(gpus)


def the_one_near(way: Way, gpus: Mapping[str, Way]) -> str:
    """The UUID of the GPU that alone is nearest to a device of the PCI tree; empty where none or several are."""
    found = nearest(way, None, {uuid: (other, None) for uuid, other in gpus.items() if shared(way, other)})
    return found[0] if len(found) == 1 else ""
