"""How the node itself does, beside its GPUs: CPU, waits for storage, pressure, memory.

Without it a GPU that waits for its input looks like one that has nothing to do. Read from ``/proc/stat``,
``/proc/pressure`` (PSI, Linux 4.20 and newer, may be off) and ``/proc/meminfo``; shares are over the time since the
reading before, so the first has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.collector.sysfs import text_of, whole
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.reading import Missing

CPU, IOWAIT = "host_cpu_utilization_ratio", "host_cpu_iowait_ratio"
MEMORY = "host_memory_used_ratio"
PRESSURES = {
    "cpu": "host_cpu_pressure_ratio",
    "io": "host_io_pressure_ratio",
    "memory": "host_memory_pressure_ratio",
}
MICROSECONDS = 1e6

_IDLE, _IOWAIT, _GUEST = 3, 4, 8
"""Places in the line ``cpu`` of ``/proc/stat`` (proc_stat(5)); time of guests is in user time already."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters at one instant; None where the kernel does not give them."""

    at: float
    """Seconds, monotonic."""
    cpu: tuple[int, ...] | None
    """Ticks of all CPUs by state."""
    pressure: dict[str, int]
    """Microseconds in which some task waited, by resource."""
    memory_used: float | None


class HostLoad:
    """Adds the metrics of family ``host`` to every GPU of the node. What cannot be read is `Missing.UNSUPPORTED`."""

    name = "host_load"

    def __init__(self, proc: Path, clock: Clock) -> None:
        self._stat, self._meminfo = proc / "stat", proc / "meminfo"
        self._pressures = {what: proc / "pressure" / what for what in PRESSURES}
        self._clock = clock
        self._before: Counts | None = None

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        del now_ms  # a wall clock that is set must not stretch or shrink the time between two readings
        if not batch.readings:
            return batch
        counts = self._read()
        values = shares(self._before, counts)
        first = self._before is None
        self._before = counts
        if not values:
            return batch
        missing = {} if first else {name: Missing.UNSUPPORTED for name in _ALL if name not in values}
        readings = [
            # A GPU that answers nothing stays one: what its node does says nothing of it.
            replace(one, values={**one.values, **values}, missing={**one.missing, **missing}) if one.values else one
            for one in batch.readings
        ]
        return replace(batch, readings=readings)

    def close(self) -> None:
        """Nothing is held."""

    def _read(self) -> Counts:
        stat = _text(self._stat).split("\n", 1)[0].split()
        cpu = tuple(count for word in stat[1:] if (count := whole(word)) is not None) if stat[:1] == ["cpu"] else ()
        waits = {what: _waited(_text(path)) for what, path in self._pressures.items()}
        found = {what: total for what, total in waits.items() if total is not None}
        memory = _memory_used(_text(self._meminfo))
        return Counts(self._clock.monotonic(), cpu if len(cpu) > _IOWAIT else None, found, memory)


def _text(path: Path) -> str:
    # PSI that is compiled in and switched off answers EOPNOTSUPP.
    return text_of(path) or ""


_ALL = (CPU, IOWAIT, MEMORY, *PRESSURES.values())


def shares(before: Counts | None, now: Counts) -> dict[str, float]:
    """What can be said of the time between two counts, each 0 to 1; a counter that went back says nothing."""
    found = {} if now.memory_used is None else {MEMORY: now.memory_used}
    if before is None:
        return found
    if before.cpu is not None and now.cpu is not None:
        spent = [new - old for old, new in zip(before.cpu[:_GUEST], now.cpu[:_GUEST], strict=False)]
        total = sum(spent)
        if total > 0:
            found[CPU] = _ratio(total - spent[_IDLE] - spent[_IOWAIT], total)
            found[IOWAIT] = _ratio(spent[_IOWAIT], total)
    passed = now.at - before.at
    for what, name in PRESSURES.items():
        if what in before.pressure and what in now.pressure and passed > 0:
            found[name] = _ratio(now.pressure[what] - before.pressure[what], passed * MICROSECONDS)
    return found


def _ratio(part: float, whole: float) -> float:
    # The kernel's iowait may fall a little, and its clocks are not ours.
    return min(max(part / whole, 0.0), 1.0)


def _waited(text: str) -> int | None:
    """The total of line ``some`` of a pressure file."""
    for word in text.split("\n", 1)[0].split():
        name, _, value = word.partition("=")
        if name == "total":
            return whole(value)
    return None


def _memory_used(text: str) -> float | None:
    total, free = _size(text, "MemTotal:"), _size(text, "MemAvailable:")
    return None if not total or free is None else _ratio(total - free, total)


def _size(text: str, name: str) -> int | None:
    """The number of the line that begins with `name`."""
    _, found, rest = ("\n" + text).partition(f"\n{name}")
    words = rest.split(None, 1)
    return whole(words[0]) if found and words else None
