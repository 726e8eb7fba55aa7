"""Kind ``growth``: counters that have grown to many times what is usual for their own GPU, and go on so."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.domain.finding import evidence_of
from tocsin.domain.metrics import MetricKind
from tocsin.domain.phrase import say
from tocsin.rules.conditions.base import Condition, MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.levels import Number
from tocsin.rules.past import SLOT_MS, Past
from tocsin.rules.sheet import GPU_SHEET, MetricColumn
from tocsin.rules.table import Bools, Floats, Ints, SubjectTable

DAY_SLOTS = DAY // SLOT_MS
PARTS = 3
"""What is said of a day must hold in each of its thirds: bad spells that lead to nothing last some hours."""
PART_SLOTS = DAY_SLOTS // PARTS
STRIDE = 3
"""Slots between two days that are compared with."""
KEPT = 8 * DAY_SLOTS
"""The day that is judged and the week before it (own choice)."""
LEAST = 12.0
"""Fewer errors within the day show no growth (own choice)."""
PEER_ERRORS = 0.5
"""A GPU is taken to have counted this many errors at the rate of its peers beside what it did count: the shape of a
gamma prior (own choice, low: a few devices count most of the errors, Schroeder et al., SIGMETRICS 2009)."""
RAREST_MS = 60 * DAY
"""No rate of peers is taken to be less than an error within this (own choice)."""

_NEVER = -1


class Growth(Condition):
    """Holds where each of the counters `metrics` has come to `times` what is usual for its GPU, in each third of the
    last 24 hours.

    Usual is the median of the 24 hours long pasts before, a week at most, with what peers count where that is
    little, and a standard deviation more. It is known once a GPU was read for two days; a gap of over four hours within
    the last day leaves it unknown. A fall of a counter is a restart from zero. Judged every two hours.
    """

    words = frozenset({"times", "usual"})
    recall_ms = KEPT * SLOT_MS
    kind: Literal["growth"]
    metrics_: list[str] = Field(alias="metrics", min_length=1)
    """Counters of the GPU, each with a usual rate of its own."""
    times: Number = Field(gt=1)
    """Least growth, as a multiple of the usual."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return tuple(metric_ref(name, f"metrics[{place}]") for place, name in enumerate(self.metrics_))

    def check(self) -> None:
        for place, ref in enumerate(self.metrics()):
            if ref.spec.kind is not MetricKind.COUNTER:
                raise InputError(f"metrics[{place}]", ref.key, "is no counter", "name a metric that ends in _total")
            if ref.sheet != GPU_SHEET:
                raise InputError(f"metrics[{place}]", ref.key, "is not of a whole GPU", "name the metric alone")

    def bind(self, world: World) -> Probe:
        return GrowthProbe(self, world)

    def meaning(self) -> str:
        named = " and ".join(self.metrics_)
        return f"{named} at {self.times:g} x the GPU's usual or more in each third of 24h"


class SlotCounts:
    """Errors of each row within each slot of `SLOT_MS`, float32[KEPT, rows]. What a counter rose by since the slot
    before is the newer slot's; over a longer gap it rose at an unknown time, and that counts nowhere. NaN where a row
    was not read in a slot, or but once in it and not in the one before."""

    def __init__(self, column: MetricColumn, table: SubjectTable) -> None:
        self._column = column
        self._table = table
        self._last = table.vector(np.float64, np.nan, timeline=True)
        self._slot = table.vector(np.int64, _NEVER, timeline=True)
        self._counts = table.vector(np.float32, np.nan, depth=KEPT, timeline=True)

    def update(self) -> None:
        values = self._column.v
        rows = np.flatnonzero(self._table.updated.v & ~np.isnan(values))
        if not rows.size:
            return
        x, slot = values[rows], self._table.at.v[rows] // SLOT_MS
        last, before = self._last.v[rows], self._slot.v[rows]
        step = np.where(x >= last, x - last, x)
        fresh = slot != before
        if fresh.any():
            self._open(rows[fresh], before[fresh], slot[fresh])
        place = slot % KEPT
        known = slot - before <= 1
        counts = self._counts.v
        there = rows[known], place[known]
        counts[there[1], there[0]] = np.nan_to_num(counts[there[1], there[0]]) + step[known]
        self._last.v[rows], self._slot.v[rows] = x, slot

    def recall(self, rows: Ints, at_ms: Ints, values: Floats) -> None:
        """Take in `values` [samples, k] of `rows` at `at_ms` [samples], a sample a slot. They may end in the slot that
        was the first to be known, and in part alone."""
        slots, counts, now = at_ms // SLOT_MS, self._counts.v, self._slot.v[rows]
        for place in np.flatnonzero(np.diff(slots) == 1):
            slot, x, last = slots[place + 1], values[place + 1], values[place]
            step = np.where(x >= last, x - last, x + 0.0 * last)
            fits = np.isfinite(step) & (slot <= now) & (slot > now - KEPT)
            counts[slot % KEPT, rows[fits]] = step[fits]

    def _open(self, rows: Ints, before: Ints, slot: Ints) -> None:
        """Let the slots after `before` up to `slot` be empty."""
        counts = self._counts.v
        passed = np.minimum(slot - before, KEPT)
        for back in range(int(passed.max())):
            reached = passed > back
            counts[(slot[reached] - back) % KEPT, rows[reached]] = np.nan

    def until(self, slot: int) -> Floats:
        """float64[KEPT - 1, rows]: the slots before `slot`, oldest first, of rows that were read in it or the one
        before; NaN of all others."""
        order = np.arange(slot - KEPT + 1, slot) % KEPT
        found = self._counts.v[order].astype(np.float64)
        found[:, self._slot.v < slot - 1] = np.nan
        return found


def usual(counts: Floats) -> Floats:
    """Errors of a usual day of each row, from `counts` [slots, rows] of the time before; NaN without a whole day.

    The median day with the peers' errors as a prior, and its standard deviation on top: a low count of few days must
    not make growth of chance.
    """
    starts = range(len(counts) - DAY_SLOTS, -1, -STRIDE)
    sums = np.array([counts[start : start + DAY_SLOTS].sum(axis=0) for start in starts]).reshape(-1, counts.shape[1])
    found = np.full(counts.shape[1], np.nan)
    known = np.isfinite(sums).any(axis=0)
    if not known.any():
        return found
    day = np.nanmedian(sums[:, known], axis=0)
    peers = max(float(day.mean()), DAY / RAREST_MS)
    found[known] = (PEER_ERRORS + day + np.sqrt(day)) / (PEER_ERRORS / peers + 1.0)
    return found


class GrowthProbe(Probe):
    """Judges all rows anew with each slot."""

    heeds_events = False

    def __init__(self, condition: Growth, world: World) -> None:
        self._condition = condition
        self._table = world.frame.gpus
        self._physical = world.frame.roster.physical
        self._counted = [SlotCounts(world.column(ref), self._table) for ref in condition.metrics()]
        self._slot = _NEVER
        self._times = self._table.vector(np.float64, np.nan, timeline=True)
        self._usual = self._table.vector(np.float64, np.nan, timeline=True)
        self._errors = self._table.vector(np.float64, np.nan, timeline=True)
        self._speaks = self._table.vector(np.int64, 0, timeline=True)

    def update(self) -> None:
        for counted in self._counted:
            counted.update()
        if not self._table.updated.v.any():
            return
        slot = int(self._table.at.v.max()) // SLOT_MS
        if slot > self._slot:
            self._slot = slot
            self._judge()

    def recall(self, past: Past) -> None:
        for place, counted in enumerate(self._counted):
            values = past.values.get(self._condition.metrics_[place])
            if values is not None:
                counted.recall(past.rows, past.at_ms, values)
        self._slot = _NEVER

    def _judge(self) -> None:
        self._times.v[:] = np.inf
        for place, counted in enumerate(self._counted):
            past = counted.until(self._slot)
            past[:, ~self._physical.v] = np.nan
            day = past[-DAY_SLOTS:]
            thirds = day.reshape(PARTS, PART_SLOTS, -1).sum(axis=1)
            normal, errors = usual(past[:-DAY_SLOTS]), thirds.sum(axis=0)
            times = np.where(errors >= LEAST, PARTS * thirds.min(axis=0) / normal, 0.0)
            times[np.isnan(errors) | np.isnan(normal)] = np.nan
            # The counter that has grown least speaks for all; one that is not known leaves it open.
            least = ~(times >= self._times.v) & ~np.isnan(self._times.v)
            self._times.v[least], self._speaks.v[least] = times[least], place
            self._usual.v[least], self._errors.v[least] = normal[least], errors[least]

    def true(self) -> Bools:
        holds: Bools = self._times.v >= self._condition.times
        return holds

    def known(self) -> Bools:
        known: Bools = np.isfinite(self._times.v)
        return known

    def report(self, row: int) -> Report:
        times, normal, errors = (float(one.v[row]) for one in (self._times, self._usual, self._errors))
        said = say(
            "{errors} errors within 24 hours, usually up to {usual}", errors=f"{errors:.3g}", usual=f"{normal:.2g}"
        )
        evidence = (evidence_of("growth", said, int(self._table.at.v[row]), times),)
        words = {"times": f"{times:.2g}", "usual": f"{normal:.2g}"}
        metric = self._condition.metrics_[int(self._speaks.v[row])]
        return Report(metric, errors, self._condition.times * normal, evidence, words)
