"""The newest reading of each GPU in memory, so that who writes need not put it together from many small chunks."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.metrics import METRICS
from tocsin.store.embedded.hot_block import Block, Flags, Floats, Index, Ints, join

Places = npt.NDArray[np.intp]

_NEVER = -(2**63)
_MAX_SETS = 1_000
_FOLDED_ROWS = 512
"""Readings that wait to be taken up together: one by one the nodes of a fleet would make each write a tenth slower."""
_UNKNOWN, _ELSEWHERE, _HERE = 0, 1, 2
_MAX_GPUS = 2**24 // len(METRICS)
"""Of GPUs with higher numbers nothing is remembered: the table takes at most 128 MiB."""


def revision(db: sqlite3.Connection) -> int:
    """A number that grows with every write of readings, and with whatever else changes what is newest (`changed`)."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunk'").fetchone()
    return int(found[0]) if found else 0


def changed(db: sqlite3.Connection) -> None:
    """This transaction removes readings, or dates them anew: what processes remember of them must not count.

    The newest number of a chunk is the revision; one number stays unused. Before the first chunk nothing is remembered.
    """
    db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'chunk'")


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of n GPUs, `held`, bool[n], says which are remembered; `at_ms` and `values` have a row for each of those."""

    held: Flags
    at_ms: Ints
    values: Floats


class Newest:
    """The values, not the variants, of each GPU's newest reading, as far as this process has written it.

    A row is taken up with a reading later than all that the file has of its GPU, so that it is whole. It counts until
    somebody else changes readings: then all is forgotten, and comes again with the next readings. `begin`, `note`,
    `settle` and `forget` are called under the writer's lock, `rows` by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear(0)

    def _clear(self, seen: int) -> None:
        self._revision = seen
        self._written: tuple[Block, int] | None = None
        self._waiting: list[Block] = []
        self._state = np.zeros(0, np.uint8)
        self._at_ms = np.zeros(0, np.int64)
        # Column 0 stays empty: it is the one of names that nobody has written.
        self._values: Floats = np.empty((0, 1))
        self._columns: dict[str, int] = {}
        self._places: dict[tuple[str, ...], Places] = {}

    def forget(self) -> None:
        """A transaction was undone, or the file may become another one."""
        with self._lock:
            self._clear(0)

    # ------------------------------------------------------------------ writing

    def begin(self, db: sqlite3.Connection, gpu: Index) -> None:
        """Readings of `gpu` are about to be written: see whether somebody else wrote, and what is newest of them."""
        before = revision(db)
        with self._lock:
            if before != self._revision:
                self._clear(before)
            top = int(gpu.max(initial=0))
            if top >= _MAX_GPUS:
                gpu = gpu[gpu < _MAX_GPUS]
            self._make_room(min(top + 1, _MAX_GPUS))
            unknown = self._state[gpu] == _UNKNOWN
            if unknown.any():
                asked = np.unique(gpu[unknown]).tolist()
                query = "SELECT id, COALESCE(last_ms, ?) FROM gpu WHERE id IN (SELECT value FROM json_each(?))"
                for number, last_ms in db.execute(query, (_NEVER, json.dumps(asked))):
                    self._state[number], self._at_ms[number] = _ELSEWHERE, last_ms

    def _make_room(self, height: int) -> None:
        had = len(self._state)
        if height <= had:
            return
        more = max(height, min(2 * had, _MAX_GPUS)) - had
        self._state = np.concatenate((self._state, np.full(more, _UNKNOWN, np.uint8)))
        self._at_ms = np.concatenate((self._at_ms, np.full(more, _NEVER)))
        self._values = np.concatenate((self._values, np.full((more, self._values.shape[1]), np.nan)))

    def note(self, db: sqlite3.Connection, block: Block) -> None:
        """The transaction has written `block`."""
        with self._lock:
            self._written = (block, revision(db))

    def settle(self) -> None:
        """The transaction is over: what it wrote is in the file."""
        with self._lock:
            if self._written is None:
                return
            (block, self._revision), self._written = self._written, None
            self._waiting.append(block)
            if sum(map(len, self._waiting)) >= _FOLDED_ROWS:
                self._fold()

    def _fold(self) -> None:
        if self._waiting:
            block, self._waiting = join(self._waiting), []
            self._take(block.where(block.gpu < len(self._state)))

    def _take(self, block: Block) -> None:
        """A later instant replaces the row, the same one fills in fields, an earlier one changes nothing."""
        before = self._at_ms[block.gpu]
        np.maximum.at(self._at_ms, block.gpu, block.at_ms)
        rows = np.flatnonzero(block.at_ms == self._at_ms[block.gpu])
        later = before[rows] < block.at_ms[rows]
        fresh = block.gpu[rows[later]]
        self._state[fresh] = _HERE
        places = self._places_of(block.names)
        values = block.values.T if len(rows) == len(block) else block.values.T[rows]
        if len(fresh) == len(rows) and _differ(fresh):
            wide = np.full((len(fresh), self._values.shape[1]), np.nan)
            wide[:, places] = values
            self._values[fresh] = wide
            return
        self._values[fresh] = np.nan
        # Where one cell is named twice, the value that comes last stays: that of the later row.
        row, column = np.nonzero(~np.isnan(values))
        self._values[block.gpu[rows[row]], places[column]] = values[row, column]

    def _places_of(self, names: tuple[str, ...]) -> Places:
        found = self._places.get(names)
        if found is None:
            if len(self._places) >= _MAX_SETS:
                self._places = {}
            found = np.array([self._columns.setdefault(name, len(self._columns) + 1) for name in names], dtype=np.intp)
            more = len(self._columns) + 1 - self._values.shape[1]
            self._values = np.hstack((self._values, np.full((len(self._values), more), np.nan)))
            self._places[names] = found
        return found

    # ------------------------------------------------------------------ reading

    def rows(self, seen: int, gpu: Index, last: Ints, metrics: Sequence[str]) -> Remembered:
        """What is remembered of `gpu`, whose newest instants are `last` where the file has revision `seen`.

        It may be newer than that; a write that has not returned yet may be in it or not. There is nothing where one of
        `metrics` is no plain metric.
        """
        held = np.zeros(len(gpu), np.bool_)
        plain = all(name in METRICS for name in metrics)
        with self._lock:
            # A transaction may be over and not settled yet: its write has not returned, and later instants of it are
            # not `held`.
            known = seen <= self._revision or (self._written is not None and seen == self._written[1])
            if known and plain:
                self._fold()
                inside = np.flatnonzero(gpu < len(self._state))
                some = gpu[inside]
                held[inside] = (self._state[some] == _HERE) & (self._at_ms[some] >= last[inside])
            chosen = gpu[held]
            places = np.array([self._columns.get(name, 0) for name in metrics], dtype=np.intp)
            values = self._values[chosen[:, None], places]
            return Remembered(held, self._at_ms[chosen], values)


def _differ(gpu: Index) -> bool:
    """Whether no number is there twice; those of a tick mostly rise."""
    return bool((gpu[1:] > gpu[:-1]).all()) or len(np.unique(gpu)) == len(gpu)
