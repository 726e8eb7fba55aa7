"""The spool as the agent uses it: it goes on in memory, for a while, where the disk takes nothing."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.at_rest.database import connect
from tocsin.domain.atomic_file import make_private
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

# A durable, bounded queue between reading and pushing: what was put survives kill -9 until it is acknowledged. One
# SQLite file in WAL mode with ``synchronous = FULL``: a batch is on disk when `put` returns. The bound counts the
# compressed batches; the file itself may be somewhat larger, and the log beside it up to some megabytes. What holds
# at every instant, also after kill -9 and on a full disk: - A batch leaves only by `settle`, after the receiver's
# acknowledgement or a final refusal, or by the bound, which is counted. It may be sent twice, when the agent dies
# between the two: writes of one (GPU, instant) are idempotent. - Batches go in the order of their ids, which are
# never used again (AUTOINCREMENT): an acknowledgement that comes late can't remove a younger batch. - Refused lines
# are parked in the same transaction that removes their batch: a line is in exactly one of the two. - The counts in
# memory follow the file, never lead it: they change only after the commit.

_log = logger("spool")

SCHEMA = 2
LOCK_SECONDS = 2.0
"""How long another process, such as a backup, may hold the file before a batch is taken for refused."""
MAX_PARKED_LINES = 10_000
"""Refused lines are kept for a look, not for ever: beyond this the oldest go."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    events INTEGER NOT NULL DEFAULT 0
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
_FROM_1 = f"""
BEGIN IMMEDIATE;
ALTER TABLE batch ADD COLUMN events INTEGER NOT NULL DEFAULT 0;
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
    """What a bound cost: the oldest batches, and the readings and events in them."""

    batches: int = 0
    readings: int = 0
    events: int = 0

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.batches + other.batches, self.readings + other.readings, self.events + other.events)


@dataclass(frozen=True, slots=True)
class Parked:
    """One line that the receiver refused, and why."""

    at_ms: int
    line: str
    problem: str


class Spool:
    """The queue: `batches` wait, `size` is their size in bytes, compressed. Safe to use from several threads.

    A file that is no spool, or is damaged, is moved aside and a fresh one is begun: a broken disk block must not stop
    the agent from reading. Raises InputError where the file cannot be opened or written, or comes from a newer version.
    """

    def __init__(self, path: Path, max_bytes: int, clock: Clock) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self.damaged = 0
        """How many damaged files were moved aside; what they held is lost to the uplink."""
        self._db = self._open()
        self._count()

    def reopen(self) -> None:
        """Close and open again, which moves the file aside where it is damaged. Raises InputError."""
        with self._lock:
            self._db.close()
            self._db = self._open()
            self._count()

    def _count(self) -> None:
        count, size = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM batch").fetchone()
        self.batches, self.size = int(count), int(size)
        self._parked = int(self._db.execute("SELECT count(*) FROM parked").fetchone()[0])

    def put(self, text: str, readings: int, events: int = 0) -> Dropped:
        """Append a batch, durable on return; the oldest batches go where the bound is passed.

        Raises sqlite3.Error where the disk does not take it (full, read-only); the queue is then as before.
        """
        return self.put_packed(zlib.compress(text.encode(), 1), readings, events)

    def put_packed(self, body: bytes, readings: int, events: int) -> Dropped:
        """`put` of a text that is compressed already."""
        with self._lock:
            with self._db:
                self._db.execute(
                    "INSERT INTO batch (at_ms, readings, size, body, events) VALUES (?, ?, ?, ?, ?)",
                    (self._clock.now_ms(), readings, len(body), body, events),
                )
                excess = self._oldest_beyond(self.size + len(body) - self._max_bytes)
                self._delete([row[0] for row in excess])
            self.batches += 1 - len(excess)
            self.size += len(body) - sum(row[1] for row in excess)
        return Dropped(len(excess), sum(row[2] for row in excess), sum(row[3] for row in excess))

    def peek(self, max_bytes: int, without: Container[int] = ()) -> list[Spooled]:
        """The oldest batches, together at most `max_bytes` of text, at least one where any waits; they stay.

        Batches whose number is in `without` are passed over.
        """
        if not self.batches:
            return []
        with self._lock:
            rows = self._db.execute("SELECT id, readings, body FROM batch ORDER BY id")
            waiting = (Spooled(number, unpacked(body), n) for number, n, body in rows if number not in without)
            return _first(waiting, max_bytes)

    def oldest_ms(self) -> int | None:
        """When the oldest batch that waits was put, by the wall clock; None where none waits."""
        with self._lock:
            row = self._db.execute("SELECT at_ms FROM batch ORDER BY id LIMIT 1").fetchone()
        return None if row is None else int(row[0])

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
                gone = self._park(rows) if rows else 0
            removed = [size for size in sizes if size is not None]
            self.batches -= len(removed)
            self.size -= sum(removed)
            if rows:
                self._parked = int(self._db.execute("SELECT count(*) FROM parked").fetchone()[0])
        return gone

    def parked_lines(self) -> int:
        return self._parked

    def parked(self) -> list[Parked]:
        """Lines kept aside, oldest first."""
        with self._lock:
            return [Parked(*row) for row in self._db.execute("SELECT at_ms, line, problem FROM parked ORDER BY id")]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _park(self, rows: Sequence[tuple[str, int, str, str]]) -> int:
        self._db.executemany("INSERT OR IGNORE INTO parked (digest, at_ms, line, problem) VALUES (?, ?, ?, ?)", rows)
        return self._db.execute(
            "DELETE FROM parked WHERE id <= (SELECT max(id) FROM parked) - ?", (MAX_PARKED_LINES,)
        ).rowcount

    def _oldest_beyond(self, excess: int) -> list[tuple[int, int, int, int]]:
        rows: list[tuple[int, int, int, int]] = []
        if excess > 0:
            for row in self._db.execute("SELECT id, size, readings, events FROM batch ORDER BY id"):
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
            kept = self._move_aside()
            self.damaged += 1
            _log.error("spool is damaged, a fresh one is begun", problem=str(error), kept=str(kept))
            return self._connect()

    def _move_aside(self) -> Path:
        aside = self.path.with_name(f"{self.path.name}.damaged-{self._clock.now_ms()}")
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():  # the log holds what the file does not have yet
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def _connect(self) -> sqlite3.Connection:
        make_private(self.path)
        db = connect(self.path, timeout=LOCK_SECONDS, isolation_level="")
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA:
                raise self._unusable(f"it was written by a newer version of Tocsin (schema {version})")
            if version and db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("quick_check failed")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if version < SCHEMA:  # nothing is written otherwise: a full disk must not keep what waits from being read
                db.executescript(_FROM_1 if version == 1 else _TABLES)
        except BaseException:
            db.close()
            raise
        return db

    def _unusable(self, problem: str) -> InputError:
        return InputError(
            "agent.spool", str(self.path), f"cannot be used: {problem}", "name a file that can be written"
        )


def unpacked(body: bytes) -> str:
    """The text of a compressed batch; empty where it is damaged."""
    try:
        return zlib.decompress(body).decode()
    except (zlib.error, UnicodeDecodeError):
        return ""


def _first(batches: Iterable[Spooled], max_bytes: int) -> list[Spooled]:
    """The first of `batches`, together at most `max_bytes` of text; at least one where there is any."""
    found: list[Spooled] = []
    length = 0
    for batch in batches:
        length += len(batch.text)
        if found and length > max_bytes:
            break
        found.append(batch)
    return found


MEMORY_BYTES = 8 * 1024 * 1024
"""Bound of what waits in memory, compressed: some hours of one node."""
FLUSHED_AT_ONCE = 64
"""Batches moved from memory to disk with one new one: each is a flush of the disk, and a reading waits for them."""
REOPEN_SECONDS = 10.0
FULL_BYTES = 1024 * 1024
"""Free space below which a file that cannot be opened is the disk's fault rather than the setting's."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch that is in memory alone; numbers are below zero, so that they meet none of the disk's."""

    id: int
    body: bytes
    readings: int
    events: int
    at_ms: int

    def opened(self) -> Spooled:
        return Spooled(self.id, unpacked(self.body), self.readings)


class Buffer:
    """A `Spool` with memory behind it, which counts all that is lost. Safe to use from several threads.

    A batch that the disk refuses (full, read-only, locked) waits in memory within a bound and is moved to the disk as
    soon as that takes it; what waits in memory is pushed first. A batch that was acknowledged by the receiver and
    cannot be removed from a full disk is remembered, and not sent again by this process. Raises InputError where the
    file cannot be used for another reason than a full disk.
    """

    def __init__(
        self, path: Path, max_bytes: int, clock: Clock, own: OwnMetrics, *, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._own = own
        self._lock = threading.RLock()
        self._numbers = itertools.count(-1, -1)
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._settled: set[int] = set()
        self._refused: list[tuple[str, str]] = []
        self._working = True
        self._closed = False
        self._reopen_at = 0.0
        self._disk: Spool | None = None
        try:
            self._disk = self._opened()
        except InputError as error:
            if not _is_full(path):
                raise
            self._troubled(str(error))
        own.set_function("tocsin_spool_oldest_seconds", self.oldest_seconds)

    @property
    def batches(self) -> int:
        return len(self._held) + (self._disk.batches - len(self._settled) if self._disk is not None else 0)

    @property
    def size(self) -> int:
        return self._held_bytes + (self._disk.size if self._disk is not None else 0)

    @property
    def in_memory(self) -> int:
        """Batches that are in memory alone."""
        return len(self._held)

    def oldest_seconds(self) -> float:
        """Age of the oldest batch that waits by the wall clock; 0 where none does, or where it seems to lie ahead."""
        with self._lock:
            instants = [held.at_ms for held in itertools.islice(self._held, 1)]
            try:
                on_disk = self._disk.oldest_ms() if self._disk is not None else None
            except sqlite3.Error:
                on_disk = None
        if on_disk is not None:
            instants.append(on_disk)
        return max(self._clock.now_ms() - min(instants), 0) / SECOND if instants else 0.0

    def put(self, text: str, readings: int, events: int = 0) -> bool:
        """Append a batch; whether it is on disk. What a bound costs is counted."""
        held = _Held(next(self._numbers), zlib.compress(text.encode(), 1), readings, events, self._clock.now_ms())
        with self._lock:
            if not (written := self._flush() and self._written(held)):
                self._hold(held)
            self._show()
        return written

    def peek(self, max_bytes: int) -> list[Spooled]:
        with self._lock:
            found = _first((held.opened() for held in self._held), max_bytes)
            if found or self._disk is None:
                return found
            try:
                return self._disk.peek(max_bytes, self._settled)
            except sqlite3.Error as error:
                self._troubled(str(error), error)
                return []

    def settle(self, batches: Iterable[Spooled], parked: Sequence[tuple[str, str]] = ()) -> int:
        with self._lock:
            done = {batch.id for batch in batches}
            left = [held for held in self._held if held.id not in done]
            self._held_bytes = sum(len(held.body) for held in left)
            self._held = deque(left)
            self._settled |= {number for number in done if number > 0}
            self._refused += parked
            evicted = self._settle_on_disk()
            excess = len(self._refused) - MAX_PARKED_LINES
            if excess > 0:
                del self._refused[:excess]
                evicted += excess
            self._show()
            return evicted

    def parked_lines(self) -> int:
        return len(self._refused) + (self._disk.parked_lines() if self._disk is not None else 0)

    def close(self) -> None:
        """Move what is in memory to the disk, count what that does not take, and close; safe to repeat."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._held and self._flush():
                pass
            if self._held:
                lost = Dropped(len(self._held), sum(h.readings for h in self._held), sum(h.events for h in self._held))
                self._count(lost, "spool_failed")
                _log.error("batches are lost: the disk takes none", batches=lost.batches, readings=lost.readings)
                self._held.clear()
            if self._disk is not None:
                self._settle_on_disk()
                self._disk.close()

    def _opened(self) -> Spool:
        disk = Spool(self.path, self._max_bytes, self._clock)
        if disk.damaged:
            self._own.count("tocsin_dropped_total", disk.damaged, what="spool", reason="damaged")
        return disk

    def _usable(self) -> Spool | None:
        """The disk's queue, opened now where that was not possible before."""
        if self._disk is None and self._clock.monotonic() >= self._reopen_at:
            try:
                self._disk = self._opened()
            except InputError as error:
                self._troubled(str(error))
        return self._disk

    def _written(self, held: _Held) -> bool:
        if (disk := self._usable()) is None:
            return False
        try:
            dropped = disk.put_packed(held.body, held.readings, held.events)
        except sqlite3.Error as error:
            self._troubled(str(error), error)
            return False
        self._count(dropped, "spool_full")
        if not self._working:
            self._working = True
            _log.info("spool takes batches again", path=str(self.path))
        return True

    def _flush(self) -> bool:
        """Move batches from memory to the disk, the oldest first; whether the disk took all that it was given."""
        for _ in range(min(len(self._held), FLUSHED_AT_ONCE)):
            if not self._written(self._held[0]):
                return False
            self._held_bytes -= len(self._held.popleft().body)
        return True

    def _hold(self, held: _Held) -> None:
        self._held.append(held)
        self._held_bytes += len(held.body)
        lost = Dropped()
        while self._held_bytes > self._memory_bytes:
            oldest = self._held.popleft()
            self._held_bytes -= len(oldest.body)
            lost += Dropped(1, oldest.readings, oldest.events)
        self._count(lost, "spool_failed")

    def _settle_on_disk(self) -> int:
        if self._disk is None or not (self._settled or self._refused):
            return 0
        try:
            evicted = self._disk.settle([Spooled(number, "", 0) for number in self._settled], self._refused)
        except sqlite3.Error as error:
            self._troubled(str(error), error)
            return 0
        self._settled.clear()
        self._refused.clear()
        return evicted

    def _troubled(self, problem: str, error: sqlite3.Error | None = None) -> None:
        self._reopen_at = self._clock.monotonic() + REOPEN_SECONDS
        if self._working:
            self._working = False
            _log.error("spool takes nothing, batches wait in memory", path=str(self.path), problem=problem)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            self._mend()

    def _mend(self) -> None:
        """Begin a fresh file where the present one turned out to be damaged while in use."""
        disk, self._disk = self._disk, None
        if disk is None or self._closed:
            return
        damaged = disk.damaged
        try:
            disk.reopen()
        except (InputError, sqlite3.Error) as error:
            _log.error("spool cannot be opened again", path=str(self.path), problem=str(error))
            return
        self._disk = disk
        self._settled.clear()
        self._own.count("tocsin_dropped_total", disk.damaged - damaged, what="spool", reason="damaged")

    def _count(self, lost: Dropped, reason: str) -> None:
        for what, amount in (("batch", lost.batches), ("reading", lost.readings), ("event", lost.events)):
            if amount:
                self._own.count("tocsin_dropped_total", amount, what=what, reason=reason)

    def _show(self) -> None:
        self._own.set("tocsin_spool_batches", self.batches)
        self._own.set("tocsin_spool_bytes", self.size)
        self._own.set("tocsin_spool_memory_batches", len(self._held))
        self._own.set("tocsin_spool_parked_lines", self.parked_lines())


def _is_full(path: Path) -> bool:
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    return shutil.disk_usage(folder).free < FULL_BYTES
