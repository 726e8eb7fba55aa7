"""What a snapshot of the PyTorch caching allocator says about free memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

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
        sizes = [block["size"] for block in blocks if block["state"] == _FREE]
        if not sizes:
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
