"""Old entries of a journal, many in one row of the database: some 1,000 compressed take a tenth of the room."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from tocsin.journal.files import JournalBroken, Row

CHUNK_ENTRIES = 1_000
MOST_BYTES = 256 * 1024 * 1024
"""Longest text of one chunk that is unpacked."""
_COLUMNS = 9


def pack(rows: Sequence[Row]) -> bytes:
    """`rows` of `tocsin.journal.files.COLUMNS`, compressed."""
    return zlib.compress(json.dumps(list(rows), ensure_ascii=False).encode())


def unpack(content: bytes) -> list[Row]:
    """What `pack` was given. Raises JournalBroken where it is not that."""
    try:
        opened = zlib.decompressobj()
        text = opened.decompress(content, MOST_BYTES)
        if opened.unconsumed_tail or not opened.eof:
            raise ValueError("is cut short or too long")
        rows = [tuple(row) for row in json.loads(text)]
        if any(len(row) != _COLUMNS for row in rows):
            raise ValueError("has rows of another shape")
        return rows
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise JournalBroken(f"packed entries are damaged: {error}; restore a backup") from None
