"""InfluxDB 2.x as the store, through influxdb-client; the only module that imports it.

One point per GPU and instant, written as pre-joined line protocol, synchronously. Of two writes to one field and
instant the last wins, as the server itself does it. Attributes of a GPU are written as ``gpu_info`` when they change
and once a day. A series is of one field type for good: every metric is a float.

When the server names lines that it cannot parse, it may have stored the others (release 2.7) or nothing at all (2.0
beta): the named ones are parked, the rest is sent again, which is idempotent, and `LinesParked` tells of the parked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import influxdb_client
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store import flux, points
from tocsin.store.identity import Announcer
from tocsin.store.lp_encode import encode_lines, point_line
from tocsin.store.points import Point
from tocsin.store.port import Series, StoreRejected, StoreUnavailable
from tocsin.store.samples import Rows

_LINES_PER_REQUEST = 5_000
_MAX_RESENDS = 20
_MIN_RETENTION_SECONDS = 3_600
_UNPARSED = re.compile(r"unable to parse '(.*?)': ([^\n]*)", re.DOTALL)
_READING = (points.GPU, points.MISSING)
_LAST = "  |> last()\n"
_T = TypeVar("_T")
_api: Any = influxdb_client
"""The library; its own annotations are incomplete."""


class LinesParked(StoreRejected):
    """The server refuses some lines and has the others. `lines` are (line, reason)."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self.lines = tuple(lines)
        shown = "; ".join(f"{line[:200]!r}: {reason}" for line, reason in self.lines[:3])
        super().__init__(f"InfluxDB refuses {len(self.lines)} lines, the others are stored: {shown}")


class InfluxStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads."""

    name = "influxdb"

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._client = _api.InfluxDBClient(
            url=settings.url,
            token=settings.token.get_secret_value() or None,
            org=settings.org,
            timeout=int(settings.timeout_seconds * SECOND),
        )
        self._writer = self._client.write_api(write_options=SYNCHRONOUS)
        self._reader = self._client.query_api()
        self._announcer = Announcer(min(DAY, int(settings.retention_days * DAY / 2)))

    def init(self) -> None:
        """Create the bucket, or give the one that is there the retention of the settings.

        Raises InputError where the organisation does not exist, StoreUnavailable where the server does not answer.
        """
        seconds = max(int(self._settings.retention_days * DAY / SECOND), _MIN_RETENTION_SECONDS)
        rule = _api.BucketRetentionRules(type="expire", every_seconds=seconds)
        buckets = self._client.buckets_api()
        org = self._settings.org
        try:
            found = self._call(lambda: buckets.find_buckets(name=self._settings.bucket, org=org).buckets)
            if not found:
                name = self._settings.bucket
                self._call(lambda: buckets.create_bucket(bucket_name=name, retention_rules=rule, org=org))
                return
        except _NotFound as error:
            raise InputError("store.org", org, str(error), "name an organisation of this InfluxDB") from None
        bucket = found[0]
        if [r.every_seconds for r in bucket.retention_rules] != [seconds]:
            bucket.retention_rules = [rule]
            self._call(lambda: buckets.update_bucket(bucket))

    def _call(self, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except ApiException as error:
            kind = _NotFound if error.status == 404 else StoreUnavailable
            raise kind(f"InfluxDB at {self._settings.url} answers {error.status}: {error.message}") from None
        except (HTTPError, OSError) as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url}: {error}") from None

    # ------------------------------------------------------------------ writing

    def write(self, batch: Batch) -> None:
        due = self._announcer.due(batch.readings)
        lines = [point_line(points.info_point(reading.gpu, reading.at_ms)) for reading in due]
        lines += encode_lines(batch, info=False)
        parked: list[tuple[str, str]] = []
        for start in range(0, len(lines), _LINES_PER_REQUEST):
            parked += self._send(lines[start : start + _LINES_PER_REQUEST])
        self._announcer.told(due)
        if parked:
            raise LinesParked(parked)

    def _send(self, lines: list[str]) -> list[tuple[str, str]]:
        """Write `lines`; returns the ones that were parked, with reasons."""
        parked: list[tuple[str, str]] = []
        for _ in range(_MAX_RESENDS):
            if not lines:
                return parked
            try:
                self._post(lines)
            except ApiException as error:
                if error.status == 413 and len(lines) > 1:
                    half = len(lines) // 2
                    return parked + self._send(lines[:half]) + self._send(lines[half:])
                named = _named(error, lines)
                parked += named
                refused = {line for line, _ in named}
                lines = [line for line in lines if line not in refused]
            else:
                return parked
        raise LinesParked([*parked, *((line, "the server keeps refusing the batch") for line in lines)])

    def _post(self, lines: list[str]) -> None:
        body, precision = "\n".join(lines).encode(), _api.WritePrecision.MS
        try:
            self._writer.write(self._settings.bucket, self._settings.org, body, write_precision=precision)
        except (HTTPError, OSError) as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url}: {error}") from None

    # ------------------------------------------------------------------ reading

    def _samples(self, query: str) -> Iterator[flux.Sample]:
        rows = self._call(lambda: list(self._reader.query_csv(query)))
        try:
            yield from flux.samples(rows)
        except flux.FluxError as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url} breaks off its answer: {error}") from None

    def _query(self, start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str, then: str = "") -> str:
        return flux.query(self._settings.bucket, start_ms, end_ms, measurements, *conditions, then=then)

    def _points(self, query: str) -> list[Point]:
        """Fields of one measurement, tags and instant together, by instant."""
        found: dict[tuple[object, ...], tuple[Mapping[str, str], dict[str, points.FieldValue]]] = {}
        for measurement, tags, at_ms, field, value in self._samples(query):
            key = (measurement, at_ms, *sorted(tags.items()))
            found.setdefault(key, (tags, {}))[1][field] = value
        made = [Point(str(key[0]), tags, fields, int(str(key[1]))) for key, (tags, fields) in found.items()]
        return sorted(made, key=lambda point: point.at_ms)

    def _known(self) -> dict[str, Gpu]:
        infos = self._points(self._query(0, flux.FAR_MS, [points.INFO], then=_LAST))
        return {gpu.uuid: gpu for gpu in map(points.read_info, infos)}

    def gpus(self) -> list[Gpu]:
        rows = self._samples(self._query(0, flux.FAR_MS, _READING, then=_LAST))
        bare = {gpu.uuid: gpu for gpu in (points.gpu_of_tags(tags) for _, tags, *_ in rows)}
        known = self._known()
        return [known.get(uuid, bare[uuid]) for uuid in sorted(bare)]

    def latest(self, since_ms: int) -> list[Reading]:
        found = list(self._samples(self._query(since_ms, flux.FAR_MS, _READING, then=_LAST)))
        newest: dict[str, int] = {}
        for _, tags, at_ms, *_ in found:
            uuid = points.gpu_of_tags(tags).uuid
            newest[uuid] = max(newest.get(uuid, at_ms), at_ms)
        rows = Rows()
        rows.take(sample for sample in found if sample[2] == newest[points.gpu_of_tags(sample[1]).uuid])
        return sorted(rows.readings(self._known()), key=lambda reading: reading.gpu.uuid)

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        if end_ms <= start_ms or (gpus is not None and not gpus):
            return
        conditions = [flux.of_gpus(gpus)] if gpus is not None and len(gpus) <= flux.MAX_NAMED else []
        span = self._span(start_ms, end_ms, conditions)
        known = self._known() if span else {}
        for start in span[::HOUR]:
            rows = Rows()
            rows.take(self._samples(self._query(start, min(start + HOUR, span.stop), _READING, *conditions)))
            yield from (r for r in rows.readings(known) if gpus is None or r.gpu.uuid in gpus)

    def _span(self, start_ms: int, end_ms: int, conditions: Sequence[str]) -> range:
        """The part of the range from the first to behind the last sample: no empty hour is asked for."""
        ends = [
            max(at_ms for *_, at_ms, _, _ in found) if pick == "last" else min(at_ms for *_, at_ms, _, _ in found)
            for pick in ("first", "last")
            if (
                found := list(
                    self._samples(self._query(start_ms, end_ms, _READING, *conditions, then=f"  |> {pick}()\n"))
                )
            )
        ]
        return range(ends[0], ends[1] + 1) if len(ends) == 2 else range(0)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        rows = Rows()
        if end_ms > start_ms:
            names = sorted({split_variant(name)[0] for name in metrics} & METRICS.keys())
            fields = [flux.any_of("_field", [METRICS[name].field for name in names])] if names else []
            rows.take(self._samples(self._query(start_ms, end_ms, _READING, flux.of_gpus([gpu]), *fields)))
        return rows.series(gpu, metrics)

    def _read(
        self, read: Callable[[Point], _T], start_ms: int, end_ms: int, measurement: str, *conditions: str
    ) -> list[_T]:
        if end_ms <= start_ms:
            return []
        return [read(point) for point in self._points(self._query(start_ms, end_ms, [measurement], *conditions))]

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        conditions = [flux.any_of("gpu_uuid", [gpu])] if gpu else []
        found = self._read(points.read_event, start_ms, end_ms, points.EVENT, *conditions)
        return sorted((e for e in found if gpu in (None, e.gpu)), key=lambda event: (event.at_ms, event.id))

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        found: Iterable[Finding] = self._read(points.read_finding, 0, end_ms, points.FINDING)
        chosen = [finding for finding in found if start_ms <= finding.last_ms < end_ms]
        return sorted(chosen, key=lambda finding: (finding.last_ms, finding.id))

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        conditions = [flux.any_of("subject", [gpu])] if gpu else []
        found = self._read(points.read_prediction, start_ms, end_ms, points.PREDICTION, *conditions)
        chosen = [p for p in found if gpu in (None, p.subject.name)]
        return sorted(chosen, key=lambda prediction: (prediction.at_ms, prediction.id))

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:  # noqa: ARG002
        """Nothing: the bucket's retention removes what is old."""
        return 0

    def close(self) -> None:
        self._writer.close()
        self._client.close()


class _NotFound(StoreUnavailable):
    """The bucket or the organisation does not exist."""


def _named(error: ApiException, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Lines of a refused request that the answer names. Raises where it names none of them."""
    message = str(error.message)
    reasons = dict(_UNPARSED.findall(message))
    named = [(line, reasons[line]) for line in lines if line in reasons]
    if named:
        return named
    problem = f"InfluxDB answers {error.status}: {message}"
    if error.status in (400, 413, 422) or "partial write" in message:
        raise StoreRejected(problem) from None
    raise StoreUnavailable(problem) from None
