"""Memory inside training processes, as a companion of the agent's source (see `tocsin.hook`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tocsin.collector.training_hook.protocol import DeviceStats, HookDevice, OutOfMemory
from tocsin.collector.training_hook.server import HookServer, ProcessState
from tocsin.config.settings import AgentSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.fragmentation import (
    cache_slack,
    external_fragmentation,
    internal_fragmentation,
    split_fragmentation,
)
from tocsin.domain.metrics import split_variant, variant
from tocsin.domain.reading import Gpu, Reading, normalise_pci_bus_id
from tocsin.telemetry.metrics import OwnMetrics

Figures = Mapping[str, float]

PLAIN = {
    "reserved": "gpu_allocator_reserved_bytes",
    "allocated": "gpu_allocator_allocated_bytes",
    "active": "gpu_allocator_active_bytes",
    "requested": "gpu_allocator_requested_bytes",
    "inactive_split": "gpu_allocator_inactive_split_bytes",
    "free": "gpu_allocator_free_bytes",
    "largest": "gpu_allocator_largest_free_block_bytes",
    "limit": "gpu_allocator_limit_bytes",
    "retries": "gpu_allocator_retries_total",
    "ooms": "gpu_allocator_ooms_total",
    "device_allocations": "gpu_allocator_device_allocations_total",
    "device_frees": "gpu_allocator_device_frees_total",
}
"""A figure that is a metric as it stands."""


def merged(devices: Iterable[DeviceStats]) -> dict[str, float]:
    """The figures of all frameworks of a process on one GPU together."""
    total: dict[str, float] = {}
    for device in devices:
        for name, value in device.figures.items():
            known = total.get(name, 0.0)
            # No allocation spans two frameworks.
            total[name] = max(known, value) if name == "largest" else known + value
    return total


def largest_piece(figures: Figures) -> float:
    """Bytes that one allocation could have of the free memory.

    Whole free segments go back to the driver and come again as one piece when an allocation would fail otherwise (the
    allocator's retry), so that they count together; other free blocks count one by one.
    """
    return max(figures["largest"], figures.get("returnable", 0.0))


_RATIOS: tuple[tuple[str, tuple[str, ...], Callable[[Figures], float]], ...] = (
    (
        "gpu_allocator_cache_slack_ratio",
        ("allocated", "reserved"),
        lambda f: cache_slack(f["allocated"], f["reserved"]),
    ),
    (
        "gpu_allocator_split_fragmentation_ratio",
        ("inactive_split", "reserved"),
        lambda f: split_fragmentation(f["inactive_split"], f["reserved"]),
    ),
    (
        "gpu_allocator_internal_fragmentation_ratio",
        ("requested", "allocated"),
        lambda f: internal_fragmentation(f["requested"], f["allocated"]),
    ),
    (
        "gpu_allocator_external_fragmentation_ratio",
        ("free", "largest"),
        lambda f: external_fragmentation(largest_piece(f), f["free"]),
    ),
    (
        "gpu_allocator_block_fragmentation_ratio",
        ("free", "group_largest"),
        lambda f: external_fragmentation(f["group_largest"], f["free"]),
    ),
)


def metrics(figures: Figures) -> Iterator[tuple[str, float]]:
    """Metric names and values of one process on one GPU; what its figures do not give, or contradict, is left out."""
    for name, metric in PLAIN.items():
        if name in figures:
            yield metric, figures[name]
    for metric, needed, ratio in _RATIOS:
        if all(name in figures for name in needed):
            try:
                yield metric, ratio(figures)
            except ValueError:
                continue


OOM_REST_MS = 10 * SECOND
"""Failed allocations of one process on one GPU within this span are one event: libraries probe with allocations that
may fail, and the counter has them all."""

_SHORTEST_UUID = 8
"""Hexadecimal digits that an abbreviated UUID must have to name a GPU."""


def bare(uuid: str) -> str:
    """`uuid` in lower case without ``GPU-`` and ``MIG-``."""
    return uuid.lower().removeprefix("mig-").removeprefix("gpu-")


def find(device: HookDevice, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU that a process means: by UUID, abbreviated or not, else by PCI address; None where that is unclear."""
    wanted = bare(device.uuid)
    if len(wanted) >= _SHORTEST_UUID:
        found = [gpu for gpu in gpus if bare(gpu.uuid).startswith(wanted)]
        return found[0] if len(found) == 1 else None
    address = normalise_pci_bus_id(device.pci)
    found = [gpu for gpu in gpus if address and gpu.pci_bus_id == address and not gpu.is_mig]
    return found[0] if len(found) == 1 else None


def pids_on(reading: Reading) -> frozenset[int]:
    """Processes that the reading itself knows on its GPU; empty where nobody looked."""
    keys = map(split_variant, reading.values)
    listed = {int(pid) for name, _, pid in keys if name == "gpu_process_memory_used_bytes" and pid.isdigit()}
    return frozenset(listed | {owner.pid for owner in reading.owners})


class HookCompanion:
    """Adds what the processes on a GPU say of their allocators and steps to its reading; failed allocations are events.

    Where a reading lists the processes of its GPU, what others claim of it is not believed. A process that has gone or
    fallen silent leaves at once. Takes over `server` and closes it.
    """

    name = "hook"

    def __init__(self, server: HookServer, own: OwnMetrics) -> None:
        self.server = server
        self._own = own
        self._last_oom: dict[tuple[int, str], int] = {}

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with the metrics of family ``allocator`` and events of kind ``allocator_oom``.

        A batch without readings tells of no GPU, also not that processes have left it: they wait for the next one.
        """
        if not batch.readings:
            return batch
        processes = self.server.processes()
        ooms = self.server.take_ooms()
        if not processes and not ooms:
            if self.server.placed:
                self.server.place({})
            return batch
        readings = {reading.gpu: reading for reading in batch.readings}
        added = self._values(processes, readings)
        made = [
            replace(reading, values={**reading.values, **added[reading.gpu.uuid]})
            if reading.gpu.uuid in added
            else reading
            for reading in batch.readings
        ]
        return replace(batch, readings=made, events=[*batch.events, *self._events(ooms, readings, now_ms)])

    def close(self) -> None:
        self.server.close()

    def _values(self, processes: Iterable[ProcessState], readings: dict[Gpu, Reading]) -> dict[str, dict[str, float]]:
        added: dict[str, dict[str, float]] = defaultdict(dict)
        placed: dict[str, set[int]] = defaultdict(set)
        gpus = list(readings)
        for process in processes:
            by_gpu: dict[str, list[DeviceStats]] = defaultdict(list)
            for entry in process.stats.devices:
                if (gpu := self._located(process.pid, entry.device, gpus, readings)) is not None:
                    by_gpu[gpu.uuid].append(entry)
            for uuid, entries in by_gpu.items():
                placed[uuid].add(process.pid)
                self._add(added[uuid], process, merged(entries))
        self.server.place(placed)
        return added

    def _located(self, pid: int, device: HookDevice, gpus: Sequence[Gpu], readings: dict[Gpu, Reading]) -> Gpu | None:
        if (gpu := find(device, gpus)) is None:
            self._own.count("tocsin_hook_messages_total", outcome="unknown_gpu")
            return None
        if (listed := pids_on(readings[gpu])) and pid not in listed:
            self._own.count("tocsin_hook_messages_total", outcome="not_on_gpu")
            return None
        return gpu

    @staticmethod
    def _add(values: dict[str, float], process: ProcessState, figures: dict[str, float]) -> None:
        pid = str(process.pid)
        for metric, value in metrics(figures):
            values[variant(metric, "pid", pid)] = value
        values[variant("gpu_process_steps_total", "pid", pid)] = float(process.stats.steps)
        if process.stats.step_seconds is not None:
            values[variant("gpu_process_step_seconds", "pid", pid)] = process.stats.step_seconds
        cached = max(0.0, figures.get("reserved", 0.0) - figures.get("allocated", 0.0))
        values["gpu_allocator_cached_bytes"] = values.get("gpu_allocator_cached_bytes", 0.0) + cached
        values["gpu_allocator_processes"] = values.get("gpu_allocator_processes", 0.0) + 1.0

    def _events(
        self, ooms: Iterable[tuple[int, int, OutOfMemory]], readings: dict[Gpu, Reading], now_ms: int
    ) -> list[Event]:
        found = []
        gpus = list(readings)
        for at_ms, pid, oom in ooms:
            if (gpu := self._located(pid, oom.device, gpus, readings)) is None:
                continue
            if abs(at_ms - self._last_oom.get((pid, gpu.uuid), -OOM_REST_MS)) < OOM_REST_MS:
                self._own.count("tocsin_hook_messages_total", outcome="repeated")
                continue
            self._last_oom[pid, gpu.uuid] = at_ms
            text = (
                f"process {pid} asked for {oom.requested / 2**20:.0f} MiB of GPU memory and did not get it: "
                f"{oom.free / 2**20:.0f} MiB were free on the GPU"
            )
            found.append(
                Event(EventKind.ALLOCATOR_OOM, gpu.uuid, gpu.host, at_ms, pid, text, "hook", simulated=gpu.simulated)
            )
        self._last_oom = {key: at for key, at in self._last_oom.items() if abs(at - now_ms) < OOM_REST_MS}
        return found


def open_hook(settings: AgentSettings, clock: Clock, own: OwnMetrics) -> HookCompanion | None:
    """The companion listening at ``agent.hook_socket``, or None where that is empty.

    Raises InputError where the socket cannot be made and Conflict where another agent has it.
    """
    if not settings.hook_socket:
        return None
    server = HookServer(Path(settings.hook_socket), clock, own)
    server.start()
    return HookCompanion(server, own)
