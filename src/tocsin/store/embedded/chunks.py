"""Table ``chunk``: the hot window, readings that are in no segment yet."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from sys import intern

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from tocsin.domain.clock import HOUR
from tocsin.store.embedded.blocks import NO_EXTRA, Block, Extra, Flags, Floats, Ints, joined_extra
from tocsin.store.embedded.notes import Notes, no_notes, notes_of
from tocsin.store.embedded.sums import column_sums, rest_sum

log = structlog.get_logger()

# Numbers are stored column by column with the bytes of equal weight together, under LZ4: what is alike in the readings
# of one tick lies side by side, and a column can be had without the others being put together.

CHUNK_ROWS = 512
"""Most readings in one chunk: one GPU, or the newest readings of all, can be had without much of the rest."""
_LISTS = 128
"""Lists of names that are remembered: each node has its own, of a thousand names where its processes have many."""
_RUN_ROWS = 8_192
"""About how many rows of small chunks are unpacked together."""

_CODEC = "lz4_raw"

COLUMNS = "bucket_ms, first_ms, last_ms, first_gpu, last_gpu, height, names, keys, body, notes, extra, sum, rest"
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
    sum: int
    rest: int

    def row(self, names: int) -> tuple[object, ...]:
        """A row of `COLUMNS`; `names` is the number of the block's names."""
        span = (self.bucket_ms, self.first_ms, self.last_ms, self.first_gpu, self.last_gpu)
        return (*span, self.height, names, self.keys, self.body, self.notes, self.extra, self.sum, self.rest)


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
    keys = block.gpu.tobytes() + (block.at_ms - first).tobytes()
    body = _shuffled(block.values)
    notes, extra = _notes_text(block), _packed_extra(block.extra)
    return Packed(
        bucket_ms=first // HOUR * HOUR,
        first_ms=first,
        last_ms=int(block.at_ms.max()),
        first_gpu=int(block.gpu.min()),
        last_gpu=int(block.gpu.max()),
        height=len(block),
        names=block.names,
        keys=_compress(keys),
        body=_compress(body),
        notes=notes,
        extra=extra,
        sum=int(_sums([first], len(block), block.names, keys, body)[0]),
        rest=rest_sum(notes, extra),
    )


def _sums(
    first_ms: Sequence[int] | Ints, height: int, names: tuple[str, ...], keys: bytes, body: bytes
) -> npt.NDArray[np.int64]:
    """The sums of chunks whose columns lie one after the other in `keys` and `body`."""
    count = len(first_ms)
    heads = np.empty((count, 2), np.int64)
    heads[:, 0], heads[:, 1] = first_ms, height
    both = (np.frombuffer(data, np.uint8).reshape(count, len(data) // count) for data in (keys, body))
    return column_sums(heads, names, *both)


@lru_cache(maxsize=_LISTS)
def _chosen(names: tuple[str, ...], wanted: frozenset[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Places of the names that are wanted, and the names there."""
    places = [place for place, name in enumerate(names) if wanted is None or name in wanted]
    return places, tuple(names[place] for place in places)


class DamagedChunk(ValueError):
    """A chunk is not what was written."""


_UNREADABLE = (ValueError, TypeError, LookupError, pa.ArrowException, OSError, RecursionError)
"""What reading a chunk that is damaged raises; `DamagedChunk` is one of them."""


def unpack(
    rows: Sequence[Sequence[object]],
    names: tuple[str, ...],
    wanted: frozenset[str] | None,
    *,
    whole: bool,
    variants: bool,
) -> Block:
    """The block of rows of `BODY`, of one height and of the same `names`; raises DamagedChunk.

    It has the columns that are `wanted` (None: all), reasons and owners where `whole`, variants where `variants`.
    """
    block = unpack_alike(rows, names, wanted)
    if not (whole or variants):
        return block
    if any(rest != rest_sum(notes, extra) for *_, notes, extra, _, rest in rows):
        raise DamagedChunk("notes or variants are not as written")
    height = len(block) // len(rows)
    if whole and any(row[4] is not None for row in rows):
        nothing = no_notes(height), no_notes(height)
        both = [nothing if row[4] is None else _notes_of_text(str(row[4])) for row in rows]
        reasons, owners = (notes_of(parts) for parts in zip(*both, strict=True))
        block = replace(block, reasons=reasons, owners=owners)
    if not variants:
        return block
    extras = [NO_EXTRA if row[5] is None else _unpacked_extra(row[5], wanted) for row in rows]
    return replace(block, extra=joined_extra(extras, [height] * len(rows)))


def unpack_alike(
    rows: Sequence[Sequence[object]], names: tuple[str, ...], wanted: frozenset[str] | None = None
) -> Block:
    """The readings of rows of `BODY`, of one height and of the same `names`, as one block without notes and variants.

    A fleet that pushes node by node has thousands of small chunks, and putting each together by itself costs more than
    what is in them. Raises DamagedChunk where one of them is damaged.
    """
    count = len(rows)
    height = rows[0][1]
    if not is_height(height):
        raise DamagedChunk(f"a height of {str(height)[:40]}")
    assert isinstance(height, int)
    try:
        raw = b"".join([_decompress(row[2], 12 * height) for row in rows])
        body = b"".join([_decompress(row[3], 8 * height * len(names)) for row in rows])
        first = np.array([row[0] for row in rows], np.int64)
        sums = np.array([row[6] for row in rows], np.int64)
        whole = np.array_equal(_sums(first, height, names, raw, body), sums)
    except (ValueError, TypeError, OverflowError, pa.ArrowException, OSError) as error:
        raise DamagedChunk(f"{type(error).__name__}: {error}") from None
    if not whole:
        raise DamagedChunk("columns are not as written")
    keys: npt.NDArray[np.uint8] = np.frombuffer(raw, np.uint8).reshape(count, 12 * height)
    gpu = np.ascontiguousarray(keys[:, : 4 * height]).view(np.int32).reshape(-1)
    at_ms = (np.ascontiguousarray(keys[:, 4 * height :]).view(np.int64) + first[:, None]).reshape(-1)
    places, chosen = _chosen(names, wanted)
    values = _unshuffled(body, (count, len(names), height), places)
    nothing = no_notes(count * height)
    return Block(gpu, at_ms, chosen, values, nothing, nothing)


def is_height(height: object) -> bool:
    """Whether a chunk may have that many rows."""
    return type(height) is int and 0 < height <= CHUNK_ROWS


def seal(db: sqlite3.Connection) -> None:
    """Give the chunks of a file of an earlier version their sums; one that cannot be read has none that fits."""
    names = {number: tuple(json.loads(body)) for number, body in db.execute("SELECT id, body FROM chunk_names")}
    query = "SELECT names, first_ms, height, keys, body, notes, extra FROM chunk WHERE id = ?"
    for number in [number for (number,) in db.execute("SELECT id FROM chunk")]:
        which, *body = db.execute(query, (number,)).fetchone()
        try:
            sums = _sums_of(body, names[which])
        except (LookupError, ValueError, TypeError, pa.ArrowException, OSError):
            continue
        db.execute("UPDATE chunk SET sum = ?, rest = ? WHERE id = ?", (*sums, number))


def _sums_of(row: Sequence[object], names: tuple[str, ...]) -> tuple[int, int]:
    """The sums of a row of `BODY` that has none; raises what unpacking does."""
    first, height, keys, body, notes, extra = row
    if not is_height(height):
        raise DamagedChunk(f"a height of {str(height)[:40]}")
    rows = int(str(height))
    raw = _decompress(keys, 12 * rows), _decompress(body, 8 * rows * len(names))
    return int(_sums([int(str(first))], rows, names, *raw)[0]), rest_sum(notes, extra)


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


def _unpacked_extra(data: object, wanted: frozenset[str] | None) -> Extra:
    assert isinstance(data, bytes)
    size, count, text = np.frombuffer(data, "<i8", 3).tolist()
    raw = _decompress(data[24:], size)
    row = np.frombuffer(raw, np.int32, count, text)
    name = np.frombuffer(raw, np.int32, count, text + 4 * count)
    value = _unshuffled(raw[text + 8 * count :], (1, 1, count), [0])[0]
    names = _names_in(raw[:text])
    if wanted is None or wanted.issuperset(names):
        return Extra(row, name, value, names)
    places, chosen = _chosen(names, wanted)
    number = np.full(len(names), -1, np.int32)
    number[places] = np.arange(len(places), dtype=np.int32)
    moved = number[name]
    kept = moved >= 0
    return Extra(row[kept], moved[kept], value[kept], chosen)


@lru_cache(maxsize=_LISTS)
def _names_in(text: bytes) -> tuple[str, ...]:
    return tuple(map(intern, json.loads(text)))  # nodes have most names in common: thousands of lists of a thousand


_INSERT = f"INSERT INTO chunk ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(',')))})"
BODY = "first_ms, height, keys, body, notes, extra, sum, rest"
"""Columns of table ``chunk`` that `unpack` reads."""


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
        self.damaged: dict[int, str] = {}
        """Numbers of chunks that were found damaged and are still in the table, with what is wrong."""

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
            row = db.execute("SELECT body FROM chunk_names WHERE id = ?", (number,)).fetchone()
            try:
                names = json.loads(row[0])
                if not isinstance(names, list):
                    raise TypeError
                found = tuple(map(str, names))
            except (TypeError, ValueError):
                raise DamagedChunk("its names cannot be read") from None
            self._names[number] = found
        return found

    def read(self, db: sqlite3.Connection, ask: Ask) -> Iterator[Block]:
        """The wanted rows, oldest chunk first; chunks that are damaged are left out and noted in `damaged`."""
        numbers = json.dumps(_found(db, ask))
        query = f"SELECT id, names, {BODY} FROM chunk WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"

        for (_, height), run in groupby(db.execute(query, (numbers,)), itemgetter(1, 3)):
            # As many at once as make a few thousand rows: an hour of a fleet would not fit in memory.
            most = max(1, _RUN_ROWS // height) if is_height(height) else 1
            while some := list(islice(run, most)):
                yield from self._run(db, some, ask)

    def _run(self, db: sqlite3.Connection, some: Sequence[Sequence[object]], ask: Ask) -> Iterator[Block]:
        """The wanted rows of chunks that are alike; where one is damaged, of each that is not."""
        try:
            names = self._named(db, int(str(some[0][1])))
            rows = [row[2:] for row in some]
            yield ask.of(unpack(rows, names, ask.names, whole=ask.whole, variants=ask.variants))
            return
        except _UNREADABLE:
            pass
        for row in some:
            try:
                yield self.unpacked(db, row[1], row[2:], ask)
            except DamagedChunk as error:
                self.damaged[int(str(row[0]))] = str(error)

    def one(self, db: sqlite3.Connection, number: int, ask: Ask) -> Block:
        """The wanted rows of chunk `number`; raises DamagedChunk."""
        names, *body = db.execute(f"SELECT names, {BODY} FROM chunk WHERE id = ?", (number,)).fetchone()
        return self.unpacked(db, names, body, ask)

    def unpacked(
        self, db: sqlite3.Connection, names: object, body: Sequence[object], ask: Ask, *, sealed: bool = True
    ) -> Block:
        """The wanted rows of a row of `BODY`; raises DamagedChunk. Without `sealed` it has no sums."""
        try:
            found = self._named(db, int(str(names)))
            row = body if sealed else (*body, *_sums_of(body, found))
            block = unpack([row], found, ask.names, whole=ask.whole, variants=ask.variants)
        except DamagedChunk:
            raise
        except _UNREADABLE as error:
            raise DamagedChunk(f"{type(error).__name__}: {error}") from None
        return ask.of(block)

    def set_aside(self, db: sqlite3.Connection) -> None:
        """Take the chunks of `damaged` out of the table."""
        while self.damaged:
            number, problem = self.damaged.popitem()
            set_aside(db, "chunk", number, problem)


_CONTENT = {"chunk": "body", "event": "message", "finding": "body", "prediction": "body"}


def set_aside(db: sqlite3.Connection, table: str, number: int, problem: str) -> None:
    """Move what can be had of a damaged row to table ``damaged``, where it is counted."""
    rows = "MAX(1, CAST(height AS INTEGER))" if table == "chunk" else "1"
    log.error("row set aside", table=table, number=number, problem=problem[:300])
    db.execute(
        f"INSERT INTO damaged (place, number, rows, problem, content) "
        f"SELECT ?, ?, MIN({rows}, {CHUNK_ROWS}), ?, CAST({_CONTENT[table]} AS BLOB) FROM {table} WHERE rowid = ?",
        (table, number, problem[:300], number),
    )
    db.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))


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
