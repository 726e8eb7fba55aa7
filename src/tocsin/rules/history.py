"""A bounded past of each row: one sample a time slot, enough to say what a value was one window ago.

Also what figures over such a window share.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from tocsin.rules.sheet import MetricColumn
from tocsin.rules.table import Bools, Floats, Ints, SubjectTable

SLOTS = 12
"""Slots of a window: its length is met within a twelfth, or within one reading where those are rarer."""

_FAR = np.iinfo(np.int64).max
_NOWHERE = -1
_FIRST_PLACES = 8


class Ring:
    """Past samples (instant, value) of rows of a table, for questions about one window.

    The first sample of each slot is kept; a slot is a twelfth of `window_ms` (milliseconds). A row has a place for its
    samples from its first one on: a fleet has a hundred thousand links, and counters that rise on few of them.
    """

    def __init__(self, table: SubjectTable, window_ms: int) -> None:
        self.window_ms = window_ms
        self._depth = SLOTS + 2
        self._width = max(1, window_ms // SLOTS)
        self._place = table.vector(np.int64, _NOWHERE, timeline=True)
        self._x = np.empty((self._depth, 0))
        self._t = np.empty((self._depth, 0), np.int64)
        self._free = np.empty(0, np.int64)

    def push(self, rows: Ints, at: Ints, x: Floats) -> None:
        """Keep the samples `x` taken at `at` (milliseconds) of `rows`; all three have shape (k,)."""
        places = self._places(rows)
        slot = at // self._width
        position = slot % self._depth
        free = self._t[position, places] // self._width != slot
        if free.any():
            position, places = position[free], places[free]
            self._t[position, places] = at[free]
            self._x[position, places] = x[free]

    def _places(self, rows: Ints) -> Ints:
        """The place of each of `rows`, taken for those that have none."""
        places = self._place.v
        fresh = np.unique(rows[places[rows] < 0])
        if fresh.size:
            if fresh.size > self._free.size:
                self._make_room(fresh.size)
            taken, self._free = self._free[: fresh.size], self._free[fresh.size :]
            self._x[:, taken], self._t[:, taken] = np.nan, 0
            places[fresh] = taken
        return places[rows]

    def _make_room(self, count: int) -> None:
        """Have `count` places free: first those of rows that are given back, which only the table knows of."""
        held = np.zeros(self._x.shape[1], np.bool_)
        held[self._place.v[self._place.v >= 0]] = True
        room = max(self._x.shape[1], _FIRST_PLACES)
        while room - int(held.sum()) < count:
            room += room // 4
        more = ((0, 0), (0, room - self._x.shape[1]))
        self._x, self._t = np.pad(self._x, more), np.pad(self._t, more)
        self._free = np.flatnonzero(~np.pad(held, more[1]))

    def cut(self, row: int, at_ms: int | None) -> float | None:
        """Drop the samples of `row` before `at_ms`, or all for None; the oldest that is left begins at 0.

        Returns what it had; None where none is left.
        """
        if (place := int(self._place.v[row])) == _NOWHERE:
            return None
        times, values = self._t[:, place], self._x[:, place]
        kept = np.zeros(times.shape, dtype=np.bool_) if at_ms is None else (times > 0) & (times >= at_ms)
        times[~kept], values[~kept] = 0, np.nan
        if not kept.any():
            return None
        begins = float(values[kept][times[kept].argmin()])
        values[kept] -= begins
        return begins

    def reference(self, rows: Ints, at: Ints, reach_ms: int) -> tuple[Floats, Ints]:
        """The sample to compare `rows` at `at` with: values and instants of shape (k,).

        It is the youngest that is at least one window old, or the oldest where none is. Samples older than `reach_ms`
        do not count; NaN and 0 where there is no earlier sample.
        """
        places = self._place.v[rows]
        times = np.zeros((self._depth, rows.size), np.int64)
        there = places >= 0
        times[:, there] = self._t[:, places[there]]
        age = at - times
        valid = (times > 0) & (age > 0) & (age <= reach_ms)
        old = valid & (age >= self.window_ms)
        young = valid & ~old
        pick = np.where(
            old.any(axis=0),
            np.where(old, times, -1).argmax(axis=0),
            np.where(young, times, _FAR).argmin(axis=0),
        )
        across = np.arange(rows.size)
        found = cast("Bools", valid[pick, across])
        values = np.full(rows.size, np.nan)
        values[found] = self._x[pick[found], places[found]]
        return values, np.where(found, times[pick, across], 0)


class WindowFigure:
    """A figure of a column over the last `window_ms`, such as its mean or its change; a subclass says which.

    `v` (rows,) is NaN where too little is known, and where the newest value is.
    """

    def __init__(self, column: MetricColumn, table: SubjectTable, window_ms: int) -> None:
        self._column = column
        self._table = table
        self._ring = Ring(table, window_ms)
        self._last = table.vector(np.float64, np.nan, timeline=True)
        self._last_at = table.vector(np.int64, 0, timeline=True)
        self._figure = table.vector(np.float64, np.nan, timeline=True)

    def update(self) -> None:
        values = self._column.v
        rows = np.flatnonzero(self._table.updated.v & ~np.isnan(values))
        if rows.size:
            x, at = values[rows], self._table.at.v[rows]
            self._figure.v[rows] = self._advance(rows, at, x)
            self._last.v[rows] = x
            self._last_at.v[rows] = at

    def _advance(self, rows: Ints, at: Ints, x: Floats) -> Floats:
        """The figure of `rows` after values `x` at `at`; `_last` still holds the values before them."""
        raise NotImplementedError

    @property
    def v(self) -> Floats:
        values = self._column.v
        figure = self._figure.v if self._figure.taken else np.nan
        return np.where(np.isnan(values), np.nan, figure)
