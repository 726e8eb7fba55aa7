"""Writing the journal."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from tocsin.at_rest import blob
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.clock import Clock
from tocsin.domain.entry import GENESIS, Entry, EntryKind, Verification, canonical, digest
from tocsin.journal import checkpoint
from tocsin.journal.archive_files import ArchiveFile, ArchiveMissing, archive_of, file_of
from tocsin.journal.checkpoint import Checkpoint
from tocsin.journal.file_past import FilePast
from tocsin.journal.files import (
    COLUMNS,
    Anchor,
    JournalBroken,
    connect,
    first_here,
    load_key,
    lock,
    make_seal,
    new_key,
    read_entries,
    write_key,
    write_seal,
)
from tocsin.journal.port import Draft
from tocsin.journal.verify import verify

REMOVED_AT_ONCE = 1_000
"""Archived entries that are taken out of the journal's file in one transaction: an append waits for one at most."""


def chained(drafts: Sequence[Draft], actor: str, at_ms: int, epoch: int, seq: int, previous: str) -> list[Entry]:
    """The entries that `drafts` make behind entry `seq`, which has the hash `previous`."""
    entries = []
    for kind, payload, simulated in drafts:
        seq += 1
        own = digest(previous, seq, epoch, at_ms, str(kind), actor, simulated, canonical(payload))
        entries.append(Entry(seq, epoch, at_ms, str(kind), actor, payload, simulated, own, previous))
        previous = own
    return entries


class Journal(FilePast):
    """The one writer; safe to use from several threads. An entry is on disk when `append` returns."""

    def __init__(self, path: Path, clock: Clock, db: sqlite3.Connection, held: IO[str], key: bytes = b"") -> None:
        super().__init__(path)
        self.key = key
        """Seals the anchor; empty: it is not sealed."""
        self.checkpoint: Checkpoint | None = None
        """What the entries up to one of them folded to; None where all are to be read."""
        self._clock = clock
        self._db = db
        self._held = held
        self._lock = threading.Lock()
        query = "SELECT seq, epoch, hash FROM entry ORDER BY seq DESC LIMIT 1"
        last: tuple[int, int, str] = db.execute(query).fetchone() or (0, 0, GENESIS)
        self._head, self._hash = last[0], last[2]
        self.epoch = last[1] + 1
        self.on_append: Callable[[Sequence[Entry]], None] = lambda _entries: None
        """Told of entries once they are on disk, by the thread that appended them; must not raise."""
        if key:
            make_seal(db)
        if last[0] == 0:
            # Before the first entry, so that a chain without an anchor is always one that lost it.
            Anchor(0, GENESIS).write(path, key)

    @classmethod
    def open(cls, path: Path, clock: Clock, key_file: Path | None = None, *, sealed: bool | None = None) -> Journal:
        """Open or create the journal at `path` for writing, in a new epoch.

        Its anchor is sealed with the key in `key_file`, which is made where there is none: then a journal that was not
        sealed before is taken as it is. Raises Conflict where another process writes to it, JournalBroken where its
        chain or its seal does not hold, and InputError where the key cannot be had. A new one is encrypted as
        `tocsin.at_rest.database.connect` says of `sealed`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        held = lock(path)
        try:
            db = connect(path, write=True, sealed=sealed)
            first = key_file is not None and not key_file.exists()
            key = b"" if key_file is None or first else load_key(key_file)
            known = db.execute("SELECT count(*) FROM (SELECT 1 FROM entry LIMIT 1)").fetchone()[0]
            # Of an empty journal an anchor without a seal says nothing that could be forged.
            start = checkpoint.load(path, db)
            result = verify(path, key if known else b"", after=start.seq if start else 0)
            if not result.ok:
                db.close()
                raise JournalBroken(f"journal {path}: {result.problem}; restore a backup, nothing is appended to it")
            if problem := _missing_archive(path, db):
                db.close()
                raise JournalBroken(f"journal {path}: {problem}")
            if key_file is not None and first:
                # The seal first: a key on disk means that there is one.
                key = new_key()
                _seal(path, key)
                write_key(key_file, key)
        except BaseException:
            held.close()
            raise
        opened = cls(path, clock, db, held, key)
        opened.checkpoint = start
        return opened

    def append(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> Entry:
        """Add one entry; durable on return. `payload` must be JSON without NaN."""
        return self.append_many([(kind, payload, simulated)], actor=actor)[0]

    def append_many(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> list[Entry]:
        """Add entries in one transaction: all of them or none; durable on return."""
        if not drafts:
            return []
        with self._lock:
            entries = self._chain(drafts, actor)
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(
                    f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [_row(entry) for entry in entries],
                )
                if self.key:
                    write_seal(self._db, Anchor(entries[-1].seq, entries[-1].hash), self.key)
            self._head, self._hash = entries[-1].seq, entries[-1].hash
            # Where a power loss undoes the rename, the anchor is behind the chain, as it is between these two writes.
            Anchor(self.head, self._hash).write(self.path, self.key, durable=False)
        self.on_append(entries)
        return entries

    @property
    def head(self) -> int:
        return self._head

    @property
    def leads(self) -> bool:
        return True

    def _chain(self, drafts: Sequence[Draft], actor: str) -> list[Entry]:
        return chained(drafts, actor, self._clock.now_ms(), self.epoch, self._head, self._hash)

    def folded(self, part: str) -> tuple[int, Any]:
        """The state of `part` of the checkpoint, and the number of the entry after which to go on; else (0, None)."""
        if self.checkpoint is None or part not in self.checkpoint.parts:
            return 0, None
        return self.checkpoint.seq, self.checkpoint.parts[part]

    def save(self, seq: int, parts: Mapping[str, Any]) -> None:
        """Put on file what the entries up to number `seq` folded to, for the next start."""
        found = Checkpoint(seq, parts)
        self.append(EntryKind.CHECKPOINT, checkpoint.save(self.path, found))
        self.checkpoint = Checkpoint(seq, {})

    def must_lead(self) -> None:
        """Nobody else can: the file is locked."""

    def follow(self) -> list[Entry]:
        return []

    def read_note(self, name: str) -> str:
        path = self.path.with_name(f"{self.path.name}.{name}")
        return blob.opened(path.read_bytes(), path).decode() if path.exists() else ""

    def keep_note(self, name: str, text: str) -> None:
        write_atomically(self.path.with_name(f"{self.path.name}.{name}"), blob.closed(text.encode()))

    def archive(self, keep: int) -> str:
        # Archiving is itself a reader and a writer of the journal, so it lies above it.
        from tocsin.journal.archive import archive_next

        made = archive_next(self, keep)
        return "" if made is None else f"entries {made.first} to {made.last} are in {made.path.name}"

    def archived(self) -> int:
        return max((file.last for file in archive_of(self.path)), default=0)

    def first_here(self) -> int:
        """Number of the first entry that is not archived yet."""
        with self._lock:
            return first_here(self._db)

    def retire(self, file: ArchiveFile, last_hash: str) -> None:
        """Say in an entry that `file`, which is on disk and ends with `last_hash`, has its entries, and take them out.

        Readers find them there. A process that is killed meanwhile leaves entries that stand in both places.
        """
        facts = {"first": file.first, "last": file.last, "hash": last_hash, "file": file.path.name}
        self.append(EntryKind.ARCHIVED, facts)
        with self._lock, self._db:
            self._db.execute("INSERT OR IGNORE INTO archived VALUES (?, ?, ?)", (file.last, file.first, last_hash))
        self.remove_archived()

    def remove_archived(self) -> None:
        """Take out what is archived and still stands here."""
        removed = REMOVED_AT_ONCE
        while removed:
            with self._lock, self._db:
                query = (
                    "DELETE FROM entry WHERE seq <= min((SELECT coalesce(max(last), 0) FROM archived), "
                    "(SELECT min(seq) FROM entry) + ?)"
                )
                removed = self._db.execute(query, (REMOVED_AT_ONCE - 1,)).rowcount

    def compact(self) -> None:
        """Give the room of entries that were archived back to the file system; takes as long as a copy of the file."""
        with self._lock:
            self._db.execute("VACUUM")

    def close(self) -> None:
        """Close the files and give up the lock; safe to repeat."""
        with self._lock:
            self._db.close()
            self._held.close()


def _missing_archive(path: Path, db: sqlite3.Connection) -> str:
    """Why the archive of the journal is not whole; empty where each of its files ends as it did when it was made."""
    for last, first, wanted in db.execute("SELECT last, first, hash FROM archived ORDER BY last"):
        file = file_of(path, first, last)
        try:
            found = next(read_entries(file.path, after=last - 1, limit=1), None) if file.path.exists() else None
        except ArchiveMissing:
            found = None
        if found is None or found.hash != wanted:
            what = "is missing" if found is None else "is not the one that was made"
            return f"{file.path} of its archive {what}; put it back, or restore a backup"
    return ""


def _seal(path: Path, key: bytes) -> None:
    """Seal the journal as it ends now."""
    with closing(connect(path, write=False)) as db:
        last = db.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if last is not None:
        Anchor(int(last[0]), str(last[1])).write(path, key)


def seal(path: Path, key: bytes) -> Verification:
    """Seal the anchor of the journal at `path` with `key` as it stands, where its chain holds; no brain may use it.

    Raises Conflict where a brain does.
    """
    with lock(path):
        result = verify(path)
        if result.ok:
            _seal(path, key)
        return result


def _row(entry: Entry) -> tuple[object, ...]:
    return (
        entry.seq,
        entry.epoch,
        entry.at_ms,
        entry.kind,
        entry.actor,
        int(entry.simulated),
        canonical(entry.payload),
        entry.previous_hash,
        entry.hash,
    )
