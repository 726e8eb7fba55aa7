"""What the rules look at: every GPU's newest values as columns, and what follows from them for pools and the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.fragmentation_fleet import Task
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.missing import Missing
from tocsin.domain.owner import Owner
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import MAX_FUTURE_MS, Reading
from tocsin.rules.aggregate import Aggregates
from tocsin.rules.layout import Layout, Layouts, PlainPart
from tocsin.rules.roster import Roster
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, Sheet, VariantSheet
from tocsin.rules.table import Ints, Table

_UNKNOWN_INTERVAL_MS = 15 * MINUTE
"""Age at which a GPU's first reading is stale, as long as a second has not told its interval."""

_SWEEPS = 16
"""Times that rows are looked through for forgotten ones within the span after which they are forgotten."""


@dataclass(frozen=True)
class Ageing:
    """When a value stops counting, in milliseconds but for `intervals`.

    A reading is stale, and its values unknown, when it is older than `least_ms` and than `intervals` times the GPU's
    own interval between readings. A GPU is forgotten after `forget_ms` without a reading or event, a part of one
    (process, link, instance) when its GPU reports without it for `forget_part_ms`.
    """

    intervals: float
    least_ms: int
    forget_ms: int
    forget_part_ms: int


@dataclass
class Columns:
    """Metric keys that rules use, by sheet."""

    gpu: list[str] = field(default_factory=list)
    variants: dict[str, list[str]] = field(default_factory=dict)
    pool: list[str] = field(default_factory=list)
    fleet: list[str] = field(default_factory=list)


class Frame:
    """The state of the fleet at `now_ms`; `load` brings it up to date, `close` ends a step.

    `stale` and `limit` tell for each GPU row whether its reading counts no longer and after how many milliseconds that
    is; `families` has a bit for each family of `layout.FAMILIES` in the newest reading, `frozen` tells whether values
    were taken out of it because they repeat. `owners` has the processes on a GPU row as its newest reading with any
    value names them. `dropped` counts what was not taken in, by reason.
    """

    def __init__(self, columns: Columns, ageing: Ageing) -> None:
        self.now_ms = 0
        self.dropped: Counter[str] = Counter()
        self.owners: dict[int, tuple[Owner, ...]] = {}
        self._ageing = ageing
        pools = Table()
        self.roster = Roster(pools)
        self.gpus = self.roster.table
        self.sheets: dict[str, Sheet] = {
            GPU_SHEET: Sheet([*columns.gpu, *_inputs_of_aggregates(columns)], self.gpus),
            POOL_SHEET: Sheet(columns.pool, pools),
            FLEET_SHEET: Sheet(columns.fleet, Table()),
        }
        self._gpu = self.sheets[GPU_SHEET]
        self.variants = {label: VariantSheet(label, names, Table()) for label, names in columns.variants.items()}
        self.sheets.update(self.variants)
        self.stale = self.gpus.vector(np.bool_, False)
        self.limit = self.gpus.vector(np.int64, ageing.least_ms)
        self.families = self.gpus.vector(np.int64, 0)
        self.frozen = self.gpus.vector(np.bool_, False)
        self.touched = self.gpus.vector(np.int64, 0)
        self._interval = self.gpus.vector(np.float64, 0.0)
        self._layouts = Layouts(self._gpu.names, columns.variants)
        self._volatile = np.array([i for i, name in enumerate(self._gpu.names) if not _static(name)], dtype=np.int64)
        self._swept_ms = 0
        self.aggregates = Aggregates(self.roster, self.stale, self.sheets)

    def load(
        self, now_ms: int, readings: Sequence[Reading], pools: Sequence[PoolState], mix: Sequence[Task] = ()
    ) -> None:
        """Take in the newest readings, the pools and the mix of tasks as they are at `now_ms`."""
        self._turn(now_ms)
        newest = self._newest(readings)
        self.roster.settle()
        at = self.gpus.at.v
        fresh = [(row, reading) for row, reading in newest.items() if reading.at_ms > at[row]]
        if fresh:
            self._store(fresh)
            self._own(fresh)
        self._age()
        self.aggregates.compute(now_ms, pools, mix)

    def close(self) -> list[int]:
        """Give back what leaves; returns the rows of the GPU table that are free again."""
        for sheet in self.variants.values():
            sheet.release()
        self.aggregates.release()
        released = self.roster.release()
        for row in released:
            self.owners.pop(row, None)
        if released:
            self._layouts.forget(self.roster.gpus[row].uuid for row in released)
        return released

    def _turn(self, now_ms: int) -> None:
        backwards = now_ms < self.now_ms
        self.now_ms = now_ms
        for sheet in self.sheets.values():
            sheet.table.updated.v[:] = False
            if backwards:
                sheet.table.rewind(np.flatnonzero(sheet.table.at.v > now_ms + MAX_FUTURE_MS))

    def _own(self, fresh: Sequence[tuple[int, Reading]]) -> None:
        for row, reading in fresh:
            if reading.owners:
                self.owners[row] = reading.owners
            elif reading.values:
                # A lost GPU names no process; who was on it when it went is what its finding has to say.
                self.owners.pop(row, None)

    def _newest(self, readings: Sequence[Reading]) -> dict[int, Reading]:
        newest: dict[int, Reading] = {}
        horizon = self.now_ms + MAX_FUTURE_MS
        for reading in readings:
            if reading.at_ms > horizon:
                self.dropped["reading_from_the_future"] += 1
                continue
            row = self.roster.admit(reading.gpu)
            other = newest.get(row)
            if other is None or reading.at_ms > other.at_ms:
                newest[row] = reading
        return newest

    def _store(self, fresh: Sequence[tuple[int, Reading]]) -> None:
        rows = np.array([row for row, _ in fresh], dtype=np.int64)
        times = np.array([reading.at_ms for _, reading in fresh], dtype=np.int64)
        self._learn_interval(rows, times)
        self.gpus.at.v[rows] = times
        self.gpus.updated.v[rows] = True
        layouts = [self._layouts.of(reading) for _, reading in fresh]
        self.families.v[rows] = [layout.families for layout in layouts]
        self.frozen.v[rows] = [Missing.FROZEN in reading.missing.values() for _, reading in fresh]
        self._store_plain(fresh, layouts)
        for label, sheet in self.variants.items():
            self._store_variants(label, sheet, fresh, layouts)

    def _learn_interval(self, rows: Ints, times: Ints) -> None:
        before = self.gpus.at.v[rows]
        old = self._interval.v[rows]
        step = np.where(before > 0, times - before, 0).astype(np.float64)
        new = np.where(old > 0, 0.75 * old + 0.25 * np.minimum(step, 4 * old), step)
        self._interval.v[rows] = new
        limit = np.where(new > 0, self._ageing.intervals * new, _UNKNOWN_INTERVAL_MS)
        self.limit.v[rows] = np.maximum(self._ageing.least_ms, limit)

    def _store_plain(self, fresh: Sequence[tuple[int, Reading]], layouts: Sequence[Layout]) -> None:
        groups: dict[int, tuple[PlainPart, list[int], list[Sequence[float]]]] = {}
        for (row, reading), layout in zip(fresh, layouts, strict=True):
            plain = layout.plain
            group = groups.get(id(plain))
            if group is None:
                group = groups[id(plain)] = (plain, [], [])
            group[1].append(row)
            group[2].append(plain.get(reading.values))
        values = self._gpu.values.v
        for plain, rows, tuples in groups.values():
            at = np.array(rows)
            values[plain.absent, at] = np.nan
            if plain.present.size:
                data = np.array(tuples, dtype=np.float64).T
                values[plain.present, at] = np.where(np.isfinite(data), data, np.nan)

    def _store_variants(
        self, label: str, sheet: VariantSheet, fresh: Sequence[tuple[int, Reading]], layouts: Sequence[Layout]
    ) -> None:
        columns: list[int] = []
        rows: list[int] = []
        values: list[float] = []
        for (row, reading), layout in zip(fresh, layouts, strict=True):
            for part in layout.variants:
                if part.label == label:
                    columns.extend(part.columns)
                    rows.extend(sheet.rows_of(row, part.values))
                    values.extend(part.get(reading.values))
        table = sheet.table
        sheet.settle()
        if not len(table):
            return
        sheet.values.v[:, self.gpus.updated.v[sheet.parent.v]] = np.nan
        if rows:
            sheet.write(columns, rows, values)
            touched = np.unique(np.array(rows))
            table.updated.v[touched] = True
            table.at.v[touched] = self.gpus.at.v[sheet.parent.v[touched]]

    def _age(self) -> None:
        late = (self.now_ms - self.gpus.at.v) > self.limit.v
        turned = late & ~self.stale.v
        self.stale.v[:] = late
        if turned.any():
            rows = np.flatnonzero(turned)
            self._gpu.values.v[self._volatile[:, None], rows] = np.nan
            for sheet in self.variants.values():
                sheet.values.v[:, np.isin(sheet.parent.v, rows)] = np.nan
        self._sweep()

    def _sweep(self) -> None:
        for sheet in self.variants.values():
            table = sheet.table
            if len(table):
                gone = self.gpus.at.v[sheet.parent.v] - table.at.v > self._ageing.forget_part_ms
                if gone.any():
                    table.leave(np.flatnonzero(gone & (table.at.v > 0)))
        if abs(self.now_ms - self._swept_ms) * _SWEEPS < self._ageing.forget_ms:
            return
        self._swept_ms = self.now_ms
        heard = np.maximum(self.gpus.at.v, self.touched.v)
        rows = np.flatnonzero((heard > 0) & (self.now_ms - heard > self._ageing.forget_ms))
        self.gpus.leave(rows)
        for sheet in self.variants.values():
            sheet.leave_with(rows)


def _static(key: str) -> bool:
    return METRICS[split_variant(key)[0]].static


def _inputs_of_aggregates(columns: Columns) -> list[str]:
    return [name for name in Aggregates.inputs(columns.pool, columns.fleet) if name not in columns.gpu]
