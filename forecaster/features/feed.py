"""Feeding a builder from a store: the whole past at start, what is new at every turn, condensed to its columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import itemgetter
from typing import Protocol

import numpy as np

from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.event import Event
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Reading
from tocsin.forecaster.features.arrays import Floats
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.store.port import Columns

CHUNK_MS = 6 * HOUR
CHUNK_GPUS = 256
"""How much is read at once: so many GPUs over `CHUNK_MS`, more of them for less. At a reading every 10 s that is some
850 MB of columns."""


MOST_ROWS = 8_000
"""Rows that a live feed reads at once: 80 MB of columns, and a store needs some times that while it puts them
together. It is the brain's worker that reads so, beside all else."""
AT_ONCE = 1_000
"""Readings that are held at once: those of 10,000 GPUs are 100 MB."""
LEAST_INTERVAL_MS = 10 * SECOND
"""At which an agent reads unless it is told otherwise."""


def chunk_of(plan: FeaturePlan, gpus: int) -> int:
    """How much of a store with so many GPUs to read at once: whole steps, in milliseconds."""
    wanted = CHUNK_MS * CHUNK_GPUS // max(gpus, CHUNK_GPUS)
    return max(wanted // plan.step_ms, 1) * plan.step_ms


class ColumnSource(Protocol):
    """The part of a store that features need."""

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        """As `tocsin.store.port.Store.columns`."""

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        """As `tocsin.store.port.Store.events`."""


class StoreFeed:
    """Brings a builder up to the present, from `from_ms` on.

    Readings that arrive in the store after their instant has been passed are not seen; events are, for `grace_ms`.
    `latest` gives the newest readings since an instant, as a store does: from them come jobs and what only processes
    tell, which columns cannot be asked for.
    """

    def __init__(
        self,
        builder: FeatureBuilder,
        source: ColumnSource,
        from_ms: int,
        *,
        grace_ms: int = HOUR,
        latest: Callable[[int], Iterable[Reading]] | None = None,
    ) -> None:
        self._builder = builder
        self._source = source
        self._from_ms = from_ms
        self._grace_ms = grace_ms
        self._latest = latest
        self._condenser = Condenser(builder.plan)
        self.fed_ms = from_ms
        """Everything before this instant has been read."""

    def until(self, now_ms: int) -> None:
        """Read what is dated up to `now_ms`, that instant included. Raises what the store raises."""
        plan = self._builder.plan
        metrics = plan.metrics
        while self.fed_ms <= now_ms:
            end_ms = min(self.fed_ms + chunk_of(plan, len(self._builder.gpus)), now_ms + 1)
            events = self._source.events(max(self._from_ms, self.fed_ms - self._grace_ms), end_ms)
            newest = self._newest(now_ms) if end_ms > now_ms else None
            for first_ms, last_ms in pairwise(self._edges(end_ms)):
                columns = self._source.columns(metrics, first_ms, last_ms)
                if newest is not None:
                    _complete(columns, newest)
                self._builder.update(columns)
            self._builder.update(events=events)
            self.fed_ms = end_ms

    def _newest(self, now_ms: int) -> Columns | None:
        """The newest reading of each GPU up to `now_ms`, condensed; the builder learns of their jobs."""
        if self._latest is None:
            return None
        readings = (one for one in self._latest(self.fed_ms) if one.at_ms <= now_ms)
        jobs: dict[str, str] = {}
        parts = []
        while some := list(islice(readings, AT_ONCE)):
            jobs |= jobs_of(some)
            parts.append(self._condenser.columns(some))
        self._builder.assign(jobs)
        return _one_after_another(parts) if parts else None

    def _edges(self, end_ms: int) -> list[int]:
        """From `fed_ms` to `end_ms`, with instants between at which to read anew."""
        if len(self._builder.gpus) * (end_ms - self.fed_ms) <= MOST_ROWS * LEAST_INTERVAL_MS:
            return [self.fed_ms, end_ms]
        rows = self._source.columns((), self.fed_ms, end_ms).at_ms
        between = [edge for edge in np.unique(rows[MOST_ROWS::MOST_ROWS]).tolist() if edge > self.fed_ms]
        return [self.fed_ms, *between, end_ms] if rows.size else []


def _one_after_another(parts: Sequence[Columns]) -> Columns:
    """`parts` of different GPUs as one."""
    before = np.cumsum([0, *(len(part.gpus) for part in parts[:-1])], dtype=np.int32)
    return Columns(
        tuple(uuid for part in parts for uuid in part.gpus),
        parts[0].metrics,
        np.concatenate([part.gpu + first for part, first in zip(parts, before, strict=True)]),
        np.concatenate([part.at_ms for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _complete(columns: Columns, newest: Columns) -> None:
    """Fill what `columns` lacks from the rows of `newest` of the same GPU and instant; both have the same metrics."""
    keys = zip(newest.gpu.tolist(), newest.at_ms.tolist(), strict=True)
    found = {(newest.gpus[gpu], at_ms): row for row, (gpu, at_ms) in enumerate(keys)}
    for place in np.flatnonzero(np.isin(columns.at_ms, newest.at_ms)).tolist():
        row = found.get((columns.gpus[columns.gpu[place]], int(columns.at_ms[place])))
        if row is not None:
            lacking = np.isnan(columns.values[place])
            columns.values[place, lacking] = newest.values[row, lacking]


# From readings to the columns of a plan: what one process alone tells is put together for its GPU.

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a reading with certain keys becomes a row: columns `places` by `get`."""

    get: Callable[[Mapping[str, float]], tuple[float, ...]]
    places: tuple[int, ...]


class Condenser:
    """Makes `Columns` of readings, with `metrics` where they are given, else those of the plan. Of a metric that
    processes have each, the largest value stands for the GPU.

    Stores cannot be asked for such metrics without the number of each process, so they reach features this way only.
    """

    def __init__(self, plan: FeaturePlan, metrics: tuple[str, ...] | None = None) -> None:
        self._metrics = plan.metrics if metrics is None else metrics
        self._place = {name: place for place, name in enumerate(self._metrics)}
        by_process = [name for name in self._metrics if name in METRICS and METRICS[name].label == "pid"]
        self._of_process = tuple(f"{name}{{" for name in by_process)
        self._shapes: dict[tuple[str, ...], _Shape] = {}

    def columns(self, readings: Iterable[Reading]) -> Columns:
        """One row per reading, by instant, then UUID."""
        rows = sorted(readings, key=lambda reading: (reading.at_ms, reading.gpu.uuid))
        gpus = tuple(sorted({reading.gpu.uuid for reading in rows}))
        number = {uuid: place for place, uuid in enumerate(gpus)}
        return Columns(
            gpus,
            self._metrics,
            np.array([number[reading.gpu.uuid] for reading in rows], dtype=np.int32),
            np.array([reading.at_ms for reading in rows], dtype=np.int64),
            self._values(rows),
        )

    def _values(self, rows: Sequence[Reading]) -> Floats:
        values = np.full((len(rows), len(self._metrics)), np.nan)
        alike: dict[tuple[int, ...], tuple[list[int], list[tuple[float, ...]]]] = {}
        for row, reading in enumerate(rows):
            # Processes come and go: of 10,000 GPUs hardly two have the same, but most have all else in common.
            names = [name for name in reading.values if name.startswith(self._of_process)]
            shape = self._shape(tuple(name for name in reading.values if name not in names))
            members, taken = alike.setdefault(shape.places, ([], []))
            members.append(row)
            taken.append(shape.get(reading.values))
            for name in names:
                place = self._place[name.partition("{")[0]]
                values[row, place] = np.fmax(values[row, place], reading.values[name])
        for places, (members, taken) in alike.items():
            if places:
                values[np.ix_(members, places)] = taken
        return values

    def _shape(self, keys: tuple[str, ...]) -> _Shape:
        found = self._shapes.get(keys)
        if found is None:
            if len(self._shapes) >= _REMEMBERED:
                self._shapes.clear()
            found = self._shapes[keys] = self._new_shape(keys)
        return found

    def _new_shape(self, keys: Sequence[str]) -> _Shape:
        plain = [key for key in keys if key in self._place]
        return _Shape(_getter(plain), tuple(self._place[key] for key in plain))


def _getter(keys: Sequence[str]) -> Callable[[Mapping[str, float]], tuple[float, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda values: tuple(values[key] for key in keys)


def jobs_of(readings: Iterable[Reading]) -> dict[str, str]:
    """The job on each GPU, by UUID: a Slurm job, else a pod; none where only processes are known."""
    found = {}
    for reading in readings:
        for owner in reading.owners:
            if owner.slurm_job or owner.pod or owner.pod_uid:
                found[reading.gpu.uuid] = owner.label
                break
    return found
