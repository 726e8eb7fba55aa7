"""Checking the chain, whole or in slices, from the archive on into the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tocsin.at_rest.keys import KeyLacks
from tocsin.domain.entry import GENESIS, Verification, digest
from tocsin.domain.errors import InputError
from tocsin.domain.progress import track
from tocsin.journal.archive_files import ArchiveMissing
from tocsin.journal.files import Anchor, JournalBroken, Row, connect, newest, read_rows, sealed_in

_TYPES = (int, int, int, str, str, int, str, str, str)
"""Of the columns of a row."""
SLICE_ENTRIES = 5_000
"""Entries of a slice: some 0.1 s of one core."""
SLICE_BYTES = 16 * 1024 * 1024
"""Payload of a slice, past which it ends at the next entry."""


@dataclass(frozen=True, slots=True)
class End:
    """Where the journal ends at one instant: the newest entry that was acknowledged, and the number of the last one."""

    anchor: Anchor | None
    head: int
    sealed: bool


class Checked(Protocol):
    """A journal as it is checked, whichever back end keeps it. Both methods raise JournalBroken and as reading does."""

    def end_of(self, key: bytes) -> End:
        """Where it ends now, read so that what is appended meanwhile only makes the chain longer."""

    def rows(self, after: int, limit: int) -> Iterator[Row]:
        """At most `limit` rows of `COLUMNS` behind number `after`, in order."""


def verify(path: Path, key: bytes = b"", after: int = 0) -> Verification:
    """Check every hash, the numbering and, by the anchor, the end; reads only, also beside a writer.

    With a `key` the anchor must be sealed with it: what was rewritten with all its hashes is found as well, and so is
    what was added behind the sealed end, which a writer with the key moves in the transaction that adds an entry.
    What stands `after` an entry alone is checked where that number is given; the entry itself must be there.
    Without a key the chain may be ahead of the anchor by what was committed just before a crash, never behind it.
    """
    return check(_File(path), key, after, "", None)


def verify_slice(
    path: Path, key: bytes = b"", after: int = 0, previous: str = "", entries: int = SLICE_ENTRIES
) -> Verification:
    """Check what follows entry `after`, `entries` of it at most; the whole chain holds where each slice does.

    `previous` is the hash that the slice before found at `after`: an entry that changed since then is a problem.
    """
    return check(_File(path), key, after, previous, entries)


class _File:
    """A journal in a file, with its archive."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def end_of(self, key: bytes) -> End:
        # The anchor first: what a writer appends meanwhile only makes the chain longer.
        anchor = Anchor.read(self._path, key)
        with closing(connect(self._path, write=False)) as db:
            # One state of the database: the seal and the entries that it covers.
            db.execute("BEGIN")
            head = int(db.execute("SELECT coalesce(max(seq), 0) FROM entry").fetchone()[0])
            return End(newest(anchor, sealed_in(db, key)) if key else anchor, head, bool(key))

    def rows(self, after: int, limit: int) -> Iterator[Row]:
        return read_rows(self._path, after=after, limit=limit)


def check(journal: Checked, key: bytes, after: int, previous: str, entries: int | None) -> Verification:
    """Check what follows entry `after`, with `entries` a slice of it; what `verify` and `verify_slice` say holds.

    Raises Unavailable where a database does not answer, and KeyLacks where the file cannot be decrypted here: neither
    says anything of the journal.
    """
    try:
        end = journal.end_of(key)
        start = _hash_in(journal, after)
        if start is None:
            return Verification(False, 0, f"entry {after} is missing")
        if previous and start != previous:
            return Verification(False, after, f"entry {after} is not the one that was checked")
        anchor = end.anchor
        if anchor is not None and anchor.seq <= after and _hash_in(journal, anchor.seq) != anchor.hash:
            return Verification(False, after, f"entry {anchor.seq} is not the one that was acknowledged")
        ahead = max(0, end.head - after)
        rows = journal.rows(after, ahead if entries is None else min(ahead, entries))
        found = _walk(track(rows, "journal", ahead) if entries is None else _short(rows), end, after, start)
        if found.ok and not found.done and (entries is None or found.events == after):
            return Verification(False, found.events, f"entry {found.events + 1} is missing")
        return found
    except KeyLacks:
        raise
    except (JournalBroken, ArchiveMissing, InputError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return Verification(False, 0, str(error))


def _short(rows: Iterator[Row]) -> Iterator[Row]:
    """`rows` up to a slice's bytes."""
    size = 0
    for row in rows:
        yield row
        size += len(str(row[6]))
        if size > SLICE_BYTES:
            return


def hash_at(path: Path, seq: int) -> str | None:
    """Hash of one entry as it stands, or what goes before the first; None where it is missing."""
    return _hash_in(_File(path), seq)


def _hash_in(journal: Checked, seq: int) -> str | None:
    if seq == 0:
        return GENESIS
    found = next(journal.rows(seq - 1, 1), None)
    return None if found is None or found[0] != seq else str(found[-1])


def _is_plain(row: Sequence[object]) -> bool:
    """Whether every value has the type that it was written with; a flipped byte can make a text a blob."""
    return all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True))


def problem_of_row(row: Sequence[Any], count: int, previous: str) -> str:
    """What is wrong with a row that should follow entry `count` of hash `previous`; empty where nothing is."""
    seq, epoch, at_ms, kind, actor, simulated, payload, claimed_previous, claimed = row
    if seq != count + 1:
        return f"entry {count + 1} is missing"
    if claimed_previous != previous:
        return f"entry {seq} does not follow entry {count}"
    if not _is_plain(row) or digest(previous, seq, epoch, at_ms, kind, actor, bool(simulated), payload) != claimed:
        return f"entry {seq} was edited"
    return ""


def _walk(rows: Iterator[Row], end: End, after: int, start: str) -> Verification:
    """The rows after number `after`, which has hash `start`."""
    count, previous, anchor = after, start, end.anchor
    for row in rows:
        if problem := problem_of_row(row, count, previous):
            return Verification(False, count, problem)
        previous, count = row[-1], row[0]
        if anchor is not None and count == anchor.seq and previous != anchor.hash:
            return Verification(False, count, f"entry {count} is not the one that was acknowledged")
    if count < end.head:
        return Verification(True, count, head=end.head, hash=previous, done=False)
    if anchor is not None and count < anchor.seq:
        return Verification(False, count, f"cut short: {anchor.seq} entries were acknowledged, {count} are left")
    if anchor is None and count:
        return Verification(False, count, "the anchor file is missing")
    if end.sealed and anchor is not None and count > anchor.seq:
        return _unsealed(anchor.seq, count)
    return Verification(True, count, head=count, hash=previous)


def _unsealed(end: int, last: int) -> Verification:
    """What is said of entries that stand behind the sealed `end`."""
    which = f"entry {last} is" if last == end + 1 else f"entries {end + 1} to {last} are"
    remedy = "look at them by tocsin journal show, and take them as they are by tocsin journal seal"
    return Verification(False, end, f"unsealed: {which} behind the sealed end, added without the key: {remedy}")
