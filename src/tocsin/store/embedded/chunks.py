"""Table ``chunk``: the hot window, readings that are in no segment yet."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.store.embedded.hot_block import Block, Flags, Ints
from tocsin.store.embedded.hot_codec import COLUMNS, chunks_of, pack, unpack

_INSERT = f"INSERT INTO chunk ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(',')))})"
_BODY = "first_ms, height, keys, body, notes, extra"


@dataclass(frozen=True, slots=True)
class Ask:
    """Which rows are wanted: those in [`start_ms`, `end_ms`), of the GPUs for whose number `gpus` holds (None: all).

    `names` are plain columns and variants, None for all; with `whole` also reasons and owners. With `instants`, which
    rise, a chunk or segment that holds none of them may be left out. `upto` is the newest chunk that counts.
    """

    start_ms: int
    end_ms: int
    gpus: Flags | None = None
    names: frozenset[str] | None = None
    whole: bool = False
    variants: bool = False
    instants: Ints | None = None
    upto: int = 2**62

    def touches(self, first_ms: int, last_ms: int) -> bool:
        """Whether one of the instants lies between the two."""
        if self.instants is None:
            return True
        place = int(np.searchsorted(self.instants, first_ms))
        return place < len(self.instants) and int(self.instants[place]) <= last_ms

    @property
    def span(self) -> tuple[int, int]:
        """Lowest and highest number of a GPU that is wanted."""
        if self.gpus is None:
            return 0, 2**62
        numbers = np.flatnonzero(self.gpus)
        return (int(numbers[0]), int(numbers[-1])) if len(numbers) else (1, 0)


class Chunks:
    """Writes and reads chunks; remembers the sets of names that they have."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def forget(self) -> None:
        """A transaction was undone, and with it perhaps sets of names."""
        self._numbers = {}

    def insert(self, db: sqlite3.Connection, block: Block) -> None:
        """Keep the rows of `block`; of what is there already they replace field by field."""
        packed = [pack(part) for part in chunks_of(block)]
        db.executemany(_INSERT, [part.row(self._number(db, part.names)) for part in packed])

    def replace(self, db: sqlite3.Connection, number: int, block: Block) -> None:
        """Put `block`, rows of one chunk, in place of chunk `number`."""
        part = pack(block)
        columns = ", ".join(f"{name} = ?" for name in COLUMNS.replace(" ", "").split(","))
        db.execute(f"UPDATE chunk SET {columns} WHERE id = ?", (*part.row(self._number(db, part.names)), number))

    def _number(self, db: sqlite3.Connection, names: tuple[str, ...]) -> int:
        found = self._numbers.get(names)
        if found is None:
            body = json.dumps(names)
            db.execute("INSERT OR IGNORE INTO chunk_names (body) VALUES (?)", (body,))
            found = int(db.execute("SELECT id FROM chunk_names WHERE body = ?", (body,)).fetchone()[0])
            self._numbers[names] = found
        return found

    def _named(self, db: sqlite3.Connection, number: int) -> tuple[str, ...]:
        found = self._names.get(number)
        if found is None:
            (body,) = db.execute("SELECT body FROM chunk_names WHERE id = ?", (number,)).fetchone()
            found = self._names[number] = tuple(json.loads(body))
        return found

    def read(self, db: sqlite3.Connection, ask: Ask) -> Iterator[Block]:
        """The wanted rows of each chunk, oldest chunk first."""
        numbers = json.dumps(_found(db, ask))
        query = f"SELECT names, {_BODY} FROM chunk WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        for names, *body in db.execute(query, (numbers,)):
            yield self._unpacked(db, names, body, ask)

    def one(self, db: sqlite3.Connection, number: int, ask: Ask) -> Block:
        """The wanted rows of chunk `number`."""
        names, *body = db.execute(f"SELECT names, {_BODY} FROM chunk WHERE id = ?", (number,)).fetchone()
        return self._unpacked(db, names, body, ask)

    def _unpacked(self, db: sqlite3.Connection, names: int, body: Sequence[object], ask: Ask) -> Block:
        block = unpack(body, self._named(db, names), ask.names, whole=ask.whole, variants=ask.variants)
        return block.between(ask.start_ms, ask.end_ms, ask.gpus)


def _found(db: sqlite3.Connection, ask: Ask) -> list[int]:
    """Numbers of the chunks with wanted rows, by the index alone."""
    first, last = ask.span
    query = (
        "SELECT id, first_ms, last_ms FROM chunk WHERE bucket_ms > ? AND bucket_ms < ? AND last_ms >= ? "
        "AND first_ms < ? AND last_gpu >= ? AND first_gpu <= ? AND id <= ?"
    )
    values = (ask.start_ms - HOUR, ask.end_ms, ask.start_ms, ask.end_ms, first, last, ask.upto)
    return sorted(number for number, low, high in db.execute(query, _fitting(values)) if ask.touches(low, high))


def _fitting(values: tuple[int, ...]) -> tuple[int, ...]:
    """`values` within what SQLite keeps: a bound beyond it is no bound."""
    return tuple(max(-(2**63), min(value, 2**63 - 1)) for value in values)
