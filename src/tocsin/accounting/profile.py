"""How far work used the card that it had to itself: histograms and peaks, which add up over GPUs and days."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite

BINS = 20
"""Bins of a histogram: 5 % each. A quantile is the upper edge of its bin, so that it never says too little."""
_HEAD = 10
_SECONDS, _MEMORY_S, _MEMORY_MAX, _MEMORY_TOTAL, _ACTIVITY_S = range(5)
_BOUND_S, _ACTIVITY_MAX, _LINK_S, _LINK_MAX, _GPUS_MAX = range(5, _HEAD)
SIZE = _HEAD + 2 * BINS
_PEAKS = frozenset({_MEMORY_MAX, _MEMORY_TOTAL, _ACTIVITY_MAX, _LINK_MAX, _GPUS_MAX})


class Profile:
    """Seconds and peaks of exclusive use; values as float64[SIZE] in `data`, which is what a table keeps.

    Memory is in bytes, activity a ratio, the link in bytes a second. What was not told is in none of the seconds: those
    of a metric may be fewer than `seconds`.
    """

    __slots__ = ("data",)

    def __init__(self, data: Sequence[float] = ()) -> None:
        self.data = array("d", data) if len(data) == SIZE else array("d", bytes(8 * SIZE))

    def add(
        self, seconds: float, memory: float | None, total: float | None, activity: float | None, link: float | None
    ) -> None:
        """`seconds` in which these were the values; None where one was not told. `total` is the card's memory."""
        data = self.data
        data[_SECONDS] += seconds
        if memory is not None and total:
            data[_MEMORY_S] += seconds
            if memory > data[_MEMORY_MAX]:
                data[_MEMORY_MAX] = memory
            if total > data[_MEMORY_TOTAL]:
                data[_MEMORY_TOTAL] = total
            data[_HEAD + _bin(memory / total)] += seconds
        if activity is not None:
            data[_ACTIVITY_S] += seconds
            if activity > data[_ACTIVITY_MAX]:
                data[_ACTIVITY_MAX] = activity
            data[_HEAD + BINS + _bin(activity)] += seconds
        if link is not None:
            data[_LINK_S] += seconds
            if link > data[_LINK_MAX]:
                data[_LINK_MAX] = link

    def hold(self, gpus: int) -> None:
        """The work held so many GPUs of one host at once."""
        self.data[_GPUS_MAX] = max(self.data[_GPUS_MAX], gpus)

    def bound(self, seconds: float) -> None:
        """Of the activity so many seconds are only bounded from above, by the time in which any kernel ran."""
        self.data[_BOUND_S] += seconds

    def merge(self, other: Profile) -> None:
        """Take in `other`."""
        for place, value in enumerate(other.data):
            self.data[place] = max(self.data[place], value) if place in _PEAKS else self.data[place] + value

    def to_bytes(self) -> bytes:
        """As float32 in the byte order of the host; empty where there is nothing."""
        return array("f", self.data).tobytes() if self.data[_SECONDS] else b""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Profile:
        """Inverse of `to_bytes`; bytes of another length, or that are no numbers, are an empty profile."""
        data = array("f", raw) if len(raw) == 4 * SIZE else array("f")
        return cls(data if isfinite(sum(data)) else ())

    @property
    def seconds(self) -> float:
        return self.data[_SECONDS]

    @property
    def memory_max(self) -> float | None:
        """Most memory in use, bytes; None where it was never told."""
        return self.data[_MEMORY_MAX] if self.data[_MEMORY_S] else None

    @property
    def memory_total(self) -> float | None:
        return self.data[_MEMORY_TOTAL] or None

    @property
    def activity_max(self) -> float | None:
        return self.data[_ACTIVITY_MAX] if self.data[_ACTIVITY_S] else None

    @property
    def link_max(self) -> float | None:
        """Most bytes a second over NVLink; None where it was never told."""
        return self.data[_LINK_MAX] if self.data[_LINK_S] else None

    @property
    def gpus_max(self) -> int:
        """Most GPUs of one host that the work held at once."""
        return int(self.data[_GPUS_MAX])

    @property
    def bounded(self) -> bool:
        """Whether any of the activity is only an upper bound."""
        return self.data[_BOUND_S] > 0

    def known(self) -> float:
        """Share of the seconds in which both memory and activity were told."""
        return min(self.data[_MEMORY_S], self.data[_ACTIVITY_S]) / self.seconds if self.seconds else 0.0

    def memory_p99(self) -> float | None:
        """99th percentile of memory in use, bytes, from above."""
        edge = _quantile(self.data[_HEAD : _HEAD + BINS], 0.99)
        return None if edge is None else min(edge * self.data[_MEMORY_TOTAL], self.data[_MEMORY_MAX])

    def activity_p99(self) -> float | None:
        """The same of the activity, a ratio."""
        edge = _quantile(self.data[_HEAD + BINS :], 0.99)
        return None if edge is None else min(edge, self.data[_ACTIVITY_MAX])


def _bin(ratio: float) -> int:
    found = int(ratio * BINS)
    return BINS - 1 if found >= BINS else max(0, found)


def _quantile(bins: Sequence[float], share: float) -> float | None:
    """Upper edge of the bin in which `share` of the seconds is reached; None of no seconds."""
    total, reached = sum(bins), 0.0
    if not total:
        return None
    for place, seconds in enumerate(bins):
        reached += seconds
        if reached >= share * total * (1 - 1e-9):
            return (place + 1) / BINS
    return 1.0
