"""The embedded store: an SQLite file, and a folder of Parquet segments beside it.

SQLite has the GPUs, events, findings and predictions, and the readings of the last hour or so as columns (`hot_codec`);
upkeep puts what is older into segments (`segments`), and what is old into windows of minutes (`rollup`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store.embedded import backup as embedded_backup
from tocsin.store.embedded import sqlite_rows as rows
from tocsin.store.embedded.backup import restore
from tocsin.store.embedded.chunks import Chunks
from tocsin.store.embedded.database import Database
from tocsin.store.embedded.gpus import Numbers, note_newest
from tocsin.store.embedded.hot_gather import Gatherer
from tocsin.store.embedded.migrate import bring_over
from tocsin.store.embedded.newest import Newest
from tocsin.store.embedded.read import Reader
from tocsin.store.embedded.segment_index import Segments
from tocsin.store.embedded.upkeep import EmbeddedUpkeep, remove_before
from tocsin.store.port import Columns, Series
from tocsin.store.upkeep import Retention, Upkeep

__all__ = ["SqliteStore", "restore"]

_FINDING = TypeAdapter(Finding)
_PREDICTION = TypeAdapter(Prediction)


class SqliteStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads.

    Several processes may have it open, read and write; one of them at a time looks after the files (`maintain`).
    """

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stale = False
        self._newest = Newest()
        self._database = Database(path, self._newest.settle, self._undone)
        self._numbers = Numbers()
        self._chunks = Chunks()
        self._gatherer = Gatherer()
        self._segments = Segments(self._database)
        self._reader = Reader(self._reading, self._chunks, self._segments, self._newest)
        self._keeper = EmbeddedUpkeep(self._database, self._chunks, self._segments)

    def init(self) -> None:
        if self._database.open(self._first):
            self._keeper.sweep_orphans()

    def _first(self, db: sqlite3.Connection) -> None:
        bring_over(db, self._chunks, self._gatherer)
        self._numbers.load(db)

    def _undone(self) -> None:
        """What a transaction that was undone said of GPUs and names is not in the file."""
        self._stale = True
        self._chunks.forget()
        self._newest.forget()

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
        if not readings:
            return
        block = self._gatherer.gather(readings, self._numbers.of(db, readings))
        self._newest.begin(db, block.gpu)
        self._chunks.insert(db, block)
        note_newest(db, block.gpu, block.at_ms)
        self._newest.note(db, block)

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
        query = f"SELECT {rows.GPU_COLUMNS} FROM gpu WHERE last_ms IS NOT NULL ORDER BY uuid"
        with self._reading() as db:
            return [rows.read_gpu(row) for row in db.execute(query)]

    def latest(self, since_ms: int) -> list[Reading]:
        return self._reader.latest(since_ms)

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        return self._reader.readings(start_ms, end_ms, gpus)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        return self._reader.series(gpu, metrics, start_ms, end_ms)

    def extremes(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> tuple[Series, Series]:
        """Lowest and highest values of plain `metrics`; where readings are kept as taken, both are the value."""
        return self._reader.extremes(gpu, metrics, start_ms, end_ms)

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        return self._reader.columns(metrics, start_ms, end_ms, gpus)

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        return self._reader.latest_columns(metrics, since_ms)

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        query = f"SELECT {rows.EVENT_COLUMNS} FROM event WHERE at_ms >= ? AND at_ms < ?"
        values: tuple[rows.Value, ...] = (start_ms, end_ms)
        if gpu is not None:
            query, values = f"{query} AND gpu = ?", (*values, gpu)
        with self._reading() as db:
            return [rows.read_event(row) for row in db.execute(f"{query} ORDER BY at_ms, id", values)]

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        query = "SELECT body FROM finding WHERE at_ms >= ? AND at_ms < ? ORDER BY at_ms, id"
        with self._reading() as db:
            return [_FINDING.validate_json(body) for (body,) in db.execute(query, (start_ms, end_ms))]

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        query = (
            "SELECT body FROM prediction WHERE at_ms >= ? AND at_ms < ? AND (?3 IS NULL OR gpu = ?3) ORDER BY at_ms, id"
        )
        with self._reading() as db:
            return [_PREDICTION.validate_json(body) for (body,) in db.execute(query, (start_ms, end_ms, gpu))]

    # ------------------------------------------------------------------ keeping

    def maintain(self, now_ms: int, retention: Retention) -> Upkeep:
        """Compact, join, roll up and remove what is due at `now_ms`; writers and readers go on meanwhile.

        Raises Conflict while another process does it, StoreUnavailable where files cannot be written; nothing that
        was kept is lost by that, and the next round goes on.
        """
        self.init()
        return self._keeper.run(now_ms, retention)

    def interrupt(self) -> None:
        """End the round of upkeep that is under way soon; what it had not finished is as it was."""
        self._keeper.interrupt()

    def damaged(self) -> list[tuple[str, str]]:
        """Name and problem of each segment that could not be read and was set aside."""
        self.init()
        return self._segments.damaged()

    def prune(self, before_ms: int) -> int:
        self.init()
        removed = self._keeper.cut(before_ms)
        with self._writing() as db:
            return removed + sum(remove_before(db, table, before_ms) for table in ("event", "finding", "prediction"))

    def backup(self, target: Path) -> None:
        """Copy the store to the new file `target` while it is in use. Raises InputError where `target` exists."""
        self.init()
        embedded_backup.backup(self._database, target)

    def close(self) -> None:
        self._database.close()
        self._newest.forget()
