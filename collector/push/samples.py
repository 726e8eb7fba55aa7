"""What every pushed body is made of: series of samples, and the bounds that hold whoever sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_UNPACKED_BYTES = 8 * 1024 * 1024
"""Most bytes of a body once it is unpacked, all of which is in memory: senders cut theirs at some 2,000 samples."""
MAX_SERIES = 50_000
"""Most series, or metrics and data points, of one body."""
MAX_SERIES_BYTES = 64 * 1024
MAX_LABELS = 128
"""Most labels of one series: dcgm-exporter with all of a pod's has some forty."""
MAX_SAMPLES = 1_000
"""Most samples of one series."""


class Broken(ValueError):
    """Why a body cannot be read from here on, or one series not at all."""


class TooLarge(Broken):
    """The body is, or unpacks to, more than a bound allows."""


class PushedSeries(NamedTuple):
    """One series: name, labels without it, and (milliseconds, value) of each sample."""

    name: str
    labels: Mapping[str, str]
    samples: Sequence[tuple[int, float]]


@dataclass(slots=True)
class Tally:
    """What a body held so far; `problem` is the first one."""

    samples: int = 0
    histograms: int = 0
    exemplars: int = 0
    rejected: int = 0
    problem: str = ""

    def reject(self, count: int, problem: str) -> None:
        """`count` samples are not kept."""
        if count:
            self.rejected += count
            self.problem = self.problem or problem


Reader = Callable[[bytes, Tally], Iterator[PushedSeries]]
"""Makes series of a body, one after the other; a series that cannot be read is counted and costs no other.

Raises Broken where nothing can be read from some byte on, or where the body exceeds a bound.
"""


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, first byte and end of each field of bytes in `data[start:end]` of the wire format of Protocol Buffers.

    It looks at one level alone, so that a body is never unpacked as a whole into objects many times its size. Raises
    Broken for what is no such message.
    """
    return ((number, first, last) for number, kind, first, last in _fields(data, start, end) if kind == _BYTES)


def whole_number(data: bytes, start: int, end: int, wanted: int) -> int:
    """The value of field `wanted`, which is a whole number; 0 where it is not there. Raises Broken."""
    places = [first for number, kind, first, _ in _fields(data, start, end) if (number, kind) == (wanted, _NUMBER)]
    return _varint(data, places[-1], end)[0] if places else 0


_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind, first byte and end of each field."""
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        kind, first = key & 7, at
        if kind == _NUMBER:
            _, at = _varint(data, at, end)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, first = _varint(data, at, end)
            at = first + size
        else:
            raise Broken(f"byte {at} begins a field of kind {kind}, which is none")
        if at > end:
            raise Broken("the body is cut short")
        yield key >> 3, kind, first, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Broken("the body is cut short within a number" if at >= end else "a number has more than 10 bytes")
