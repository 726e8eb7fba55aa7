"""The files of a journal: the SQLite database and how it is read with its archive, its lock, the anchor that knows how
long it is."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tocsin.at_rest import database
from tocsin.domain.atomic_file import make_private, write_atomically
from tocsin.domain.entry import Entry
from tocsin.domain.errors import Conflict, InputError, TocsinError
from tocsin.journal.archive_files import file_with

_CREATE = """
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, actor TEXT NOT NULL,
    simulated INTEGER NOT NULL, payload TEXT NOT NULL, previous_hash TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
CREATE INDEX entry_kind ON entry (kind, seq);
CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""

_ARCHIVED = """
CREATE TABLE archived (last INTEGER PRIMARY KEY, first INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
DROP TRIGGER entry_no_delete;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
WHEN old.seq > (SELECT coalesce(max(last), 0) FROM archived)
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""
# What an archive has, by its last entry and the hash of that, may be taken out of the journal's own file.

MIGRATIONS: tuple[str, ...] = (_CREATE, _ARCHIVED)
"""Script n brings schema version n to n + 1; the version is SQLite's ``user_version``."""


class JournalBroken(TocsinError):
    """The journal was edited or cut short; nothing is appended to it."""


def connect(path: Path, *, write: bool, sealed: bool | None = None) -> sqlite3.Connection:
    """Open the database; a new one is encrypted as `tocsin.at_rest.database.connect` says of `sealed`.

    Raises InputError where it is no journal, or one of a newer version.
    """
    try:
        if write:
            make_private(path)
            db = database.connect(path, sealed=sealed)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        else:
            db = database.connect(path, read_only=True)
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise InputError("journal", str(path), f"cannot be opened: {error}", "restore it from a backup") from None
    if version > len(MIGRATIONS):
        db.close()
        raise InputError(
            "journal", str(path), f"has schema version {version}", "use the version of Tocsin that wrote it"
        )
    if write:
        migrate(db, version)
    return db


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the schema from `version` to the newest, one transaction a step."""
    for number in range(version, len(MIGRATIONS)):
        db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")


def lock(path: Path) -> IO[str]:
    """Take the writer's lock, held until the file is closed. Raises Conflict where another process has it."""
    beside = path.with_name(path.name + ".lock")
    make_private(beside)
    handle = beside.open("a", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise Conflict(f"journal {path} is in use by another brain; one brain acts for a fleet") from None
    return handle


KEY_BYTES = 32
MOST_KEY_BYTES = 4096
"""Longest key file that is read."""


def load_key(path: Path) -> bytes:
    """The key in the file `path`: its text without white space at the ends. Raises InputError where it is none."""
    try:
        with path.open("rb") as file:
            key = file.read(MOST_KEY_BYTES + 1).strip()
    except OSError as error:
        remedy = "check the path and the account that reads it"
        raise InputError("journal.key_file", str(path), error.strerror or str(error), remedy) from None
    if not KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        remedy = f"use {KEY_BYTES} to {MOST_KEY_BYTES} bytes, such as `openssl rand -hex {KEY_BYTES}` prints"
        raise InputError("journal.key_file", str(path), f"has {len(key)} bytes", remedy)
    return key


def new_key() -> bytes:
    """A new key, as text."""
    return secrets.token_hex(KEY_BYTES).encode()


def write_key(path: Path, key: bytes) -> None:
    """Put `key` in the file `path`, for its owner alone; durable on return. Raises InputError."""
    try:
        write_atomically(path, key + b"\n", 0o600)
    except OSError as error:
        remedy = "make its folder, writable for the brain"
        raise InputError("journal.key_file", str(path), error.strerror or str(error), remedy) from None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The newest entry that was acknowledged. A chain that ends before it was cut short.

    With a key it is sealed: who has no key can write no other one, and so change nothing up to that entry.
    """

    seq: int
    hash: str

    @staticmethod
    def path_of(journal: Path) -> Path:
        return journal.with_name(journal.name + ".head")

    @classmethod
    def read(cls, journal: Path, key: bytes = b"") -> Anchor | None:
        """The anchor; None where there is none. Raises JournalBroken where it cannot be read or `key` did not seal it.

        Without a `key` a seal is not looked at.
        """
        path = cls.path_of(journal)
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            found, seal = cls(int(raw["seq"]), str(raw["hash"])), str(raw.get("seal", ""))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise JournalBroken(f"anchor {path} is damaged; restore it with the journal from a backup") from None
        if key and not found.is_sealed_by(key, seal):
            how = "is sealed with another key" if seal else "is not sealed"
            remedy = "restore a backup, or take it as it is by tocsin journal seal"
            raise JournalBroken(f"anchor {path} {how}, the journal may have been rewritten: {remedy}")
        return found

    def seal(self, key: bytes) -> str:
        """HMAC-SHA-256 of what it says, in hexadecimal."""
        return hmac.new(key, f"tocsin journal head {self.seq} {self.hash}".encode(), hashlib.sha256).hexdigest()

    def is_sealed_by(self, key: bytes, seal: str) -> bool:
        """Whether `key` made this `seal`."""
        return hmac.compare_digest(seal.encode(), self.seal(key).encode())

    def write(self, journal: Path, key: bytes = b"", *, durable: bool = True) -> None:
        """Replace the anchor in one step; durable on return, or without `durable` this one or the one before."""
        content: dict[str, object] = {"seq": self.seq, "hash": self.hash}
        if key:
            content["seal"] = self.seal(key)
        write_atomically(self.path_of(journal), json.dumps(content), durable=durable)


_SEAL = """
CREATE TABLE IF NOT EXISTS seal (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL, seal TEXT NOT NULL
) STRICT;
"""
"""Not of the schema: versions that know nothing of it open the journal as before."""


def make_seal(db: sqlite3.Connection) -> None:
    """Make room for the seal in the database."""
    db.execute(_SEAL)


def write_seal(db: sqlite3.Connection, anchor: Anchor, key: bytes) -> None:
    """Seal the newest entry, in the transaction that adds it: no crash leaves an entry behind the sealed end."""
    values = (anchor.seq, anchor.hash, anchor.seal(key))
    db.execute("INSERT OR REPLACE INTO seal (one, seq, hash, seal) VALUES (1, ?, ?, ?)", values)


def sealed_in(db: sqlite3.Connection, key: bytes) -> Anchor | None:
    """The entry that the seal in the database covers; None where there is none, or `key` did not make it."""
    try:
        found = db.execute("SELECT seq, hash, seal FROM seal").fetchone()
    except sqlite3.OperationalError:
        return None
    if found is None:
        return None
    seq, own, seal = found
    if not (isinstance(seq, int) and isinstance(own, str) and isinstance(seal, str)):
        return None
    anchor = Anchor(seq, own)
    return anchor if anchor.is_sealed_by(key, seal) else None


def newest(*anchors: Anchor | None) -> Anchor | None:
    """That of the highest number; a power loss may leave either of the two places behind."""
    return max((anchor for anchor in anchors if anchor is not None), key=lambda anchor: anchor.seq, default=None)


COLUMNS = "seq, epoch, at_ms, kind, actor, simulated, payload, previous_hash, hash"
_PAGE = 1_000
_LAST_NUMBER = 2**63 - 1
"""What SQLite can number; a forged entry may have it."""


def from_row(row: tuple[object, ...]) -> Entry:
    """An entry of one row of `COLUMNS`."""
    seq, epoch, at_ms, kind, actor, simulated, payload, previous, own = row
    return Entry(
        seq=int(str(seq)),
        epoch=int(str(epoch)),
        at_ms=int(str(at_ms)),
        kind=str(kind),
        actor=str(actor),
        simulated=bool(simulated),
        payload=json.loads(str(payload)),
        previous_hash=str(previous),
        hash=str(own),
    )


Row = tuple[Any, ...]
"""Of `COLUMNS`."""


class _Selection:
    """Which rows: of `kinds` (None: of all), `left` at most (None: all)."""

    def __init__(self, kinds: Collection[str] | None, limit: int | None) -> None:
        self._kinds = tuple(kinds or ())
        self.left = limit
        clause = f" AND kind IN ({', '.join('?' * len(self._kinds))})" if kinds else ""
        self._query = f"SELECT {COLUMNS} FROM entry WHERE seq > ? AND seq <= ?{clause} ORDER BY seq LIMIT ?"

    def page(self, db: sqlite3.Connection, after: int, last: int) -> tuple[list[Row], bool]:
        """The next rows from behind number `after` to number `last`, and whether there are no more."""
        size = _PAGE if self.left is None else min(_PAGE, self.left)
        rows = db.execute(self._query, (after, last, *self._kinds, size)).fetchall()
        if self.left is not None:
            self.left -= len(rows)
        return rows, len(rows) < size or self.left == 0

    def all(self, db: sqlite3.Connection, after: int, last: int) -> Iterator[Row]:
        """The rows from behind `after` to `last`, page by page, so that no read holds the database for long."""
        ended = self.left == 0
        while not ended:
            rows, ended = self.page(db, after, last)
            yield from rows
            after = rows[-1][0] if rows else after


def first_here(db: sqlite3.Connection) -> int:
    """Number of the first entry in this file; 1 where there is none yet."""
    return int(db.execute("SELECT coalesce(min(seq), 1) FROM entry").fetchone()[0])


def read_rows(
    path: Path, *, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
) -> Iterator[Row]:
    """Rows of the journal at `path` above number `after` in order, out of its archive and its own file.

    Entries may be archived meanwhile: what stood here at one page may stand there at the next. Raises InputError where
    `path` is no journal, and ArchiveMissing where entries are in neither.
    """
    wanted = _Selection(kinds, limit)
    with closing(connect(path, write=False)) as db:
        ended = limit == 0
        while not ended:
            db.execute("BEGIN")
            first, rows = first_here(db), list[Row]()
            if first <= after + 1:
                rows, ended = wanted.page(db, after, _LAST_NUMBER)
            db.execute("COMMIT")
            yield from rows
            after = rows[-1][0] if rows else after
            if first > after + 1:
                file = file_with(path, after + 1)
                with closing(connect(file.path, write=False)) as archived:
                    yield from wanted.all(archived, after, min(file.last, first - 1))
                after, ended = min(file.last, first - 1), wanted.left == 0


def read_entries(
    path: Path, *, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
) -> Iterator[Entry]:
    """Entries of the journal at `path` as `read_rows` finds them, without writing to it."""
    yield from map(from_row, read_rows(path, after=after, kinds=kinds, limit=limit))
