"""The state of one rule over all its subjects: pending, open, clearing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.rules.conditions.base import Broadcast, Condition, Probe, Report, World
from tocsin.rules.past import Past
from tocsin.rules.schema import Rule
from tocsin.rules.sheet import GPU_SHEET, POOL_SHEET, VERSION_SHEET, VariantSheet
from tocsin.rules.table import Bools, Ints

_NO_GAP = np.iinfo(np.int64).max
REST_MS = 15 * MINUTE
"""What goes on for so long after it ceased to hold says so (own choice)."""


class RuleState:
    """`open` marks the rows with an open finding, `started` since when it has held, `held` when it held last.

    After `step`, `opened` and `closed` are the rows that changed, `rested` those that have just ceased to hold and
    close no sooner than `REST_MS` from then. Time is that of a row's newest reading, or the
    present instant where a condition is judged by that.
    """

    def __init__(self, rule: Rule, world: World) -> None:
        self.rule = rule
        self._world = world
        self._table = world.sheet.table
        self._all = [_probe(condition, world, rule.sheet) for condition in rule.all_]
        self._any = [_probe(condition, world, rule.sheet) for condition in rule.any_]
        self._probes = [*self._all, *self._any]
        self._clocked = any(probe.clocked for probe in self._probes)
        self.heeds_events = any(probe.heeds_events for probe in self._probes)
        vector = self._table.vector
        self.open = vector(np.bool_, False)
        self.started = vector(np.int64, 0)
        self.held = vector(np.int64, 0)
        self._since = vector(np.int64, 0, timeline=True)
        self._samples = vector(np.int64, 0, timeline=True)
        self._clear_since = vector(np.int64, 0, timeline=True)
        self._grounds = [vector(np.bool_, False) for _ in self._any]
        self._everywhere = rule.table.scope.everything
        self._scope: Bools | None = None
        self._scope_version = -1
        self._busy = False
        self._last_now = 0
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.rested: list[int] = []
        self._masks: list[Bools] = []
        self._counted: Bools | None = None

    @property
    def active(self) -> list[int]:
        return [int(row) for row in np.flatnonzero(self.open.v)] if self._busy else []

    def step(self) -> None:
        self.opened, self.closed, self.rested = [], [], []
        self._counted = None
        for probe in self._probes:
            probe.update()
        if not len(self._table):
            return
        open_ = self.open.v if self._busy and self.open.v.any() else None
        for probe in self._probes:
            probe.open_ = open_
        self._masks = [probe.true() for probe in self._probes]
        true = self._in_scope(self._true())
        if self._busy or true.any():
            self._advance(true)

    def update_ahead(self) -> None:
        for probe in self._probes:
            probe.update_ahead()

    def recall(self, past: Past) -> None:
        for probe in self._probes:
            probe.recall(past)

    def adopt(self, row: int, started_ms: int, held_ms: int) -> bool:
        """Let `row` be open since `started_ms` until it is known to hold no more; whether it was not."""
        if self.open.v[row]:
            return False
        self.open.v[row], self.started.v[row], self.held.v[row] = True, started_ms, held_ms
        self._since.v[row] = self._clear_since.v[row] = 0
        self._busy = True
        return True

    def _true(self) -> Bools:
        count = len(self._all)
        every, some = self._masks[:count], self._masks[count:]
        if not some:
            return _every(every)
        either: Bools = np.logical_or.reduce(some)
        return either & _every(every) if every else either

    def _false(self) -> Bools:
        """Rows known not to hold: one of `all` is false, or all those of `any` are on which it last held."""
        count = len(self._all)
        false = [probe.known() & ~mask for probe, mask in zip(self._probes, self._masks, strict=True)]
        result = np.zeros(len(self._table), dtype=np.bool_)
        for mask in false[:count]:
            result |= mask
        return result | self._none_left(false[count:]) if self._any else result

    def _none_left(self, false: list[Bools]) -> Bools:
        left = np.zeros(len(self._table), dtype=np.bool_)
        for ground, mask, gone in zip(self._grounds, self._masks[len(self._all) :], false, strict=True):
            ground.v[mask] = True
            ground.v[gone] = False
            left |= ground.v
        return ~left

    def _in_scope(self, true: Bools) -> Bools:
        scope = self._scope_mask()
        if scope is not None:
            true = true & scope
        return true & ~self._table.leaving.v if self._table.any_leaving else true

    def _advance(self, true: Bools) -> None:
        clock, fresh = self._clock()
        self._start(true, clock)
        counted = true & fresh
        self._samples.v[counted] += 1
        self.held.v[counted] = np.maximum(self.held.v, clock)[counted]
        self._counted = counted
        false = self._false()
        self._since.v[false & ~self.open.v] = 0
        self._open_ready(true, clock)
        self._close_cleared(true, false, clock)
        self._busy = bool(self.open.v.any() or (self._since.v > 0).any())

    def _clock(self) -> tuple[Ints, Bools]:
        """The instant at which each row is judged, and whether that is a new one."""
        if not self._clocked:
            return self._table.at.v, self._table.updated.v
        now = self._world.frame.now_ms
        newer = now > self._last_now
        self._last_now = now
        rows = len(self._table)
        return np.full(rows, now, dtype=np.int64), np.full(rows, newer, dtype=np.bool_)

    def _start(self, true: Bools, clock: Ints) -> None:
        waiting = true & ~self.open.v
        pending = self._since.v > 0
        start = waiting & (~pending | (clock - self.held.v > self._patience()))
        if not start.any():
            return
        since = self._probe_since()
        self._since.v[start] = (clock if since is None else np.minimum(since, clock))[start]
        self._samples.v[start] = 0

    def _patience(self) -> Ints | int:
        """After how long without a new reading in which it holds a pending row starts again."""
        if self._clocked:
            return _NO_GAP
        frame = self._world.frame
        if self.rule.sheet == GPU_SHEET:
            return frame.limit.v
        sheet = self._world.sheet
        if isinstance(sheet, VariantSheet):
            return frame.limit.v[sheet.parent.v]
        return int(frame.limit.v.max(initial=0))

    def _probe_since(self) -> Ints | None:
        """Since when each row is true, where a probe knows: the latest of `all`, else the earliest of `any`."""
        every = [since for probe in self._all if (since := probe.since()) is not None]
        if every:
            latest: Ints = np.maximum.reduce(every)
            return latest
        masks = self._masks[len(self._all) :]
        some = [
            np.where(mask, since, _NO_GAP)
            for probe, mask in zip(self._any, masks, strict=True)
            if not self._all and (since := probe.since()) is not None
        ]
        earliest: Ints | None = np.minimum.reduce(some) if some else None
        return earliest

    def _open_ready(self, true: Bools, clock: Ints) -> None:
        table = self.rule.table
        ready = true & ~self.open.v & (clock - self._since.v >= table.for_) & (self._samples.v >= table.samples)
        if not ready.any():
            return
        rows = np.flatnonzero(ready)
        self.open.v[rows] = True
        self.started.v[rows] = self._since.v[rows]
        self._since.v[rows] = 0
        self._clear_since.v[rows] = 0
        self.opened = [int(row) for row in rows]

    def _close_cleared(self, true: Bools, false: Bools, clock: Ints) -> None:
        if not self.open.v.any():
            return
        over = false & self.open.v
        self._clear_since.v[true] = 0
        began = over & (self._clear_since.v == 0)
        self._clear_since.v[began] = clock[began]
        if self.rule.table.clear_for >= REST_MS:
            self.rested = [int(row) for row in np.flatnonzero(began)]
        close = over & (clock - self._clear_since.v >= self.rule.table.clear_for)
        if self._table.any_leaving or self._scope_mask() is not None:
            close = close | (self.open.v & ~self._in_scope(np.ones(len(self._table), dtype=np.bool_)))
        rows = np.flatnonzero(close)
        self.open.v[rows] = False
        self._clear_since.v[rows] = 0
        self.closed = [int(row) for row in rows]

    def _scope_mask(self) -> Bools | None:
        if self._everywhere:
            return None
        scope, frame = self.rule.table.scope, self._world.frame
        version = frame.roster.version + self._table.version
        if self._scope is None or version != self._scope_version or self._scope.size != len(self._table):
            self._scope_version = version
            if self.rule.sheet == POOL_SHEET:
                covered = [scope.covers_pool(str(key)) for key in self._table.keys]
                self._scope = np.array(covered, dtype=np.bool_)
            elif self.rule.sheet == VERSION_SHEET:
                groups = [key[0] if isinstance(key, tuple) else None for key in self._table.keys]
                covered = [group is not None and scope.covers_group(group.pool, group.model) for group in groups]
                self._scope = np.array(covered, dtype=np.bool_)
            else:
                gpus = np.array([scope.covers(gpu) for gpu in frame.roster.gpus], dtype=np.bool_)
                sheet = self._world.sheet
                self._scope = gpus[sheet.parent.v] if isinstance(sheet, VariantSheet) else gpus
        return self._scope

    def clears(self, row: int) -> tuple[int, int]:
        """Since when an open row holds no more, and when it closes unless it holds again."""
        since = int(self._clear_since.v[row])
        return since, since + self.rule.table.clear_for

    def reports(self, row: int) -> list[Report]:
        """What those conditions say of a row that hold there, in the order of the rule."""
        return [probe.report(row) for probe, mask in zip(self._probes, self._masks, strict=True) if mask[row]]

    def holds(self, row: int) -> bool:
        """Whether this step brought anything new by which `row` holds."""
        return self._counted is not None and bool(self._counted[row])

    def forget(self, rows: Iterable[int]) -> None:
        rows = list(rows)
        for probe in self._probes:
            probe.forget(rows)


def _probe(condition: Condition, world: World, sheet: str) -> Probe:
    probe = condition.bind(world)
    own = condition.sheets()
    if sheet in own or not isinstance(world.sheet, VariantSheet):
        return probe
    return Broadcast(probe, world.sheet)


def _every(masks: list[Bools]) -> Bools:
    if len(masks) == 1:
        return masks[0]
    result: Bools = np.logical_and.reduce(masks)
    return result
