"""The newest readings, sent by OTLP/HTTP.

A metric has OpenTelemetry's name for hardware where there is one, else DCGM's, else Tocsin's own; MIG instances have
Tocsin's alone, for only these name the instance. The state of a GPU (`hw.status`) is told besides. What must hold: a
receiver that is slow or away delays no reading and fills no memory, so that of a GPU the newest reading alone waits;
those that it replaces unsent are counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import httpx2
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from tocsin import __version__
from tocsin.collector.dcgm.fields import XID_NAMES, field_named
from tocsin.collector.exporter import gpu_labels
from tocsin.collector.push.hardware_names import HARDWARE, STATUS, UP_DOWN, states
from tocsin.config.otlp import OtlpSettings
from tocsin.domain.clock import Clock
from tocsin.domain.metrics import METRICS, MetricKind, split_variant
from tocsin.domain.reading import Gpu, Reading
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("otlp")

MAX_ANSWER_BYTES = 64 * 1024
MAX_PAUSE_SECONDS = 300.0
_AGAIN = frozenset({429, 502, 503, 504})
_NANOSECONDS = 1_000_000


@cache
def _dcgm_name(metric: str) -> tuple[str, float] | None:
    """DCGM's name of a row and the factor to its unit; None where no single field says just this."""
    for name in METRICS[metric].dcgm_names:
        field = field_named(name)
        if field is not None and field.key() == metric and not field.second and not field.of_states():
            return name, METRICS[metric].dcgm_scale
    return None


def _attributes(gpu: Gpu, more: Mapping[str, str]) -> dict[str, str]:
    """Attributes of a GPU's points for both readers: OpenTelemetry's, and those of dcgm-exporter."""
    return {
        "hw.model": gpu.model,
        "UUID": gpu.uuid,
        "gpu": "" if gpu.index is None else str(gpu.index),
        "modelName": gpu.model,
        "Hostname": gpu.host,
        **more,
    }


def _named(gpu: Gpu, key: str, value: float) -> tuple[str, str, dict[str, str], float]:
    """Name, unit, attributes and value of one metric of `gpu`."""
    if not gpu.is_mig:
        if (known := HARDWARE.get(key)) is not None:
            return known.name, known.unit, _attributes(gpu, known.attributes_of(gpu)), value
        if key in METRICS and (found := _dcgm_name(key)) is not None:
            return found[0], "", _attributes(gpu, STATUS.attributes_of(gpu)), value / found[1]
    name, label, text = split_variant(key)
    return name, "", gpu_labels(gpu) | ({label: text} if label else {}), value


def _metric(into: ExportMetricsServiceRequest, host: str, name: str, unit: str, counter: bool) -> Metric:
    """An empty metric of the resource that is the last of `into`, a new one where that is another host's."""
    if not into.resource_metrics or into.resource_metrics[-1].schema_url != host:
        made = into.resource_metrics.add(schema_url=host)
        for key, text in {"host.name": host, "service.name": "tocsin", "service.version": __version__}.items():
            made.resource.attributes.add(key=key).value.string_value = text
        made.scope_metrics.add().scope.name = "tocsin"
    metric: Metric = into.resource_metrics[-1].scope_metrics[0].metrics.add(name=name, unit=unit)
    if counter or name in UP_DOWN:
        metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.sum.is_monotonic = counter
    return metric


def encode(readings: Iterable[Reading]) -> tuple[bytes, int]:
    """`readings` as an ``ExportMetricsServiceRequest``, and the number of its data points."""
    request, points = ExportMetricsServiceRequest(), 0
    for host, name, unit, counter, rows in _grouped(readings):
        metric = _metric(request, host, name, unit, counter)
        for reading, attributes, value in rows:
            data = metric.sum if metric.HasField("sum") else metric.gauge
            point = data.data_points.add(time_unix_nano=reading.at_ms * _NANOSECONDS, as_double=value)
            for key, text in attributes.items():
                if text:
                    point.attributes.add(key=key).value.string_value = text
            points += 1
    for resource in request.resource_metrics:
        resource.schema_url = ""
    return bytes(request.SerializeToString()), points


_Row = tuple[Reading, dict[str, str], float]


def _grouped(readings: Iterable[Reading]) -> Iterator[tuple[str, str, str, bool, list[_Row]]]:
    """The points of each host and name together."""
    groups: dict[tuple[str, str, str, bool], list[_Row]] = {}
    for reading in readings:
        gpu = reading.gpu
        for key, value in reading.values.items():
            name, unit, attributes, number = _named(gpu, key, value)
            spec = METRICS.get(split_variant(key)[0])
            counter = spec is not None and spec.kind is MetricKind.COUNTER and name not in XID_NAMES
            groups.setdefault((gpu.host, name, unit, counter), []).append((reading, attributes, number))
        for state, number in states(reading).items():
            attributes = _attributes(gpu, STATUS.attributes_of(gpu) | {"hw.state": state})
            groups.setdefault((gpu.host, STATUS.name, STATUS.unit, False), []).append((reading, attributes, number))
    for (host, name, unit, counter), rows in sorted(groups.items(), key=lambda item: item[0]):
        yield host, name, unit, counter, rows


class OtlpExporter:
    """Sends what `put` has been given last. Never raises for what a receiver or a network does."""

    def __init__(
        self, settings: OtlpSettings, clock: Clock, own: OwnMetrics, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """Raises InputError for a CA file that cannot be used."""
        self._url = settings.url
        self._every = settings.every_seconds
        self._clock = clock
        self._own = own
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        self._client = http_client(
            settings.timeout_seconds, headers=headers, ca=settings.ca_file, proxies=True, transport=transport
        )
        self._lock = threading.Lock()
        self._waiting: dict[str, Reading] = {}
        self._not_before = clock.monotonic()
        self._failures = 0
        self._refused = 0
        self._problem = ""

    def put(self, readings: Iterable[Reading]) -> None:
        """Take the newest readings; of a GPU one waits."""
        with self._lock:
            for reading in readings:
                if reading.values or states(reading):
                    before = self._waiting.get(reading.gpu.uuid)
                    if before is not None and self._failures:
                        points = len(before.values) + len(states(before))
                        self._own.count("tocsin_otlp_points_total", points, outcome="lost")
                    self._waiting[reading.gpu.uuid] = reading

    def send(self) -> bool:
        """Send what waits, once it is due; whether a request was made."""
        if self._clock.monotonic() < self._not_before:
            return False
        with self._lock:
            sent = dict(self._waiting)
        if not sent:
            return False
        body, points = encode(sent.values())
        outcome, problem, pause = self._post(body)
        self._not_before = self._clock.monotonic() + pause
        self._failures = self._failures + 1 if outcome == "again" else 0
        if outcome != "again":
            with self._lock:
                # What came meanwhile waits for the next request.
                self._waiting = {uuid: one for uuid, one in self._waiting.items() if sent.get(uuid) is not one}
            refused = min(points, self._refused) if outcome == "sent" else points
            self._own.count("tocsin_otlp_points_total", points - refused, outcome="sent")
            self._own.count("tocsin_otlp_points_total", refused, outcome="refused")
        if problem and problem != self._problem:
            _log.warning("OTLP: not all is taken (said once per problem)", problem=problem)
        self._problem = problem
        return True

    def _post(self, body: bytes) -> tuple[str, str, float]:
        """What became of `body`: sent, refused or again; the problem; the pause until the next request."""
        self._refused = 0
        try:
            with self._client.stream(
                "POST", self._url, content=body, headers={"Content-Type": "application/x-protobuf"}
            ) as answer:
                text = next(answer.iter_bytes(MAX_ANSWER_BYTES), b"")
                status, after = answer.status_code, answer.headers.get("Retry-After", "")
        except httpx2.HTTPError as error:
            return "again", f"{type(error).__name__}: {error}"[:200], self._pause("")
        if status in _AGAIN:
            return "again", f"HTTP {status}", self._pause(after)
        if not 200 <= status < 300:
            return "refused", f"HTTP {status}: {text[:100]!r}", self._every
        return "sent", self._partial(text), self._every

    def _partial(self, text: bytes) -> str:
        """What a receiver that took the request has against parts of it."""
        try:
            partial = ExportMetricsServiceResponse.FromString(text).partial_success
        except DecodeError:
            return ""
        self._refused = max(partial.rejected_data_points, 0)
        return str(partial.error_message)[:200]

    def _pause(self, after: str) -> float:
        asked = float(after) if after.isdecimal() and len(after) < 6 else self._every * 2.0 ** min(self._failures, 8)
        return min(max(asked, 1.0), MAX_PAUSE_SECONDS)

    def close(self) -> None:
        self._client.close()
