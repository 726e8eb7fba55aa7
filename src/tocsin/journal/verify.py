"""Checking the chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tocsin.domain.entry import GENESIS, Verification, digest
from tocsin.domain.errors import InputError
from tocsin.domain.progress import track
from tocsin.journal.files import COLUMNS, Anchor, JournalBroken, connect

_TYPES = (int, int, int, str, str, int, str, str, str)
"""Of `COLUMNS`."""


def verify(path: Path, key: bytes = b"") -> Verification:
    """Check every hash, the numbering and, by the anchor, the end; reads only, also beside a writer.

    With a `key` the anchor must be sealed with it: what was rewritten with all its hashes is found as well.
    The chain may be ahead of the anchor by what was committed just before a crash, never behind it.
    """
    try:
        # The anchor first: what a writer appends meanwhile only makes the chain longer.
        anchor = Anchor.read(path, key)
        with closing(connect(path, write=False)) as db:
            return _walk(db, anchor)
    except (JournalBroken, InputError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return Verification(False, 0, str(error))


def _is_plain(row: Sequence[object]) -> bool:
    """Whether every value has the type that it was written with; a flipped byte can make a text a blob."""
    return all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True))


def _walk(db: sqlite3.Connection, anchor: Anchor | None) -> Verification:
    previous, count, anchored = GENESIS, 0, anchor is None or anchor.seq == 0
    total = None if anchor is None else anchor.seq
    for row in track(db.execute(f"SELECT {COLUMNS} FROM entry ORDER BY seq"), "journal", total):
        seq, epoch, at_ms, kind, actor, simulated, payload, claimed_previous, claimed = row
        if seq != count + 1:
            return Verification(False, count, f"entry {count + 1} is missing")
        if claimed_previous != previous:
            return Verification(False, count, f"entry {seq} does not follow entry {count}")
        if not _is_plain(row) or digest(previous, seq, epoch, at_ms, kind, actor, bool(simulated), payload) != claimed:
            return Verification(False, count, f"entry {seq} was edited")
        previous, count = claimed, seq
        if anchor is not None and seq == anchor.seq:
            if claimed != anchor.hash:
                return Verification(False, count, f"entry {seq} is not the one that was acknowledged")
            anchored = True
    if not anchored and anchor is not None:
        return Verification(False, count, f"cut short: {anchor.seq} entries were acknowledged, {count} are left")
    if anchor is None and count:
        return Verification(False, count, "the anchor file is missing")
    return Verification(True, count)
