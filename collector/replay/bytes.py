"""Recorded files as whole lines in large pieces: plain, gzip or bz2, never a whole file in memory."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from tocsin.domain.errors import InputError

READ_BYTES = 1 << 18
PIECE_BYTES = 1 << 23
"""Most decompressed bytes at a time: bz2 packs repetitive telemetry 70 to 1."""


class _Expander(Protocol):
    """One compressed stream, as `bz2.BZ2Decompressor` takes it. `decompress` raises OSError where it is damaged."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """The same for gzip."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._more = False

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not (self.eof or self._more or self._stream.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        try:
            piece = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        except zlib.error as error:
            raise OSError(str(error)) from None
        # Where there was no room for more, some may wait inside without any input being left.
        self._more = len(piece) == max_length
        return piece


_PACKED: dict[str, Callable[[], _Expander]] = {".bz2": bz2.BZ2Decompressor, ".gz": _Gzip}
PACKED = frozenset(_PACKED)
"""Endings of names whose content is compressed."""


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def unreadable(path: Path, error: OSError) -> InputError:
    """What is said of a file that cannot be opened or read."""
    return InputError("path", str(path), f"cannot be read: {error.strerror}", "name a readable file")


def _broken(path: Path, where: int, problem: str) -> InputError:
    remedy = "fetch the file again; what came before is kept"
    return InputError(str(path), f"byte {where}", problem, remedy)


def _expanded(path: Path, new: Callable[[], _Expander]) -> Iterator[bytes]:
    """Streams one after the other; InputError where one is cut short or damaged, after what is whole."""
    kind = path.suffix[1:]
    with path.open("rb") as file:
        expander, fed = new(), False
        while True:
            compressed = file.read(READ_BYTES) if expander.eof or expander.needs_input else b""
            if expander.eof:
                compressed = expander.unused_data + compressed
                if not compressed:
                    return
                expander, fed = new(), False
            elif not compressed and expander.needs_input:
                if fed:
                    raise _broken(path, file.tell(), f"the {kind} stream ends early")
                return
            try:
                piece = expander.decompress(compressed, PIECE_BYTES)
            except OSError:
                raise _broken(path, file.tell(), f"the {kind} stream is damaged") from None
            fed = True
            if piece:
                yield piece


def pieces(path: Path) -> Iterator[bytes]:
    """Whole lines of `path`, several megabytes at a time; a name in ``.bz2`` or ``.gz`` is expanded.

    The last line may lack its end. Raises InputError where the file cannot be read or ends early; everything before
    has been yielded by then, an unfinished last line of a cut file excepted.
    """
    rest = b""
    try:
        new = _PACKED.get(path.suffix)
        for piece in _plain(path) if new is None else _expanded(path, new):
            whole, newline, tail = piece.rpartition(b"\n")
            if newline:
                yield rest + whole + newline
                rest = tail
            else:
                rest += piece
    except OSError as error:
        raise unreadable(path, error) from None
    if rest:
        yield rest
