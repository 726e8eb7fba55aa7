"""InfluxDB 2.x as the store, through influxdb-client; the only module that imports it.

One point per GPU and instant, written as pre-joined line protocol, synchronously. Of two writes to one field and
instant the last wins, as the server itself does it. Attributes of a GPU are written as ``gpu_info`` when they change
and once a day. A series is of one field type for good: every metric is a float.

When the server refuses lines of a write, it may have stored the others (release 2.7) or nothing at all (2.0 beta).
Lines that it names are parked and the rest is sent again, which is idempotent; a write of which it names none is cut
into halves until the refused lines stand alone. `LinesParked` tells of the parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import influxdb_client
import structlog
from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store import flux, points
from tocsin.store.identity import Announcer
from tocsin.store.influx_errors import (
    LinesParked,
    blames_lines,
    is_partial,
    named_lines,
    refusal,
    unknown_organisation,
)
from tocsin.store.lp_encode import encode_lines, point_line
from tocsin.store.points import Point
from tocsin.store.port import Series, StoreUnavailable
from tocsin.store.samples import Rows

_LINES_PER_REQUEST = 5_000
_MAX_PARTIAL_REQUESTS = 100
"""Requests in search of refused lines where the others are stored already: it only serves to name them."""

_MIN_RETENTION_SECONDS = 3_600
_READING = (points.GPU, points.MISSING)
_FIRST = "  |> first()\n"
_LAST = "  |> last()\n"
_T = TypeVar("_T")
_api: Any = influxdb_client
"""The library; its own annotations are incomplete."""


log = structlog.get_logger()


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
            enable_gzip=True,
        )
        self._writer = self._client.write_api(write_options=SYNCHRONOUS)
        self._reader = self._client.query_api()
        self._announcer = Announcer(min(DAY, int(settings.retention_days * DAY / 2)))

    def init(self) -> None:
        """Create the bucket with the retention of the settings; one that is there is only ever given a longer one.

        Raises StoreMisconfigured for an unknown organisation or a token that may not do this, StoreUnavailable where
        the server does not answer.
        """
        seconds = max(int(self._settings.retention_days * DAY / SECOND), _MIN_RETENTION_SECONDS)
        buckets = self._client.buckets_api()
        name, org = self._settings.bucket, self._settings.org
        found = self._call(lambda: buckets.find_buckets(name=name, org=org).buckets)
        if found:
            self._lengthen(found[0], seconds)
            return
        rule = _api.BucketRetentionRules(type="expire", every_seconds=seconds)
        self._call(lambda: buckets.create_bucket(bucket_name=name, retention_rules=rule, org=org))

    def _lengthen(self, bucket: Any, seconds: int) -> None:
        """Give `bucket` a retention of `seconds`, unless it keeps its data longer: a shorter one removes data."""
        present = max((rule.every_seconds for rule in bucket.retention_rules or ()), default=0)
        if present == seconds:
            return
        if present == 0 or present > seconds:
            log.warning(
                "bucket keeps its longer retention",
                bucket=bucket.name,
                bucket_retention="infinite" if present == 0 else f"{present * SECOND / DAY:g} days",
                store_retention=f"{seconds * SECOND / DAY:g} days",
                remedy="shorten it in InfluxDB itself if older data may go, or raise store.retention_days",
            )
            return
        request = _api.PatchBucketRequest(retention_rules=[_api.PatchRetentionRule(every_seconds=seconds)])
        service = _api.BucketsService(self._client.api_client)
        self._call(lambda: service.patch_buckets_id(bucket_id=bucket.id, patch_bucket_request=request))

    def _call(self, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except ApiException as error:
            raise refusal(self._settings, error.status, str(error.message)) from None
        except InfluxDBError as error:  # the library's own: it looked for the organisation's id in vain
            raise unknown_organisation(self._settings, f"InfluxDB at {self._settings.url}: {error.message}") from None
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
        pending = [lines]
        requests = 0
        while pending:
            part = pending.pop()
            reason = self._post(part)
            requests += 1
            if reason is None:
                continue
            if named := named_lines(reason, part):
                parked += named
                refused = {line for line, _ in named}
                rest = [line for line in part if line not in refused]
                pending += [rest] if rest else []
            elif len(part) == 1:
                parked.append((part[0], reason))
            elif is_partial(reason) and requests >= _MAX_PARTIAL_REQUESTS:
                parked += [(line, f"one or more of {len(part)} lines: {reason}") for line in part]
            else:
                half = len(part) // 2
                pending += [part[half:], part[:half]]
        return parked

    def _post(self, lines: list[str]) -> str | None:
        """One request; returns why the server does not take these lines, None where it has them all."""
        body, precision = "\n".join(lines).encode(), _api.WritePrecision.MS
        try:
            self._writer.write(self._settings.bucket, self._settings.org, body, write_precision=precision)
        except ApiException as error:
            message = str(error.message)
            if blames_lines(error.status, message):
                return message
            raise refusal(self._settings, error.status, message) from None
        except (HTTPError, OSError) as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url}: {error}") from None
        return None

    # ------------------------------------------------------------------ reading

    def _ask(self, query: str, parse: Callable[[list[list[str]]], Iterator[_T]]) -> Iterator[_T]:
        rows = self._call(lambda: list(self._reader.query_csv(query)))
        try:
            yield from parse(rows)
        except flux.FluxError as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url} breaks off its answer: {error}") from None

    def _samples(
        self, start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str, then: str = ""
    ) -> Iterator[flux.Sample]:
        """Asks for nothing where the range is empty, which InfluxDB would call an error."""
        if flux.is_empty(start_ms, end_ms):
            return iter(())
        query = flux.query(self._settings.bucket, start_ms, end_ms, measurements, *conditions, then=then)
        return self._ask(query, flux.samples)

    def _points(self, samples: Iterable[flux.Sample]) -> list[Point]:
        """Fields of one measurement, tags and instant together, by instant."""
        found: dict[tuple[object, ...], tuple[Mapping[str, str], dict[str, points.FieldValue]]] = {}
        for measurement, tags, at_ms, field, value in samples:
            key = (measurement, at_ms, *sorted(tags.items()))
            found.setdefault(key, (tags, {}))[1][field] = value
        made = [Point(str(key[0]), tags, fields, int(str(key[1]))) for key, (tags, fields) in found.items()]
        return sorted(made, key=lambda point: point.at_ms)

    def _known(self) -> dict[str, Gpu]:
        infos = self._points(self._samples(0, flux.FAR_MS, [points.INFO], then=_LAST))
        return {gpu.uuid: gpu for gpu in map(points.read_info, infos)}

    def gpus(self) -> list[Gpu]:
        rows = self._samples(0, flux.FAR_MS, _READING, then=_LAST)
        bare = {gpu.uuid: gpu for gpu in (points.gpu_of_tags(tags) for _, tags, *_ in rows)}
        known = self._known()
        return [known.get(uuid, bare[uuid]) for uuid in sorted(bare)]

    def latest(self, since_ms: int) -> list[Reading]:
        found = list(self._samples(since_ms, flux.FAR_MS, _READING, then=_LAST))
        if not found:
            return []
        newest: dict[str, int] = {}
        for _, tags, at_ms, *_ in found:
            uuid = points.gpu_of_tags(tags).uuid
            newest[uuid] = max(newest.get(uuid, at_ms), at_ms)
        rows = Rows()
        rows.take(sample for sample in found if sample[2] == newest[points.gpu_of_tags(sample[1]).uuid])
        return sorted(rows.readings(self._known()), key=lambda reading: reading.gpu.uuid)

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        if gpus is not None and not gpus:
            return
        conditions = [flux.of_gpus(gpus)] if gpus is not None and len(gpus) <= flux.MAX_NAMED else []
        span = self._span(start_ms, end_ms, conditions)
        known = self._known() if span else {}
        for start in span[::HOUR]:
            rows = Rows()
            rows.take(self._samples(start, min(start + HOUR, span.stop), _READING, *conditions))
            yield from (r for r in rows.readings(known) if gpus is None or r.gpu.uuid in gpus)

    def _span(self, start_ms: int, end_ms: int, conditions: Sequence[str]) -> range:
        """The part of the range from the first to behind the last sample: no empty hour is asked for."""
        first, last = (
            [at_ms for _, _, at_ms, _, _ in self._samples(start_ms, end_ms, _READING, *conditions, then=pick)]
            for pick in (_FIRST, _LAST)
        )
        return range(min(first), max(last) + 1) if first and last else range(0)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        rows = Rows()
        if flux.is_empty(start_ms, end_ms):
            return rows.series(gpu, metrics)
        chosen = flux.of_gpus([gpu])
        names = sorted({split_variant(name)[0] for name in metrics} & METRICS.keys())
        if names:
            fields = flux.any_of("_field", [METRICS[name].field for name in names])
            rows.take(self._samples(start_ms, end_ms, _READING, chosen, fields))
        query = flux.instants_query(self._settings.bucket, start_ms, end_ms, _READING, chosen)
        return rows.series(gpu, metrics, self._ask(query, flux.instants))

    def _read(
        self, read: Callable[[Point], _T], start_ms: int, end_ms: int, measurement: str, *conditions: str
    ) -> list[_T]:
        return [read(point) for point in self._points(self._samples(start_ms, end_ms, [measurement], *conditions))]

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        conditions = [flux.any_of("gpu_uuid", [gpu])] if gpu else []
        found = self._read(points.read_event, start_ms, end_ms, points.EVENT, *conditions)
        return sorted((e for e in found if gpu in (None, e.gpu)), key=lambda event: (event.at_ms, event.id))

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        if flux.is_empty(start_ms, end_ms):
            return []
        found = self._read(points.read_finding, 0, end_ms, points.FINDING)
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
