"""Kind ``threshold``: a value, or its mean over a window, beyond a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.errors import InputError
from tocsin.rules.conditions.base import Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.history import WindowFigure
from tocsin.rules.levels import COMPARISONS, Comparer, LevelCondition
from tocsin.rules.sheet import MetricColumn
from tocsin.rules.table import Bools, Floats, Ints, SubjectTable
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
    lacks_bits: int | None = Field(default=None, gt=0)
    """Beside `has_bits`: holds only where none of these bits is set."""
    one_of: list[int] = Field(default_factory=list)
    """In place of a comparison: holds where the value is one of these whole numbers."""
    if_absent: bool | None = None
    """What it says where the metric is absent; unset leaves it unknown, which neither opens nor clears."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(self.metric, "metric"), *self.references())

    def check(self) -> None:
        instead = "has_bits" if self.has_bits is not None else "one_of" if self.one_of else None
        if self.lacks_bits is not None and self.has_bits is None:
            raise InputError("lacks_bits", self.lacks_bits, "stands without has_bits", "give has_bits too")
        if self.has_bits is not None and self.one_of:
            raise InputError("one_of", self.one_of, "stands beside has_bits", "give one of them")
        if instead is None:
            spec = self.metrics()[0].spec
            self.check_levels(spec.unit, spec.minimum, spec.maximum)
            return
        clash = next((name for name in COMPARISONS if getattr(self, name) is not None), None)
        if clash is not None:
            raise InputError(clash, getattr(self, clash), f"stands beside {instead}", "give one of them")

    def bind(self, world: World) -> Probe:
        column = world.column(self.metrics()[0])
        table = world.frame.sheets[self.metrics()[0].sheet].table
        if self.has_bits is not None:
            return BitsProbe(column, self.has_bits, self.lacks_bits or 0)
        if self.one_of:
            return OneOfProbe(column, self.one_of)
        source = WindowMean(column, table, self.over) if self.over is not None else None
        return ThresholdProbe(self, column, source, Comparer(self, world))

    def meaning(self) -> str:
        if self.has_bits is not None:
            without = "" if self.lacks_bits is None else f" and none of {self.lacks_bits:#x}"
            return f"{self.metric} has bit {self.has_bits:#x}{without}"
        if self.one_of:
            return f"{self.metric} is {' or '.join(str(value) for value in self.one_of)}"
        mean = f" (mean over {show_duration(self.over)})" if self.over else ""
        absent = {True: ", or absent", False: " and present", None: ""}[self.if_absent]
        return f"{self.metric}{mean} {self.level_meaning(self.metrics()[0].spec.unit)}{absent}"


class WindowMean(WindowFigure):
    """Mean of a column over a window, by trapezoids between readings."""

    def __init__(self, column: MetricColumn, table: SubjectTable, window_ms: int) -> None:
        super().__init__(column, table, window_ms)
        self._integral = table.vector(np.float64, 0.0, timeline=True)

    def _advance(self, rows: Ints, at: Ints, x: Floats) -> Floats:
        passed = np.where(np.isnan(self._last.v[rows]), 0, at - self._last_at.v[rows])
        bridged = passed <= self._ring.window_ms
        area = np.where(bridged, 0.5 * (np.nan_to_num(self._last.v[rows], nan=0.0) + x) * passed, 0.0)
        total = self._integral.v[rows] + area
        self._integral.v[rows] = total
        then, since = self._ring.reference(rows, at, 2 * self._ring.window_ms)
        self._ring.push(rows, at, total)
        length = at - since
        enough = (since > 0) & bridged & (length >= _COVERAGE * self._ring.window_ms)
        mean: Floats = np.divide(total - then, length, out=np.full(rows.size, np.nan), where=enough)
        return mean


class ThresholdProbe(Probe):
    """Compares a column or its mean."""

    heeds_events = False

    def __init__(self, condition: Threshold, column: MetricColumn, mean: WindowMean | None, comparer: Comparer) -> None:
        self._spec = column.spec
        self._metric = condition.metric
        self._absent = condition.if_absent
        self._mean = mean
        self._comparer = comparer
        self._source: MetricColumn | WindowMean = mean or column

    def update(self) -> None:
        if self._mean is not None:
            self._mean.update()

    def true(self) -> Bools:
        values = self._source.v
        holds = self._comparer.true(values, self.open_)
        return holds | ~self._comparer.known(values) if self._absent is True else holds

    def known(self) -> Bools:
        values = self._source.v
        return self._comparer.known(values) if self._absent is None else np.ones(values.shape, dtype=np.bool_)

    def report(self, row: int) -> Report:
        value, comparer = float(self._source.v[row]), self._comparer
        return Report(self._metric, value, comparer.level(row), clear=comparer.eased(value, row))


class StateProbe(Probe):
    """Looks at a column whose numbers stand for something: bits or states."""

    heeds_events = False

    def __init__(self, column: MetricColumn) -> None:
        self._column = column

    def known(self) -> Bools:
        return ~np.isnan(self._column.v)

    def report(self, row: int) -> Report:
        return Report(self._column.spec.name, float(self._column.v[row]))


class BitsProbe(StateProbe):
    """Looks for bits in a bit mask: any of `bits`, none of `without`."""

    def __init__(self, column: MetricColumn, bits: int, without: int) -> None:
        super().__init__(column)
        self._bits = bits
        self._without = without

    def true(self) -> Bools:
        mask = np.nan_to_num(self._column.v, nan=0.0).astype(np.int64)
        holds: Bools = ((mask & self._bits) != 0) & ((mask & self._without) == 0)
        return holds


class OneOfProbe(StateProbe):
    """Looks for states."""

    def __init__(self, column: MetricColumn, states: Sequence[int]) -> None:
        super().__init__(column)
        self._states = np.array(states, dtype=np.float64)

    def true(self) -> Bools:
        holds: Bools = np.isin(self._column.v, self._states)
        return holds
