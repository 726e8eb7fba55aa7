"""Reading the embedded store: chunks and segments put together to one row per GPU and instant."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Reading
from tocsin.store.embedded.chunks import Ask, Chunks
from tocsin.store.embedded.gpus import Roster, Rosters, flags, flags_of, known_gpus, newest
from tocsin.store.embedded.hot_block import Block, Flags, Floats, Index, Ints, empty, matrix, merge
from tocsin.store.embedded.hot_gather import readings_of
from tocsin.store.embedded.newest import Newest, revision
from tocsin.store.embedded.segment_index import Gone, Segments
from tocsin.store.port import Columns, Series, StoreUnavailable
from tocsin.store.rollup import HIGH, LOW, is_made

_TRIES = 3
_FRONT_MS = MINUTE
"""The newest readings of GPUs that are all read lie within this span; those of others are looked for one by one."""
_PAGE_ROWS = 250_000
"""About how many readings are put together at once while all of a long span are read."""
_MAX_CUTS = 60


class Reader:
    """Answers questions about readings. Safe to use from several threads."""

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[sqlite3.Connection]],
        chunks: Chunks,
        segments: Segments,
        newest_rows: Newest,
    ) -> None:
        self._reading = reading
        self._chunks = chunks
        self._segments = segments
        self._newest = newest_rows
        self._rosters = Rosters()

    # ------------------------------------------------------------------ rows

    def _rows(self, make: Callable[[sqlite3.Connection], Ask]) -> tuple[Block, Roster]:
        """The rows that `make` asks for, merged and by (GPU, instant), and the roster of that moment."""
        for attempt in range(_TRIES):
            with self._reading() as db:
                ask, roster = make(db), self._rosters.at(db)
                listed = self._segments.found(db, ask)
                hot = list(self._chunks.read(db, ask))
            try:
                cold = [self._segments.read(one, ask, last_try=attempt == _TRIES - 1) for one in listed]
            except Gone:
                continue
            parts = [block for block in (*cold, *hot) if block is not None and len(block)]
            return (merge(parts) if parts else empty(), roster)
        raise StoreUnavailable("segments are replaced faster than they are read")

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        """See `tocsin.store.port.Store`."""
        found, _ = self._rows(lambda db: _asked(metrics, start_ms, end_ms, flags(db, [gpu])))
        return Series(gpu, tuple(metrics), found.at_ms, matrix(found, metrics))

    def extremes(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> tuple[Series, Series]:
        """Lowest and highest values; of readings as they were taken both are the value."""
        names = [*metrics, *(name + end for name in metrics for end in (LOW, HIGH))]
        found, _ = self._rows(lambda db: _asked(names, start_ms, end_ms, flags(db, [gpu])))
        middle = matrix(found, metrics)
        ends = []
        for end, further in ((LOW, np.fmin), (HIGH, np.fmax)):
            values = further(matrix(found, [name + end for name in metrics]), middle)
            ends.append(Series(gpu, tuple(metrics), found.at_ms, values))
        return ends[0], ends[1]

    def columns(self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None) -> Columns:
        """See `tocsin.store.port.Store`."""
        found, roster = self._rows(
            lambda db: _asked(metrics, start_ms, end_ms, None if gpus is None else flags(db, gpus))
        )
        return _columns(found, roster, metrics)

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None) -> Iterator[Reading]:
        """See `tocsin.store.port.Store`."""
        for start, end in self._pages(start_ms, end_ms):
            found, roster = self._rows(
                lambda db, start=start, end=end: Ask(  # type: ignore[misc]
                    start, end, None if gpus is None else flags(db, gpus), whole=True, variants=True
                )
            )
            yield from self._made(found, np.lexsort((roster.rank[found.gpu], found.at_ms)))

    def _pages(self, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """[`start_ms`, `end_ms`) in parts that hold not too many readings each; spans without any are left out."""
        query = (
            "SELECT first_ms, last_ms, height FROM chunk WHERE bucket_ms > ?1 - 3600000 AND bucket_ms < ?2 "
            "UNION ALL SELECT first_ms, last_ms, height FROM segment WHERE retired_ms IS NULL AND problem IS NULL "
            "AND last_ms >= ?1 AND first_ms < ?2"
        )
        with self._reading() as db:
            parts = db.execute(query, (max(start_ms, -(2**62)), min(end_ms, 2**62))).fetchall()
        hours: dict[int, float] = {}
        for first, last, height in parts:
            low, high = max(first, start_ms) // HOUR, min(last, end_ms - 1) // HOUR
            for hour in range(low, high + 1):
                hours[hour] = hours.get(hour, 0.0) + height / (last // HOUR - first // HOUR + 1)
        pages: list[tuple[int, int]] = []
        for low, high in _parts(hours):
            low, high = max(low, start_ms), min(high, end_ms)
            if low < high:
                pages.append((low, high))
        return pages

    def _made(self, block: Block, order: Ints) -> Iterator[Reading]:
        if not len(block):
            return
        with self._reading() as db:
            known = known_gpus(db, np.unique(block.gpu).tolist())
        kept = [place for place, name in enumerate(block.names) if not is_made(name)]
        plain = replace(block, names=tuple(block.names[place] for place in kept), values=block.values[kept])
        yield from readings_of(plain.take(order), known)

    # ------------------------------------------------------------------ the newest of each GPU

    def latest(self, since_ms: int) -> list[Reading]:
        """See `tocsin.store.port.Store`."""
        with self._reading() as db:
            gpu, last = newest(db, since_ms)
            roster = self._rosters.at(db)
        found = self._looked_up(gpu, last, None, whole=True)
        return list(self._made(found, np.argsort(roster.rank[found.gpu], kind="stable")))

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        """See `tocsin.store.port.Store`: one row per GPU, by UUID."""
        with self._reading() as db:
            gpu, last = newest(db, since_ms)
            roster = self._rosters.at(db)
            seen = revision(db)
        order = np.argsort(roster.rank[gpu], kind="stable")
        gpu, last = gpu[order], last[order]
        known = self._newest.rows(seen, gpu, last, metrics)
        parts = [(gpu[known.held], known.at_ms, known.values)]
        if not known.held.all():
            found = self._looked_up(gpu[~known.held], last[~known.held], metrics, whole=False)
            order = np.argsort(roster.rank[found.gpu], kind="stable")
            parts.append((found.gpu[order], found.at_ms[order], matrix(found, metrics, order)))
        return _one_each(roster, metrics, parts)

    def _looked_up(self, gpu: Index, last: Ints, metrics: Sequence[str] | None, *, whole: bool) -> Block:
        """The newest readings of `gpu`, which were taken at `last`, from chunks and segments."""
        parts = [self._at(gpu[chosen], last[chosen], metrics, whole=whole) for chosen in _spans(last)]
        return merge(parts) if parts else empty()

    def _at(self, gpu: Index, last: Ints, metrics: Sequence[str] | None, *, whole: bool) -> Block:
        """The row of each GPU at the instant that was its newest; a newer one that came meanwhile may be later."""
        some = flags_of(gpu.tolist())
        by_number = np.zeros(len(some), np.int64)
        by_number[gpu] = last
        everyone = len(gpu) == int(some.sum()) == len(some) - 1
        ask = Ask(
            int(last.min()),
            int(last.max()) + 1,
            None if everyone else some,
            None if metrics is None else frozenset(metrics),
            whole=whole,
            variants=metrics is None or _beyond_columns(metrics),
            instants=np.unique(last),
        )
        found, _ = self._rows(lambda _: ask)
        inside = found.where(found.gpu < len(by_number))
        return inside.where(inside.at_ms == by_number[inside.gpu])


def _spans(last: Ints) -> Iterator[Ints]:
    """Places of instants that are looked for together: all of the newest minute, then hour by hour."""
    if not len(last):
        return
    front = int(last.max()) - _FRONT_MS
    yield np.flatnonzero(last >= front)
    rest = np.flatnonzero(last < front)
    hours = last[rest] // HOUR
    for hour in np.unique(hours)[::-1]:
        yield rest[hours == hour]


def _parts(hours: Mapping[int, float]) -> Iterator[tuple[int, int]]:
    """Spans over `hours`, which say how many readings each holds: hours that hold few together, others cut."""
    start: int | None = None
    end, rows = 0, 0.0
    for hour in sorted(hours):
        if start is not None and (rows + hours[hour] > _PAGE_ROWS):
            yield start * HOUR, end * HOUR
            start, rows = None, 0.0
        count = max(1, min(_MAX_CUTS, round(hours[hour] / _PAGE_ROWS)))
        if count > 1:
            edges = [hour * HOUR + HOUR * number // count for number in range(count + 1)]
            yield from pairwise(edges)
            continue
        start = hour if start is None else start
        end, rows = hour + 1, rows + hours[hour]
    if start is not None:
        yield start * HOUR, end * HOUR


def _asked(metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Flags | None) -> Ask:
    return Ask(start_ms, end_ms, gpus, frozenset(metrics), variants=_beyond_columns(metrics))


def _beyond_columns(metrics: Sequence[str]) -> bool:
    """Whether one of `metrics` may lie among the variants: what is in no table of metrics is kept there, too."""
    return any(name not in METRICS and not is_made(name) for name in metrics)


def _one_each(roster: Roster, metrics: Sequence[str], parts: Sequence[tuple[Index, Ints, Floats]]) -> Columns:
    """Columns of a row per GPU from parts that have GPUs, instants and values, each part sorted by UUID."""
    some = [part for part in parts if len(part[0])] or [parts[0]]
    gpu, at_ms, values = some[0]
    if len(some) > 1:
        order = np.argsort(roster.rank[np.concatenate([part[0] for part in some])], kind="stable")
        gpu, at_ms, values = (np.concatenate(arrays)[order] for arrays in zip(*some, strict=True))
    uuids = tuple(map(roster.uuids.__getitem__, gpu.tolist()))
    return Columns(uuids, tuple(metrics), np.arange(len(gpu), dtype=np.int32), at_ms, values)


def _columns(block: Block, roster: Roster, metrics: Sequence[str]) -> Columns:
    numbers = roster.sorted(block.gpu)
    place = np.zeros(int(block.gpu.max(initial=0)) + 1, np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    order = np.lexsort((place[block.gpu], block.at_ms))
    gpus = tuple(roster.uuids[number] for number in numbers.tolist())
    return Columns(gpus, tuple(metrics), place[block.gpu[order]], block.at_ms[order], matrix(block, metrics, order))
