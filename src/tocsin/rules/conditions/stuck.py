"""Kind ``stuck``: values that ought to vary and do not."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.errors import InputError
from tocsin.domain.finding import evidence_of
from tocsin.domain.phrase import say
from tocsin.rules.conditions.base import Condition, Duration, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.table import Bools, Ints
from tocsin.rules.units import show_duration, show_value


class Stuck(Condition):
    """Holds where none of the metrics changed at all for a while, although new readings came."""

    words = frozenset({"values"})
    kind: Literal["stuck"]
    names: list[str] = Field(alias="metrics", min_length=1)
    """Metrics that would have to vary; all of them must stand still."""
    over: Duration
    """For how long."""
    samples: int = Field(default=3, ge=2)
    """Least number of identical readings."""
    present: int | None = Field(default=None, ge=1)
    """How many of the metrics must be there to judge; unset is all."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return tuple(metric_ref(name, "metrics") for name in self.names)

    def check(self) -> None:
        if self.present is not None and self.present > len(self.names):
            raise InputError("present", self.present, "is more than there are metrics", "lower it")
        if len({ref.sheet for ref in self.metrics()}) > 1:
            raise InputError("metrics", self.names, "are of different kinds of subject", "name metrics of one kind")

    def bind(self, world: World) -> Probe:
        return StuckProbe(self, world)

    def meaning(self) -> str:
        return f"no change in {', '.join(self.names)} over {show_duration(self.over)} and {self.samples} readings"


class StuckProbe(Probe):
    """Remembers when any of the metrics last changed, and in how many readings they have been the same since."""

    heeds_events = False

    def __init__(self, condition: Stuck, world: World) -> None:
        refs = condition.metrics()
        self._condition = condition
        self._columns = [world.column(ref) for ref in refs]
        self._present = condition.present or len(refs)
        self._table = world.frame.sheets[refs[0].sheet].table
        self._last = self._table.vector(np.float64, np.nan, depth=len(refs), timeline=True)
        self._changed_at = self._table.vector(np.int64, 0, timeline=True)
        self._same = self._table.vector(np.int64, 0, timeline=True)

    def update(self) -> None:
        rows = np.flatnonzero(self._table.updated.v)
        if not rows.size:
            return
        now = np.stack([column.v[rows] for column in self._columns])
        last = self._last.v[:, rows]
        missing = np.isnan(now)
        moved = ((now != last) & ~missing & ~np.isnan(last)).any(axis=0) | (self._changed_at.v[rows] == 0)
        at = self._table.at.v[rows]
        self._changed_at.v[rows] = np.where(moved, at, self._changed_at.v[rows])
        self._same.v[rows] = np.where(moved, 1, self._same.v[rows] + 1)
        self._last.v[:, rows] = np.where(missing, last, now)

    def true(self) -> Bools:
        still = self._table.at.v - self._changed_at.v >= self._condition.over
        holds: Bools = still & (self._same.v >= self._condition.samples) & (self._changed_at.v > 0)
        return holds & self.known() if holds.any() else holds

    def known(self) -> Bools:
        there = sum((~np.isnan(column.v)).astype(np.int64) for column in self._columns)
        return np.asarray(there >= self._present, dtype=np.bool_)

    def since(self) -> Ints | None:
        return self._changed_at.v

    def report(self, row: int) -> Report:
        at = int(self._table.at.v[row])
        seen = [(c.spec.name, show_value(float(c.v[row]), c.spec.unit), float(c.v[row])) for c in self._columns]
        evidence = tuple(
            evidence_of(name, say("{value}, unchanged", value=text), at, value)
            for name, text, value in seen
            if text != "unknown"
        )
        return Report(evidence=evidence, words={"values": ", ".join(e.text.partition(",")[0] for e in evidence)})
