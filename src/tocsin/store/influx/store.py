"""InfluxDB 2.x as the store, through influxdb-client; the only module that imports it.

One point per GPU and instant, written as pre-joined line protocol, synchronously. Of two writes to one field and
instant the last wins, as the server itself does it. Attributes of a GPU are written as ``gpu_info`` when they change
and once a day. A series is of one field type for good: every metric is a float. Older readings are read from the
coarser buckets that `influx_setup` describes.

When the server refuses lines of a write, it may have stored the others (release 2.7) or nothing at all (2.0 beta).
Lines that it names are parked and the rest is sent again, which is idempotent; a write of which it names none is cut
into halves until the refused lines stand alone. `LinesParked` tells of the parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import influxdb_client
from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from tocsin.config.settings import StoreSettings
from tocsin.domain.annotation import Annotation
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, SECOND, Clock, SystemClock
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store import points
from tocsin.store.annotations import mark_point
from tocsin.store.grid import columns_of
from tocsin.store.identity import Announcer
from tocsin.store.influx import flux
from tocsin.store.influx.errors import LinesParked, blames_lines, is_partial, named_lines, refusal, unknown_organisation
from tocsin.store.influx.setup import Bucket, Buckets, Setup, tasks
from tocsin.store.line_protocol.encode import encode_lines, point_line
from tocsin.store.points import Point
from tocsin.store.port import Columns, Series, StoreRejected, StoreUnavailable
from tocsin.store.samples import Rows, SampleGrid

_LINES_PER_REQUEST = 5_000
_MAX_PARTIAL_REQUESTS = 100
"""Requests in search of refused lines where the others are stored already: it only serves to name them."""

_READY = "tocsin_ready"
_READING = (points.GPU, points.MISSING, points.OWNER)
_FIRST = "  |> first()\n"
_LAST = "  |> last()\n"
_T = TypeVar("_T")
_api: Any = influxdb_client
"""The library; its own annotations are incomplete."""


class InfluxStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads."""

    name = "influxdb"

    def __init__(self, settings: StoreSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._buckets = Buckets.of(settings)
        self._client = _api.InfluxDBClient(
            url=settings.url,
            token=settings.token.get_secret_value() or None,
            org=settings.org,
            timeout=int(settings.timeout_seconds * SECOND),
            enable_gzip=True,
        )
        self._writer = self._client.write_api(write_options=SYNCHRONOUS)
        self._reader = self._client.query_api()
        self._announcer = Announcer(min(DAY, int(settings.ten_minute_days * DAY / 2)))

    def init(self) -> None:
        """Create buckets and tasks, then write a point ``tocsin_ready`` and read it back.

        A server of release 1 answers a ping and nothing else. Raises StoreMisconfigured for such a one, for an unknown
        organisation and for a token that may not do this, StoreUnavailable where the server does not answer.
        """
        setup = Setup(self._client, _api, self._settings.org, self._call)
        self._buckets = self._buckets.kept_for(setup.buckets(self._buckets.all()))
        setup.tasks(tasks(self._buckets, self._settings.org))
        self._prove()

    def _prove(self) -> None:
        now_ms = self._clock.now_ms()
        raw = self._buckets.raw.name
        if reason := self._post(raw, [point_line(Point(_READY, {}, {"value": 1.0}, now_ms))]):
            raise StoreRejected(f"InfluxDB at {self._settings.url} refuses a first point: {reason}")
        if not list(self._samples([raw], now_ms, now_ms + 1, [_READY])):
            problem = f"InfluxDB at {self._settings.url} took a point of now and does not have it"
            raise StoreUnavailable(f"{problem}; compare the clocks, its retention may be over")

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
        words = [point_line(points.info_point(reading.gpu, reading.at_ms)) for reading in due]
        words += encode_lines(Batch(events=batch.events, findings=batch.findings))
        parked = self._send(self._buckets.raw.name, encode_lines(Batch(batch.readings)))
        parked += self._send(self._buckets.ten_minute.name, words)
        parked += self._send(self._buckets.minute.name, encode_lines(Batch(predictions=batch.predictions)))
        self._announcer.told(due)
        if parked:
            raise LinesParked(parked)

    def mark(self, marks: Sequence[Annotation]) -> None:
        """Implements `tocsin.store.annotations.KeepsMarks`."""
        if parked := self._send(self._buckets.ten_minute.name, [point_line(mark_point(mark)) for mark in marks]):
            raise LinesParked(parked)

    def _send(self, bucket: str, lines: list[str]) -> list[tuple[str, str]]:
        """Write `lines`; returns the ones that were parked, with reasons."""
        parts = (lines[start : start + _LINES_PER_REQUEST] for start in range(0, len(lines), _LINES_PER_REQUEST))
        return [line for part in parts for line in self._send_part(bucket, part)]

    def _send_part(self, bucket: str, lines: list[str]) -> list[tuple[str, str]]:
        parked: list[tuple[str, str]] = []
        pending = [lines]
        requests = 0
        while pending:
            part = pending.pop()
            reason = self._post(bucket, part)
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

    def _post(self, bucket: str, lines: list[str]) -> str | None:
        """One request; returns why the server does not take these lines, None where it has them all."""
        body, precision = "\n".join(lines).encode(), _api.WritePrecision.MS
        try:
            self._writer.write(bucket, self._settings.org, body, write_precision=precision)
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
        self,
        buckets: Sequence[str],
        start_ms: int,
        end_ms: int,
        measurements: Sequence[str],
        *conditions: str,
        then: str = "",
    ) -> Iterator[flux.Sample]:
        """Asks for nothing where the range is empty, which InfluxDB would call an error."""
        if flux.is_empty(start_ms, end_ms):
            return iter(())
        return self._ask(flux.query(buckets, start_ms, end_ms, measurements, *conditions, then=then), flux.samples)

    def _spans(self, start_ms: int, end_ms: int) -> list[tuple[Bucket, int, int]]:
        return self._buckets.spans(start_ms, end_ms, self._clock.now_ms())

    def _points(self, samples: Iterable[flux.Sample]) -> list[Point]:
        """Fields of one measurement, tags and instant together, by instant."""
        found: dict[tuple[object, ...], tuple[Mapping[str, str], dict[str, points.FieldValue]]] = {}
        for measurement, tags, at_ms, field, value in samples:
            key = (measurement, at_ms, *sorted(tags.items()))
            found.setdefault(key, (tags, {}))[1][field] = value
        made = [Point(str(key[0]), tags, fields, int(str(key[1]))) for key, (tags, fields) in found.items()]
        return sorted(made, key=lambda point: point.at_ms)

    def _known(self) -> dict[str, Gpu]:
        infos = self._points(self._samples(self._words, 0, flux.FAR_MS, [points.INFO], then=_LAST))
        return {gpu.uuid: gpu for gpu in map(points.read_info, infos)}

    @property
    def _words(self) -> tuple[str, str]:
        """Where events and attributes are: agents that write to InfluxDB themselves know one bucket only."""
        return self._buckets.raw.name, self._buckets.ten_minute.name

    def _newest(self, since_ms: int, *conditions: str) -> list[flux.Sample]:
        """The last value of each series at or after `since_ms`, from the oldest bucket on."""
        return [
            sample
            for bucket, start, end in self._spans(since_ms, flux.FAR_MS)
            for sample in self._samples([bucket.name], start, end, _READING, *conditions, then=_LAST)
        ]

    def gpus(self) -> list[Gpu]:
        bare = {gpu.uuid: gpu for gpu in (points.gpu_of_tags(tags) for _, tags, *_ in self._newest(0))}
        known = self._known()
        return [known.get(uuid, bare[uuid]) for uuid in sorted(bare)]

    def latest(self, since_ms: int) -> list[Reading]:
        found = self._newest(since_ms)
        if not found:
            return []
        newest: dict[str, int] = {}
        for _, tags, at_ms, *_ in found:
            uuid = points.gpu_of_tags(tags).uuid
            newest[uuid] = max(newest.get(uuid, at_ms), at_ms)
        rows = Rows()
        rows.take(sample for sample in found if sample[2] == newest[points.gpu_of_tags(sample[1]).uuid])
        return sorted(rows.readings(self._known()), key=lambda reading: reading.gpu.uuid)

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        return columns_of(metrics, self.latest(since_ms))

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        if gpus is not None and not gpus:
            return
        conditions = _of_gpus(gpus)
        known: dict[str, Gpu] | None = None
        for bucket, begin, stop in self._spans(start_ms, end_ms):
            there = self._there(bucket, begin, stop, conditions)
            known = self._known() if there and known is None else known
            for start in there[:: bucket.page_ms]:
                rows = Rows()
                end = min(start + bucket.page_ms, there.stop)
                rows.take(self._samples([bucket.name], start, end, _READING, *conditions))
                yield from (r for r in rows.readings(known or {}) if gpus is None or r.gpu.uuid in gpus)

    def _there(self, bucket: Bucket, start_ms: int, end_ms: int, conditions: Sequence[str]) -> range:
        """The part of the range from the first to behind the last sample: no empty page is asked for."""
        first, last = (
            [
                at_ms
                for _, _, at_ms, _, _ in self._samples(
                    [bucket.name], start_ms, end_ms, _READING, *conditions, then=pick
                )
            ]
            for pick in (_FIRST, _LAST)
        )
        return range(min(first), max(last) + 1) if first and last else range(0)

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        found = self.columns(metrics, start_ms, end_ms, [gpu])
        return Series(gpu, found.metrics, found.at_ms, found.values)

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        grid = SampleGrid(metrics, gpus)
        names = sorted({split_variant(name)[0] for name in metrics} & METRICS.keys())
        conditions = _of_gpus(gpus)
        for bucket, start, end in self._spans(start_ms, end_ms) if gpus is None or gpus else ():
            if names:
                fields = flux.any_of("_field", [METRICS[name].field for name in names])
                grid.take(self._samples([bucket.name], start, end, [points.GPU], *conditions, fields))
            query = flux.instants_query(bucket.name, start, end, _READING, *conditions)
            grid.seen(self._ask(query, flux.instants))
        return grid.columns()

    def _read(
        self,
        read: Callable[[Point], _T],
        buckets: Sequence[str],
        start_ms: int,
        end_ms: int,
        measurement: str,
        *conditions: str,
    ) -> list[_T]:
        found = self._points(self._samples(buckets, start_ms, end_ms, [measurement], *conditions))
        return [read(point) for point in found]

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        conditions = [flux.any_of("gpu_uuid", [gpu])] if gpu else []
        found = self._read(points.read_event, self._words, start_ms, end_ms, points.EVENT, *conditions)
        return sorted((e for e in found if gpu in (None, e.gpu)), key=lambda event: (event.at_ms, event.id))

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        if flux.is_empty(start_ms, end_ms):
            return []
        found = self._read(points.read_finding, [self._buckets.ten_minute.name], 0, end_ms, points.FINDING)
        chosen = [finding for finding in found if start_ms <= finding.last_ms < end_ms]
        return sorted(chosen, key=lambda finding: (finding.last_ms, finding.id))

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        conditions = [flux.any_of("subject", [gpu])] if gpu else []
        bucket = self._buckets.minute.name
        found = self._read(points.read_prediction, [bucket], start_ms, end_ms, points.PREDICTION, *conditions)
        chosen = [p for p in found if gpu in (None, p.subject.name)]
        return sorted(chosen, key=lambda prediction: (prediction.at_ms, prediction.id))

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:  # noqa: ARG002
        """Nothing: the retention of the buckets removes what is old."""
        return 0

    def close(self) -> None:
        self._writer.close()
        self._client.close()


def _of_gpus(gpus: Collection[str] | None) -> list[str]:
    return [flux.of_gpus(gpus)] if gpus is not None and len(gpus) <= flux.MAX_NAMED else []
