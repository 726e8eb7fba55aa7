"""The SQLite file of the embedded store: its connections, its locks, and what a failed statement means."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from tocsin.at_rest.database import connect
from tocsin.domain.atomic_file import make_folder, make_private
from tocsin.domain.errors import Conflict, InputError, TocsinError
from tocsin.store.embedded import chunks
from tocsin.store.embedded.sums import ROWS, DamagedRow, row_sum
from tocsin.store.port import StoreRejected, StoreUnavailable

# ---------------------------------------------------------------------- tables

_WIDE = """
CREATE TABLE gpu (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, host TEXT NOT NULL, position INTEGER, model TEXT NOT NULL,
    serial TEXT NOT NULL, pci_bus_id TEXT NOT NULL, parent TEXT NOT NULL, mig_profile TEXT NOT NULL,
    pool TEXT NOT NULL, rack TEXT NOT NULL, labels TEXT NOT NULL, simulated INTEGER NOT NULL, last_ms INTEGER
) STRICT;
CREATE TABLE reading (gpu INTEGER NOT NULL, at_ms INTEGER NOT NULL, missing BLOB, extra TEXT);
CREATE UNIQUE INDEX reading_key ON reading (gpu, at_ms);
CREATE INDEX reading_time ON reading (at_ms);
CREATE TABLE metric (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE event (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, gpu TEXT NOT NULL, host TEXT NOT NULL, at_ms INTEGER NOT NULL,
    code INTEGER NOT NULL, message TEXT NOT NULL, source TEXT NOT NULL, simulated INTEGER NOT NULL
) STRICT;
CREATE INDEX event_time ON event (at_ms);
CREATE TABLE finding (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
CREATE INDEX finding_time ON finding (at_ms);
CREATE TABLE prediction (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, gpu TEXT NOT NULL, body TEXT NOT NULL) STRICT;
CREATE INDEX prediction_time ON prediction (at_ms);
"""

# A chunk holds readings of one hour; a later one outranks an earlier one, so numbers are never used again. A segment
# is a file, as old as the `newest` chunk that went into it; once `retired_ms` is there, its rows are found in another
# one, and the file waits for its last reader.
_COLUMNS = """
CREATE TABLE chunk_names (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT, bucket_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, first_gpu INTEGER NOT NULL, last_gpu INTEGER NOT NULL, height INTEGER NOT NULL,
    names INTEGER NOT NULL, keys BLOB NOT NULL, body BLOB NOT NULL, notes TEXT, extra BLOB
) STRICT;
CREATE INDEX chunk_span ON chunk (bucket_ms, last_ms, first_ms, first_gpu, last_gpu, height);
CREATE TABLE segment (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, step_ms INTEGER NOT NULL,
    start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    first_gpu INTEGER NOT NULL, last_gpu INTEGER NOT NULL, height INTEGER NOT NULL, variants INTEGER NOT NULL,
    size INTEGER NOT NULL, newest INTEGER NOT NULL, problem TEXT, retired_ms INTEGER
) STRICT;
CREATE INDEX segment_span ON segment (last_ms, first_ms);
CREATE INDEX gpu_last ON gpu (last_ms);
"""

_WEIGHT = """
ALTER TABLE event ADD COLUMN severity TEXT NOT NULL DEFAULT '';
ALTER TABLE event ADD COLUMN remedy TEXT NOT NULL DEFAULT '';
"""

# See `sums`. What is found damaged goes to a table of its own: `rows` counts what was lost with it.
_SUMS = """
ALTER TABLE gpu ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
ALTER TABLE chunk ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
ALTER TABLE chunk ADD COLUMN rest INTEGER NOT NULL DEFAULT -1;
ALTER TABLE segment ADD COLUMN sums BLOB;
ALTER TABLE segment ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
ALTER TABLE event ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
ALTER TABLE finding ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
ALTER TABLE prediction ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;
CREATE TABLE damaged (
    id INTEGER PRIMARY KEY, place TEXT NOT NULL, number INTEGER NOT NULL, rows INTEGER NOT NULL, problem TEXT NOT NULL,
    content BLOB
) STRICT;
"""

MIGRATIONS: tuple[str, ...] = (_WIDE, _COLUMNS, _WEIGHT, _SUMS)
"""Script n brings schema version n to n + 1; the version is SQLite's ``user_version``. Each changes a table: a version
that does not fit the tables is a damaged number (see `salvage`)."""


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Bring the schema up to date. Raises InputError where the file is of a newer version."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise InputError("store.path", path, f"has schema version {version}", "use the version of Tocsin that wrote it")
    for number in range(version, len(MIGRATIONS)):
        db.execute("BEGIN IMMEDIATE")
        with db:
            # Another process may have been faster since the version was read.
            if int(db.execute("PRAGMA user_version").fetchone()[0]) == number:
                for statement in MIGRATIONS[number].split(";"):
                    db.execute(statement)
                if MIGRATIONS[number] is _SUMS:
                    seal(db)
                db.execute(f"PRAGMA user_version = {number + 1}")


def seal(db: sqlite3.Connection) -> None:
    """Give all rows of a file of an earlier version their sums."""
    db.create_function("row_sum", -1, lambda *values: row_sum(values), deterministic=True)
    for table, columns in ROWS.items():
        db.execute(f"UPDATE {table} SET sum = row_sum({columns})")
    chunks.seal(db)


# ---------------------------------------------------------------------- connections

PAGE_BYTES = 16_384
"""Page size of a new file: chunks are large, and a page of 4 KiB would cut them into many."""


as_text = partial(str, encoding="utf-8", errors="surrogateescape")
"""Text of the file. One that is damaged must not keep the rows beside it from being read: its sum tells."""


def _nothing(_path: Path) -> None:
    return


class Database:
    """One writing connection and as many reading ones as there are readers at once. Safe to use from several threads.

    A write is on disk when it returns (``synchronous = FULL``); other processes may open the file at the same time.
    """

    def __init__(
        self,
        path: Path,
        undone: Callable[[], None],
        mend: Callable[[Path], None] = _nothing,
        remember: Callable[[Path], None] = _nothing,
    ) -> None:
        """After a transaction that failed `undone` is called, before the next one can begin.

        `mend` makes a damaged file usable before it is opened, and `remember` notes what that needs of a whole one;
        where another process has it open, that one has done so.
        """
        self.path = path
        self._mend = mend
        self._remember = remember
        self._undone = undone
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._sharing: IO[str] | None = None

    def open(self, first: Callable[[sqlite3.Connection], None]) -> None:
        """Open the file, unless it is open, and call `first` with the new connection.

        Raises InputError where it is no store of this or an older version, Conflict while it is being replaced, and
        StoreUnavailable where `first` fails.
        """
        with self._lock:
            if self._writer is not None:
                return
            with ExitStack() as undo:
                sharing = undo.enter_context(self._shared())
                db = undo.enter_context(closing(self._connect()))
                # What `first` remembers of a transaction that is undone is not in the file.
                undo.callback(self._undone)
                try:
                    first(db)
                except sqlite3.Error as error:
                    raise mapped(self.path, error) from None
                undo.pop_all()
            self._writer, self._sharing = db, sharing

    def _mended(self) -> None:
        try:
            with closing(locked(self.path, ".lock", fcntl.LOCK_EX)):
                self._mend(self.path)
                self._connect().close()  # its tables are made, or brought to this version
                self._remember(self.path)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                "store.path", str(self.path), f"is damaged and cannot be mended: {error}", "make room beside it"
            ) from None
        except Conflict:
            return

    def _shared(self) -> IO[str]:
        try:
            make_folder(self.path.absolute().parent)
            # One at a time, so that who mends the file is not in the way of who opens it at the same moment.
            with closing(locked(self.path, ".head", fcntl.LOCK_EX, wait=True)):
                self._mended()
                return locked(self.path, ".lock", fcntl.LOCK_SH)
        except (OSError, StoreUnavailable) as error:
            raise InputError(
                "store.path", str(self.path), f"cannot be used: {error}", "name a folder that can be written"
            ) from None

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private(self.path)
            db = connect(self.path, page_bytes=PAGE_BYTES)
            db.text_factory = as_text
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            prepare(db, str(self.path))
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                "store.path", str(self.path), f"cannot be opened: {error}", "restore a backup or name another file"
            ) from None
        return db

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the file as it is now until the end of the block, whatever is written meanwhile."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        try:
            if db is None:
                db = connect(self.path, read_only=True)
                db.text_factory = as_text
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise mapped(self.path, error) from None
        finally:
            if db is not None:
                self._give_back(db)

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            if self._writer is not None:
                self._idle.append(db)
                return
        db.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction. Raises StoreUnavailable or StoreRejected, and then nothing of it was written."""
        with self._lock:
            db = self._writer
            if db is None:
                raise StoreUnavailable(f"store {self.path} is closed")
            try:
                db.execute("BEGIN IMMEDIATE")
                with db:
                    yield db
            except (sqlite3.Error, OverflowError, ValueError, TypeError) as error:
                self._undone()
                raise mapped(self.path, error) from None
            except BaseException:
                self._undone()
                raise

    def close(self) -> None:
        """Close all connections; safe to repeat."""
        with self._lock:
            for db in (self._writer, *self._idle):
                if db is not None:
                    db.close()
            self._writer, self._idle = None, []
            if self._sharing is not None:
                self._sharing.close()
                self._sharing = None


def locked(path: Path, suffix: str, kind: int, *, wait: bool = False) -> IO[str]:
    """A lock beside `path`, held until it is closed or its process ends.

    Who uses the store shares ``.lock``, who replaces it must be alone; who opens it holds ``.head`` alone meanwhile,
    who rewrites segments ``.upkeep``. Raises Conflict where somebody else has it and it is not to `wait`,
    StoreUnavailable where its file cannot be written.
    """
    try:
        beside = path.with_name(path.name + suffix)
        make_private(beside)
        handle = beside.open("a", encoding="ascii")
    except OSError as error:
        raise StoreUnavailable(f"store {path}: {error}") from None
    try:
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise Conflict(f"store {path} is in use; stop what uses it first") from None
    return handle


_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_damage(error: Exception) -> bool:
    """Whether a failed statement means that the file is not what was written."""
    return isinstance(error, DamagedRow) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def mapped(path: Path, error: Exception) -> TocsinError:
    """What a failed statement means: a full, busy or damaged file may take it later, a value that does not fit never.

    A damaged file is mended at the next start: what agents send until then must not be given up.
    """
    later = isinstance(error, sqlite3.OperationalError) or is_damage(error)
    return (StoreUnavailable if later else StoreRejected)(f"store {path}: {error}")
