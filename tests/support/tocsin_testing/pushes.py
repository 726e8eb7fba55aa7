"""Bodies of remote write and OTLP, encoded by hand: a second look at the specifications beside the product's."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cramjam

PROTOBUF = "application/x-protobuf"
RW1 = {"Content-Type": PROTOBUF, "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
RW2 = {
    "Content-Type": f"{PROTOBUF};proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
OTLP = {"Content-Type": PROTOBUF}
OTLP_JSON = {"Content-Type": "application/json"}
WRITE, METRICS = "/api/v1/write", "/v1/metrics"

Series = tuple[Mapping[str, str], Sequence[tuple[int, float]]]
"""Labels, `__name__` among them, and (milliseconds, value) of each sample."""


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def double(place: int, value: float) -> bytes:
    return varint(place << 3 | 1) + struct.pack("<d", value)


def fixed(place: int, value: int) -> bytes:
    return varint(place << 3 | 1) + struct.pack("<Q", value)


def _samples(samples: Sequence[tuple[int, float]]) -> bytes:
    return b"".join(field(2, double(1, value) + number(2, at_ms)) for at_ms, value in samples)


def series_1(labels: Mapping[str, str], samples: Sequence[tuple[int, float]]) -> bytes:
    named = b"".join(
        field(1, field(1, name.encode()) + field(2, text.encode())) for name, text in sorted(labels.items())
    )
    return field(1, named + _samples(samples))


def request_1(series: Iterable[Series]) -> bytes:
    """`prometheus.WriteRequest`, before Snappy."""
    return b"".join(series_1(labels, samples) for labels, samples in series)


def request_2(series: Iterable[Series]) -> bytes:
    """`io.prometheus.write.v2.Request`, before Snappy."""
    symbols: dict[str, int] = {"": 0}
    made = b""
    for labels, samples in series:
        refs = b"".join(
            varint(symbols.setdefault(text, len(symbols))) for pair in sorted(labels.items()) for text in pair
        )
        made += field(5, field(1, refs) + _samples(samples))
    return b"".join(field(4, text.encode()) for text in symbols) + made


def _attribute(place: int, name: str, text: str) -> bytes:
    return field(place, field(1, name.encode()) + field(2, field(1, text.encode())))


def metric(name: str, points: bytes, kind: int = 5) -> bytes:
    return field(2, field(1, name.encode()) + field(kind, points))


def point(at_ms: int, value: float, labels: Mapping[str, str], more: bytes = b"") -> bytes:
    attributes = b"".join(_attribute(7, label, text) for label, text in labels.items())
    return field(1, fixed(3, at_ms * 1_000_000) + double(4, value) + attributes + more)


def request_otlp(metrics: bytes, resource: Mapping[str, str] | None = None) -> bytes:
    """`ExportMetricsServiceRequest` of one resource and scope."""
    attributes = b"".join(_attribute(1, name, text) for name, text in (resource or {}).items())
    return field(1, field(1, attributes) + field(2, metrics))


def otlp_of(series: Iterable[Series]) -> bytes:
    """The same series as gauges."""
    made = b""
    for labels, samples in series:
        rest = {name: text for name, text in labels.items() if name != "__name__"}
        made += metric(labels["__name__"], b"".join(point(at_ms, value, rest) for at_ms, value in samples))
    return request_otlp(made)


def json_point(at_ms: int, value: float, labels: Mapping[str, str]) -> dict[str, Any]:
    """A data point as OTLP's JSON has it: 64-bit numbers as text."""
    attributes = [{"key": name, "value": {"stringValue": text}} for name, text in labels.items()]
    return {"timeUnixNano": str(at_ms * 1_000_000), "asDouble": value, "attributes": attributes}


def json_metric(name: str, *points: object, kind: str = "gauge") -> dict[str, Any]:
    return {"name": name, kind: {"dataPoints": list(points)}}


def json_request(*metrics: object, resource: Mapping[str, str] | None = None) -> bytes:
    """`ExportMetricsServiceRequest` of one resource and scope."""
    attributes = [{"key": name, "value": {"stringValue": text}} for name, text in (resource or {}).items()]
    scopes = [{"scope": {"name": "x"}, "metrics": list(metrics)}]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": scopes, "resource": {"attributes": attributes}}]}).encode()


def otlp_json_of(series: Iterable[Series]) -> bytes:
    """The same series as gauges."""
    made = []
    for labels, samples in series:
        rest = {name: text for name, text in labels.items() if name != "__name__"}
        made.append(json_metric(labels["__name__"], *(json_point(at_ms, value, rest) for at_ms, value in samples)))
    return json_request(*made)
