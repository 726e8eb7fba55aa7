"""What the rules look at: every GPU's newest values as columns, and what follows from them for pools and the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.fragmentation import FleetFragmentation, TaskClass
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Missing, Owner, Reading
from tocsin.domain.versions import VersionBefore
from tocsin.rules.fleet import fleet_fragmentation, gang_ratio, group_means, idle
from tocsin.rules.layout import Layouts, Parts, PlainPart
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, VERSION_SHEET, Sheet, VariantSheet
from tocsin.rules.table import Bools, Floats, Ints, SubjectTable, Vector
from tocsin.rules.version_sheet import VersionSheet

# Which GPUs and hosts there are, and the small integers that let numpy group them.

NO_CODE = -1
"""Code of a row that belongs to no group, such as a GPU whose model is not known."""


def host_key(host: str) -> str:
    """Key of the row that stands for a whole host; no UUID looks like it."""
    return f"host:{host}"


class FrameRows:
    """One row for each GPU, MIG instance, and host that events name, in a table of its own.

    `gpus[row]` is the GPU; a host's row has one with an empty UUID. `host`, `rack` and `model` hold group codes, `pool`
    the row of the pool's table, `physical` is true for whole GPUs, `simulated` for those of a simulator.
    `version` changes with any of it.
    """

    def __init__(self, pools: SubjectTable) -> None:
        self.table = SubjectTable()
        self.gpus: list[Gpu] = []
        self.subjects: list[Subject] = []
        self.host = self.table.vector(np.int64, NO_CODE)
        self.rack = self.table.vector(np.int64, NO_CODE)
        self.model = self.table.vector(np.int64, NO_CODE)
        self.pool = self.table.vector(np.int64, NO_CODE)
        self.physical = self.table.vector(np.bool_, False)
        self.simulated = self.table.vector(np.bool_, False)
        self.version = 0
        self._pools = pools
        self._codes: dict[str, int] = {}
        self._by_host: dict[str, set[int]] = {}
        self._changed: list[int] = []

    def admit(self, gpu: Gpu) -> int:
        """The row of `gpu`, with its attributes as they are now; `settle` must follow."""
        row = self.table.rows.get(gpu.uuid)
        if row is None:
            row = self.table.row(gpu.uuid)
            self._put(row, gpu)
        elif self.gpus[row] is not gpu and _differ(self.gpus[row], gpu):
            self._put(row, gpu)
        return row

    def admit_named(self, uuid: str, host: str) -> int:
        """The row of what an event or a prediction names: a GPU, or the host where `uuid` is empty."""
        key = uuid or host_key(host)
        row = self.table.rows.get(key)
        if row is None:
            row = self.table.row(key)
            self._put(row, Gpu(uuid, host))
        return row

    def on_host(self, host: str) -> list[int]:
        return sorted(self._by_host.get(host, ()))

    def _put(self, row: int, gpu: Gpu) -> None:
        if row == len(self.gpus):
            self.gpus.append(gpu)
            self.subjects.append(_subject(gpu))
        else:
            self._by_host.get(self.gpus[row].host, set()).discard(row)
            self.gpus[row] = gpu
            self.subjects[row] = _subject(gpu)
        self._by_host.setdefault(gpu.host, set()).add(row)
        self._changed.append(row)

    def settle(self) -> None:
        """Bring vectors and codes up to date with the rows admitted since the last call."""
        if not self._changed:
            return
        for row in self._changed:
            if self.gpus[row].uuid:
                self._pools.row(self.gpus[row].pool)
        self.table.settle()
        self._pools.settle()
        for row in self._changed:
            self._write_codes(row, self.gpus[row])
        self._changed.clear()
        self.version += 1

    def _write_codes(self, row: int, gpu: Gpu) -> None:
        for vector, text in ((self.host, gpu.host), (self.rack, gpu.rack), (self.model, gpu.model)):
            vector.v[row] = self._codes.setdefault(text, len(self._codes)) if text else NO_CODE
        self.pool.v[row] = self._pools.rows[gpu.pool] if gpu.uuid else NO_CODE
        self.physical.v[row] = bool(gpu.uuid) and not gpu.is_mig
        self.simulated.v[row] = gpu.simulated

    def release(self) -> list[int]:
        rows = self.table.release()
        for row in rows:
            self._by_host.get(self.gpus[row].host, set()).discard(row)
        if rows:
            self.version += 1
        return rows


def _subject(gpu: Gpu) -> Subject:
    if not gpu.uuid:
        return Subject(SubjectKind.HOST, gpu.host, host=gpu.host)
    return Subject(SubjectKind.GPU, gpu.uuid, host=gpu.host, pool=gpu.pool)


def _differ(one: Gpu, other: Gpu) -> bool:
    return (
        one.host != other.host
        or one.index != other.index
        or one.model != other.model
        or one.pool != other.pool
        or one.rack != other.rack
        or one.parent != other.parent
        or one.mig_profile != other.mig_profile
        or one.simulated != other.simulated
        or one.labels != other.labels
    )


# Columns of the pool and fleet sheets, computed from the GPUs in each step.

_POOL_INPUTS = ("gpu_utilization_ratio", "gpu_graphics_engine_active_ratio")
_FLEET_INPUTS = (*_POOL_INPUTS, "gpu_processes", "gpu_memory_used_ratio")


class Aggregates:
    """Keeps the pool and fleet sheets.

    `elastic` says for each pool whether its state allows scaling on load alone. A pool's utilisation is the mean over
    its whole GPUs with a reading that is not stale, unknown where that is less than half of them.
    """

    def __init__(self, roster: FrameRows, stale: Vector[np.bool_], sheets: Mapping[str, Sheet]) -> None:
        self._roster = roster
        self._stale = stale
        self._gpu = sheets[GPU_SHEET]
        self._pool = sheets[POOL_SHEET]
        self._fleet = sheets[FLEET_SHEET]
        self.fleet: FleetFragmentation | None = None
        """Free GPUs and what of them is no use; None where no rule looks at the fleet or no utilisation is known."""
        self.figures: dict[str, float] = {}
        """The fleet's metrics by name; empty where no rule looks at the fleet or no utilisation is known."""
        self.elastic = self._pool.table.vector(np.bool_, False)
        self._fleet.table.row("fleet")
        self._fleet.table.settle()

    def compute(self, now_ms: int, pools: Sequence[PoolState], mix: Sequence[TaskClass] = ()) -> None:
        """Write the columns of both sheets; pools that have neither a GPU nor a state leave."""
        if self._pool.names:
            self._compute_pools(now_ms, pools)
        if self._fleet.names:
            self._compute_fleet(mix)

    def _utilization(self) -> Floats:
        busy, engine = (self._column(name) for name in _POOL_INPUTS)
        return np.where(np.isnan(busy), engine, busy)

    def _column(self, name: str) -> Floats:
        return np.asarray(self._gpu.values.v[self._gpu.names.index(name)], dtype=np.float64)

    def _compute_pools(self, now_ms: int, pools: Sequence[PoolState]) -> None:
        table = self._pool.table
        for state in pools:
            table.row(state.name)
        table.settle()
        count = len(table)
        groups = np.where(self._roster.physical.v, self._roster.pool.v, -1)
        members = np.bincount(groups[groups >= 0], minlength=count)
        for i, name in enumerate(self._pool.names):
            if name == "pool_utilization_ratio":
                self._pool.values.v[i] = group_means(self._utilization(), groups, members, count)
            elif name == "pool_pending_gpus":
                self._pool.values.v[i] = np.nan
                for state in pools:
                    if state.pending_gpus is not None:
                        self._pool.values.v[i, table.rows[state.name]] = state.pending_gpus
        self.elastic.v[:] = False
        for state in pools:
            self.elastic.v[table.rows[state.name]] = state.elastic
        self._date_pools(now_ms, [table.rows[state.name] for state in pools], members)

    def _date_pools(self, now_ms: int, listed: Sequence[int], members: Ints) -> None:
        """A pool is as new as its newest reading; one without a GPU, as its scheduler's word, which is of now."""
        table = self._pool.table
        updated = np.flatnonzero(self._roster.table.updated.v & self._roster.physical.v)
        if updated.size:
            owner = self._roster.pool.v[updated]
            np.maximum.at(table.at.v, owner, self._roster.table.at.v[updated])
            table.updated.v[owner] = True
        for row in np.flatnonzero(members == 0).tolist():
            if row in listed:
                table.at.v[row] = now_ms
                table.updated.v[row] = True
            elif table.keys[row] is not None:
                table.leave(np.array([row], dtype=np.int64))

    def _compute_fleet(self, mix: Sequence[TaskClass]) -> None:
        table = self._fleet.table
        updated = self._roster.table.updated.v & self._roster.physical.v
        if not updated.any():
            return
        table.at.v[0] = max(int(table.at.v[0]), int(self._roster.table.at.v[updated].max()))
        table.updated.v[0] = True
        found = self._free_by_host()
        self.fleet = None if found is None else fleet_fragmentation(*found, mix)
        self.figures = {} if found is None or self.fleet is None else _fleet_values(*found, self.fleet)
        for i, name in enumerate(self._fleet.names):
            self._fleet.values.v[i, 0] = self.figures.get(name, np.nan)

    def _free_by_host(self) -> tuple[Ints, Ints] | None:
        """Free GPUs and all GPUs of each host, both of shape (hosts,); None where no GPU's utilisation is known."""
        processes, memory = (self._column(name) for name in ("gpu_processes", "gpu_memory_used_ratio"))
        known = self._roster.physical.v & ~self._stale.v
        utilization = self._utilization()
        if not (known & ~np.isnan(utilization)).any():
            return None
        free = known & idle(utilization, processes, memory)
        hosts = self._roster.host.v
        named = hosts >= 0
        count = int(hosts.max(initial=-1)) + 1
        return (
            np.bincount(hosts[free & named], minlength=count),
            np.bincount(hosts[self._roster.physical.v & named], minlength=count),
        )


def _fleet_values(free: Ints, sizes: Ints, fleet: FleetFragmentation) -> dict[str, float]:
    return {
        "fleet_fragmentation_ratio": gang_ratio(free, sizes),
        "fleet_free_gpus": fleet.free,
        "fleet_fragmented_gpus": fleet.fragmented,
        "fleet_fgd_ratio": fleet.ratio,
        "fleet_stranded_gpus": fleet.stranded,
        "fleet_unusable_gpus": fleet.unusable,
    }


# Events as rules see them: each once, none from too long ago and none from the future.

_PRUNES = 8
"""Times that remembered ids are looked through within one window."""


class EventLog:
    """Takes in events; `fresh` are those new in this step as (row of the GPU or host, event), in order of time.

    An event counts once by its id, however often it comes. `window_ms` is how far back any rule looks: an older event
    is left out, so that replayed history causes nothing. `dropped` counts what was left out, by reason. `repaired` are
    the repairs that are new in this step, as rows with their instant. A repair is among the events as a reload of the
    driver, also behind events of before it that come late.
    """

    def __init__(self, roster: FrameRows, window_ms: int, dropped: Counter[str]) -> None:
        self.fresh: list[tuple[int, Event]] = []
        self.repaired: list[tuple[list[int], int]] = []
        self._repairs: dict[str, int] = {}
        self._told: Mapping[str, int] = {}
        self._roster = roster
        self._window_ms = window_ms
        self._dropped = dropped
        self._seen: dict[str, int] = {}
        self._pruned_ms = 0

    def accept(self, now_ms: int, events: Sequence[Event], repairs: Mapping[str, int] | None = None) -> None:
        """Replace `fresh` by what is new in `events`, and `repaired` by what is in `repairs`; the roster must settle
        afterwards.
        """
        self._take(now_ms, events)
        self._accept_repairs(now_ms, repairs or {})
        self._sort(now_ms)

    def accept_events(self, now_ms: int, events: Sequence[Event]) -> None:
        """`accept` with the repairs as they were told last."""
        self._take(now_ms, events)
        self._accept_repairs(now_ms, self._told)
        self._sort(now_ms)

    def _take(self, now_ms: int, events: Sequence[Event]) -> None:
        self.fresh = []
        for event in events:
            if event.at_ms < now_ms - self._window_ms:
                self._dropped["event_too_old"] += 1
            elif event.at_ms > now_ms + MAX_FUTURE_MS:
                self._dropped["event_from_the_future"] += 1
            elif event.id not in self._seen:
                self._seen[event.id] = event.at_ms
                self.fresh.append((self._roster.admit_named(event.gpu, event.host), event))

    def _sort(self, now_ms: int) -> None:
        self.fresh.sort(key=lambda item: (item[1].at_ms, item[1].code, item[1].id))
        if abs(now_ms - self._pruned_ms) * _PRUNES >= self._window_ms:
            self._pruned_ms = now_ms
            self._seen = {name: at for name, at in self._seen.items() if at >= now_ms - self._window_ms}

    def _accept_repairs(self, now_ms: int, repairs: Mapping[str, int]) -> None:
        self.repaired = []
        self._told = repairs
        oldest_ms = min((event.at_ms for _, event in self.fresh), default=now_ms)
        for key, at_ms in repairs.items():
            kind, _, name = key.partition(":")
            is_gpu = kind == SubjectKind.GPU
            row = self._roster.table.rows.get(name)
            rows = self._roster.on_host(name) if not is_gpu else [] if row is None else [row]
            if not rows or at_ms < now_ms - self._window_ms:
                continue
            is_new = self._repairs.get(key) != at_ms
            if is_new:
                self._repairs[key] = at_ms
                self.repaired.append((rows, at_ms))
            if is_new or oldest_ms <= at_ms:
                gpu, host = (name, "") if is_gpu else ("", name)
                event = Event(EventKind.DRIVER_RELOAD, gpu, host, at_ms, message="a repair was proven")
                self.fresh.append((rows[0], event))
        self._repairs = {key: at_ms for key, at_ms in self._repairs.items() if key in repairs}

    def heard(self) -> Iterator[tuple[int, int]]:
        """Row and instant of what is fresh."""
        return ((row, event.at_ms) for row, event in self.fresh)

    def affected(self, row: int, event: Event) -> list[int]:
        """Rows that `event` speaks of: its GPU, or everything on its host where it names no GPU."""
        return [row] if event.gpu else self._roster.on_host(event.host)


# The newest prediction of each subject, by target.


class Forecasts:
    """Takes in predictions; `fresh[target]` are those newer than any before, by kind of subject and row.

    A prediction for a part of a GPU (its subject has a detail) is left to other readers.
    """

    def __init__(self, roster: FrameRows, pools: SubjectTable) -> None:
        self.fresh: dict[str, dict[tuple[SubjectKind, int], Prediction]] = {}
        self._roster = roster
        self._pools = pools
        self._newest: dict[tuple[str, str], Prediction] = {}
        self._taken: dict[int, Prediction] = {}

    def unseen(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """Those that were not given before; most come with every step until they are made anew."""
        return [one for one in predictions if id(one) not in self._taken]

    def accept(self, predictions: Sequence[Prediction]) -> None:
        """Replace `fresh` by what is new in `predictions`; roster and pools must settle afterwards."""
        self._take(self.unseen(predictions))
        self._taken = {id(one): one for one in predictions}

    def accept_ahead(self, predictions: Sequence[Prediction]) -> None:
        """`accept` some of those that the next `accept` is given, which then has no news in them."""
        self._take(predictions)
        self._taken.update((id(one), one) for one in predictions)

    def _take(self, predictions: Sequence[Prediction]) -> None:
        self.fresh = {}
        for one in predictions:
            key = (one.target, one.subject.key)
            if not one.subject.detail and _is_newer(one, self._newest.get(key)):
                self._newest[key] = one
                self.fresh.setdefault(one.target, {})[one.subject.kind, self._row(one)] = one

    def heard(self) -> Iterator[tuple[int, int]]:
        """Row and instant of what is fresh about GPUs and hosts."""
        for fresh in self.fresh.values():
            for (kind, row), one in fresh.items():
                if kind in (SubjectKind.GPU, SubjectKind.HOST):
                    yield row, one.at_ms

    def _row(self, prediction: Prediction) -> int:
        subject = prediction.subject
        if subject.kind is SubjectKind.POOL:
            return self._pools.row(subject.name)
        if subject.kind is SubjectKind.FLEET:
            return 0
        if subject.kind is SubjectKind.HOST:
            return self._roster.admit_named("", subject.name)
        return self._roster.admit_named(subject.name, subject.host)

    def forget(self, subjects: Collection[str]) -> None:
        self._newest = {key: one for key, one in self._newest.items() if key[1] not in subjects}
        self._taken = {}


def _is_newer(one: Prediction, other: Prediction | None) -> bool:
    if other is None or one.at_ms != other.at_ms:
        return other is None or one.at_ms > other.at_ms
    return one is not other and one.id > other.id


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
class MetricKeys:
    """Metric keys that rules use, by sheet."""

    gpu: list[str] = field(default_factory=list)
    variants: dict[str, list[str]] = field(default_factory=dict)
    pool: list[str] = field(default_factory=list)
    fleet: list[str] = field(default_factory=list)
    versions: bool = False
    """Whether a rule compares versions."""


class Frame:
    """The state of the fleet at `now_ms`; `load` brings it up to date, `close` ends a step.

    `stale` and `limit` tell for each GPU row whether its reading counts no longer and after how many milliseconds that
    is; `families` has a bit for each family of `layout.FAMILIES` in the newest reading, `frozen` tells whether values
    were taken out of it because they repeat. `owners` has the processes on a GPU row as its newest reading with any
    value names them. `dropped` counts what was not taken in, by reason.
    """

    def __init__(self, columns: MetricKeys, ageing: Ageing) -> None:
        self.now_ms = 0
        self.dropped: Counter[str] = Counter()
        self.owners: dict[int, tuple[Owner, ...]] = {}
        self.surplus: Collection[str] = ()
        """UUIDs of GPUs that count nowhere beyond themselves, as the step was given them."""
        self._ageing = ageing
        pools = SubjectTable()
        self.roster = FrameRows(pools)
        self.gpus = self.roster.table
        self.sheets: dict[str, Sheet] = {
            GPU_SHEET: Sheet([*columns.gpu, *_inputs_of_aggregates(columns)], self.gpus),
            POOL_SHEET: Sheet(columns.pool, pools),
            FLEET_SHEET: Sheet(columns.fleet, SubjectTable()),
        }
        self._gpu = self.sheets[GPU_SHEET]
        self.variants = {label: VariantSheet(label, names, SubjectTable()) for label, names in columns.variants.items()}
        self.sheets.update(self.variants)
        self.versions = VersionSheet()
        self.sheets[VERSION_SHEET] = self.versions
        self._compares = columns.versions
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
        self,
        now_ms: int,
        readings: Sequence[Reading],
        pools: Sequence[PoolState],
        mix: Sequence[TaskClass] = (),
        before: Sequence[VersionBefore] = (),
    ) -> None:
        """Take in the newest readings, the pools and the mix of tasks as they are at `now_ms`, and the versions of a
        day `before` where they were others."""
        self.turn(now_ms)
        self._take(self._newest(readings, now_ms))
        for table in (self.gpus, *(sheet.table for sheet in self.variants.values())):
            table.updated.v[:] = table.arrived.v
            table.arrived.v[:] = False
        self._age()
        self.aggregates.compute(now_ms, pools, mix)
        if self._compares:
            roster, table = self.roster, self.gpus
            self.versions.take(now_ms, roster.gpus, roster.version, table.at.v, table.updated.v, before)

    def load_ahead(self, now_ms: int, readings: Sequence[Reading]) -> None:
        """Take in some of the readings that the next `load` is given: what it comes to is the same, and it takes less
        time. Until then no row counts as updated."""
        if now_ms >= self.now_ms:
            self._take(self._newest(readings, now_ms))

    def _take(self, newest: Mapping[int, Reading]) -> None:
        self.roster.settle()
        at = self.gpus.at.v
        fresh = [(row, reading) for row, reading in newest.items() if reading.at_ms > at[row]]
        if fresh:
            self._store(fresh)
            self._own(fresh)

    def close(self) -> list[int]:
        """Give back what leaves; returns the rows of the GPU table that are free again."""
        for sheet in self.variants.values():
            sheet.release()
        self.sheets[POOL_SHEET].table.release()
        self.versions.table.release()
        released = self.roster.release()
        for row in released:
            self.owners.pop(row, None)
        if released:
            self._layouts.forget(self.roster.gpus[row].uuid for row in released)
        return released

    def turn(self, now_ms: int) -> None:
        """Begin a step at `now_ms`: nothing has a new reading yet."""
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

    def _newest(self, readings: Sequence[Reading], now_ms: int) -> dict[int, Reading]:
        newest: dict[int, Reading] = {}
        horizon = now_ms + MAX_FUTURE_MS
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
        self.gpus.arrived.v[rows] = True
        self.frozen.v[rows] = [Missing.FROZEN in reading.missing.values() for _, reading in fresh]
        parts = self._layouts.parts(fresh)
        self.families.v[rows] = 0
        np.bitwise_or.at(self.families.v, parts.rows, [layout.families for layout in parts.layouts])
        self._store_plain(parts)
        mine = np.zeros(len(self.gpus), np.bool_)
        mine[rows] = True
        for label, sheet in self.variants.items():
            self._store_variants(label, sheet, mine, parts)

    def _learn_interval(self, rows: Ints, times: Ints) -> None:
        before = self.gpus.at.v[rows]
        old = self._interval.v[rows]
        step = np.where(before > 0, times - before, 0).astype(np.float64)
        new = np.where(old > 0, 0.75 * old + 0.25 * np.minimum(step, 4 * old), step)
        self._interval.v[rows] = new
        limit = np.where(new > 0, self._ageing.intervals * new, _UNKNOWN_INTERVAL_MS)
        self.limit.v[rows] = np.maximum(self._ageing.least_ms, limit)

    def _store_plain(self, parts: Parts) -> None:
        groups: dict[tuple[bool, int], tuple[PlainPart, list[int]]] = {}
        for number, (layout, first) in enumerate(zip(parts.layouts, parts.first, strict=True)):
            groups.setdefault((not first, id(layout.plain)), (layout.plain, []))[1].append(number)
        values = self._gpu.values.v
        # Rules name some variants as columns of their own: those of further parts stand beside what is absent at first.
        for (further, _), (plain, numbers) in sorted(groups.items(), key=lambda one: one[0]):
            at = parts.rows[numbers]
            if not further:
                values[plain.absent, at] = np.nan
            if plain.present.size:
                data = parts.flat[parts.starts[numbers] + plain.places[:, None]]
                values[plain.present, at] = np.where(np.isfinite(data), data, np.nan)

    def _store_variants(self, label: str, sheet: VariantSheet, mine: Bools, parts: Parts) -> None:
        """Those of the GPU rows `mine`, which `parts` are of."""
        columns, rows, places = list[Ints](), list[Ints](), list[Ints]()
        starts, lengths = list[int](), list[int]()
        for layout, row, start in zip(parts.layouts, parts.rows.tolist(), parts.starts.tolist(), strict=True):
            for part in layout.variants:
                if part.label == label:
                    columns.append(part.columns)
                    rows.append(sheet.rows_of(row, part.values))
                    places.append(part.places)
                    starts.append(start)
                    lengths.append(len(part.values))
        table = sheet.table
        sheet.settle()
        if not len(table):
            return
        before = np.flatnonzero(mine[sheet.parent.v])
        sheet.values.v[:, before] = np.nan
        table.arrived.v[before] = False
        if rows:
            touched = np.concatenate(rows)
            numbers = parts.flat[np.concatenate(places) + np.repeat(starts, lengths)]
            sheet.write(np.concatenate(columns), touched, numbers)
            touched = np.unique(touched)
            table.arrived.v[touched] = True
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
        self._leave(np.flatnonzero((heard > 0) & (self.now_ms - heard > self._ageing.forget_ms)))

    def leave(self, gpus: Iterable[str]) -> None:
        """Give back the rows of `gpus` at the end of the step."""
        rows = self.roster.table.rows
        self._leave(np.array([rows[uuid] for uuid in gpus if uuid in rows], dtype=np.int64))

    def _leave(self, rows: Ints) -> None:
        self.gpus.leave(rows)
        for sheet in self.variants.values():
            sheet.leave_with(rows)


def _static(key: str) -> bool:
    return METRICS[split_variant(key)[0]].static


def _inputs_of_aggregates(columns: MetricKeys) -> list[str]:
    """GPU metrics that the pool and fleet metrics in use are computed from, beside those that rules name."""
    inputs = _FLEET_INPUTS if columns.fleet else _POOL_INPUTS
    return [name for name in inputs if name not in columns.gpu] if columns.fleet or columns.pool else []
