"""Journals of both back ends for their laws: opened anew as by another start, read as by a command, and damaged."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tocsin.at_rest.database import connect
from tocsin.domain.clock import Clock, SystemClock
from tocsin.journal import backup as file_backup
from tocsin.journal.file_past import FilePast
from tocsin.journal.files import Anchor
from tocsin.journal.journal import Journal
from tocsin.journal.port import JournalPast, LiveJournal
from tocsin.journal.postgres import copy
from tocsin.journal.postgres.connections import CellDatabase
from tocsin.journal.postgres.journal import PostgresJournal
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.past import PostgresPast
from tocsin.journal.postgres.schema import prepare

KINDS = ("sqlite", "postgres")
_NUMBERS = itertools.count()


class Harness(Protocol):
    """One journal, before anything is in it. `key_file` seals it where `opened` is told to."""

    key_file: Path

    def opened(self, clock: Clock, *, sealed: bool = False) -> LiveJournal:
        """Its writer; close it before the next one is opened."""

    def closed(self, journal: LiveJournal) -> None:
        """The writer ends in order."""

    def past(self) -> JournalPast:
        """As a command reads it."""

    def damage(self, statement: str, *values: object) -> None:
        """One statement of SQL past all triggers, with a `?` for each value; the table of entries is `entry`."""

    def move_head(self, seq: int, own: str) -> None:
        """What says where it ends, as somebody without the key may write it."""

    def backup(self, target: Path, key: bytes = b"") -> None:
        """As the command does."""

    def restore(self, source: Path, key: bytes = b"") -> None:
        """As the command does."""


class FileHarness:
    """The embedded journal."""

    def __init__(self, folder: Path) -> None:
        (folder / "brain").mkdir()
        self.path = folder / "brain" / "journal.db"
        self.key_file = folder / "key"

    def opened(self, clock: Clock, *, sealed: bool = False) -> LiveJournal:
        return Journal.open(self.path, clock, self.key_file if sealed else None)

    def closed(self, journal: LiveJournal) -> None:
        journal.close()

    def past(self) -> JournalPast:
        return FilePast(self.path)

    def damage(self, statement: str, *values: object) -> None:
        with closing(connect(self.path)) as db, db:
            for name in ("entry_no_update", "entry_no_delete"):
                db.execute(f"DROP TRIGGER IF EXISTS {name}")
            db.execute(statement, values)

    def move_head(self, seq: int, own: str) -> None:
        Anchor(seq, own).write(self.path)

    def backup(self, target: Path, key: bytes = b"") -> None:
        file_backup.backup(self.path, target, key)

    def restore(self, source: Path, key: bytes = b"") -> None:
        file_backup.restore(source, self.path, key)


class DatabaseHarness:
    """A cell of its own in a real server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.database = CellDatabase(url, f"tocsin_law_{next(_NUMBERS)}")
        self.key_file = folder / "key"

    def opened(self, clock: Clock, *, sealed: bool = False) -> LiveJournal:
        prepare(self.database)
        lease = leased(self.database)
        if not lease.held():
            raise AssertionError(f"the lease is held by {lease.holder()}; {lease.trouble}")
        try:
            return PostgresJournal.open(self.database, clock, lease, self.key_file if sealed else None)
        except BaseException:
            lease.release()
            raise

    def closed(self, journal: LiveJournal) -> None:
        assert isinstance(journal, PostgresJournal)
        journal.lease.release()
        journal.close()

    def past(self) -> JournalPast:
        return PostgresPast(self.database)

    def damage(self, statement: str, *values: object) -> None:
        with self.raw() as db:
            db.execute(statement.replace("?", "%s").encode(), values)

    @contextlib.contextmanager
    def raw(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The database as its administrator has it: no trigger fires."""
        with psycopg.connect(self.database.url, autocommit=True) as db:
            db.execute(f"SET search_path = {self.database.schema}".encode())
            db.execute("SET session_replication_role = replica")
            yield db

    def move_head(self, seq: int, own: str) -> None:
        self.damage("UPDATE head SET seq = ?, hash = ?, seal = ''", seq, own)

    def backup(self, target: Path, key: bytes = b"") -> None:
        copy.backup(PostgresPast(self.database), target, key)

    def restore(self, source: Path, key: bytes = b"") -> None:
        copy.restore(source, self.database, key)


def leased(database: CellDatabase, seconds: float = 6.0) -> DatabaseLease:
    """A try at the lease, by a process of its own."""
    lease = DatabaseLease(database, f"test-{next(_NUMBERS)}", seconds, SystemClock())
    lease.tick()
    return lease
