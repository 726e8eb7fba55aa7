"""InfluxDB 2.x as the store, through influxdb-client; the only module that imports it.

One point per GPU and instant, written as pre-joined line protocol, synchronously. Of two writes to one field and
instant the last wins, as the server itself does it. Attributes of a GPU are written as ``gpu_info`` when they change
and once a day. A series is of one field type for good: every metric is a float. Older readings are read from the
coarser buckets that `Buckets` names.

When the server refuses lines of a write, it may have stored the others (release 2.7) or nothing at all (2.0 beta).
Lines that it names are parked and the rest is sent again, which is idempotent; a write of which it names none is cut
into halves until the refused lines stand alone. `LinesParked` tells of the parked.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import influxdb_client
import structlog
from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from tocsin.config.settings import StoreSettings
from tocsin.domain.annotation import Annotation
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.errors import TocsinError
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.metrics import METRICS, MetricKind, split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.store import points
from tocsin.store.annotations import mark_point
from tocsin.store.grid import columns_of
from tocsin.store.identity import Announcer
from tocsin.store.influx import flux
from tocsin.store.line_protocol.encode import encode_lines, point_line
from tocsin.store.points import Point
from tocsin.store.port import Columns, Series, StoreMisconfigured, StoreRejected, StoreUnavailable
from tocsin.store.samples import Rows, SampleGrid

log = structlog.get_logger()

# ---------------------------------------------------------------------- refusals

_UNPARSED = re.compile(r"unable to parse '(.*?)': ([^\n]*)", re.DOTALL)
_UNAUTHORIZED = (401, 403)
_NOT_FOUND = 404
_NO_SUCH_PATH = (404, 405)
_TOO_LARGE = 413
_UNUSABLE = (400, _TOO_LARGE, 422)
_MAX_SHOWN = 300


class LinesParked(StoreRejected):
    """The server refuses some lines and has the others. `lines` are (line, reason)."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self.lines = tuple(lines)
        shown = "; ".join(f"{line[:200]!r}: {reason[:_MAX_SHOWN]}" for line, reason in self.lines[:3])
        super().__init__(f"InfluxDB refuses {len(self.lines)} lines, the others are stored: {shown}")


def refusal(settings: StoreSettings, status: int | None, message: str) -> TocsinError:
    """The error for an answer that is no success: StoreMisconfigured with the remedy where only a setting can help."""
    answer = f"InfluxDB at {settings.url} answers {status}: {message.strip()}"
    if status in _UNAUTHORIZED:
        what = f"bucket {settings.bucket!r} of organisation {settings.org!r}"
        return StoreMisconfigured(f"store.token: {answer}; set a token that may read and write {what}")
    if status == _NOT_FOUND and "organization" in message:
        return unknown_organisation(settings, answer)
    if status == _NOT_FOUND and "bucket" in message:
        return StoreMisconfigured(f"store.bucket = {settings.bucket!r}: {answer}; create it with `tocsin store init`")
    if status in _NO_SUCH_PATH or "unsupported path" in message:
        remedy = "name an InfluxDB 2.x (release 1 answers like this; for VictoriaMetrics set store.kind)"
        return StoreMisconfigured(f"store.url = {settings.url!r}: {answer}; {remedy}")
    return StoreRejected(answer) if status in _UNUSABLE else StoreUnavailable(answer)


def unknown_organisation(settings: StoreSettings, problem: str) -> StoreMisconfigured:
    """The error where `store.org` names nothing that the token may see."""
    remedy = "name an organisation that is there and that store.token may see"
    return StoreMisconfigured(f"store.org = {settings.org!r}: {problem}; {remedy}")


def blames_lines(status: int | None, message: str) -> bool:
    """Whether a refused write may pass without some of its lines.

    Release 2.x answers 422 to a field of another type than before, 2.0 beta 500; both say "partial write".
    """
    return status in (_TOO_LARGE, 422) or is_partial(message) or (status == 400 and "unable to parse" in message)


def is_partial(message: str) -> bool:
    """Whether the server says that it has stored the lines that it does not refuse."""
    return "partial write" in message


def named_lines(message: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Those of `lines` that the answer names, each with its reason."""
    reasons = dict(_UNPARSED.findall(message))
    return [(line, reasons[line]) for line in lines if line in reasons]


# ---------------------------------------------------------------------- buckets, retention, downsampling
#
# What `tocsin store init` makes. Three buckets: ``NAME`` holds
# readings as they come, ``NAME_1m`` their values of whole minutes and the predictions, ``NAME_10m`` those of ten
# minutes, and the events, findings and attributes. Two tasks of the server fill the coarse ones. A measured quantity
# that goes up and down is kept as its mean; a counter, a state or a set of bits as its last value, since the mean of
# two states is none. A coarse point is dated by the start of its window.

MIN_RETENTION_SECONDS = 3_600
_QUANTITIES = frozenset({"ratio", "celsius", "watts", "joules", "hertz", "bytes", "bytes/s", "seconds"})
"""Units of what has a meaningful mean."""

LATE_HOURS = 2
"""How late a reading may come and still be in the coarse buckets: the tasks look back this far at every run."""

_FOR_EVER_DAYS = 36_500.0
Call = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket: for how long it keeps points, and how far they lie apart (0: as they come)."""

    name: str
    days: float
    step_ms: int

    @property
    def seconds(self) -> int:
        """Retention as InfluxDB takes it."""
        return max(int(self.days * DAY / SECOND), MIN_RETENTION_SECONDS)

    @property
    def page_ms(self) -> int:
        """How much of it is read at once: about as many points of each bucket."""
        return HOUR * max(6 * self.step_ms // MINUTE, 1)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The three of one store."""

    raw: Bucket
    minute: Bucket
    ten_minute: Bucket

    @classmethod
    def of(cls, settings: StoreSettings) -> Buckets:
        name = settings.bucket
        return cls(
            Bucket(name, settings.raw_days, 0),
            Bucket(f"{name}_1m", settings.minute_days, MINUTE),
            Bucket(f"{name}_10m", settings.ten_minute_days, 10 * MINUTE),
        )

    def all(self) -> tuple[Bucket, Bucket, Bucket]:
        """From the finest to the coarsest."""
        return self.raw, self.minute, self.ten_minute

    def kept_for(self, seconds: Sequence[int]) -> Buckets:
        """The same with the retention that they have in truth, 0 for ever, from the finest to the coarsest."""
        days = [each * SECOND / DAY if each else _FOR_EVER_DAYS for each in seconds]
        return Buckets(*(replace(bucket, days=days[place]) for place, bucket in enumerate(self.all())))

    def spans(self, start_ms: int, end_ms: int, now_ms: int) -> list[tuple[Bucket, int, int]]:
        """Where to read the readings of [`start_ms`, `end_ms`): bucket, start and end, from the oldest on.

        Each instant is read from the finest bucket that still has its whole window of ten minutes.
        """
        window = self.ten_minute.step_ms
        raw_from, minute_from = (
            -(-(now_ms - bucket.seconds * SECOND) // window) * window for bucket in (self.raw, self.minute)
        )
        found = [
            (self.ten_minute, start_ms, min(end_ms, minute_from, raw_from)),
            (self.minute, max(start_ms, minute_from), min(end_ms, raw_from)),
            (self.raw, max(start_ms, raw_from), end_ms),
        ]
        return [(bucket, start, end) for bucket, start, end in found if not flux.is_empty(start, end)]


def _is_mean(name: str) -> bool:
    spec = METRICS[name]
    return spec.kind is MetricKind.GAUGE and spec.unit in _QUANTITIES and not spec.static


MEANS = tuple(spec.field for spec in METRICS.values() if _is_mean(spec.name))
"""Fields of which a coarse bucket has the mean; of all others it has the last value."""


def _stream(source: Bucket, target: Bucket, org: str, late_hours: int, condition: str, function: str) -> str:
    step = f"{target.step_ms // MINUTE}m"
    return (
        f"from(bucket: {flux.text(source.name)})\n"
        f"  |> range(start: -{late_hours}h)\n"
        f"  |> filter(fn: (r) => {condition})\n"
        f'  |> aggregateWindow(every: {step}, fn: {function}, createEmpty: false, timeSrc: "_start")\n'
        f"  |> to(bucket: {flux.text(target.name)}, org: {flux.text(org)})\n"
    )


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the server."""

    name: str
    flux: str
    description: str


def tasks(buckets: Buckets, org: str) -> list[Task]:
    """What fills the coarse buckets. What agents write here themselves is copied as well."""
    of_means = f"/^({'|'.join(MEANS)})$/"
    means = f"r._measurement == {flux.text(points.GPU)} and r._field =~ {of_means}"
    lasts = (
        f"(r._measurement == {flux.text(points.GPU)} and r._field !~ {of_means}) or "
        f"r._measurement == {flux.text(points.MISSING)} or r._measurement == {flux.text(points.OWNER)}"
    )
    events = (
        f"from(bucket: {flux.text(buckets.raw.name)})\n"
        f"  |> range(start: -{2 * LATE_HOURS}h)\n"
        f"  |> filter(fn: (r) => r._measurement == {flux.text(points.EVENT)})\n"
        f"  |> to(bucket: {flux.text(buckets.ten_minute.name)}, org: {flux.text(org)})\n"
    )
    infos = f"r._measurement == {flux.text(points.INFO)}"

    def rolled(source: Bucket, target: Bucket, every: str, offset: str, late_hours: int, *more: str) -> Task:
        name = f"tocsin {target.name}"
        streams = [
            _stream(source, target, org, late_hours, means, "mean"),
            _stream(source, target, org, late_hours, lasts, "last"),
            *more,
        ]
        option = f"option task = {{name: {flux.text(name)}, every: {every}, offset: {offset}}}\n"
        return Task(name, "\n".join([option, *streams]), f"Readings of {source.name} as values of {target.name}.")

    return [
        rolled(buckets.raw, buckets.minute, "10m", "1m", LATE_HOURS),
        rolled(
            buckets.minute,
            buckets.ten_minute,
            "1h",
            "5m",
            2 * LATE_HOURS,
            events,
            _stream(buckets.raw, buckets.ten_minute, org, 2 * LATE_HOURS, infos, "last"),
        ),
    ]


class Setup:
    """Makes buckets and tasks through `client`, an influxdb-client whose models are in `api`.

    `call` does a request and maps its errors.
    """

    def __init__(self, client: Any, api: Any, org: str, call: Call) -> None:
        self._client = client
        self._api = api
        self._org = org
        self._call = call

    def buckets(self, buckets: Sequence[Bucket]) -> list[int]:
        """Create those that are not there; returns for how many seconds each keeps its points, 0 for ever."""
        return [self._bucket(bucket) for bucket in buckets]

    def _bucket(self, bucket: Bucket) -> int:
        api = self._client.buckets_api()
        if found := self._call(lambda: api.find_buckets(name=bucket.name, org=self._org).buckets):
            return self._lengthen(found[0], bucket.seconds)
        rule = self._api.BucketRetentionRules(type="expire", every_seconds=bucket.seconds)
        self._call(lambda: api.create_bucket(bucket_name=bucket.name, retention_rules=rule, org=self._org))
        return bucket.seconds

    def _lengthen(self, bucket: Any, seconds: int) -> int:
        """Give `bucket` a retention of `seconds`, unless it keeps its data longer: a shorter one removes data."""
        present = max((int(rule.every_seconds) for rule in bucket.retention_rules or ()), default=0)
        if present == seconds:
            return seconds
        if present == 0 or present > seconds:
            log.warning(
                "bucket keeps its longer retention",
                bucket=bucket.name,
                bucket_retention="infinite" if present == 0 else f"{present * SECOND / DAY:g} days",
                store_retention=f"{seconds * SECOND / DAY:g} days",
                remedy="shorten it in InfluxDB itself if older data may go, or raise the days in section [store]",
            )
            return present
        request = self._api.PatchBucketRequest(retention_rules=[self._api.PatchRetentionRule(every_seconds=seconds)])
        service = self._api.BucketsService(self._client.api_client)
        self._call(lambda: service.patch_buckets_id(bucket_id=bucket.id, patch_bucket_request=request))
        return seconds

    def tasks(self, wanted: Sequence[Task]) -> None:
        """Create the tasks that are not there and change those whose text is another; the rest is left as it is."""
        api = self._client.tasks_api()
        for task in wanted:
            if not (found := self._call(partial(api.find_tasks, name=task.name, org=self._org))):
                new = self._api.TaskCreateRequest(org=self._org, flux=task.flux, description=task.description)
                self._call(partial(api.create_task, task_create_request=new))
            elif found[0].flux.strip() != task.flux.strip():
                change = self._api.TaskUpdateRequest(flux=task.flux)
                self._call(partial(api.update_task_request, found[0].id, change))


# ---------------------------------------------------------------------- the store

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
        self.unusable = 0

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
        lines = [point_line(points.info_point(reading.gpu, reading.at_ms)) for reading in due]
        lines += encode_lines(Batch(events=batch.events, findings=batch.findings))
        parked = self._send(self._buckets.raw.name, encode_lines(Batch(batch.readings)))
        parked += self._send(self._buckets.ten_minute.name, lines)
        parked += self._send(self._buckets.minute.name, encode_lines(Batch(predictions=batch.predictions)))
        self._announcer.written(due)
        if parked:
            raise LinesParked(parked)

    def mark(self, marks: Sequence[Annotation]) -> None:
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

    def _ask(self, query: str, parse: Callable[[list[list[str]], Callable[[str], None]], Iterator[_T]]) -> Iterator[_T]:
        try:
            rows = self._call(lambda: list(self._reader.query_csv(query)))
            yield from parse(rows, self._refuse)
        except flux.FluxError as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url} breaks off its answer: {error}") from None
        except (ValueError, LookupError, csv.Error) as error:
            raise StoreUnavailable(f"InfluxDB at {self._settings.url} answers what is no CSV of its: {error}") from None

    def _refuse(self, problem: str) -> None:
        """A value or point of the server that is none of ours: others may write to its buckets, too."""
        if not self.unusable:
            log.warning("the server has what cannot be used; it is left out", store=self._settings.url, problem=problem)
        self.unusable += 1

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
        return {gpu.uuid: gpu for gpu in self._sound(points.read_info, infos)}

    def _sound(self, read: Callable[[Point], _T], found: Iterable[Point]) -> Iterator[_T]:
        """What `read` makes of points; one that is none of ours is left out and counted."""
        for point in found:
            try:
                yield read(point)
            except points.PointError as error:
                self._refuse(str(error)[:200])

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
        if not (found := self._newest(since_ms)):
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
        return list(self._sound(read, found))

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
