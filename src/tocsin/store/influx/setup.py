"""Buckets, retention and downsampling in InfluxDB: what `tocsin store init` makes there.

Three buckets: ``NAME`` holds readings as they come, ``NAME_1m`` their values of whole minutes and the predictions,
``NAME_10m`` those of ten minutes, and the events, findings and attributes. Two tasks of the server fill the coarse
ones. A measured quantity that goes up and down is kept as its mean; a counter, a state or a set of bits as its last
value, since the mean of two states is none. A coarse point is dated by the start of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from tocsin.config.settings import StoreSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.metrics import METRICS, MetricKind
from tocsin.store import points
from tocsin.store.influx import flux

log = structlog.get_logger()

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
        """As the settings name them."""
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
    """What fills the coarse buckets. The words of agents that write here themselves are taken along."""
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
        door = self._client.buckets_api()
        found = self._call(lambda: door.find_buckets(name=bucket.name, org=self._org).buckets)
        if found:
            return self._lengthen(found[0], bucket.seconds)
        rule = self._api.BucketRetentionRules(type="expire", every_seconds=bucket.seconds)
        self._call(lambda: door.create_bucket(bucket_name=bucket.name, retention_rules=rule, org=self._org))
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
        door = self._client.tasks_api()
        for task in wanted:
            found = self._call(partial(door.find_tasks, name=task.name, org=self._org))
            if not found:
                new = self._api.TaskCreateRequest(org=self._org, flux=task.flux, description=task.description)
                self._call(partial(door.create_task, task_create_request=new))
            elif found[0].flux.strip() != task.flux.strip():
                change = self._api.TaskUpdateRequest(flux=task.flux)
                self._call(partial(door.update_task_request, found[0].id, change))
