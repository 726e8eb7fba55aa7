"""Figures of XLA's allocator in a JAX process. JAX is never imported and its backend never started here."""

from __future__ import annotations

import sys
from typing import Any

from tocsin.hook.cuda import driver_uuid, visible_uuid
from tocsin.hook.wire import MAX_DEVICES

_KEYS = {
    "allocated": "bytes_in_use",
    "reserved": "pool_bytes",
    "limit": "bytes_limit",
    "peak": "peak_bytes_in_use",
    "largest": "largest_free_block_bytes",
}


def loaded() -> Any | None:
    """The module ``jax`` where the process has imported it and has started its backends, else None."""
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return jax if jax is not None and started is not None and started() else None


class JaxMemory:
    """Reads the GPUs of the process."""

    framework = "jax"

    def read(self) -> list[dict[str, Any]]:
        """One entry per GPU; empty where JAX runs on no GPU or its allocator keeps no statistics."""
        jax = loaded()
        if jax is None:
            return []
        found = []
        for device in jax.local_devices()[:MAX_DEVICES]:
            stats = device.memory_stats() if device.platform in ("gpu", "cuda") else None
            if stats:
                found.append(self._entry(device, stats))
        return found

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
