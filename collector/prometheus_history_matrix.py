"""Answers of `query_range` as arrays.

Most of an answer is `[seconds,"value"]` pairs. Turned into Python objects they take some five times their bytes; here
the pairs are cut out and read by numpy, and what is left, the labels, is small enough for the json module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_KEY = b'"values":'
_PUNCTUATION = b'[]" \n\r\t'


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


def _pairs(values: object, blocks: list[bytes]) -> Floats:
    """float64[n, 2] of what stands at ``values``: the number of a block, or a list where it was not cut out."""
    if isinstance(values, int):
        try:
            flat = np.fromstring(blocks[values].translate(None, _PUNCTUATION), sep=",")
        except (ValueError, IndexError):
            raise NotAnAnswer("a value is no number") from None
        if flat.size % 2:
            raise NotAnAnswer("a pair is incomplete")
        return flat.reshape(-1, 2)
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
    for one in result:
        pairs = _pairs(one.get("values"), blocks)
        if pairs.size:
            lines.append(Line(one.get("metric", {}), pairs[:, 0].copy(), pairs[:, 1].copy()))
    return Matrix(lines, notes(answer))
