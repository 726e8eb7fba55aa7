"""Checking the chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tocsin.domain.entry import GENESIS, Verification, digest
from tocsin.domain.errors import InputError
from tocsin.domain.progress import track
from tocsin.journal.files import COLUMNS, Anchor, JournalBroken, connect, newest, sealed_in

_TYPES = (int, int, int, str, str, int, str, str, str)
"""Of `COLUMNS`."""


def verify(path: Path, key: bytes = b"", after: int = 0) -> Verification:
    """Check every hash, the numbering and, by the anchor, the end; reads only, also beside a writer.

    With a `key` the anchor must be sealed with it: what was rewritten with all its hashes is found as well, and so is
    what was added behind the sealed end, which a writer with the key moves in the transaction that adds an entry.
    What stands `after` an entry alone is checked where that number is given; the entry itself must be there.
    Without a key the chain may be ahead of the anchor by what was committed just before a crash, never behind it.
    """
    try:
        # The anchor first: what a writer appends meanwhile only makes the chain longer.
        anchor = Anchor.read(path, key)
        with closing(connect(path, write=False)) as db:
            # One state of the database: the seal and the entries that it covers.
            db.execute("BEGIN")
            if not key:
                return _walk(db, anchor, after)
            end = newest(anchor, sealed_in(db, key))
            result = _walk(db, end, after)
            return _without_unsealed(result, end) if result.ok and end is not None else result
    except (JournalBroken, InputError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return Verification(False, 0, str(error))


def _without_unsealed(result: Verification, end: Anchor) -> Verification:
    """`result` of a chain that holds, unless entries stand behind its sealed `end`."""
    more = result.events - end.seq
    if more <= 0:
        return result
    which = f"entry {end.seq + 1} is" if more == 1 else f"entries {end.seq + 1} to {result.events} are"
    remedy = "look at them by tocsin journal show, and take them as they are by tocsin journal seal"
    return Verification(False, end.seq, f"unsealed: {which} behind the sealed end, added without the key: {remedy}")


def _hash_at(db: sqlite3.Connection, seq: int) -> str | None:
    """Hash of one entry as it stands, or what goes before the first; None where it is missing."""
    if seq == 0:
        return GENESIS
    found = db.execute("SELECT hash FROM entry WHERE seq = ?", (seq,)).fetchone()
    return None if found is None else str(found[0])


def _is_plain(row: Sequence[object]) -> bool:
    """Whether every value has the type that it was written with; a flipped byte can make a text a blob."""
    return all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True))


def _problem(row: Sequence[Any], count: int, previous: str) -> str:
    """What is wrong with a row that should follow entry `count`; empty where nothing is."""
    seq, epoch, at_ms, kind, actor, simulated, payload, claimed_previous, claimed = row
    if seq != count + 1:
        return f"entry {count + 1} is missing"
    if claimed_previous != previous:
        return f"entry {seq} does not follow entry {count}"
    if not _is_plain(row) or digest(previous, seq, epoch, at_ms, kind, actor, bool(simulated), payload) != claimed:
        return f"entry {seq} was edited"
    return ""


def _walk(db: sqlite3.Connection, anchor: Anchor | None, after: int) -> Verification:
    previous, count = _hash_at(db, after), after
    if previous is None:
        return Verification(False, 0, f"entry {after} is missing")
    anchored = anchor is None or anchor.seq <= after
    if anchor is not None and anchored and _hash_at(db, anchor.seq) != anchor.hash:
        return Verification(False, count, f"entry {anchor.seq} is not the one that was acknowledged")
    total = None if anchor is None else anchor.seq - after
    rows = db.execute(f"SELECT {COLUMNS} FROM entry WHERE seq > ? ORDER BY seq", (after,))
    for row in track(rows, "journal", total):
        if problem := _problem(row, count, previous):
            return Verification(False, count, problem)
        previous, count = row[-1], row[0]
        if anchor is not None and count == anchor.seq:
            if previous != anchor.hash:
                return Verification(False, count, f"entry {count} is not the one that was acknowledged")
            anchored = True
    if not anchored and anchor is not None:
        return Verification(False, count, f"cut short: {anchor.seq} entries were acknowledged, {count} are left")
    if anchor is None and count:
        return Verification(False, count, "the anchor file is missing")
    return Verification(True, count)
