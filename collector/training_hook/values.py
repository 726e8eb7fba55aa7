"""From the figures of a process's allocators to metrics of its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tocsin.collector.training_hook.protocol import DeviceStats
from tocsin.domain.fragmentation import (
    cache_slack,
    external_fragmentation,
    internal_fragmentation,
    split_fragmentation,
)

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
