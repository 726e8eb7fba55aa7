"""Errors of the node's own hardware that its kernel counts: PCIe (AER) between GPUs, network cards and CPU, and memory.

A counter that rises becomes an event of kind ``node_fault``; what was counted before the agent started is past. Read
from ``aer_dev_fatal`` and ``aer_dev_nonfatal`` of the devices and from ``/sys/devices/system/edac/mc``, in the forms of
Linux 6.1; where the kernel or the firmware keeps none, there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.collector.pci_tree import Way, device_way, the_one_near, way_to
from tocsin.collector.sysfs import entries, number_of, text_of, whole
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.node_fault import NodeFault
from tocsin.domain.reading import Reading, normalise_pci_bus_id

EVERY_SECONDS = 30.0
MOST_DEVICES = 256
"""Devices, and memory modules, of one node that are looked at."""
CORRECTED = 10
"""Corrected errors of one memory module within an hour that are worth a word (own choice)."""
_HOUR_SECONDS = 3_600.0
_FILES = {"aer_dev_fatal": NodeFault.PCIE_FATAL, "aer_dev_nonfatal": NodeFault.PCIE_NON_FATAL}
_BY_SOFTWARE = frozenset({"UnsupReq", "Unsupported Request", "Unsupported Request Error Status"})
"""A request to what the device does not have: a driver's or a scan's doing, no fault of the link."""

_Key = tuple[NodeFault, str]


@dataclass(frozen=True, slots=True)
class _Count:
    """What one part counts: `kinds` by name of error; `gpu` is the UUID of the GPU that it serves, else empty."""

    gpu: str
    where: str
    kinds: Mapping[str, int]


class HostErrors:
    """Adds events for errors that were counted since the look before, one for each part and kind of fault."""

    name = "host_errors"

    def __init__(self, sys: Path, clock: Clock, host: str) -> None:
        self._sys = sys
        self._clock = clock
        self._host = host
        self._next = clock.monotonic()
        self._before: dict[_Key, _Count] = {}
        self._corrected: dict[str, tuple[float, int]] = {}
        self._last_ms = 0

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with what was counted, at most each 30 seconds."""
        now = self._clock.monotonic()
        if not batch.readings or now < self._next:
            return batch
        self._next = now + EVERY_SECONDS
        host = next((one.gpu.host for one in batch.readings if one.gpu.host), self._host)
        said = [*self._risen(self._counts(batch.readings)), *self._much_corrected(now)]
        if not said:
            return batch
        events: list[Event] = []
        for code, gpu, message in said:
            # The name of an event follows from its instant, and two parts may fail at once.
            self._last_ms = max(now_ms, self._last_ms + 1)
            events.append(Event(EventKind.NODE_FAULT, gpu, host, self._last_ms, code, message, self.name))
        return replace(batch, events=[*batch.events, *events])

    def close(self) -> None:
        """Nothing is held."""

    def _risen(self, counts: Mapping[_Key, _Count]) -> Iterator[tuple[NodeFault, str, str]]:
        before, self._before = self._before, dict(counts)
        for key, count in counts.items():
            old = before.get(key)
            if old is None:
                continue
            risen = {name: _rise(old.kinds.get(name, 0), number) for name, number in count.kinds.items()}
            named = ", ".join(f"{name} {number}" if name else str(number) for name, number in risen.items() if number)
            if named:
                yield key[0], count.gpu, f"{count.where}: {_WORDS[key[0]]}: {named}"

    def _counts(self, readings: Sequence[Reading]) -> dict[_Key, _Count]:
        found: dict[_Key, _Count] = {}
        gpus = {
            one.gpu.uuid: way_to(self._sys, normalise_pci_bus_id(one.gpu.pci_bus_id))
            for one in readings
            if not one.gpu.is_mig
        }
        for address, way in self._devices(gpus).items():
            folder = self._sys / "bus/pci/devices" / address
            for file, fault in _FILES.items():
                kinds = _errors(text_of(folder / file))
                if kinds is not None:
                    found[fault, address] = _Count(the_one_near(way, gpus), f"PCIe device {address}", kinds)
        for name, label, folder in self._modules():
            count = number_of(folder / f"{name}ue_count")
            if count is not None:
                found[NodeFault.MEMORY_UNCORRECTED, label] = _Count("", label, {"": count})
        return found

    def _devices(self, gpus: Mapping[str, Way]) -> dict[str, Way]:
        """GPUs, network cards and the bridges above them, each with the way to it."""
        cards = self._sys / "class/infiniband"
        ways = [*gpus.values(), *(device_way(cards / name / "device") for name in entries(cards, MOST_DEVICES))]
        found = {way[depth]: way[: depth + 1] for way in ways for depth in range(1, len(way))}
        return dict(list(found.items())[:MOST_DEVICES])

    def _modules(self) -> Iterator[tuple[str, str, Path]]:
        """Memory modules, or controllers that know none: prefix of the files, name, folder."""
        memory = self._sys / "devices/system/edac/mc"
        for controller in entries(memory, MOST_DEVICES):
            folder = memory / controller
            parts = [
                one for one in entries(folder, MOST_DEVICES) if one.startswith(("dimm", "rank")) and one[4:].isdigit()
            ]
            for part in parts:
                label = text_of(folder / part / "dimm_label") or part
                yield "dimm_", f"memory {controller} {label[:64]}", folder / part
            if controller.startswith("mc") and not parts:
                yield "", f"memory {controller}", folder

    def _much_corrected(self, now: float) -> Iterator[tuple[NodeFault, str, str]]:
        for name, label, folder in self._modules():
            count = number_of(folder / f"{name}ce_count")
            if count is None:
                continue
            since, first = self._corrected.get(label, (now, count))
            risen = _rise(first, count)
            if risen >= CORRECTED:
                yield NodeFault.MEMORY_CORRECTED, "", f"{label}: {risen} errors corrected within an hour"
            if risen >= CORRECTED or count < first or now - since >= _HOUR_SECONDS:
                since, first = now, count
            self._corrected[label] = since, first


_WORDS = {
    NodeFault.PCIE_FATAL: "fatal errors",
    NodeFault.PCIE_NON_FATAL: "uncorrectable errors",
    NodeFault.MEMORY_UNCORRECTED: "errors that were not corrected",
}


def _rise(old: int, new: int) -> int:
    """What was counted since: a counter that fell began anew."""
    return new - old if new >= old else new


def _errors(text: str | None) -> dict[str, int] | None:
    """Counts by name of a file of AER; None where there is none."""
    if text is None:
        return None
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        count = whole(number)
        if name and count is not None and not name.startswith("TOTAL_") and name.strip() not in _BY_SOFTWARE:
            found[name.strip()] = count
    return found
