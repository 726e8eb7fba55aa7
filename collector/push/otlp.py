"""OTLP metrics: numbers of gauges and cumulative sums of an `ExportMetricsServiceRequest`.

Dots in names become underscores, so that one set of mappings reads what comes either way. Attributes of the resource
are labels of all of its points. Each level is cut into its parts before any is parsed. Source of numbers and names:
opentelemetry-proto and its specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, NumberDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tocsin.collector.promql.heads import MAX_LABEL_CHARS
from tocsin.collector.push.samples import (
    MAX_LABELS,
    MAX_SERIES,
    MAX_SERIES_BYTES,
    Broken,
    PushedSeries,
    Tally,
    TooLarge,
    fields,
    whole_number,
)

_RESOURCE_METRICS = 1
_RESOURCE, _SCOPE_METRICS = 1, 2
_METRIC = 2
_NAME, _GAUGE, _SUM = 1, 5, 7
_HISTOGRAMS = frozenset({9, 10, 11})
_POINT, _TEMPORALITY = 1, 2
_NANOSECONDS = 1_000_000
_ALIASES = {
    "host_name": "hostname",
    "k8s_node_name": "node",
    "service_name": "job",
    "service_instance_id": "instance",
    "k8s_pod_name": "pod",
    "k8s_namespace_name": "namespace",
    "k8s_container_name": "container",
}
"""Attributes of resources, and the labels of Prometheus that say the same."""


class Bound:
    """Counts the parts of a body."""

    def __init__(self) -> None:
        self._seen = 0

    def count(self) -> None:
        """One more. Raises TooLarge."""
        self._seen += 1
        if self._seen > MAX_SERIES:
            raise TooLarge(f"the body has more than {MAX_SERIES} resources, metrics and points; send less at once")


def read(body: bytes, tally: Tally) -> Iterator[PushedSeries]:
    """A `tocsin.collector.push.samples.Reader` of OTLP."""
    bound = Bound()
    for number, start, end in fields(body, 0, len(body)):
        if number == _RESOURCE_METRICS:
            bound.count()
            yield from _resource_metrics(body, start, end, tally, bound)


def _resource_metrics(body: bytes, start: int, end: int, tally: Tally, bound: Bound) -> Iterator[PushedSeries]:
    labels: dict[str, str] = {}
    parts = []
    for number, first, last in fields(body, start, end):
        bound.count()
        if number == _RESOURCE:
            labels = _resource(body[first:last])
        elif number == _SCOPE_METRICS:
            parts.append((first, last))
    for first, last in parts:
        for number, metric, metric_end in fields(body, first, last):
            if number == _METRIC:
                bound.count()
                yield from _metric(body, metric, metric_end, labels, tally, bound)


def _resource(data: bytes) -> dict[str, str]:
    """Its attributes; none where it is broken or too long, so that nothing of it is taken for a GPU's host."""
    if len(data) > MAX_SERIES_BYTES:
        return {}
    try:
        return resource_labels(Resource.FromString(data).attributes)
    except (DecodeError, Broken):
        return {}


def resource_labels(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes of a resource, under Prometheus' names too. Raises Broken beyond the bounds."""
    labels = _labels(attributes)
    return {_ALIASES[name]: value for name, value in labels.items() if name in _ALIASES} | labels


def underscored(name: str) -> str:
    """A name of OpenTelemetry's as Prometheus has it."""
    return name.replace(".", "_")


def _metric(
    body: bytes, start: int, end: int, labels: dict[str, str], tally: Tally, bound: Bound
) -> Iterator[PushedSeries]:
    name, points, delta = "", [], False
    for number, first, last in fields(body, start, end):
        if number == _NAME:
            name = underscored(body[first : min(last, first + MAX_LABEL_CHARS)].decode("utf-8", "replace"))
        elif number in (_GAUGE, _SUM):
            temporality = whole_number(body, first, last, _TEMPORALITY) if number == _SUM else 0
            delta = temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
            for field, point, point_end in fields(body, first, last):
                if field == _POINT:
                    bound.count()
                    points.append((point, point_end))
        elif number in _HISTOGRAMS:
            tally.histograms += 1
    tally.samples += len(points)
    if delta:
        tally.reject(len(points), f"{name[:100]} is a sum of differences; send cumulative sums")
        return
    for point, point_end in points:
        found = _point(body[point:point_end], name, labels, tally)
        if found is not None:
            yield found


def _point(data: bytes, name: str, labels: dict[str, str], tally: Tally) -> PushedSeries | None:
    """One data point; None where it is broken or says that it has no value."""
    try:
        if len(data) > MAX_SERIES_BYTES:
            raise Broken(f"a data point of {name[:100]} is longer than {MAX_SERIES_BYTES} bytes")
        return series_of(NumberDataPoint.FromString(data), name, labels)
    except (DecodeError, Broken) as error:
        tally.reject(1, str(error) if isinstance(error, Broken) else f"a data point of {name[:100]} is broken")
        return None


def series_of(point: NumberDataPoint, name: str, labels: Mapping[str, str]) -> PushedSeries | None:
    """The sample of a data point; None where it says that it has no value. Raises Broken beyond the bounds."""
    own = _labels(point.attributes)
    value = point.WhichOneof("value")
    if value is None or point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
        return None
    number = point.as_double if value == "as_double" else float(point.as_int)
    return PushedSeries(name, {**labels, **own}, [(point.time_unix_nano // _NANOSECONDS, number)])


def _labels(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes that are text, numbers or booleans, by name with underscores. Raises Broken beyond the bounds."""
    labels: dict[str, str] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        if kind == "bool_value":
            text = str(one.value.bool_value).lower()
        elif kind in ("string_value", "int_value", "double_value"):
            text = str(getattr(one.value, kind))
        else:
            continue
        if len(text) > MAX_LABEL_CHARS or len(one.key) > MAX_LABEL_CHARS or len(labels) >= MAX_LABELS:
            raise Broken(f"more than {MAX_LABELS} attributes, or one longer than {MAX_LABEL_CHARS} characters")
        labels[underscored(one.key)] = text
    return labels


def answered(tally: Tally) -> ExportMetricsServiceResponse:
    """What is answered: without `partial_success` where all was taken."""
    made = ExportMetricsServiceResponse()
    if tally.rejected:
        made.partial_success.rejected_data_points = tally.rejected
        made.partial_success.error_message = tally.problem
    return made


def answer(tally: Tally) -> bytes:
    """The body of the answer: empty where all was taken."""
    return bytes(answered(tally).SerializeToString())
