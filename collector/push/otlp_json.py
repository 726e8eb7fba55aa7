"""OTLP metrics as JSON: the same numbers as `tocsin.collector.push.otlp` reads of Protocol Buffers.

Each data point is made the message that it stands for, by the library of Protocol Buffers, so that one reader says what
it means; of a point only that is looked at which is read. Source: OTLP's JSON encoding (names in lowerCamelCase,
64-bit numbers as text, enumerations as numbers, unknown names ignored; ids in hexadecimal are in exemplars alone).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tocsin.collector.promql.heads import MAX_LABEL_CHARS
from tocsin.collector.push.otlp import Bound, answered, resource_labels, series_of, underscored
from tocsin.collector.push.samples import Broken, PushedSeries, Tally, TooLarge
from tocsin.domain.json_size import values_in

MAX_VALUES = 500_000
"""Commas and opening brackets of a body: what it takes in memory goes by these. Data points have some 30 each."""
MAX_DEPTH = 32
"""Values within values of an attribute."""
_READ = ("attributes", "timeUnixNano", "asDouble", "asInt", "flags")
_HISTOGRAMS = ("histogram", "exponentialHistogram", "summary")
_DELTA = (
    AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
    AggregationTemporality.Name(AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA),
)

_M = TypeVar("_M", bound=Message)


def parsed(body: bytes) -> Mapping[str, Any]:
    """The object in `body`. Raises TooLarge before more is made of it than memory is for, Broken where it is none."""
    if values_in(body) > MAX_VALUES:
        raise TooLarge(f"the body has more than {MAX_VALUES} values; send less at once")
    try:
        found = json.loads(body)
    except RecursionError:
        raise Broken("the body is nested too deeply") from None
    except ValueError as error:
        raise Broken(f"the body is no JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise Broken("the body is no JSON object")
    return found


def read(body: Mapping[str, Any], tally: Tally) -> Iterator[PushedSeries]:
    """The series of what `parsed` gave; a part that is not as it should be is counted and costs no other."""
    bound = Bound()
    for resource in _objects(body, "resourceMetrics", tally, bound):
        labels = _resource(resource.get("resource"))
        for scope in _objects(resource, "scopeMetrics", tally, bound):
            for metric in _objects(scope, "metrics", tally, bound):
                yield from _metric(metric, labels, tally, bound)


def answer(tally: Tally) -> bytes:
    """The body of the answer: an empty object where all was taken."""
    return json.dumps(MessageToDict(answered(tally))).encode()


def _objects(part: Mapping[str, Any], name: str, tally: Tally, bound: Bound) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; what is none is refused as one sample. Raises TooLarge."""
    found = part.get(name)
    for one in found if isinstance(found, list) else () if found is None else (None,):
        bound.count()
        if isinstance(one, dict):
            yield one
        else:
            tally.samples += 1
            tally.reject(1, f"{name} is no list of objects")


def _resource(found: object) -> dict[str, str]:
    """Its attributes; none where they are broken or too long, so that nothing of it is taken for a GPU's host."""
    if not isinstance(found, dict):
        return {}
    try:
        return resource_labels(_message({"attributes": found.get("attributes")}, Resource()).attributes)
    except Broken:
        return {}


def _metric(metric: Mapping[str, Any], labels: dict[str, str], tally: Tally, bound: Bound) -> Iterator[PushedSeries]:
    told = metric.get("name")
    name = underscored(told[:MAX_LABEL_CHARS]) if isinstance(told, str) else ""
    tally.histograms += sum(kind in metric for kind in _HISTOGRAMS)
    for kind in ("gauge", "sum"):
        data = metric.get(kind)
        if not isinstance(data, dict):
            continue
        points = list(_objects(data, "dataPoints", tally, bound))
        tally.samples += len(points)
        if kind == "sum" and data.get("aggregationTemporality") in _DELTA:
            tally.reject(len(points), f"{name[:100]} is a sum of differences; send cumulative sums")
            continue
        for point in points:
            if (found := _point(point, name, labels, tally)) is not None:
                yield found


def _point(point: Mapping[str, Any], name: str, labels: dict[str, str], tally: Tally) -> PushedSeries | None:
    """One data point; None where it is broken or says that it has no value."""
    try:
        made = _message({key: point[key] for key in _READ if key in point}, NumberDataPoint())
        return series_of(made, name, labels)
    except Broken as error:
        tally.reject(1, str(error) or f"a data point of {name[:100]} is broken")
        return None


def _message(found: Mapping[str, Any], into: _M) -> _M:
    """`found` as a message. Raises Broken, without words, for what does not fit."""
    try:
        ParseDict(found, into, ignore_unknown_fields=True, max_recursion_depth=MAX_DEPTH)
    except (ParseError, TypeError, ValueError, ArithmeticError, AttributeError):
        raise Broken from None
    return into
