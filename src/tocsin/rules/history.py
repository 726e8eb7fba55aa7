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


class Ring:
    """Past samples (instant, value) of every row of a table, for questions about one window.

    The first sample of each slot is kept; a slot is a twelfth of `window_ms` (milliseconds).
    """

    def __init__(self, table: SubjectTable, window_ms: int) -> None:
        self.window_ms = window_ms
        self._depth = SLOTS + 2
        self._width = max(1, window_ms // SLOTS)
        self._x = table.vector(np.float64, np.nan, self._depth, timeline=True)
        self._t = table.vector(np.int64, 0, self._depth, timeline=True)

    def push(self, rows: Ints, at: Ints, x: Floats) -> None:
        """Keep the samples `x` taken at `at` (milliseconds) of `rows`; all three have shape (k,)."""
        slot = at // self._width
        position = slot % self._depth
        free = self._t.v[position, rows] // self._width != slot
        if free.any():
            position, rows = position[free], rows[free]
            self._t.v[position, rows] = at[free]
            self._x.v[position, rows] = x[free]

    def cut(self, row: int, at_ms: int | None) -> float | None:
        """Drop the samples of `row` before `at_ms`, or all for None; the oldest that is left begins at 0.

        Returns what it had; None where none is left.
        """
        times, values = self._t.v[:, row], self._x.v[:, row]
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
        times = self._t.v[:, rows]
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
        values = np.where(found, self._x.v[:, rows][pick, across], np.nan)
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
        return np.where(np.isnan(self._column.v), np.nan, self._figure.v)
