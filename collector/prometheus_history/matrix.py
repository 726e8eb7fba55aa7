"""Answers of `query_range` as arrays.

Most of an answer is `[seconds,"value"]` pairs. Turned into Python objects they take some five times their bytes; here
the pairs are cut out and read by polars as a table, and what is left, the labels, is small enough for the json module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import Unavailable

Floats = npt.NDArray[np.float64]

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
        raise Unavailable("importing history needs polars: pip install 'tocsin[brain]'") from None


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


def _table(blocks: list[bytes]) -> list[Floats]:
    """float64[n, 2] of each list of pairs. Raises NotAnAnswer, and Unavailable without polars."""
    if not blocks:
        return []
    check_installed()
    import polars as pl

    lengths = [block.count(_NEXT) + 1 for block in blocks]
    text = b"\n".join(blocks).replace(_NEXT, b"\n").translate(None, b'[]"')
    try:
        frame = pl.read_csv(text, has_header=False, schema={"at": pl.Float64, "value": pl.Float64})
    except pl.exceptions.PolarsError:
        raise NotAnAnswer("a value is no number") from None
    if frame.height != sum(lengths) or frame.null_count().sum_horizontal().item():
        raise NotAnAnswer("a pair is incomplete")
    return np.split(frame.to_numpy(), np.cumsum(lengths)[:-1])


def _pairs(values: object, blocks: list[Floats]) -> Floats:
    """float64[n, 2] of what stands at ``values``: the number of a block, or a list where it was not cut out."""
    if isinstance(values, int) and 0 <= values < len(blocks):
        return blocks[values]
    if not isinstance(values, list):
        return np.empty((0, 2))
    try:
        return np.array([(float(at), float(value)) for at, value in values]).reshape(-1, 2)
    except (TypeError, ValueError):
        raise NotAnAnswer("a pair is no pair of numbers") from None


def document(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The answer as JSON, its lists of pairs cut out. Raises NotAnAnswer."""
    small, blocks = _cut(body)
    try:
        found = json.loads(small)
    except ValueError:
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
        pairs = _pairs(one.get("values"), table)
        if pairs.size:
            lines.append(Line(labels, pairs[:, 0].copy(), pairs[:, 1].copy()))
    return Matrix(lines, notes(answer))
