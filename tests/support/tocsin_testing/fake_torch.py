"""A stand-in for PyTorch's CUDA side, for machines without a GPU.

What it answers has the shape, the keys and the number of entries of PyTorch 2.13's own answers, so that building and
walking it costs about the same; what the real allocator itself takes for them is not in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MIB = 2**20
POOLS = ("all", "large_pool", "small_pool")
BROKEN_DOWN = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
UUID = "5f2a4c30-1111-2222-3333-444455556666"


def block(size: int, state: str = "inactive") -> dict[str, Any]:
    return {"size": size, "requested_size": size, "address": 0, "state": state, "frames": []}


def segment(
    *blocks: dict[str, Any], device: int = 0, stream: int = 0, expandable: bool = False, pool: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    return {
        "device": device,
        "address": 0,
        "total_size": sum(part["size"] for part in blocks),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": list(blocks),
    }


class FakeCuda:
    """``torch.cuda`` as far as the hook asks it. `segments` is all that it holds; figures follow from them."""

    def __init__(self, segments: list[dict[str, Any]], devices: int = 1) -> None:
        self.segments = segments
        self.devices = devices
        self.initialized = True
        self.capturing = False
        self.backend = "native"
        self.counters = {"num_alloc_retries": 0, "num_ooms": 0, "num_device_alloc": 3, "num_device_free": 1}
        self.snapshots = 0
        self.emptied = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device_count(self) -> int:
        return self.devices

    def get_allocator_backend(self) -> str:
        return self.backend

    def get_device_properties(self, ordinal: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=UUID[:-1] + str(6 + ordinal), pci_bus_id=0x41 + ordinal, pci_device_id=0)

    def memory_stats_as_nested_dict(self, ordinal: int) -> dict[str, Any]:
        mine = [part for part in self.segments if part["device"] == ordinal]
        blocks = [part for piece in mine for part in piece["blocks"]]
        used = [part["size"] for part in blocks if part["state"] != "inactive"]
        split = [
            part["size"]
            for piece in mine
            if len(piece["blocks"]) > 1
            for part in piece["blocks"]
            if part["state"] == "inactive"
        ]
        now = {
            "allocation": len(used), "segment": len(mine), "active": len(used), "inactive_split": len(split),
            "allocated_bytes": sum(used), "reserved_bytes": sum(part["total_size"] for part in mine),
            "active_bytes": sum(used), "inactive_split_bytes": sum(split), "requested_bytes": sum(used) * 3 // 4,
        }  # fmt: skip
        stats: dict[str, Any] = {
            name: {pool: {"current": now[name], "peak": now[name], "allocated": 0, "freed": 0} for pool in POOLS}
            for name in BROKEN_DOWN
        }
        return stats | self.counters if mine else stats | dict.fromkeys(self.counters, 0)

    def memory_snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        assert not include_traces
        self.snapshots += 1
        return self.segments

    def memory_reserved(self, ordinal: int) -> int:
        return sum(part["total_size"] for part in self.segments if part["device"] == ordinal)

    def empty_cache(self) -> None:
        self.emptied += 1
        self.segments = [part for part in self.segments if any(b["state"] != "inactive" for b in part["blocks"])]


class FakeTorch(ModuleType):
    """Module ``torch`` with a CUDA that was used already."""

    def __init__(self, segments: list[dict[str, Any]], devices: int = 1) -> None:
        super().__init__("torch")
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.cuda = FakeCuda(segments, devices)
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self.observers.append)


def install(patch: pytest.MonkeyPatch, segments: list[dict[str, Any]], devices: int = 1) -> FakeTorch:
    """Let the process look as if it had imported PyTorch; no driver answers for the UUID."""
    made = FakeTorch(segments, devices)
    patch.setitem(sys.modules, "torch", made)
    patch.delitem(sys.modules, "torch.optim.optimizer", raising=False)
    patch.setattr("tocsin.hook.memory.driver_uuid", lambda ordinal: "")
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made
