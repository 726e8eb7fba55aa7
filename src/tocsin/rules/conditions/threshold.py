"""Kind ``threshold``: a value, or its mean over a window, beyond a level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.errors import InputError
from tocsin.rules.conditions.base import Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.history import Ring
from tocsin.rules.levels import COMPARISONS, Comparer, LevelCondition
from tocsin.rules.sheet import Column
from tocsin.rules.table import Bools, Floats, Table
from tocsin.rules.units import show_duration

_COVERAGE = 0.8
"""Share of the window that must have readings for a mean to be known."""


class Threshold(LevelCondition):
    """Holds where the metric is beyond the level."""

    kind: Literal["threshold"]
    metric: str
    """The metric, as ``name``, ``name{label}`` for each variant, or ``name{label="v"}`` for one."""
    over: Duration | None = None
    """Compare the mean over this window instead of the newest value."""
    has_bits: int | None = Field(default=None, gt=0)
    """In place of a comparison: holds where the value has any of these bits set."""
    if_absent: bool | None = None
    """What it says where the metric is absent; unset leaves it unknown, which neither opens nor clears."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(self.metric, "metric"), *self.references())

    def check(self) -> None:
        if self.has_bits is not None:
            clash = next((name for name in COMPARISONS if getattr(self, name) is not None), None)
            if clash is not None:
                raise InputError(clash, getattr(self, clash), "stands beside has_bits", "give one of them")
            return
        spec = self.metrics()[0].spec
        self.check_levels(spec.unit, spec.minimum, spec.maximum)

    def bind(self, world: World) -> Probe:
        column = world.column(self.metrics()[0])
        table = world.frame.sheets[self.metrics()[0].sheet].table
        if self.has_bits is not None:
            return BitsProbe(column, self.has_bits)
        source = WindowMean(column, table, self.over) if self.over is not None else None
        return ThresholdProbe(self, column, source, Comparer(self, world))

    def meaning(self) -> str:
        if self.has_bits is not None:
            return f"{self.metric} has bit {self.has_bits:#x}"
        mean = f" (mean over {show_duration(self.over)})" if self.over else ""
        absent = {True: ", or absent", False: " and present", None: ""}[self.if_absent]
        return f"{self.metric}{mean} {self.level_meaning(self.metrics()[0].spec.unit)}{absent}"


class WindowMean:
    """Mean of a column over the last `window_ms`, by trapezoids between readings; NaN where too little is known."""

    def __init__(self, column: Column, table: Table, window_ms: int) -> None:
        self._column = column
        self._table = table
        self._ring = Ring(table, window_ms)
        self._integral = table.vector(np.float64, 0.0, timeline=True)
        self._last = table.vector(np.float64, np.nan, timeline=True)
        self._last_at = table.vector(np.int64, 0, timeline=True)
        self._mean = table.vector(np.float64, np.nan, timeline=True)

    def update(self) -> None:
        """Take in the readings of this step."""
        values = self._column.v
        rows = np.flatnonzero(self._table.updated.v & ~np.isnan(values))
        if not rows.size:
            return
        x, at = values[rows], self._table.at.v[rows]
        passed = np.where(np.isnan(self._last.v[rows]), 0, at - self._last_at.v[rows])
        bridged = passed <= self._ring.window_ms
        area = np.where(bridged, 0.5 * (np.nan_to_num(self._last.v[rows], nan=0.0) + x) * passed, 0.0)
        total = self._integral.v[rows] + area
        self._integral.v[rows] = total
        self._last.v[rows] = x
        self._last_at.v[rows] = at
        then, since = self._ring.reference(rows, at, 2 * self._ring.window_ms)
        self._ring.push(rows, at, total)
        length = at - since
        enough = (since > 0) & bridged & (length >= _COVERAGE * self._ring.window_ms)
        self._mean.v[rows] = np.divide(total - then, length, out=np.full(rows.size, np.nan), where=enough)

    @property
    def v(self) -> Floats:
        """The means, shape (rows,); NaN also where the newest value is."""
        return np.where(np.isnan(self._column.v), np.nan, self._mean.v)


class ThresholdProbe(Probe):
    """Compares a column or its mean."""

    def __init__(self, condition: Threshold, column: Column, mean: WindowMean | None, comparer: Comparer) -> None:
        self._spec = column.spec
        self._metric = condition.metric
        self._absent = condition.if_absent
        self._mean = mean
        self._comparer = comparer
        source: Callable[[], Floats] = (lambda: column.v) if mean is None else (lambda: mean.v)
        self._values = source

    def update(self) -> None:
        if self._mean is not None:
            self._mean.update()

    def true(self) -> Bools:
        values = self._values()
        holds = self._comparer.true(values, self.open_)
        return holds | ~self._comparer.known(values) if self._absent is True else holds

    def known(self) -> Bools:
        values = self._values()
        return self._comparer.known(values) if self._absent is None else np.ones(values.shape, dtype=np.bool_)

    def report(self, row: int) -> Report:
        return Report(self._metric, float(self._values()[row]), self._comparer.level(row))


class BitsProbe(Probe):
    """Looks for bits in a bit mask."""

    def __init__(self, column: Column, bits: int) -> None:
        self._column = column
        self._bits = bits

    def true(self) -> Bools:
        mask = np.nan_to_num(self._column.v, nan=0.0).astype(np.int64)
        holds: Bools = (mask & self._bits) != 0
        return holds

    def known(self) -> Bools:
        return ~np.isnan(self._column.v)

    def report(self, row: int) -> Report:
        return Report(self._column.spec.name, float(self._column.v[row]))
