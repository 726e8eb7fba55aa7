"""The embedded store: an SQLite file, and a folder of Parquet segments beside it.

SQLite has the GPUs, events, findings and predictions, and the readings of the last hour or so as columns (`chunks`);
upkeep puts what is older into segments (`segments`), and what is old into windows of minutes (`rollup`). Reading puts
chunks and segments together to one row per GPU and instant.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Finding, Severity
from tocsin.domain.metrics import METRICS
from tocsin.domain.number_row import Names, parts_of
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store import points
from tocsin.store.embedded import backup as embedded_backup
from tocsin.store.embedded import gpus as rows
from tocsin.store.embedded.blocks import NO_EXTRA, Block, Extra, Flags, Floats, Ints, empty, held, matrix, merge
from tocsin.store.embedded.chunks import Ask, Chunks, set_aside
from tocsin.store.embedded.database import Database
from tocsin.store.embedded.gpus import Numbers, Roster, Rosters, flags, flags_of, known_gpus, newest, note_newest
from tocsin.store.embedded.made_readings import readings_of
from tocsin.store.embedded.migrate import bring_over
from tocsin.store.embedded.notes import Index, Notes, owners_text, reasons_text
from tocsin.store.embedded.rollup import HIGH, LOW, is_made
from tocsin.store.embedded.salvage import mend, remember
from tocsin.store.embedded.segment_index import Gone, Segments
from tocsin.store.embedded.sums import ROWS, DamagedRow, checked, row_sum
from tocsin.store.embedded.upkeep import EmbeddedUpkeep, remove_before
from tocsin.store.port import Columns, Series, StoreUnavailable
from tocsin.store.upkeep import Retention, Upkeep

_MAX_LAYOUTS = 16_384
"""Sets of names of one generation: 10,000 GPUs with a process each have one of their own, and jobs come and go."""
_MAX_WIDTH = 3_000_000
"""Names of all sets of one generation: 10,000 GPUs that send text have 200 each."""
_MAX_NAMES = 100_000
"""Names of variants that are numbered, and sets of reasons that are remembered."""

Places = npt.NDArray[np.intp]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _ColumnLayout:
    """Where the values of one sequence of names go: those at `plain` to the columns `columns`, the rest to variants."""

    plain: Places
    columns: Places
    special: Places
    variants: Places


@dataclass(frozen=True)
class _Flat:
    """What readings hold, in parts with the names of each: the reading that each part is of, its layout, and the
    numbers of all after each other."""

    rows: Places
    layouts: Sequence[_ColumnLayout]
    flat: Floats

    @cached_property
    def starts(self) -> Places:
        """Where in `flat` each part begins."""
        widths = np.array([len(one.plain) + len(one.special) for one in self.layouts], dtype=np.intp)
        found: Places = np.cumsum(widths) - widths
        return found


class Gatherer:
    """Turns readings into a `Block`; remembers how each set of names that came is laid out. Not for several threads.

    Two generations of them: what is not met while one fills is forgotten.
    """

    def __init__(self) -> None:
        self._layouts: dict[Names | tuple[str, ...], _ColumnLayout] = {}
        self._older: dict[Names | tuple[str, ...], _ColumnLayout] = {}
        self._width = 0
        self._places: dict[bytes, Places] = {}
        self._columns = {name: number for number, name in enumerate(METRICS)}
        self._variants: dict[str, int] = {}
        self._names: list[str] = []
        self._texts: dict[tuple[tuple[str, Missing], ...], str] = {}

    def gather(self, readings: Sequence[Reading], gpu: Index) -> Block:
        """The block of `readings`, whose GPUs have the numbers `gpu`, int32[n].

        Raises ValueError, TypeError or OverflowError for a value that is no number and an instant beyond int64.
        """
        self._forget()
        height = len(readings)
        at_ms = np.fromiter((reading.at_ms for reading in readings), np.int64, height)
        found = [(row, *part) for row, reading in enumerate(readings) for part in parts_of(reading.values)]
        parts = _Flat(
            np.array([row for row, _, _ in found], np.intp),
            [self._layout(keys) for _, keys, _ in found],
            np.frombuffer(b"".join(numbers for _, _, numbers in found), np.float64),
        )
        names, values = self._plain(parts, height)
        extra = self._extra(parts)
        return Block(gpu, at_ms, names, values, self._reasons(readings), _owners(readings), extra)

    def _forget(self) -> None:
        if max(len(self._variants), len(self._texts)) > _MAX_NAMES:
            self._layouts, self._older, self._places = {}, {}, {}
            self._variants, self._names, self._texts = {}, [], {}

    def _layout(self, key: Names | tuple[str, ...]) -> _ColumnLayout:
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._older.pop(key, None) or self._new_layout(key.keys if isinstance(key, Names) else key)
            self._width += len(layout.plain) + len(layout.special)
            if self._width > _MAX_WIDTH or len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts, self._older, self._places, self._width = {}, self._layouts, {}, 0
            self._layouts[key] = layout
        return layout

    def _new_layout(self, names: tuple[str, ...]) -> _ColumnLayout:
        known, variants = self._columns, self._variants
        plain = [place for place, name in enumerate(names) if name in known]
        special = [place for place, name in enumerate(names) if name not in known]
        for place in special:
            if names[place] not in variants:
                variants[names[place]] = len(variants)
                self._names.append(names[place])
        return _ColumnLayout(
            self._shared(plain),
            self._shared([known[names[place]] for place in plain]),
            self._shared(special),
            np.array([variants[names[place]] for place in special], dtype=np.intp),
        )

    def _shared(self, numbers: Sequence[int]) -> Places:
        """`numbers` as the one array of them: sets of names that differ in a process have their places in common."""
        places = np.array(numbers, dtype=np.intp)
        return self._places.setdefault(places.tobytes(), places)

    def _plain(self, parts: _Flat, height: int) -> tuple[tuple[str, ...], Floats]:
        table, layouts = tuple(self._columns), parts.layouts
        if len(layouts) == height > 0 and not len(layouts[0].special) and all(one is layouts[0] for one in layouts):
            # One set of names, so that the values lie as a matrix already.
            wide = parts.flat.reshape(height, -1)
            return tuple(table[column] for column in layouts[0].columns), np.ascontiguousarray(wide.T)
        # Those of one kind of GPU have their names in the same places, whatever they have of their own.
        alike: dict[tuple[int, int], tuple[_ColumnLayout, list[int]]] = {}
        for part, layout in enumerate(layouts):
            if layout.columns.size:
                alike.setdefault((id(layout.plain), id(layout.columns)), (layout, []))[1].append(part)
        here = np.zeros(len(table), dtype=np.bool_)
        for layout, _ in alike.values():
            here[layout.columns] = True
        used, place = np.flatnonzero(here), np.cumsum(here) - 1
        values = np.full((len(used), height), np.nan)
        for layout, members in alike.values():
            found = parts.flat[layout.plain[:, None] + parts.starts[members]]
            values[place[layout.columns][:, None], parts.rows[members]] = found
        return tuple(table[column] for column in used), values

    def _extra(self, parts: _Flat) -> Extra:
        layouts = parts.layouts
        if not any(len(layout.special) for layout in layouts):
            return NO_EXTRA
        of = np.repeat(np.arange(len(layouts)), [len(layout.special) for layout in layouts])
        value = parts.flat[parts.starts[of] + _joined([layout.special for layout in layouts])]
        used, local = np.unique(_joined([layout.variants for layout in layouts]), return_inverse=True)
        rows = parts.rows[of].astype(np.int32)
        there = ~np.isnan(value)
        return Extra(
            rows[there], local[there].astype(np.int32), value[there], tuple(self._names[number] for number in used)
        )

    def _reasons(self, readings: Sequence[Reading]) -> Notes:
        texts: dict[str, int] = {}
        # Readings of one kind of GPU may have their reasons in common, as one object.
        known: dict[int, int] = {}
        of = np.full(len(readings), -1, np.int32)
        for row, reading in enumerate(readings):
            if not reading.missing:
                continue
            number = known.get(id(reading.missing))
            if number is None:
                text = self._text(tuple(reading.missing.items()))
                number = known[id(reading.missing)] = texts.setdefault(text, len(texts))
            of[row] = number
        return Notes(of, tuple(texts))

    def _text(self, reasons: tuple[tuple[str, Missing], ...]) -> str:
        text = self._texts.get(reasons)
        if text is None:
            text = self._texts[reasons] = reasons_text(reasons)
        return text


def _joined(parts: Sequence[Places]) -> Places:
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


def _owners(readings: Sequence[Reading]) -> Notes:
    texts: dict[tuple[Owner, ...], int] = {}
    of = np.full(len(readings), -1, np.int32)
    for row, reading in enumerate(readings):
        if reading.owners:
            of[row] = texts.setdefault(reading.owners, len(texts))
    return Notes(of, tuple(owners_text(owners) for owners in texts))


_FINDING = TypeAdapter(Finding)
_PREDICTION = TypeAdapter(Prediction)
_EVENT_COLUMNS = f"{ROWS['event']}, sum"

_TRIES = 3
_FRONT_MS = MINUTE
"""The newest readings of GPUs that are all read lie within this span; those of others are looked for hour by hour."""
_PAGE_ROWS = 20_000
"""About how many readings are put together at once while all of a long span are read: 1.5 KB each, some times over."""
_MAX_CUTS = 240


class SqliteStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads.

    Several processes may have it open, read and write; one of them at a time looks after the files (`maintain`).
    """

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stale = False
        self._database = Database(path, self._undone, mend, remember)
        self._numbers = Numbers()
        self._rosters = Rosters()
        self._chunks = Chunks()
        self._gatherer = Gatherer()
        self._segments = Segments(self._database)
        self._upkeep = EmbeddedUpkeep(self._database, self._chunks, self._segments)

    def init(self) -> None:
        self._database.open(self._first)

    def _first(self, db: sqlite3.Connection) -> None:
        bring_over(db, self._chunks, self._gatherer.gather)
        self._numbers.load(db)

    def _undone(self) -> None:
        """What a transaction that was undone said of GPUs and names is not in the file."""
        self._stale = True
        self._chunks.forget()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self.init()
        with self._database.reading() as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self.init()
        with self._database.writing() as db:
            if self._stale:
                self._numbers.load(db)
                self._stale = False
            yield db

    # ------------------------------------------------------------------ writing

    def write(self, batch: Batch) -> None:
        with self._writing() as db:
            self._write_readings(db, batch.readings)
            self._write_rest(db, batch)

    def _write_readings(self, db: sqlite3.Connection, readings: Sequence[Reading]) -> None:
        if readings:
            block = self._gatherer.gather(readings, self._numbers.of(db, readings))
            self._chunks.insert(db, block)
            note_newest(db, block.gpu, block.at_ms)

    def _write_rest(self, db: sqlite3.Connection, batch: Batch) -> None:
        marks = ", ".join("?" * len(_EVENT_COLUMNS.split(",")))
        db.executemany(
            f"INSERT OR REPLACE INTO event ({_EVENT_COLUMNS}) VALUES ({marks})", map(_event_row, batch.events)
        )
        findings = [(f.id, f.last_ms, _FINDING.dump_json(f).decode()) for f in batch.findings]
        _replace(db, "finding", findings)
        predictions = [(p.id, p.at_ms, p.subject.name, _PREDICTION.dump_json(p).decode()) for p in batch.predictions]
        _replace(db, "prediction", predictions)

    # ------------------------------------------------------------------ readings

    def _rows(self, make: Callable[[sqlite3.Connection], Sequence[Ask]]) -> tuple[Block, Roster]:
        """The rows that `make` asks for, merged and by (GPU, instant), and the roster of that moment.

        One transaction sees which chunks and segments count, so that nothing is seen twice or not at all while upkeep
        moves it. Segments are read after it: if one was removed meanwhile, all of it is asked again.
        """
        for attempt in range(_TRIES):
            with self._reading() as db:
                asks, roster = make(db), self._rosters.at(db)
                listed = [(segment, ask) for ask in asks for segment in self._segments.found(db, ask)]
                hot = [block for ask in asks for block in self._chunks.read(db, ask)]
            try:
                cold = [self._segments.read(one, ask, last_try=attempt == _TRIES - 1) for one, ask in listed]
            except Gone:
                continue
            self._set_aside()
            parts = [block for block in (*cold, *hot) if block is not None and len(block)]
            found = merge(parts) if parts else empty()
            return found if roster.lost is None else found.where(~held(roster.lost, found.gpu)), roster
        raise StoreUnavailable("segments are replaced faster than they are read")

    def _set_aside(self, table: str = "", numbers: Mapping[int, str] | None = None) -> None:
        """Take rows that were found damaged out of the way, so that they are counted, and not read again."""
        if self._chunks.damaged or numbers:
            with self._writing() as db:
                self._chunks.set_aside(db)
                for number, problem in (numbers or {}).items():
                    set_aside(db, table, number, problem)

    def _sound(self, table: str, rows: Iterable[Sequence[Any]], read: Callable[[Sequence[Any]], _T]) -> list[_T]:
        """What `read` makes of rows with their number, columns of `ROWS` and sum; without those that are damaged."""
        found, bad = [], dict[int, str]()
        for number, *values, kept in rows:
            try:
                checked(table, kept, values)
                found.append(points.sound(read(values)))
            except (ValueError, TypeError, DamagedRow) as error:
                bad[number] = str(error)
        self._set_aside(table, bad)
        return found

    def gpus(self) -> list[Gpu]:
        query = f"SELECT {rows.GPU_COLUMNS} FROM gpu WHERE last_ms IS NOT NULL ORDER BY uuid"
        with self._reading() as db:
            return [rows.read_gpu(row) for row in db.execute(query)]

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        found, _ = self._rows(lambda db: [_asked(metrics, start_ms, end_ms, flags(db, [gpu]))])
        return Series(gpu, tuple(metrics), found.at_ms, matrix(found, metrics))

    def extremes(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> tuple[Series, Series]:
        """Lowest and highest values of plain `metrics`; where readings are kept as taken, both are the value."""
        names = [*metrics, *(name + end for name in metrics for end in (LOW, HIGH))]
        found, _ = self._rows(lambda db: [_asked(names, start_ms, end_ms, flags(db, [gpu]))])
        middle = matrix(found, metrics)
        ends = []
        for end, further in ((LOW, np.fmin), (HIGH, np.fmax)):
            values = further(matrix(found, [name + end for name in metrics]), middle)
            ends.append(Series(gpu, tuple(metrics), found.at_ms, values))
        return ends[0], ends[1]

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        found, roster = self._rows(
            lambda db: [_asked(metrics, start_ms, end_ms, None if gpus is None else flags(db, gpus))]
        )
        return _columns(found, roster, metrics)

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        for start, end in self._pages(start_ms, end_ms):

            def all_of_it(db: sqlite3.Connection, start: int = start, end: int = end) -> list[Ask]:
                chosen = None if gpus is None else flags(db, gpus)
                return [Ask(start, end, chosen, whole=True, variants=True)]

            found, roster = self._rows(all_of_it)
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
        kept = [place for place, name in enumerate(block.names) if not is_made(name)]
        plain = replace(block, names=tuple(block.names[place] for place in kept), values=block.values[kept])
        with self._reading() as db:
            known = known_gpus(db, np.unique(block.gpu).tolist())
        yield from readings_of(plain.take(order), known)

    # ------------------------------------------------------------------ the newest of each GPU

    def latest(self, since_ms: int) -> Iterator[Reading]:
        found, roster = self._newest(since_ms, None)
        return self._made(found, np.argsort(roster.rank[found.gpu], kind="stable"))

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        found, roster = self._newest(since_ms, metrics)
        order = np.argsort(roster.rank[found.gpu], kind="stable")
        uuids = tuple(map(roster.uuids.__getitem__, found.gpu[order].tolist()))
        number = np.arange(len(order), dtype=np.int32)
        return Columns(uuids, tuple(metrics), number, found.at_ms[order], matrix(found, metrics, order))

    def _newest(self, since_ms: int, metrics: Sequence[str] | None) -> tuple[Block, Roster]:
        """The newest row of each GPU at or after `since_ms`, whole where `metrics` is None, and the roster."""
        last = np.zeros(0, np.int64)

        def asks(db: sqlite3.Connection) -> list[Ask]:
            nonlocal last
            gpu, at_ms = newest(db, since_ms)
            last = np.full(int(gpu.max(initial=0)) + 1, -(2**63))
            last[gpu] = at_ms
            return [_at(gpu[some], at_ms[some], metrics, len(last) - 1) for some in _spans(at_ms)]

        found, roster = self._rows(asks)
        # A reading that came after its hour was rolled up may be newer than the file has on record of its GPU.
        inside = found.gpu < len(last)
        return found.where(inside & (found.at_ms == np.take(last, found.gpu, mode="clip"))), roster

    # ------------------------------------------------------------------ events, findings, predictions

    def _between(self, table: str, start_ms: int, end_ms: int, gpu: str | None = None) -> list[tuple[Any, ...]]:
        query = f"SELECT rowid, {ROWS[table]}, sum FROM {table} WHERE at_ms >= ?1 AND at_ms < ?2"
        query += " AND (?3 IS NULL OR gpu = ?3)" if table != "finding" else " AND ?3 IS NULL"
        with self._reading() as db:
            return db.execute(f"{query} ORDER BY at_ms, id", (start_ms, end_ms, gpu)).fetchall()

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        return self._sound("event", self._between("event", start_ms, end_ms, gpu), _read_event)

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        rows = self._between("finding", start_ms, end_ms)
        return self._sound("finding", rows, lambda row: _FINDING.validate_json(row[-1]))

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        rows = self._between("prediction", start_ms, end_ms, gpu)
        return self._sound("prediction", rows, lambda row: _PREDICTION.validate_json(row[-1]))

    # ------------------------------------------------------------------ files

    def maintain(self, now_ms: int, retention: Retention) -> Upkeep:
        """Compact, join, roll up and remove what is due at `now_ms`; writers and readers go on meanwhile.

        Raises Conflict while another process does it, StoreUnavailable where files cannot be written; nothing that
        was kept is lost by that, and the next round goes on.
        """
        self.init()
        return self._upkeep.run(now_ms, retention)

    def reseal(self) -> int:
        """Write segments anew that are not encrypted as this process would; the store must not be in use elsewhere."""
        self.init()
        return self._upkeep.reseal()

    def interrupt(self) -> None:
        """End the round of upkeep that is under way soon; what it had not finished is as it was."""
        self._upkeep.interrupt()

    def damaged_rows(self) -> int:
        """How many rows were found damaged since the file was made: readings, events, findings and others."""
        with self._reading() as db:
            return int(db.execute("SELECT COALESCE(SUM(rows), 0) FROM damaged").fetchone()[0])

    def damaged(self) -> list[tuple[str, str]]:
        """Name and problem of each segment that could not be read and was set aside."""
        self.init()
        return self._segments.damaged()

    def prune(self, before_ms: int) -> int:
        self.init()
        removed = self._upkeep.cut(before_ms)
        with self._writing() as db:
            return removed + sum(remove_before(db, table, before_ms) for table in ("event", "finding", "prediction"))

    def backup(self, target: Path) -> None:
        """Copy the store to the new file `target` while it is in use. Raises InputError where `target` exists."""
        self.init()
        embedded_backup.backup(self._database, target)

    def close(self) -> None:
        self._database.close()


def _event_row(event: Event) -> tuple[int | str, ...]:
    """A row of `_EVENT_COLUMNS`."""
    what = (event.at_ms, event.code, event.message, event.source, int(event.simulated))
    weight = (event.severity.value if event.severity is not None else "", event.remedy)
    row = (event.id, event.kind.value, event.gpu, event.host, *what, *weight)
    return (*row, row_sum(row))


def _replace(db: sqlite3.Connection, table: str, rows: Sequence[tuple[int | str, ...]]) -> None:
    """Keep rows of `ROWS`, each in place of an earlier one of its name."""
    marks = ", ".join("?" * (len(ROWS[table].split(",")) + 1))
    query = f"INSERT OR REPLACE INTO {table} ({ROWS[table]}, sum) VALUES ({marks})"
    db.executemany(query, [(*row, row_sum(row)) for row in rows])


def _read_event(row: Sequence[object]) -> Event:
    """The event of a row of ``event`` in `ROWS`."""
    _, kind, gpu, host, at_ms, code, message, source, simulated, severity, remedy = row
    return Event(
        kind=EventKind(str(kind)),
        gpu=str(gpu),
        host=str(host),
        at_ms=int(str(at_ms)),
        code=int(str(code)),
        message=str(message),
        source=str(source),
        simulated=bool(simulated),
        severity=Severity(str(severity)) if severity else None,
        remedy=str(remedy),
    )


def _at(gpu: Index, last: Ints, metrics: Sequence[str] | None, count: int) -> Ask:
    """Asks for the rows at the newest instants `last` of some of the `count` GPUs; others may come with them."""
    return Ask(
        int(last.min()),
        int(last.max()) + 1,
        None if len(gpu) == count else flags_of(gpu.tolist()),
        None if metrics is None else frozenset(metrics),
        whole=metrics is None,
        variants=metrics is None or _beyond_columns(metrics),
        instants=np.unique(last),
    )


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


def _columns(block: Block, roster: Roster, metrics: Sequence[str]) -> Columns:
    numbers = roster.sorted(block.gpu)
    place = np.zeros(int(block.gpu.max(initial=0)) + 1, np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    order = np.lexsort((place[block.gpu], block.at_ms))
    gpus = tuple(roster.uuids[number] for number in numbers.tolist())
    return Columns(gpus, tuple(metrics), place[block.gpu[order]], block.at_ms[order], matrix(block, metrics, order))
