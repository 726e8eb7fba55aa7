"""Prometheus remote write: requests of 1.0 (`prometheus.WriteRequest`) and 2.0 (`io.prometheus.write.v2.Request`).

Source of numbers and names: the two specifications, prometheus.io/docs/specs/prw. The outermost message is cut into its
series before any is parsed: each is bounded by itself, and one that is broken costs no other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tocsin.collector.promql.heads import MAX_LABEL_CHARS
from tocsin.collector.push.samples import (
    MAX_LABELS,
    MAX_SAMPLES,
    MAX_SERIES,
    MAX_SERIES_BYTES,
    Broken,
    PushedSeries,
    Tally,
    TooLarge,
    fields,
)

MAX_SYMBOLS = 100_000
STALE_BITS = 0x7FF0000000000002
"""The NaN by which a sender says that a series has ended; any other is a value."""
_TYPES = {"string": 9, "double": 1, "int64": 3, "uint32": 13, "bytes": 12}
_SERIES_1, _SERIES_2, _SYMBOLS_2 = 1, 5, 4


def unsnapped(body: bytes, limit: int) -> bytes:
    """`body` out of Snappy's block format. What it declares is looked at before a byte of that is asked for.

    Raises TooLarge, and Broken where it is no such block.
    """
    try:
        size = cramjam.snappy.decompress_raw_len(body)
        if size > limit:
            raise TooLarge(f"the body unpacks to {size} bytes, more than {limit}; send less at once")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise Broken(f"the body is no Snappy block: {str(error)[:200]}") from None


def _messages() -> tuple[Any, Any]:
    """Classes of the series of both versions, without what is never looked at."""
    file = descriptor_pb2.FileDescriptorProto(name="tocsin/remote_write.proto", package="tocsin", syntax="proto3")

    def message(name: str, *rows: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for label, number, kind, repeated in rows:
            row = made.field.add(name=label, number=number, label=3 if repeated else 1, type=_TYPES.get(kind, 11))
            if kind not in _TYPES:
                row.type_name = f".tocsin.{kind}"

    message("Label", ("name", 1, "string", False), ("value", 2, "string", False))
    message("Sample", ("value", 1, "double", False), ("timestamp", 2, "int64", False))
    more = ("samples", 2, "Sample", True)
    message(
        "Series1",
        ("labels", 1, "Label", True),
        more,
        ("exemplars", 3, "bytes", True),
        ("histograms", 4, "bytes", True),
    )
    message(
        "Series2",
        ("labels_refs", 1, "uint32", True),
        more,
        ("histograms", 3, "bytes", True),
        ("exemplars", 4, "bytes", True),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    named = (pool.FindMessageTypeByName(f"tocsin.{name}") for name in ("Series1", "Series2"))
    first, second = (message_factory.GetMessageClass(one) for one in named)
    return first, second


_SERIES1, _SERIES2 = _messages()


def read_1(body: bytes, tally: Tally) -> Iterator[PushedSeries]:
    """A `tocsin.collector.push.samples.Reader` of version 1.0."""
    for start, end in _series(body, _SERIES_1):
        parsed = _parsed(_SERIES1, body[start:end], tally)
        if parsed is not None:
            names = [text for label in parsed.labels[: MAX_LABELS + 1] for text in (label.name, label.value)]
            yield from _checked(parsed, names, tally)


def read_2(body: bytes, tally: Tally) -> Iterator[PushedSeries]:
    """A `tocsin.collector.push.samples.Reader` of version 2.0: labels are places in a table of symbols."""
    symbols: list[str] = []
    for number, start, end in fields(body, 0, len(body)):
        if number == _SYMBOLS_2:
            if len(symbols) >= MAX_SYMBOLS:
                raise TooLarge(f"the body has more than {MAX_SYMBOLS} symbols; send less at once")
            # What is cut here is refused as a label that is too long, if a series has it.
            symbols.append(body[start : min(end, start + 4 * MAX_LABEL_CHARS + 4)].decode("utf-8", "replace"))
    if symbols and symbols[0]:
        raise Broken("the first symbol is not empty")
    for start, end in _series(body, _SERIES_2):
        parsed = _parsed(_SERIES2, body[start:end], tally)
        if parsed is None:
            continue
        refs = parsed.labels_refs
        if len(refs) % 2 or (len(refs) and max(refs) >= len(symbols)):
            tally.reject(len(parsed.samples), "a series has an odd number of label references, or one without a symbol")
        else:
            yield from _checked(parsed, [symbols[ref] for ref in refs[: 2 * MAX_LABELS + 2]], tally)


def _series(body: bytes, wanted: int) -> Iterator[tuple[int, int]]:
    seen = 0
    for number, start, end in fields(body, 0, len(body)):
        if number == wanted:
            seen += 1
            if seen > MAX_SERIES:
                raise TooLarge(f"the body has more than {MAX_SERIES} series; send less at once")
            yield start, end


def _parsed(kind: Any, data: bytes, tally: Tally) -> Any | None:
    """The series; None where it is broken or too long, which counts as one sample: nobody knows how many it has."""
    if len(data) <= MAX_SERIES_BYTES:
        try:
            parsed = kind.FromString(data)
        except DecodeError:
            pass
        else:
            tally.samples += len(parsed.samples)
            tally.histograms += len(parsed.histograms)
            tally.exemplars += len(parsed.exemplars)
            return parsed
    tally.samples += 1
    tally.reject(1, f"a series is broken or longer than {MAX_SERIES_BYTES} bytes")
    return None


def _checked(parsed: Any, texts: Sequence[str], tally: Tally) -> Iterator[PushedSeries]:
    """The series, where its labels and its number of samples are what the specification and the bounds allow."""
    names, count = texts[::2], len(parsed.samples)
    labels = dict(zip(names, texts[1::2], strict=True))
    name = labels.pop("__name__", "")
    if len(names) > MAX_LABELS or count > MAX_SAMPLES:
        tally.reject(count, f"a series has more than {MAX_LABELS} labels or {MAX_SAMPLES} samples")
    elif not name or len(labels) + 1 != len(names) or "" in labels:
        tally.reject(count, "a series has no __name__, or a label twice or without a name")
    elif any(len(text) > MAX_LABEL_CHARS for text in texts):
        tally.reject(count, f"a label of {name[:100]} is longer than {MAX_LABEL_CHARS} characters")
    else:
        found = [(one.timestamp, one.value) for one in parsed.samples]
        yield PushedSeries(name, labels, [one for one in found if one[1] == one[1] or not _is_stale(one[1])])


def _is_stale(value: float) -> bool:
    return bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS)
