"""Kind ``rate``: how much a value changed over a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import SECOND
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import MetricKind
from tocsin.rules.conditions.base import Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.frame import EventLog
from tocsin.rules.history import WindowFigure
from tocsin.rules.levels import Comparer, LevelCondition, Number
from tocsin.rules.sheet import MetricColumn, Sheet, VariantSheet
from tocsin.rules.table import Bools, Floats, Ints, SubjectTable
from tocsin.rules.units import show_duration

_COVERAGE = 0.5
"""Share of the window that readings must span for a rate per time; a bare change needs two readings only."""

LEAST_OTHERS = 2
"""Fewer other variants say nothing of what is usual."""

_FOREVER = np.iinfo(np.int64).max


class Rate(LevelCondition):
    """Holds where the change is beyond the level.

    A counter's change is the sum of its increases, a fall being a restart from zero; a gauge's is the newest value less
    the one a window ago. A brain that starts reads a day of the past: of a longer window it knows no more.
    """

    kind: Literal["rate"]
    metric: str
    """The metric, as ``name``, ``name{label}`` for each variant, or ``name{label="v"}`` for one."""
    over: Duration
    """The window."""
    per: Duration | None = None
    """Compare the change per this time instead of the change over the whole window."""
    ended_by_repair: bool = False
    """For counters: what was counted before a proven repair of the GPU or its host is past."""
    only_one: bool = False
    """For variants: holds only where no other variant of the same GPU does."""
    beside: Number | None = Field(default=None, gt=1)
    """For variants: holds only where the change is this many times the median of the same GPU's others, two or more."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(self.metric, "metric"), *self.references())

    def check(self) -> None:
        ref = self.metrics()[0]
        for field, given in (("only_one", self.only_one or None), ("beside", self.beside)):
            if given is not None and ref.key == self.metric:
                raise InputError(field, given, "the metric is read without variants", f"write {_each(ref)}")
        counter = ref.spec.kind is MetricKind.COUNTER
        if self.ended_by_repair and not counter:
            raise InputError("ended_by_repair", True, f"{ref.spec.name} is no counter", "leave it out")
        self.check_levels(ref.spec.unit, 0.0 if counter else -ref.spec.maximum, ref.spec.maximum)

    def bind(self, world: World) -> Probe:
        ref = self.metrics()[0]
        sheet = world.frame.sheets[ref.sheet]
        column = world.column(ref)
        if ref.spec.kind is MetricKind.COUNTER:
            change: Change = CounterChange(column, sheet.table, self.over, self.per)
        else:
            change = GaugeChange(column, sheet.table, self.over, self.per)
        compared = self.only_one or self.beside is not None
        family = sheet if compared and isinstance(sheet, VariantSheet) else None
        repairs = Repairs(world.log, sheet) if self.ended_by_repair else None
        return RateProbe(self, change, family, Comparer(self, world), repairs)

    def meaning(self) -> str:
        per = f" per {show_duration(self.per)}" if self.per else ""
        alone = ", on one alone" if self.only_one else ""
        alone += f", {self.beside:g} x that of the others" if self.beside is not None else ""
        level = self.level_meaning(self.metrics()[0].spec.unit)
        return f"change of {self.metric} over {show_duration(self.over)} {level}{per}{alone}"


def _each(ref: MetricRef) -> str:
    return f"{ref.spec.name}{{{ref.spec.label}}}" if ref.spec.label else "a metric that has variants"


class Change(WindowFigure):
    """The change of a column over a window, per `per_ms` where that is given."""

    def __init__(self, column: MetricColumn, table: SubjectTable, window_ms: int, per_ms: int | None) -> None:
        super().__init__(column, table, window_ms)
        self._per = per_ms

    def _scaled(self, change: Floats, length: Ints) -> Floats:
        if self._per is None:
            return change
        enough = length >= _COVERAGE * self._ring.window_ms
        scaled: Floats = np.divide(change * self._per, length, out=np.full(change.size, np.nan), where=enough)
        return scaled

    def cut(self, rows: Ints, at_ms: int) -> None:
        """Let what was before `at_ms` be past on `rows`; nothing to do for what is no sum."""


class GaugeChange(Change):
    """Newest value less the value a window ago."""

    def _advance(self, rows: Ints, at: Ints, x: Floats) -> Floats:
        then, since = self._ring.reference(rows, at, 2 * self._ring.window_ms)
        self._ring.push(rows, at, x)
        return self._scaled(x - then, at - since)


class CounterChange(Change):
    """Sum of increases; rows that never rose cost nothing but the look at them."""

    def __init__(self, column: MetricColumn, table: SubjectTable, window_ms: int, per_ms: int | None) -> None:
        super().__init__(column, table, window_ms, per_ms)
        self._risen = table.vector(np.float64, 0.0, timeline=True)

    def _advance(self, rows: Ints, at: Ints, x: Floats) -> Floats:
        last = self._last.v[rows]
        first = np.isnan(last)
        total = before = self._risen.v[rows]
        if not np.array_equal(x, last):
            total = before + np.where(first, 0.0, np.where(x >= last, x - last, x))
            self._risen.v[rows] = total
        change = np.where(first, np.nan, 0.0)
        moved = np.flatnonzero(total > 0)
        if moved.size:
            change[moved] = self._moved(rows[moved], at[moved], before[moved], total[moved])
        return change

    def cut(self, rows: Ints, at_ms: int) -> None:
        """Begin the sum anew on `rows`; of one that was read later the oldest sample since `at_ms` is its beginning."""
        for row in rows.tolist():
            begins = self._ring.cut(row, at_ms) if self._last_at.v[row] > at_ms else self._ring.cut(row, None)
            self._risen.v[row] = 0.0 if begins is None else self._risen.v[row] - begins
            if not np.isnan(self._figure.v[row]):
                self._figure.v[row] = self._risen.v[row]

    def _moved(self, rows: Ints, at: Ints, before: Floats, total: Floats) -> Floats:
        starts = np.flatnonzero(before == 0)
        if starts.size:
            self._ring.push(rows[starts], self._last_at.v[rows[starts]], before[starts])
        then, since = self._ring.reference(rows, at, _FOREVER)
        self._ring.push(rows, at, total)
        return self._scaled(total - then, at - since)


class Repairs:
    """The rows of a sheet that were repaired in this step, with the instants."""

    def __init__(self, log: EventLog, sheet: Sheet) -> None:
        self._log = log
        self._sheet = sheet

    def rows(self) -> Iterator[tuple[Ints, int]]:
        for gpus, at_ms in self._log.repaired:
            rows = np.array(gpus, dtype=np.int64)
            if isinstance(self._sheet, VariantSheet):
                rows = np.flatnonzero(np.isin(self._sheet.parent.v, rows))
            yield rows, at_ms


class RateProbe(Probe):
    """Compares a change; `repairs` cut it."""

    heeds_events = False

    def __init__(
        self,
        condition: Rate,
        change: Change,
        family: VariantSheet | None,
        comparer: Comparer,
        repairs: Repairs | None = None,
    ) -> None:
        self._repairs = repairs
        self._condition = condition
        self._change = change
        self._family = family
        self._comparer = comparer

    def update(self) -> None:
        # The repair was proven by readings that were there before this step.
        for rows, at_ms in self._repairs.rows() if self._repairs is not None else ():
            self._change.cut(rows, at_ms)
        self._change.update()

    def true(self) -> Bools:
        holds = self._comparer.true(self._change.v, self.open_)
        if self._family is None or not holds.any():
            return holds
        parent = self._family.parent.v
        if self._condition.only_one:
            holds = holds & (np.bincount(parent[holds], minlength=int(parent.max()) + 1)[parent] == 1)
        if self._condition.beside is not None:
            holds = holds & self._stands_out(np.flatnonzero(holds), parent, self._condition.beside)
        return holds

    def _stands_out(self, rows: Ints, parent: Ints, times: float) -> Bools:
        """Which of `rows` have `times` the median change of two or more others of their GPU."""
        change, found = self._change.v, np.zeros(parent.size, dtype=np.bool_)
        family = np.flatnonzero(np.isin(parent, parent[rows]) & ~np.isnan(change))
        family = family[np.argsort(parent[family], kind="stable")]
        for mine in np.split(family, np.flatnonzero(np.diff(parent[family])) + 1):
            for row in mine[np.isin(mine, rows)].tolist():
                others = change[mine[mine != row]]
                found[row] = others.size >= LEAST_OTHERS and change[row] >= times * np.median(others)
        return found

    def known(self) -> Bools:
        return self._comparer.known(self._change.v)

    def report(self, row: int) -> Report:
        value = float(self._change.v[row])
        window = self._condition.per or self._condition.over
        words = {"over": show_duration(window), "per_second": f"{value * SECOND / window:.3g}"}
        level, clear = self._comparer.level(row), self._comparer.eased(value, row)
        return Report(self._condition.metric, value, level, words=words, clear=clear)


Rate.words = frozenset({"over", "per_second"})
