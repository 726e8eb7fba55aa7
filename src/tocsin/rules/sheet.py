"""A table with named metric columns: one for GPUs, one for each variant label, one for pools, one for the fleet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.domain.metrics import MetricSpec
from tocsin.rules.table import Floats, Ints, SubjectTable

GPU_SHEET = "gpu"
POOL_SHEET = "pool"
FLEET_SHEET = "fleet"
VERSION_SHEET = "versions"


class MetricColumn:
    """One metric of every row of a sheet; `v` is its present view, shape (rows,), NaN where unknown."""

    __slots__ = ("_index", "_sheet", "spec")

    def __init__(self, sheet: Sheet, index: int, spec: MetricSpec) -> None:
        self._sheet = sheet
        self._index = index
        self.spec = spec

    @property
    def v(self) -> Floats:
        column: Floats = self._sheet.values.v[self._index]
        return column


class Sheet:
    """`names` are the metrics in the order of `values`, whose shape is (metrics, rows)."""

    def __init__(self, names: Sequence[str], table: SubjectTable) -> None:
        self.names = list(names)
        self.table = table
        self.values = table.vector(np.float64, np.nan, depth=max(1, len(self.names)))

    def column(self, name: str, spec: MetricSpec) -> MetricColumn:
        return MetricColumn(self, self.names.index(name), spec)


class VariantSheet(Sheet):
    """Variants of the metrics of one label; a row is one (GPU row, label value), `parent` its GPU's row."""

    def __init__(self, label: str, names: Sequence[str], table: SubjectTable) -> None:
        super().__init__(names, table)
        self.label = label
        self.parent = table.vector(np.int64, 0)
        self.plans: dict[tuple[int, tuple[str, ...]], Ints] = {}
        self._orphans: list[tuple[int, int]] = []

    def rows_of(self, gpu_row: int, values: tuple[str, ...]) -> Ints:
        """Rows of the variants `values` of one GPU; `settle` must follow."""
        plan = self.plans.get((gpu_row, values))
        if plan is None:
            rows = [self._row(gpu_row, value) for value in values]
            plan = self.plans[gpu_row, values] = np.array(rows, dtype=np.int64)
        return plan

    def _row(self, gpu_row: int, value: str) -> int:
        row = self.table.row((gpu_row, value))
        self._orphans.append((row, gpu_row))
        return row

    def settle(self) -> None:
        """Make vectors as long as the table and tell new rows their parent."""
        self.table.settle()
        for row, gpu_row in self._orphans:
            self.parent.v[row] = gpu_row
        self._orphans.clear()

    def write(self, columns: Ints, rows: Ints, values: Floats) -> None:
        """Store `values` at (columns, rows), all of one length."""
        self.values.v[columns, rows] = np.where(np.isfinite(values), values, np.nan)

    def value(self, row: int) -> str:
        key = self.table.keys[row]
        return str(key[1]) if isinstance(key, tuple) else ""

    def release(self) -> None:
        if self.table.release():
            self.plans.clear()

    def leave_with(self, parents: Ints) -> None:
        """Let the variants of the GPU rows `parents` leave as well."""
        self.table.leave(np.flatnonzero(np.isin(self.parent.v, parents)))
