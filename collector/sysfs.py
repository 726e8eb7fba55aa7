"""Files of a sysfs tree, read within bounds: what is absent, unreadable or no number is None."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOST_BYTES = 4_096
"""An attribute of sysfs is at most a page."""
_DIGITS = 20
"""Of the largest 64-bit number."""
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def text_of(path: Path) -> str | None:
    """The content of an attribute without blanks at its ends; None where there is none."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(MOST_BYTES).decode("ascii", errors="replace").strip()
    except OSError:  # a port that is down, or a device on its way out, answers EINVAL, EIO or ENODEV
        return None


def number_of(path: Path) -> int | None:
    """The whole number that an attribute holds, not below 0."""
    return whole(text_of(path) or "")


def whole(word: str) -> int | None:
    """`word` as a number of up to 64 bits; None where it is none."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= _DIGITS else None


def entries(folder: Path, most: int) -> list[str]:
    """Names in `folder` in order, at most `most`; none where there is no such folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for _, entry in zip(range(most), found, strict=False))
    except OSError:
        return []


def device_path(link: Path) -> tuple[str, ...]:
    """The way from the root complex to the PCI device behind `link`, such as ``('pci0000:15', '0000:15:01.0',
    '0000:17:00.0')``; empty where it is no PCI device."""
    try:
        parts = link.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    start = next((i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    way = parts[start:]
    return tuple(part for i, part in enumerate(way) if i == 0 or _ADDRESS.match(part))


def pci_path(sys: Path, bus: str) -> tuple[str, ...]:
    """`device_path` of the PCI address `bus`, as `normalise_pci_bus_id` writes it (8 digits of domain)."""
    return device_path(sys / "bus/pci/devices" / short_address(bus)) if bus else ()


def short_address(bus: str) -> str:
    """`bus` with the domain in 4 digits, as the kernel writes it."""
    domain, _, rest = bus.partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"
