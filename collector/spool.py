"""A durable, bounded queue between reading and pushing: what was put survives kill -9 until it is acknowledged.

One SQLite file in WAL mode with ``synchronous = FULL``: a batch is on disk when `put` returns. The bound counts the
compressed batches; the file itself may be somewhat larger, and the log beside it up to some megabytes.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import logger

_log = logger("spool")

SCHEMA = 1
MAX_PARKED_LINES = 10_000
"""Refused lines are kept for a look, not for ever: beyond this the oldest go."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS parked (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest TEXT NOT NULL UNIQUE,
    at_ms INTEGER NOT NULL,
    line TEXT NOT NULL,
    problem TEXT NOT NULL
);
PRAGMA user_version = {SCHEMA};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class Spooled:
    """One batch that waits: line protocol `text` of `readings` readings, empty where it can no longer be unpacked."""

    id: int
    text: str
    readings: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the bound cost: the oldest batches, and the readings in them."""

    batches: int
    readings: int


@dataclass(frozen=True, slots=True)
class Parked:
    """One line that the receiver refused, and why."""

    at_ms: int
    line: str
    problem: str


class Spool:
    """The queue. Safe to use from several threads.

    A file that is no spool, or is damaged, is moved aside and a fresh one is begun: a broken disk block must not stop
    the agent from reading. Raises InputError where the file cannot be opened or written, or comes from a newer version.
    """

    def __init__(self, path: Path, max_bytes: int, clock: Clock) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._db = self._open()
        count, size = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM batch").fetchone()
        self._batches, self._bytes = int(count), int(size)

    @property
    def batches(self) -> int:
        """Batches that wait."""
        return self._batches

    @property
    def size(self) -> int:
        """Their size in bytes, compressed."""
        return self._bytes

    def put(self, text: str, readings: int) -> Dropped:
        """Append a batch, durable on return; the oldest batches go where the bound is passed.

        Raises sqlite3.Error where the disk does not take it (full, read-only); the queue is then as before.
        """
        body = zlib.compress(text.encode(), 1)
        with self._lock:
            with self._db:
                self._db.execute(
                    "INSERT INTO batch (at_ms, readings, size, body) VALUES (?, ?, ?, ?)",
                    (self._clock.now_ms(), readings, len(body), body),
                )
                excess = self._oldest_beyond(self._bytes + len(body) - self._max_bytes)
                self._delete([row[0] for row in excess])
            self._batches += 1 - len(excess)
            self._bytes += len(body) - sum(row[1] for row in excess)
        return Dropped(len(excess), sum(row[2] for row in excess))

    def peek(self, max_bytes: int) -> list[Spooled]:
        """The oldest batches, together at most `max_bytes` of text, at least one where any waits; they stay."""
        found: list[Spooled] = []
        length = 0
        with self._lock:
            for number, readings, body in self._db.execute("SELECT id, readings, body FROM batch ORDER BY id"):
                text = _text(body)
                length += len(text)
                if found and length > max_bytes:
                    break
                found.append(Spooled(number, text, readings))
        return found

    def settle(self, batches: Iterable[Spooled], parked: Sequence[tuple[str, str]] = ()) -> int:
        """Remove `batches` and keep `parked` lines (line, problem) aside, in one step.

        Returns how many parked lines went to make room. Removing a batch that is gone already is no error.
        """
        ids = [batch.id for batch in batches]
        now_ms = self._clock.now_ms()
        rows = [(hashlib.sha256(line.encode()).hexdigest(), now_ms, line, problem) for line, problem in parked]
        with self._lock:
            with self._db:
                sizes = [self._size_of(number) for number in ids]
                self._delete(ids)
                self._db.executemany(
                    "INSERT OR IGNORE INTO parked (digest, at_ms, line, problem) VALUES (?, ?, ?, ?)", rows
                )
                gone = self._db.execute(
                    "DELETE FROM parked WHERE id <= (SELECT max(id) FROM parked) - ?", (MAX_PARKED_LINES,)
                ).rowcount
            removed = [size for size in sizes if size is not None]
            self._batches -= len(removed)
            self._bytes -= sum(removed)
        return int(gone)

    def parked_lines(self) -> int:
        """How many lines are kept aside."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM parked").fetchone()[0])

    def parked(self) -> list[Parked]:
        """Lines kept aside, oldest first."""
        with self._lock:
            return [Parked(*row) for row in self._db.execute("SELECT at_ms, line, problem FROM parked ORDER BY id")]

    def close(self) -> None:
        """Close the file; safe to repeat."""
        with self._lock:
            self._db.close()

    def _oldest_beyond(self, excess: int) -> list[tuple[int, int, int]]:
        rows: list[tuple[int, int, int]] = []
        if excess > 0:
            for row in self._db.execute("SELECT id, size, readings FROM batch ORDER BY id"):
                rows.append(row)
                excess -= row[1]
                if excess <= 0:
                    break
        return rows

    def _size_of(self, number: int) -> int | None:
        row = self._db.execute("SELECT size FROM batch WHERE id = ?", (number,)).fetchone()
        return None if row is None else int(row[0])

    def _delete(self, ids: Sequence[int]) -> None:
        self._db.executemany("DELETE FROM batch WHERE id = ?", [(number,) for number in ids])

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise self._unusable(str(error)) from None
        except sqlite3.DatabaseError as error:
            aside = self.path.with_name(f"{self.path.name}.damaged-{self._clock.now_ms()}")
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            _log.error("spool is damaged, a fresh one is begun", problem=str(error), kept=str(aside))
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=10.0, check_same_thread=False)
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA:
                raise self._unusable(f"it was written by a newer version of Tocsin (schema {version})")
            if version == SCHEMA and db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("quick_check failed")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(_TABLES)
        except BaseException:
            db.close()
            raise
        return db

    def _unusable(self, problem: str) -> InputError:
        return InputError(
            "agent.spool", str(self.path), f"cannot be used: {problem}", "name a file that can be written"
        )


def _text(body: bytes) -> str:
    try:
        return zlib.decompress(body).decode()
    except (zlib.error, UnicodeDecodeError):
        return ""
