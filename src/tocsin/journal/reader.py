"""Reading entries, also while a writer has the journal open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from tocsin.journal.entry import Entry
from tocsin.journal.files import connect

COLUMNS = "seq, epoch, at_ms, kind, actor, simulated, payload, previous_hash, hash"
_PAGE = 1_000


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


def select(
    db: sqlite3.Connection, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
) -> Iterator[Entry]:
    """Entries above `after` in order, page by page, so that no read holds the database for long."""
    left = limit
    where = "seq > ?" + (f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else "")
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        query = f"SELECT {COLUMNS} FROM entry WHERE {where} ORDER BY seq LIMIT {size}"
        rows = db.execute(query, (after, *(kinds or ()))).fetchall()
        yield from map(from_row, rows)
        if len(rows) < size:
            return
        after = int(rows[-1][0])
        left = None if left is None else left - len(rows)


def read_entries(
    path: Path, *, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
) -> Iterator[Entry]:
    """Entries of the journal at `path`, without writing to it. Raises InputError where it is no journal."""
    with closing(connect(path, write=False)) as db:
        yield from select(db, after, kinds, limit)
