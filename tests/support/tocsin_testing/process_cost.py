"""What a process and its descendants cost, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds so far, and bytes of memory that are no other process's, summed over processes."""

    cpu_seconds: float
    bytes: int


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` behind the name, so from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """`pid` and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cost(pid: int) -> Cost:
    """Of `pid` with its descendants; one that has ended meanwhile counts nothing."""
    seconds, held = 0.0, 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            fields = _stat(one)
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            seconds += (int(fields[11]) + int(fields[12])) / _TICKS
            held += sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) * 1024
    return Cost(seconds, held)


def peak_bytes(pid: int) -> int:
    """The most memory that `pid` with its descendants has ever held, each at an instant of its own: no less than what
    they held at once."""
    found = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            said = Path(f"/proc/{one}/status").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in said if line.startswith("VmHWM:")) * 1024
    return found
