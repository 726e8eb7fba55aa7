"""Recorded files as whole lines in large pieces: plain or bz2, never a whole file in memory."""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from pathlib import Path

from tocsin.domain.errors import InputError

READ_BYTES = 1 << 18
PIECE_BYTES = 1 << 23
"""Most decompressed bytes at a time: bz2 packs repetitive telemetry 70 to 1."""


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _broken(path: Path, where: int, problem: str) -> InputError:
    remedy = "fetch the file again; what came before is kept"
    return InputError(str(path), f"byte {where}", problem, remedy)


def _bz2(path: Path) -> Iterator[bytes]:
    """Streams one after the other; InputError where one is cut short or damaged, after what is whole."""
    with path.open("rb") as file:
        expander, fed = bz2.BZ2Decompressor(), False
        while True:
            compressed = file.read(READ_BYTES) if expander.eof or expander.needs_input else b""
            if expander.eof:
                compressed = expander.unused_data + compressed
                if not compressed:
                    return
                expander, fed = bz2.BZ2Decompressor(), False
            elif not compressed and expander.needs_input:
                if fed:
                    raise _broken(path, file.tell(), "the bz2 stream ends early")
                return
            try:
                piece = expander.decompress(compressed, PIECE_BYTES)
            except OSError:
                raise _broken(path, file.tell(), "the bz2 stream is damaged") from None
            fed = True
            if piece:
                yield piece


def pieces(path: Path) -> Iterator[bytes]:
    """Whole lines of `path`, several megabytes at a time; a name in ``.bz2`` is expanded.

    The last line may lack its end. Raises InputError where the file cannot be read or ends early; everything before
    has been yielded by then, an unfinished last line of a cut file excepted.
    """
    rest = b""
    try:
        for piece in _bz2(path) if path.suffix == ".bz2" else _plain(path):
            whole, newline, tail = piece.rpartition(b"\n")
            if newline:
                yield rest + whole + newline
                rest = tail
            else:
                rest += piece
    except OSError as error:
        raise InputError("path", str(path), f"cannot be read: {error.strerror}", "name a readable file") from None
    if rest:
        yield rest
