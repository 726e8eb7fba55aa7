"""The embedded store: one SQLite file in WAL mode, one wide row per GPU and instant.

A write is on disk when it returns (``synchronous = FULL``). One connection writes; each reading thread has its own, and
other processes may read at the same time.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from pydantic import TypeAdapter

from tocsin.domain.batch import Batch
from tocsin.domain.errors import Conflict, InputError, TocsinError
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store import sqlite_rows as rows
from tocsin.store.identity import Known, attributes_of, is_bare
from tocsin.store.port import Series, StoreRejected, StoreUnavailable
from tocsin.store.sqlite_schema import MIGRATIONS, Columns, prepare

_FINDING = TypeAdapter(Finding)
_PREDICTION = TypeAdapter(Prediction)
_PAGE = 2_000
_PRUNE_ROWS = 5_000


class SqliteStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._sharing: IO[str] | None = None
        self._columns = Columns(())
        self._known: frozenset[str] = frozenset()
        self._ids: dict[str, tuple[int, Known]] = {}

    def init(self) -> None:
        with self._lock:
            if self._writer is None:
                self._writer = self._open()

    def _open(self) -> sqlite3.Connection:
        with ExitStack() as undo:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            sharing = undo.enter_context(_lock(self.path, fcntl.LOCK_SH))
            db = undo.enter_context(closing(self._connect()))
            self._columns = Columns.of(db)
            self._known = frozenset(self._columns.names)
            self._ids = _known_gpus(db)
            undo.pop_all()
        self._sharing = sharing
        return db

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.create_function("merge_missing", 2, rows.merge_missing, deterministic=True)
            db.create_function("merge_extra", 2, rows.merge_extra, deterministic=True)
            prepare(db, str(self.path))
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                "store.path", str(self.path), f"cannot be opened: {error}", "restore a backup or name another file"
            ) from None
        return db

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading; there are as many as there were readers at once, however many threads come by."""
        self.init()
        with self._lock:
            db = self._idle.pop() if self._idle else None
        if db is None:
            uri = f"{self.path.absolute().as_uri()}?mode=ro"
            db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            yield db
        finally:
            with self._lock:
                keep = self._writer is not None
                if keep:
                    self._idle.append(db)
            if not keep:
                db.close()

    # ------------------------------------------------------------------ writing

    def write(self, batch: Batch) -> None:
        self.init()
        with self._lock:
            db = self._writer
            if db is None:
                raise StoreUnavailable(f"store {self.path} is closed")
            try:
                db.execute("BEGIN IMMEDIATE")
                with db:
                    self._write_readings(db, batch.readings)
                    self._write_rest(db, batch)
            except (sqlite3.Error, OverflowError, ValueError) as error:
                # What a transaction that was undone said of GPUs is not in the file.
                self._ids = _known_gpus(db)
                raise _mapped(self.path, error) from None

    def _write_readings(self, db: sqlite3.Connection, readings: Sequence[Reading]) -> None:
        if not readings:
            return
        names, known = self._columns.names, self._known
        numbered = [(self._id_of(db, reading), reading) for reading in readings]
        db.executemany(self._columns.upsert, [rows.reading_row(number, r, names, known) for number, r in numbered])
        newest = [(reading.at_ms, number) for number, reading in numbered]
        db.executemany("UPDATE gpu SET last_ms = MAX(COALESCE(last_ms, ?1), ?1) WHERE id = ?2", newest)

    def _id_of(self, db: sqlite3.Connection, reading: Reading) -> int:
        gpu = reading.gpu
        found = self._ids.get(gpu.uuid)
        if found is not None:
            number, known = found
            before = known.gpu
            if not known.learn(gpu, reading.at_ms) or before is gpu or attributes_of(before) == attributes_of(gpu):
                return number
        marks = ", ".join("?" * len(rows.GPU_COLUMNS.split(",")))
        update = ", ".join(f"{name} = excluded.{name}" for name in rows.GPU_COLUMNS.replace(" ", "").split(",")[1:])
        row = db.execute(
            f"INSERT INTO gpu ({rows.GPU_COLUMNS}) VALUES ({marks}) "
            f"ON CONFLICT (uuid) DO UPDATE SET {update} RETURNING id",
            tuple(rows.gpu_row(gpu)),
        ).fetchone()
        if found is None:
            known = Known(gpu)
            known.learn(gpu, reading.at_ms)
            self._ids[gpu.uuid] = (int(row[0]), known)
        return int(row[0])

    def _write_rest(self, db: sqlite3.Connection, batch: Batch) -> None:
        marks = ", ".join("?" * len(rows.EVENT_COLUMNS.split(",")))
        db.executemany(
            f"INSERT OR REPLACE INTO event ({rows.EVENT_COLUMNS}) VALUES ({marks})", map(rows.event_row, batch.events)
        )
        findings = [(f.id, f.last_ms, _FINDING.dump_json(f).decode()) for f in batch.findings]
        db.executemany("INSERT OR REPLACE INTO finding VALUES (?, ?, ?)", findings)
        predictions = [(p.id, p.at_ms, p.subject.name, _PREDICTION.dump_json(p).decode()) for p in batch.predictions]
        db.executemany("INSERT OR REPLACE INTO prediction VALUES (?, ?, ?, ?)", predictions)

    # ------------------------------------------------------------------ reading

    def gpus(self) -> list[Gpu]:
        some = "EXISTS (SELECT 1 FROM reading WHERE reading.gpu = gpu.id)"
        query = f"SELECT {rows.GPU_COLUMNS} FROM gpu WHERE {some} ORDER BY uuid"
        with self._reader() as db:
            return [rows.read_gpu(row) for row in db.execute(query)]

    def latest(self, since_ms: int) -> list[Reading]:
        where = "gpu.last_ms >= ? AND reading.at_ms = gpu.last_ms"
        return list(self._select(f"{where} ORDER BY gpu.uuid", (since_ms,)))

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        where = "reading.at_ms >= ? AND reading.at_ms < ?"
        values: tuple[rows.Value, ...] = (start_ms, end_ms)
        if gpus is not None:
            where += " AND gpu.uuid IN (SELECT value FROM json_each(?))"
            values += (json.dumps(sorted(gpus)),)
        yield from self._select(f"{where} ORDER BY reading.at_ms, gpu.uuid", values)

    def _select(self, where: str, values: tuple[rows.Value, ...]) -> Iterator[Reading]:
        gpu_columns = ", ".join(f"gpu.{name.strip()}" for name in rows.GPU_COLUMNS.split(","))
        width = len(rows.GPU_COLUMNS.split(","))
        known: dict[str, Gpu] = {}
        with self._reader() as db:
            columns = self._columns
            query = (
                f"SELECT {gpu_columns}, at_ms, missing, extra, {columns.quoted} "
                f"FROM reading JOIN gpu ON gpu.id = reading.gpu WHERE {where}"
            )
            with closing(db.execute(query, values)) as cursor:
                while page := cursor.fetchmany(_PAGE):
                    for row in page:
                        gpu = known.get(row[0]) or known.setdefault(row[0], rows.read_gpu(row[:width]))
                        yield rows.read_reading(gpu, row[width:], columns.names)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        self.init()
        known = set(self._columns.names)
        chosen = ", ".join(f'"{name}"' if name in known else "NULL" for name in metrics)
        variants = [(i, name) for i, name in enumerate(metrics) if name not in known]
        query = (
            f"SELECT at_ms, {'extra' if variants else 'NULL'}{', ' if metrics else ''}{chosen} FROM reading "
            "WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?) AND at_ms >= ? AND at_ms < ? ORDER BY at_ms"
        )
        with self._reader() as db:
            found = db.execute(query, (gpu, start_ms, end_ms)).fetchall()
        at_ms = np.array([row[0] for row in found], dtype=np.int64)
        values = np.full((len(found), len(metrics)), np.nan)
        if found and metrics:
            values[:] = np.array([row[2:] for row in found], dtype=np.float64)
        for number, row in enumerate(found):
            extra = json.loads(row[1])[0] if row[1] else {}
            for column, name in variants:
                values[number, column] = extra.get(name, np.nan)
        return Series(gpu, tuple(metrics), at_ms, values)

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        query = f"SELECT {rows.EVENT_COLUMNS} FROM event WHERE at_ms >= ? AND at_ms < ?"
        values: tuple[rows.Value, ...] = (start_ms, end_ms)
        if gpu is not None:
            query, values = f"{query} AND gpu = ?", (*values, gpu)
        with self._reader() as db:
            return [rows.read_event(row) for row in db.execute(f"{query} ORDER BY at_ms, id", values)]

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        query = "SELECT body FROM finding WHERE at_ms >= ? AND at_ms < ? ORDER BY at_ms, id"
        with self._reader() as db:
            return [_FINDING.validate_json(body) for (body,) in db.execute(query, (start_ms, end_ms))]

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        query = (
            "SELECT body FROM prediction WHERE at_ms >= ? AND at_ms < ? AND (?3 IS NULL OR gpu = ?3) ORDER BY at_ms, id"
        )
        with self._reader() as db:
            return [_PREDICTION.validate_json(body) for (body,) in db.execute(query, (start_ms, end_ms, gpu))]

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:
        self.init()
        removed = 0
        for table in ("reading", "event", "finding", "prediction"):
            while gone := self._prune_slice(table, before_ms):
                removed += gone
        return removed

    def _prune_slice(self, table: str, before_ms: int) -> int:
        """Remove some old rows: writers get their turn between two slices."""
        query = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE at_ms < ? LIMIT {_PRUNE_ROWS})"
        with self._lock:
            if self._writer is None:
                raise StoreUnavailable(f"store {self.path} is closed")
            try:
                return self._writer.execute(query, (before_ms,)).rowcount
            except sqlite3.Error as error:
                raise _mapped(self.path, error) from None

    def backup(self, target: Path) -> None:
        """Copy the store to the new file `target` while it is in use. Raises InputError where `target` exists."""
        if target.exists():
            raise InputError("target", str(target), "exists", "name a new file")
        with closing(sqlite3.connect(target)) as copy, self._reader() as db:
            db.backup(copy)

    def close(self) -> None:
        with self._lock:
            for db in (self._writer, *self._idle):
                if db is not None:
                    db.close()
            self._writer, self._idle = None, []
            if self._sharing is not None:
                self._sharing.close()
                self._sharing = None


def _lock(path: Path, kind: int) -> IO[str]:
    """Who uses the store shares its lock; who replaces it must be alone. Raises Conflict where that cannot be had."""
    handle = path.with_name(path.name + ".lock").open("a", encoding="ascii")
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise Conflict(f"store {path} is in use; stop what uses it first") from None
    return handle


def _mapped(path: Path, error: Exception) -> TocsinError:
    """What a failed write means: a full or busy file may take it later, a value that does not fit never."""
    kind = StoreUnavailable if isinstance(error, sqlite3.OperationalError) else StoreRejected
    return kind(f"store {path}: {error}")


def _known_gpus(db: sqlite3.Connection) -> dict[str, tuple[int, Known]]:
    """Row number and attributes of every GPU in the file, by UUID."""
    found = {}
    for row in db.execute(f"SELECT id, last_ms, {rows.GPU_COLUMNS} FROM gpu"):
        gpu = rows.read_gpu(row[2:])
        # Who told the attributes is not kept: the newest reading is the latest that it can have been.
        found[gpu.uuid] = (int(row[0]), Known(gpu, None if is_bare(gpu) else row[1]))
    return found


def restore(source: Path, target: Path) -> None:
    """Put the backup `source` in place of the store `target`, which must not be in use.

    Raises InputError where `source` is no whole store of this or an older version, Conflict where `target` is in use.
    """
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as db:
            whole = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if not whole or not 0 < version <= len(MIGRATIONS):
                raise InputError("source", str(source), "is no whole store of this version", "use another backup")
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(target.name + ".restored")
            fresh.unlink(missing_ok=True)
            with closing(sqlite3.connect(fresh)) as copy:
                db.backup(copy)
    except sqlite3.DatabaseError as error:
        raise InputError("source", str(source), f"cannot be read: {error}", "use another backup") from None
    with _lock(target, fcntl.LOCK_EX):
        for suffix in ("-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        fresh.replace(target)
