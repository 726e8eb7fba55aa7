"""Figures of the allocators of PyTorch and JAX. Neither is imported here, nor JAX's backend started: what the process
has not loaded itself has no figures.

PyTorch's keys are those of ``torch.cuda.memory_stats``. Its nested form is read: building and sorting the flat one
costs several times as much.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tocsin.hook.wire import MAX_DEVICES

_SUCCESS = 0
_UUID_BYTES = 16


def driver_uuid(ordinal: int, load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """UUID of CUDA device `ordinal` without prefix, of the MIG instance where that is one; empty where unknown.

    ``cuDeviceGetUuid_v2`` names the MIG instance, the first version of the call and ``cudaDeviceProp`` do not always.
    Initialises nothing: a process that does not use CUDA gets no answer.
    """
    try:
        library = load("libcuda.so.1")
        device = ctypes.c_int()
        if library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != _SUCCESS:
            return ""
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        if library.cuDeviceGetUuid_v2(ctypes.byref(raw), device) != _SUCCESS:
            return ""
    except (OSError, AttributeError):
        return ""
    return str(uuid.UUID(bytes=bytes(raw)))


def visible_uuid(ordinal: int, environment: Mapping[str, str] = os.environ) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` says of device `ordinal` where it names UUIDs; empty where it does not."""
    entries = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return entries[ordinal] if ordinal < len(entries) and entries[ordinal].startswith(("GPU-", "MIG-")) else ""


_KEYS = {
    "allocated": "bytes_in_use",
    "reserved": "pool_bytes",
    "limit": "bytes_limit",
    "peak": "peak_bytes_in_use",
    "largest": "largest_free_block_bytes",
}


def jax_loaded() -> Any | None:
    """The module ``jax`` where the process has imported it and has started its backends, else None."""
    jax = sys.modules.get("jax")
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return jax if jax is not None and started is not None and started() else None


class JaxMemory:
    """Reads the GPUs of the process."""

    framework = "jax"

    def read(self) -> list[dict[str, Any]]:
        """One entry per GPU; empty where JAX runs on no GPU or its allocator keeps no statistics."""
        if (jax := jax_loaded()) is None:
            return []
        gpus = (device for device in jax.local_devices()[:MAX_DEVICES] if device.platform in ("gpu", "cuda"))
        return [self._entry(device, stats) for device in gpus if (stats := device.memory_stats())]

    def _entry(self, device: Any, stats: dict[str, Any]) -> dict[str, Any]:
        ordinal = int(getattr(device, "local_hardware_id", None) or 0)
        entry: dict[str, Any] = {"framework": self.framework, "uuid": driver_uuid(ordinal) or visible_uuid(ordinal)}
        entry |= {key: int(stats[source]) for key, source in _KEYS.items() if source in stats}
        # A pool that may still grow has room beyond what it holds; only what it holds can be in pieces.
        held = entry.get("reserved") or entry.get("limit")
        if held is not None and "allocated" in entry and entry.get("largest"):
            entry["free"] = max(entry["largest"], held - entry["allocated"])
        else:
            # 0 is what an allocator answers that does not look for its largest block.
            entry.pop("largest", None)
        return entry


_FREE = "inactive"
_SHARED = (0, 0)
"""Pool of everything but CUDA graphs and pools of the script's own, whose segments stay while these live."""


def free_memory(segments: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Device ordinal to what is free in its reserved memory, all in bytes.

    ``free``: all free blocks. ``largest``: the largest of them. ``returnable``: free blocks that the allocator can give
    back to the driver and take again as one piece, which are whole segments and all free blocks of expandable
    segments, but for those of private pools. ``group_largest``: the sum over pools and streams of each one's largest,
    since a block serves its own pool and stream only.
    """
    found: dict[int, dict[str, int]] = {}
    groups: dict[tuple[int, object, object, object], int] = defaultdict(int)
    for segment in segments:
        device = int(segment["device"])
        sums = found.setdefault(device, {"free": 0, "largest": 0, "returnable": 0})
        blocks = segment["blocks"]
        if not (sizes := [block["size"] for block in blocks if block["state"] == _FREE]):
            continue
        free, largest = sum(sizes), max(sizes)
        sums["free"] += free
        sums["largest"] = max(sums["largest"], largest)
        shared = tuple(segment.get("segment_pool_id", _SHARED)) == _SHARED
        if shared and (segment.get("is_expandable") or len(sizes) == len(blocks)):
            sums["returnable"] += free
        pool = (device, segment.get("segment_pool_id"), segment.get("segment_type"), segment.get("stream"))
        groups[pool] = max(groups[pool], largest)
    for device, sums in found.items():
        sums["group_largest"] = sum(largest for (of, *_), largest in groups.items() if of == device)
    return found


_BYTES = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "active": "active_bytes",
    "inactive_split": "inactive_split_bytes",
    "requested": "requested_bytes",
}
_COUNTS = {
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "device_allocations": "num_device_alloc",
    "device_frees": "num_device_free",
}
_BLOCKS = ("active", "inactive_split", "segment")

_ZERO_IN_ASYNC = frozenset({"inactive_split", "requested", "retries", "ooms", "device_allocations", "device_frees"})
"""What backend ``cudaMallocAsync`` always answers with 0; 0 would be a lie."""

SNAPSHOT_SHARE = 0.0005
"""Share of the time that snapshots may cost: half of the 0.1 % that the whole hook may."""
LONGEST_SNAPSHOT = 0.05
"""Seconds; a snapshot that is expected to take longer is not taken."""
SECONDS_PER_BLOCK = 3e-6
"""First guess of what one block costs in a snapshot, until one was measured (own choice)."""


def torch_loaded() -> Any | None:
    """The module ``torch`` where the process has imported it whole and has begun to use CUDA, else None."""
    torch = sys.modules.get("torch")
    ready = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if ready is not None and ready() else None


def capturing() -> bool:
    """Whether this thread records a CUDA graph now, so that nothing may be asked of the device beside it."""
    torch = torch_loaded()
    ask = getattr(getattr(torch, "cuda", None), "is_current_stream_capturing", None)
    try:
        return ask is not None and bool(ask())
    except RuntimeError:
        # A device in error records nothing.
        return False


def name_of(torch: Any, ordinal: int) -> dict[str, str]:
    """``uuid`` and ``pci`` of a device, as far as they can be found out; a UUID may come without ``GPU-``."""
    properties = torch.cuda.get_device_properties(ordinal)
    own = getattr(properties, "uuid", None)
    uuid = driver_uuid(ordinal) or visible_uuid(ordinal) or (str(own) if own is not None else "")
    bus = getattr(properties, "pci_bus_id", None)
    if not isinstance(bus, int):
        return {"uuid": uuid}
    domain, device = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    return {"uuid": uuid, "pci": f"{domain:08x}:{bus:02x}:{device:02x}.0"}


class TorchMemory:
    """Reads all devices of the process. `now` is a monotonic clock in seconds.

    A snapshot, which alone knows the free blocks, is taken at most every `snapshot_seconds`, seldom enough that it
    costs no more than `SNAPSHOT_SHARE` of the time, and not at all where so many blocks exist that it would stall a
    step.
    """

    framework = "torch"

    def __init__(self, now: Callable[[], float], snapshot_seconds: float) -> None:
        self._now = now
        self._every = snapshot_seconds
        self._next = float("-inf")
        self._per_block = SECONDS_PER_BLOCK
        self._free: dict[int, dict[str, int]] = {}
        self._names: dict[int, dict[str, str]] = {}

    def read(self) -> list[dict[str, Any]]:
        """One entry per device that the process holds memory on; empty where PyTorch does not use CUDA."""
        if (torch := torch_loaded()) is None:
            return []
        async_backend = _is_async(torch)
        raw: dict[int, dict[str, Any]] = {}
        for ordinal in range(min(torch.cuda.device_count(), MAX_DEVICES)):
            stats = torch.cuda.memory_stats_as_nested_dict(ordinal)
            if stats and (_current(stats, "reserved_bytes") or stats.get("num_device_alloc", 0)):
                raw[ordinal] = stats
        if raw and not async_backend:
            self._look(torch, sum(_current(stats, name) for stats in raw.values() for name in _BLOCKS))
        return [self._entry(torch, ordinal, stats, async_backend) for ordinal, stats in raw.items()]

    def empty_cache(self) -> int:
        """Give whole free segments back to the driver; returns how many bytes that were, on all devices."""
        if (torch := torch_loaded()) is None:
            return 0
        devices = range(torch.cuda.device_count())
        before = sum(torch.cuda.memory_reserved(ordinal) for ordinal in devices)
        torch.cuda.empty_cache()
        self._next = float("-inf")
        return int(before - sum(torch.cuda.memory_reserved(ordinal) for ordinal in devices))

    def _entry(self, torch: Any, ordinal: int, stats: dict[str, Any], async_backend: bool) -> dict[str, Any]:
        if (name := self._names.get(ordinal)) is None:
            name = self._names[ordinal] = name_of(torch, ordinal)
        entry: dict[str, Any] = {"framework": self.framework, **name}
        for key, source in _BYTES.items():
            if source in stats:
                entry[key] = _current(stats, source)
        for key, source in _COUNTS.items():
            if source in stats:
                entry[key] = int(stats[source])
        if async_backend:
            return {key: value for key, value in entry.items() if key not in _ZERO_IN_ASYNC}
        return entry | self._free.get(ordinal, {})

    def _look(self, torch: Any, blocks: int) -> None:
        begun = self._now()
        if begun < self._next:
            return
        if blocks * self._per_block > LONGEST_SNAPSHOT:
            self._free = {}
            self._next = begun + self._every
            return
        self._free = free_memory(_segments(torch))
        cost = self._now() - begun
        self._per_block = max(cost / max(blocks, 1), SECONDS_PER_BLOCK / 10)
        self._next = begun + max(self._every, cost / SNAPSHOT_SHARE)


def _segments(torch: Any) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        # Older versions have no such argument, and no traces unless somebody records them.
        found = torch.cuda.memory_snapshot()
    return found


def _is_async(torch: Any) -> bool:
    backend = getattr(torch.cuda, "get_allocator_backend", None)
    return backend is not None and backend() == "cudaMallocAsync"


def _current(stats: dict[str, Any], key: str) -> int:
    return int(stats.get(key, {}).get("all", {}).get("current", 0))
