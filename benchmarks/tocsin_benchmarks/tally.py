"""Counts of what happened up to an instant: how often, how long ago and how lately, for many entities at once.

An entity is whatever has a history of its own: a device, a slot, a batch, or the whole fleet. Every answer for an
instant is made of what happened at or before it, so nothing of the future can reach a feature that is built here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import Floats, Ints

Numbers = npt.NDArray[np.integer]

_SPAN = 1 << 42
"""More milliseconds than lie between 1970 and 2100."""


def stamp(entity: Numbers, at_ms: Ints) -> Ints:
    """One number that orders by entity, then instant; instants lie in 1970 to 2100."""
    return entity.astype(np.int64) * _SPAN + at_ms


def numbered(*parts: Numbers) -> Ints:
    """int64[n]: a number for each different combination of the parts, counted from 0."""
    _, number = np.unique(np.stack(parts), axis=1, return_inverse=True)
    return np.asarray(number, dtype=np.int64).ravel()


def pairs(keys: Numbers, wanted: Numbers) -> tuple[Ints, Ints]:
    """All (i, j) with keys[i] == wanted[j]."""
    order = np.argsort(keys, kind="stable")
    low = np.searchsorted(keys[order], wanted, side="left")
    count = np.searchsorted(keys[order], wanted, side="right") - low
    of = np.repeat(np.arange(wanted.size), count)
    offset = np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
    return order[low[of] + offset].astype(np.int64), of.astype(np.int64)


class Tally:
    """Events of entities. `entity` int[n] counts from 0, `at_ms` int64[n]; the order does not matter."""

    def __init__(self, entity: Numbers, at_ms: Ints) -> None:
        self.order = np.lexsort((at_ms, entity))
        self._entity, self._at = entity[self.order].astype(np.int64), at_ms[self.order]
        self._keys = stamp(self._entity, self._at)

    def count(self, entity: Numbers, at_ms: Ints, window_ms: int | None = None) -> Ints:
        """Events in (at - window, at], or all up to the instant."""
        since = np.zeros_like(at_ms) - 1 if window_ms is None else np.maximum(at_ms - window_ms, -1)
        upto, before = (np.searchsorted(self._keys, stamp(entity, ms), side="right") for ms in (at_ms, since))
        return np.asarray(upto - before, dtype=np.int64)

    def newest(self, entity: Numbers, at_ms: Ints) -> Ints:
        """Place in the arrays given of the newest event at or before each instant; -1 without one."""
        at = np.searchsorted(self._keys, stamp(entity, at_ms), side="right") - 1
        known = at >= 0
        known[known] = self._entity[at[known]] == entity[known]
        found = np.full(at_ms.size, -1, dtype=np.int64)
        found[known] = self.order[at[known]]
        return found

    def next(self, entity: Numbers, at_ms: Ints) -> Ints:
        """Place of the first event after each instant, for labels; -1 without one."""
        at = np.searchsorted(self._keys, stamp(entity, at_ms), side="right")
        known = at < self._keys.size
        known[known] = self._entity[at[known]] == entity[known]
        found = np.full(at_ms.size, -1, dtype=np.int64)
        found[known] = self.order[at[known]]
        return found

    def days_since(self, entity: Numbers, at_ms: Ints) -> Floats:
        """Days since the newest event at or before the instant; NaN without one."""
        found = self.newest(entity, at_ms)
        at = np.empty_like(self._at)
        at[self.order] = self._at
        days = np.full(at_ms.size, np.nan)
        known = found >= 0
        days[known] = (at_ms[known] - at[found[known]]) / DAY
        return days

    def decayed(self, entity: Numbers, at_ms: Ints, days: float) -> Floats:
        """Sum of exp(-age / days) over the events up to the instant."""
        upto = np.searchsorted(self._keys, stamp(entity, at_ms), side="right") - 1
        known = upto >= 0
        known[known] = self._entity[upto[known]] == entity[known]
        total = np.zeros(at_ms.size)
        age = (at_ms[known] - self._at[upto[known]]) / (DAY * days)
        total[known] = self._decayed_at_events(days)[upto[known]] * np.exp(-age)
        return total

    def _decayed_at_events(self, days: float) -> Floats:
        """The sum right after each event: each takes over what is left of the one before it."""
        sums = np.ones(self._at.size)
        left = np.exp(
            -np.diff(self._at) / (DAY * days), where=np.diff(self._entity) == 0, out=np.zeros(max(sums.size - 1, 0))
        )
        for index in np.flatnonzero(left):
            sums[index + 1] += sums[index] * left[index]
        return sums
