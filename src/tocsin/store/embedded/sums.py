"""Checksums of what the SQLite file holds: SQLite itself has none, and would answer with a bit that flipped.

A row of a small table has the CRC of its values. A chunk has a sum over the words of its columns, each times an odd
number of its own, modulo 2**64: a change of one word never goes unseen, any other one in 2**64, and many small chunks
are summed at once.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

ROWS: Mapping[str, str] = {
    "gpu": "uuid, host, position, model, serial, pci_bus_id, parent, mig_profile, pool, rack, labels, simulated",
    "event": "id, kind, gpu, host, at_ms, code, message, source, simulated, severity, remedy",
    "finding": "id, at_ms, body",
    "prediction": "id, at_ms, gpu, body",
    "segment": "name, step_ms, start_ms, end_ms, first_ms, last_ms, first_gpu, last_gpu, height, variants, size,"
    " newest, sums",
}
"""Columns of each table that its column ``sum`` is of. Indexed ones that change, as ``gpu.last_ms``, are in none: their
second copy in the index is compared when the file is opened."""


class DamagedRow(sqlite3.DatabaseError):
    """A row without which nothing else can be read is not what was written; the next start mends the file."""


def row_sum(values: Sequence[object]) -> int:
    """The sum of a row of `ROWS`."""
    return zlib.crc32("\x1f".join(map(str, values)).encode("utf-8", "surrogateescape"))


def checked(table: str, found: object, values: Sequence[object]) -> None:
    """Raises DamagedRow where `found` is not the sum of `values`."""
    if found != row_sum(values):
        raise DamagedRow(f"a row of table {table} is damaged; a restart mends the file")


def rest_sum(notes: object, extra: object) -> int:
    """The sum of what few chunks have: text of notes, bytes of variants."""
    found = 0
    for number, part in enumerate((notes, extra)):
        if part is not None:
            data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else bytes(str(part), "ascii")
            found = zlib.crc32(part if isinstance(part, bytes) else data, found + number + 1)
    return found


def column_sums(
    heads: npt.NDArray[np.int64], names: tuple[str, ...], keys: npt.NDArray[np.uint8], body: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """The sums, int64[n], of n chunks of one height and set of names.

    `heads` is int64[n, k]; `keys` and `body` are their columns as they are before compression, uint8[n, bytes].
    """
    count = len(heads)
    found = heads.view(np.uint64).reshape(count, -1) @ _weights(heads.size // max(count, 1))
    found += np.uint64(_names_sum(names))
    found += keys.view(np.uint32).astype(np.uint64) @ _weights(keys.shape[1] // 4)
    found += body.view(np.uint64) @ _weights(body.shape[1] // 8)
    sums: npt.NDArray[np.int64] = found.view(np.int64)
    return sums


@lru_cache(maxsize=1_024)
def _names_sum(names: tuple[str, ...]) -> int:
    return zlib.crc32(json.dumps(names).encode()) * 0x9E3779B97F4A7C15 % 2**64


def _weights(count: int) -> Words:
    """The first `count` of odd numbers, far from each other (the mixing of SplitMix64), which are the same for ever."""
    return _many_weights((count - 1).bit_length())[:count]


@lru_cache(maxsize=64)
def _many_weights(doublings: int) -> Words:
    """Chunks have any length: one array for all up to a power of two, not one for each."""
    count = 1 << doublings
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    weights: Words = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    weights.flags.writeable = False
    return weights
