"""Blocks of readings as rows of table ``chunk``.

Numbers are stored column by column with the bytes of equal weight together, under LZ4: what is alike in the readings of
one tick lies side by side, and a column can be had without the others being put together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.domain.clock import HOUR
from tocsin.store.embedded.hot_block import NO_EXTRA, Block, Extra, Floats
from tocsin.store.embedded.hot_notes import Notes, no_notes

CHUNK_ROWS = 512
"""Most readings in one chunk: one GPU, or the newest readings of all, can be had without much of the rest."""

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
    first, height, keys, body, notes, extra = row
    assert isinstance(first, int) and isinstance(height, int)  # noqa: PT018  # types of the table
    raw = _decompress(keys, 12 * height)
    gpu = np.frombuffer(raw, np.int32, height)
    at_ms = np.frombuffer(raw, np.int64, height, 4 * height) + first
    places, chosen = _chosen(names, wanted)
    values = _unshuffled(_decompress(body, 8 * height * len(names)), len(names), height, places)
    reasons = owners = no_notes(height)
    if whole and notes is not None:
        reasons, owners = _notes_of_text(str(notes))
    return Block(
        gpu,
        at_ms,
        chosen,
        values,
        reasons,
        owners,
        _unpacked_extra(extra) if variants and extra is not None else NO_EXTRA,
    )


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


def _unshuffled(data: bytes, width: int, height: int, places: Sequence[int]) -> Floats:
    planes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(width, 8, height)
    chosen = planes if len(places) == width else planes[list(places)]
    joined = np.ascontiguousarray(chosen.transpose(0, 2, 1))
    values: Floats = joined.view(np.float64).reshape(len(places), height)
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
    value = _unshuffled(raw[text + 8 * count :], 1, count, [0])[0]
    return Extra(row, name, value, tuple(json.loads(raw[:text])))
