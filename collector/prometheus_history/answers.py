"""Answers of the Prometheus API as they are read: the bulk of them, samples, never becomes Python objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import Unavailable, install_extra

if TYPE_CHECKING:
    import polars as pl

# Most of an answer of `query_range` is `[seconds,"value"]` pairs. Turned into Python objects they
# take some five times their bytes; here the pairs are cut out and read by polars as a table, and what is left, the
# labels, is small enough for the json module.

Floats = npt.NDArray[np.float64]
Pairs = tuple[Floats, Floats]
"""Instants in seconds and values of one series."""

_KEY = b'"values":'
_NEXT = b"],["


class NotAnAnswer(ValueError):
    """The text is no answer of the Prometheus API."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its labels, instants in seconds, and values; both float64[n], instants rise."""

    labels: Mapping[str, str]
    at_s: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Matrix:
    """All series of one answer, and what the server had to say about it."""

    lines: list[Line]
    warnings: list[str] = field(default_factory=list)


def check_installed() -> None:
    """Whether answers can be parsed at all here. Raises Unavailable where polars is not installed."""
    try:
        import polars  # noqa: F401
    except ImportError:
        raise Unavailable(f"reading from Prometheus needs polars; {install_extra('brain')}") from None


def _cut(body: bytes) -> tuple[bytes, list[bytes]]:
    """`body` with a number in place of each list of pairs, and the lists.

    Inside a JSON string every quotation mark has a backslash before it, so that `"values":` is always a key, and a
    list of pairs holds no `]]` but its end.
    """
    kept: list[bytes] = []
    blocks: list[bytes] = []
    place = 0
    while (found := body.find(_KEY, place)) >= 0:
        begin = found + len(_KEY)
        if body[begin : begin + 2] != b"[[":
            kept.append(body[place:begin])
            place = begin
            continue
        end = body.find(b"]]", begin)
        if end < 0:
            raise NotAnAnswer("the answer ends early")
        kept += [body[place:begin], str(len(blocks)).encode()]
        blocks.append(body[begin:end])
        place = end + 2
    kept.append(body[place:])
    return b"".join(kept), blocks


def _table(blocks: list[bytes]) -> list[Pairs]:
    """Instants and values of each list of pairs. Raises NotAnAnswer, and Unavailable without polars."""
    if not blocks:
        return []
    lengths = [block.count(_NEXT) + 1 for block in blocks]
    frame = _frame(b"\n".join(blocks).replace(_NEXT, b"\n").translate(None, b'[]"'), sum(lengths))
    at, value = frame["at"].to_numpy(), frame["value"].to_numpy()
    ends = list(accumulate(lengths))
    return [(at[begin:end], value[begin:end]) for begin, end in pairwise((0, *ends))]


def _frame(text: bytes, rows: int) -> pl.DataFrame:
    """`text`, an instant and a value in each of `rows` lines, as a table. Raises NotAnAnswer, and Unavailable without
    polars."""
    check_installed()
    import polars as pl

    try:
        frame = pl.read_csv(text, has_header=False, schema={"at": pl.Float64, "value": pl.Float64})
    except pl.exceptions.PolarsError:
        raise NotAnAnswer("a value is no number") from None
    if frame.height != rows or frame.null_count().sum_horizontal().item():
        raise NotAnAnswer("a pair is incomplete")
    return frame


def _pairs(values: object, blocks: list[Pairs]) -> Pairs:
    """Instants and values of what stands at ``values``: the number of a block, or a list where it was not cut out."""
    if isinstance(values, int) and 0 <= values < len(blocks):
        return blocks[values]
    if not isinstance(values, list):
        return np.empty(0), np.empty(0)
    try:
        found = np.array([(float(at), float(value)) for at, value in values]).reshape(-1, 2)
    except (TypeError, ValueError):
        raise NotAnAnswer("a pair is no pair of numbers") from None
    return found[:, 0].copy(), found[:, 1].copy()


def document(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The answer as JSON, its lists of pairs cut out. Raises NotAnAnswer."""
    small, blocks = _cut(body)
    try:
        found = json.loads(small)
    except (ValueError, RecursionError):
        raise NotAnAnswer("the answer is no JSON") from None
    if not isinstance(found, dict) or "status" not in found:
        raise NotAnAnswer("the answer is no answer of the Prometheus API")
    return found, blocks


def notes(answer: Mapping[str, Any]) -> list[str]:
    """What makes an answer less than it should be: warnings, and a part of a cluster that did not answer."""
    found = [str(one) for one in answer.get("warnings") or ()]
    return [*found, "the server says that the answer is partial"] if answer.get("isPartial") else found


def parse_matrix(body: bytes) -> Matrix:
    """The series in an answer of `query_range`. Raises NotAnAnswer."""
    answer, blocks = document(body)
    data = answer.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        raise NotAnAnswer("the answer holds no result")
    lines = []
    table = _table(blocks)
    for one in result:
        labels = one.get("metric") if isinstance(one, dict) else None
        if not isinstance(labels, dict):
            raise NotAnAnswer("a series has no labels")
        at_s, values = _pairs(one.get("values"), table)
        if at_s.size:
            lines.append(Line(labels, at_s, values))
    return Matrix(lines, notes(answer))


class Newest(NamedTuple):
    """One series by its newest sample: its labels as JSON, instant in seconds, and value."""

    labels: bytes
    at_s: float
    value: float


_FIRST = b'{"metric":'
_OTHERS = b"}," + _FIRST
_HISTOGRAMS = b'"histograms":'


def parse_newest(body: bytes) -> tuple[list[Newest], list[str]]:
    """The newest sample of each series in an answer of `query` with a range selector, and its `notes`. Raises
    NotAnAnswer, and Unavailable without polars.

    Labels stay text, since from round to round a fleet has the same ones; whether it is JSON is for who reads it.
    """
    begin = body.find(_FIRST)
    if begin < 0 or _HISTOGRAMS in body or (found := _series(body, begin)) is None:
        matrix = parse_matrix(body)
        lines = [Newest(json.dumps(one.labels).encode(), one.at_s[-1], one.values[-1]) for one in matrix.lines]
        return lines, matrix.warnings
    labels, samples, end = found
    answer, _ = document(body[:begin] + body[end:].removeprefix(b"}"))
    table = _frame(b"\n".join(samples).translate(None, b'[]"'), len(samples))
    return list(map(Newest, labels, table["at"].to_list(), table["value"].to_list())), notes(answer)


def _series(body: bytes, begin: int) -> tuple[list[bytes], list[bytes], int] | None:
    """Labels and last pair of each series from `begin` on, and the end of the last one's pairs; None where they do not
    stand as servers write them."""
    labels: list[bytes] = []
    samples: list[bytes] = []
    head, place = _FIRST, begin
    while (key := body.find(_KEY, place)) >= 0:
        if not body.startswith(head, place) or body[key - 2 : key] != b"},":
            return None
        end = body.find(b"]]", key)
        if end < 0 or not body.startswith(b"[[", key + len(_KEY)):
            return None
        labels.append(body[place + len(head) : key - 1])
        samples.append(body[max(body.rfind(_NEXT, key, end) + len(_NEXT), key + len(_KEY)) : end])
        head, place = _OTHERS, end + 2
    return (labels, samples, place) if body.startswith(b"}]", place) else None
