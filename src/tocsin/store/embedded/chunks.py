"""Table ``chunk``: the hot window, readings that are in no segment yet."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.domain.clock import HOUR
from tocsin.store.embedded.block import Block, Extra, Flags, Floats, Ints, Notes, no_notes

# Blocks of readings as rows of table ``chunk``. Numbers are stored column by column with the bytes of equal weight
# together, under LZ4: what is alike in the readings of one tick lies side by side, and a column can be had without
# the others being put together.

CHUNK_ROWS = 512
"""Most readings in one chunk: one GPU, or the newest readings of all, can be had without much of the rest."""

_RUN_ROWS = 8_192
"""About how many rows of small chunks are unpacked together."""

_CODEC = "lz4_raw"

COLUMNS = "bucket_ms, first_ms, last_ms, first_gpu, last_gpu, height, names, keys, body, notes, extra"
"""Columns of table ``chunk`` that `pack` fills."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A block as a row of table ``chunk``, but for the number of its `names`."""

    bucket_ms: int
    first_ms: int
    last_ms: int
    first_gpu: int
    last_gpu: int
    height: int
    names: tuple[str, ...]
    keys: bytes
    body: bytes
    notes: str | None
    extra: bytes | None

    def row(self, names: int) -> tuple[object, ...]:
        """A row of `COLUMNS`; `names` is the number of the block's names."""
        span = (self.bucket_ms, self.first_ms, self.last_ms, self.first_gpu, self.last_gpu)
        return (*span, self.height, names, self.keys, self.body, self.notes, self.extra)


def chunks_of(block: Block) -> Iterator[Block]:
    """`block` in parts of at most `CHUNK_ROWS` rows and of one hour each, sorted by GPU."""
    hours = block.at_ms // HOUR
    for hour in dict.fromkeys(hours.tolist()):
        rows = np.flatnonzero(hours == hour)
        rows = rows[np.argsort(block.gpu[rows], kind="stable")]
        for start in range(0, len(rows), CHUNK_ROWS):
            yield block.take(rows[start : start + CHUNK_ROWS])


def pack(block: Block) -> Packed:
    """A part of `chunks_of` as it is stored."""
    first = int(block.at_ms.min())
    return Packed(
        bucket_ms=first // HOUR * HOUR,
        first_ms=first,
        last_ms=int(block.at_ms.max()),
        first_gpu=int(block.gpu.min()),
        last_gpu=int(block.gpu.max()),
        height=len(block),
        names=block.names,
        keys=_compress(block.gpu.tobytes() + (block.at_ms - first).tobytes()),
        body=_compress(_shuffled(block.values)),
        notes=_notes_text(block),
        extra=_packed_extra(block.extra),
    )


@lru_cache(maxsize=1024)
def _chosen(names: tuple[str, ...], wanted: frozenset[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Places of the names that are wanted, and the names there."""
    places = [place for place, name in enumerate(names) if wanted is None or name in wanted]
    return places, tuple(names[place] for place in places)


def unpack(
    row: Sequence[object], names: tuple[str, ...], wanted: frozenset[str] | None, *, whole: bool, variants: bool
) -> Block:
    """The block of a row ``first_ms, height, keys, body, notes, extra``.

    It has the columns that are `wanted` (None: all), reasons and owners where `whole`, variants where `variants`.
    """
    block = unpack_alike([row], names, wanted)
    *_, notes, extra = row
    if whole and notes is not None:
        reasons, owners = _notes_of_text(str(notes))
        block = replace(block, reasons=reasons, owners=owners)
    return replace(block, extra=_unpacked_extra(extra)) if variants and extra is not None else block


def unpack_alike(
    rows: Sequence[Sequence[object]], names: tuple[str, ...], wanted: frozenset[str] | None = None
) -> Block:
    """The readings of rows of one height and of the same `names` as one block, without notes and variants.

    A fleet that pushes node by node has thousands of small chunks, and putting each together by itself costs more than
    what is in them.
    """
    count = len(rows)
    height = int(str(rows[0][1]))
    raw = b"".join([_decompress(row[2], 12 * height) for row in rows])
    keys: npt.NDArray[np.uint8] = np.frombuffer(raw, np.uint8).reshape(count, 12 * height)
    gpu = np.ascontiguousarray(keys[:, : 4 * height]).view(np.int32).reshape(-1)
    first = np.array([row[0] for row in rows], np.int64)
    at_ms = (np.ascontiguousarray(keys[:, 4 * height :]).view(np.int64) + first[:, None]).reshape(-1)
    places, chosen = _chosen(names, wanted)
    body = b"".join([_decompress(row[3], 8 * height * len(names)) for row in rows])
    values = _unshuffled(body, (count, len(names), height), places)
    nothing = no_notes(count * height)
    return Block(gpu, at_ms, chosen, values, nothing, nothing)


def _compress(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return packed


def _decompress(data: object, size: int) -> bytes:
    found: bytes = pa.decompress(data, size, codec=_CODEC, asbytes=True) if size else b""
    return found


def _shuffled(values: Floats) -> bytes:
    width, height = values.shape
    split = np.ascontiguousarray(values).view(np.uint8).reshape(width, height, 8)
    return split.transpose(0, 2, 1).tobytes()


def _unshuffled(data: bytes, shape: tuple[int, int, int], places: Sequence[int]) -> Floats:
    """float64[places, count * height] of `count` matrices of `width` rows, one after the other in `data`."""
    count, width, height = shape
    planes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(count, width, 8, height)
    chosen = planes if len(places) == width else planes[:, list(places)]
    joined = np.ascontiguousarray(chosen.transpose(1, 0, 3, 2))
    values: Floats = joined.view(np.float64).reshape(len(places), count * height)
    return values


def _notes_text(block: Block) -> str | None:
    both = [block.reasons, block.owners]
    if all((notes.of < 0).all() for notes in both):
        return None
    return json.dumps([_compact(notes) for notes in both], ensure_ascii=False, separators=(",", ":"))


def _compact(notes: Notes) -> list[list[object]]:
    used = np.unique(notes.of)
    used = used[used >= 0]
    place = {int(number): at for at, number in enumerate(used)}
    return [[place.get(number, -1) for number in notes.of.tolist()], [notes.texts[number] for number in used]]


def _notes_of_text(text: str) -> tuple[Notes, Notes]:
    reasons, owners = (Notes(np.array(of, dtype=np.int32), tuple(texts)) for of, texts in json.loads(text))
    return reasons, owners


def _packed_extra(extra: Extra) -> bytes | None:
    """Little-endian: size of all that follows, count, size of the names; names as JSON, rows, names, values; LZ4."""
    count = len(extra.row)
    if not count:
        return None
    used, local = np.unique(extra.name, return_inverse=True)
    names = json.dumps([extra.names[number] for number in used], ensure_ascii=False).encode()
    arrays = extra.row.tobytes() + local.astype(np.int32).tobytes() + _shuffled(extra.value.reshape(1, -1))
    head = np.array([len(names) + len(arrays), count, len(names)], dtype="<i8").tobytes()
    return head + _compress(names + arrays)


def _unpacked_extra(data: object) -> Extra:
    assert isinstance(data, bytes)
    size, count, text = np.frombuffer(data, "<i8", 3).tolist()
    raw = _decompress(data[24:], size)
    row = np.frombuffer(raw, np.int32, count, text)
    name = np.frombuffer(raw, np.int32, count, text + 4 * count)
    value = _unshuffled(raw[text + 8 * count :], (1, 1, count), [0])[0]
    return Extra(row, name, value, tuple(json.loads(raw[:text])))


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

    def touches(self, first_ms: Ints, last_ms: Ints) -> Flags:
        """Of n spans, both ends included, whether one of the instants lies in each: bool[n]."""
        if self.instants is None:
            return np.ones(len(first_ms), np.bool_)
        place = np.searchsorted(self.instants, first_ms)
        inside = place < len(self.instants)
        found: Flags = inside & (np.take(self.instants, place, mode="clip") <= last_ms)
        return found

    def of(self, block: Block) -> Block:
        """The wanted rows of `block`."""
        return block.between(self.start_ms, self.end_ms, self.gpus)

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
        """The wanted rows, oldest chunk first."""
        numbers = json.dumps(_found(db, ask))
        query = f"SELECT names, {_BODY} FROM chunk WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"

        def kind(row: tuple[int, ...]) -> tuple[int, int, bool]:
            names, _, height, _, _, notes, extra = row
            return names, height, bool((ask.whole and notes is not None) or (ask.variants and extra is not None))

        for (names, height, special), run in groupby(db.execute(query, (numbers,)), kind):
            # As many at once as make a few thousand rows: an hour of a fleet would not fit in memory.
            while some := [body for _, *body in islice(run, 1 if special else max(1, _RUN_ROWS // height))]:
                if special:
                    yield self._unpacked(db, names, some[0], ask)
                else:
                    yield ask.of(unpack_alike(some, self._named(db, names), ask.names))

    def one(self, db: sqlite3.Connection, number: int, ask: Ask) -> Block:
        """The wanted rows of chunk `number`."""
        names, *body = db.execute(f"SELECT names, {_BODY} FROM chunk WHERE id = ?", (number,)).fetchone()
        return self._unpacked(db, names, body, ask)

    def _unpacked(self, db: sqlite3.Connection, names: int, body: Sequence[object], ask: Ask) -> Block:
        block = unpack(body, self._named(db, names), ask.names, whole=ask.whole, variants=ask.variants)
        return ask.of(block)


def _found(db: sqlite3.Connection, ask: Ask) -> list[int]:
    """Numbers of the chunks with wanted rows, by the index alone.

    The hours that have chunks are stepped through one by one: only within one hour does the index lead straight to
    the instants, and the hour of a fleet that pushes node by node has hundreds of thousands of chunks.
    """
    first, last = ask.span
    query = """
        WITH RECURSIVE hour(ms) AS (
            SELECT MIN(bucket_ms) FROM chunk WHERE bucket_ms > ?1 - 3600000
            UNION ALL
            SELECT (SELECT MIN(bucket_ms) FROM chunk WHERE bucket_ms > ms) FROM hour WHERE ms < ?2
        )
        SELECT id, first_ms, last_ms FROM hour CROSS JOIN chunk ON bucket_ms = ms
        WHERE last_ms >= ?1 AND first_ms < ?2 AND last_gpu >= ?3 AND first_gpu <= ?4 AND id <= ?5
    """
    start, end = max(ask.start_ms, HOUR - 2**63), min(ask.end_ms, 2**63 - 1)
    rows = db.execute(query, (start, end, first, last, ask.upto)).fetchall()
    number, first_ms, last_ms = np.array(rows, np.int64).reshape(-1, 3).T
    found: list[int] = np.sort(number[ask.touches(first_ms, last_ms)]).tolist()
    return found
