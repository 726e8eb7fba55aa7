"""The SQLite file of the embedded store: its connections, its locks, and what a failed statement means."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

from tocsin.domain.atomic_file import make_folder
from tocsin.domain.errors import Conflict, InputError, TocsinError
from tocsin.store.embedded.sqlite_schema import prepare
from tocsin.store.port import StoreRejected, StoreUnavailable

_PAGE_BYTES = 16_384
"""Page size of a new file: chunks are large, and a page of 4 KiB would cut them into many."""


class Database:
    """One writing connection and as many reading ones as there are readers at once. Safe to use from several threads.

    A write is on disk when it returns (``synchronous = FULL``); other processes may open the file at the same time.
    """

    def __init__(self, path: Path, done: Callable[[], None], undone: Callable[[], None]) -> None:
        """After every transaction `done` or `undone` is called, before the next one can begin."""
        self.path = path
        self._done, self._undone = done, undone
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._sharing: IO[str] | None = None

    def open(self, first: Callable[[sqlite3.Connection], None]) -> bool:
        """Open the file and call `first` with the new connection; False where it was open already.

        Raises InputError where it is no store of this or an older version, Conflict while it is being replaced, and
        StoreUnavailable where `first` fails.
        """
        with self._lock:
            if self._writer is not None:
                return False
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
            return True

    def _shared(self) -> IO[str]:
        try:
            make_folder(self.path.absolute().parent)
            return locked(self.path, ".lock", fcntl.LOCK_SH)
        except (OSError, StoreUnavailable) as error:
            raise InputError(
                "store.path", str(self.path), f"cannot be used: {error}", "name a folder that can be written"
            ) from None

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
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
                uri = f"{self.path.absolute().as_uri()}?mode=ro"
                db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
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
                self._done()
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


def locked(path: Path, suffix: str, kind: int) -> IO[str]:
    """A lock beside `path`, held until it is closed or its process ends.

    Who uses the store shares ``.lock``, who replaces it must be alone; who rewrites segments holds ``.upkeep`` alone.
    Raises Conflict where somebody else has it, StoreUnavailable where its file cannot be written.
    """
    try:
        handle = path.with_name(path.name + suffix).open("a", encoding="ascii")
    except OSError as error:
        raise StoreUnavailable(f"store {path}: {error}") from None
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise Conflict(f"store {path} is in use; stop what uses it first") from None
    return handle


def mapped(path: Path, error: Exception) -> TocsinError:
    """What a failed statement means: a full or busy file may take it later, a value that does not fit never."""
    kind = StoreUnavailable if isinstance(error, sqlite3.OperationalError) else StoreRejected
    return kind(f"store {path}: {error}")
