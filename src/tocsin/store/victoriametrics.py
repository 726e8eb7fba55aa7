"""VictoriaMetrics as the store of readings, with an embedded file beside it for what it cannot hold.

Its rules, as measured on release 1.79 (see docs/store.md):

- A point becomes one series a field, named ``gpu_`` + field: the exporter's names.
- Time is kept in milliseconds; finer steps are cut.
- A value keeps about 12 significant digits: byte totals beyond 1e12 come back rounded.
- Two samples of one series at one instant are both kept; which one is read is not defined. The same sample twice does
  no harm, so a repeated write is idempotent, but a correction of a value already written may not win.
- Text fields become 0. Attributes of GPUs, events, findings and predictions therefore live in the embedded file
  `store.path`; their numbers are sent to the server as well, for charts.
- An instant query sees five minutes back (look-back) and not the newest seconds (``-search.latencyOffset``). Nothing
  here depends on either: reads go through ``/api/v1/export``, which gives stored samples as they are.
- A write that was answered is searchable within about a second, and on disk within about five: a killed server can lose
  those. The embedded store is durable on return.
- Retention is the server's own flag ``-retentionPeriod``; `prune` removes from the embedded file alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import httpx2
import numpy as np

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import BY_FIELD, variant
from tocsin.domain.missing import Missing
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import MAX_FUTURE_MS, Reading
from tocsin.store import points
from tocsin.store.identity import Announcer
from tocsin.store.lp_encode import encode, point_line
from tocsin.store.points import Point
from tocsin.store.port import Series, StoreRejected, StoreUnavailable
from tocsin.store.sqlite import SqliteStore

_READINGS_PER_REQUEST = 2_000
_WINDOW = 10 * MINUTE
_REFUSED = frozenset({400, 413, 422})
_OTHERS = "gpu_(event|finding|prediction|info)_.+"
_SELECTOR = f'__name__=~"gpu_.+",__name__!~"{_OTHERS}"'
_REASONS = {reason.value: reason for reason in Missing}


class _Rows:
    """Series of an export, turned into readings."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], dict[str, float]] = {}
        self.missing: dict[tuple[int, str], dict[str, Missing]] = {}
        self.gpus: dict[str, Gpu] = {}

    def add(self, labels: Mapping[str, str], at_ms: Sequence[int], values: Sequence[float]) -> None:
        named = _key(labels)
        if named is None:
            return
        key, is_reason = named
        gpu = points.gpu_of_tags(labels)
        self.gpus[gpu.uuid] = gpu
        for at, value in zip(at_ms, values, strict=True):
            if is_reason:
                self.missing.setdefault((at, gpu.uuid), {})[key] = _REASONS.get(int(value), Missing.BLANK)
            else:
                self.values.setdefault((at, gpu.uuid), {})[key] = float(value)

    def readings(self, known: Mapping[str, Gpu]) -> Iterator[Reading]:
        for at_ms, uuid in sorted(self.values.keys() | self.missing.keys()):
            values = self.values.get((at_ms, uuid), {})
            reasons = self.missing.get((at_ms, uuid), {})
            missing = {name: reason for name, reason in reasons.items() if name not in values}
            yield Reading(known.get(uuid, self.gpus[uuid]), at_ms, values, missing)


class VictoriaMetricsStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads."""

    name = "victoriametrics"

    def __init__(self, settings: StoreSettings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        token = settings.token.get_secret_value()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(base_url=settings.url, timeout=settings.timeout_seconds, headers=headers)
        self._beside = SqliteStore(settings.path)
        self._announcer = Announcer(min(DAY, int(settings.retention_days * DAY / 2)))

    def init(self) -> None:
        """Create the embedded file; the server needs nothing but to be there. Raises StoreUnavailable."""
        self._beside.init()
        self._request("GET", "/health")

    # ------------------------------------------------------------------ writing

    def write(self, batch: Batch) -> None:
        for start in range(0, len(batch.readings), _READINGS_PER_REQUEST):
            part = Batch(readings=batch.readings[start : start + _READINGS_PER_REQUEST])
            self._send(encode(part, info=False))
        self._send("".join(f"{line}\n" for line in _numbers(batch)))
        due = self._announcer.due(batch.readings)
        told = [Reading(reading.gpu, reading.at_ms, {}) for reading in due]
        self._beside.write(Batch(told, batch.events, batch.findings, batch.predictions))
        self._announcer.told(due)

    def _send(self, text: str) -> None:
        if text:
            self._request("POST", "/api/v2/write", params={"precision": "ms"}, content=text.encode())

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: Mapping[str, str | list[str]] | None = None,
        content: bytes | None = None,
    ) -> httpx2.Response:
        try:
            response = self._http.request(method, path, params=params, data=data, content=content)
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"VictoriaMetrics at {self._http.base_url}: {error}") from None
        if response.status_code >= 400:
            problem = f"VictoriaMetrics at {self._http.base_url} answers {response.status_code}: {response.text[:300]}"
            raise (StoreRejected if response.status_code in _REFUSED else StoreUnavailable)(problem)
        return response

    # ------------------------------------------------------------------ reading

    def _known(self) -> dict[str, Gpu]:
        return {gpu.uuid: gpu for gpu in self._beside.gpus()}

    def gpus(self) -> list[Gpu]:
        response = self._request("POST", "/api/v1/series", data={"match[]": f"{{{_SELECTOR}}}", "start": "0"})
        found = {gpu.uuid: gpu for gpu in map(points.gpu_of_tags, _with_uuid(response.json()["data"]))}
        # The file beside knows the GPUs written here, the server also those that agents write to it themselves.
        known = {**found, **self._known()}
        return [known[uuid] for uuid in sorted(known)]

    def latest(self, since_ms: int) -> list[Reading]:
        now = max(self._clock.now_ms(), since_ms) + MAX_FUTURE_MS
        newest = self._extremes("max", "tlast_over_time", since_ms, now + 1)
        front = max(newest.values(), default=since_ms) - _WINDOW
        rows = self._export(max(front, since_ms), now + 1)
        for uuid, at_ms in newest.items():
            if at_ms < front:
                self._export(at_ms, at_ms + 1, [uuid], rows)
        last: dict[str, Reading] = {}
        for reading in rows.readings(self._known()):
            last[reading.gpu.uuid] = reading
        return [last[uuid] for uuid in sorted(last)]

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        if gpus is not None and not gpus:
            return
        now = self._clock.now_ms()
        # The newest samples are in an export before a query sees them: where it finds none, only those can be there.
        first = min(self._extremes("min", "tfirst_over_time", start_ms, end_ms).values(), default=now - _WINDOW)
        end_ms = min(end_ms, now + HOUR)
        known = self._known()
        for start in range(max(start_ms, first), end_ms, _WINDOW):
            yield from self._export(start, min(start + _WINDOW, end_ms), gpus).readings(known)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        rows = self._export(start_ms, end_ms, [gpu])
        found = [(reading.at_ms, reading.values) for reading in rows.readings({})]
        values = [[row.get(name, np.nan) for name in metrics] for _, row in found]
        at_ms = np.array([at for at, _ in found], dtype=np.int64)
        return Series(gpu, tuple(metrics), at_ms, np.array(values, np.float64).reshape(len(found), len(metrics)))

    def _extremes(self, outer: str, inner: str, start_ms: int, end_ms: int) -> dict[str, int]:
        """An instant, whole milliseconds, for each GPU with samples in [`start_ms`, `end_ms`)."""
        span = max(end_ms - start_ms, 1)
        query = f"{outer}({inner}({{{_SELECTOR}}}[{span}ms])) by (gpu_uuid, mig_uuid)"
        data = {"query": query, "time": f"{(end_ms - 1) / SECOND:.3f}", "nocache": "1"}
        result = self._request("POST", "/api/v1/query", data=data).json()["data"]["result"]
        rows = [(_with_uuid([row["metric"]]), float(row["value"][1])) for row in result]
        return {points.gpu_of_tags(labels[0]).uuid: round(at * SECOND) for labels, at in rows if labels}

    def _export(
        self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None, into: _Rows | None = None
    ) -> _Rows:
        rows = into or _Rows()
        if end_ms <= start_ms:
            return rows
        data: dict[str, str | list[str]] = {
            "match[]": _selectors(gpus),
            "start": f"{start_ms / SECOND:.3f}",
            "end": f"{(end_ms - 1) / SECOND:.3f}",
        }
        for line in self._request("POST", "/api/v1/export", data=data).text.splitlines():
            if line:
                one = json.loads(line)
                rows.add(one["metric"], one["timestamps"], one["values"])
        return rows

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        return self._beside.events(start_ms, end_ms, gpu)

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        return self._beside.findings(start_ms, end_ms)

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        return self._beside.predictions(start_ms, end_ms, gpu)

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:
        """Remove events, findings, predictions and old attributes; the server removes readings by its own flag."""
        return self._beside.prune(before_ms)

    def close(self) -> None:
        self._http.close()
        self._beside.close()


def _key(labels: Mapping[str, str]) -> tuple[str, bool] | None:
    """Metric key of a series, and whether it holds reasons; None for a series that is none of ours."""
    field = labels["__name__"].removeprefix("gpu_")
    is_reason = field not in BY_FIELD
    spec = BY_FIELD.get(field.removeprefix("missing_"))
    if spec is None or not labels.get("gpu_uuid"):
        return None
    value = labels.get(spec.label, "") if spec.label else ""
    return (variant(spec.name, spec.label, value) if value else spec.name), is_reason


def _with_uuid(found: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return [labels for labels in found if labels.get("gpu_uuid")]


def _selectors(gpus: Collection[str] | None) -> list[str]:
    if gpus is None:
        return [f"{{{_SELECTOR}}}"]
    text = json.dumps("|".join(re.escape(uuid) for uuid in sorted(gpus)), ensure_ascii=False)
    return [f'{{{_SELECTOR},gpu_uuid=~{text},mig_uuid=""}}', f"{{{_SELECTOR},mig_uuid=~{text}}}"]


def _numbers(batch: Batch) -> Iterator[str]:
    """Lines with the numeric fields of events, findings and predictions."""
    made: list[Point] = [
        *map(points.event_point, batch.events),
        *map(points.finding_point, batch.findings),
        *map(points.prediction_point, batch.predictions),
    ]
    for point in made:
        fields = {name: value for name, value in point.fields.items() if not isinstance(value, str)}
        yield point_line(Point(point.measurement, point.tags, fields, point.at_ms))
