"""VictoriaMetrics as the store of readings, with an embedded file beside it for what it cannot hold.

Its rules, as measured on release 1.79 (see docs/store.md):

- A point becomes one series a field, named ``gpu_`` + field: the exporter's names.
- Time is kept in milliseconds; finer steps are cut.
- Whole numbers up to 2**53 and decimals of 12 digits come back as they were; other values keep 12 digits.
- Two samples of one series at one instant are both kept; which one is read is not defined. The same sample twice does
  no harm, so a repeated write is idempotent, but a correction of a value already written may not win.
- Text fields become 0. Attributes and owners of GPUs, events, findings and predictions therefore live in the embedded
  file `store.path`; the numbers of the last three are sent to the server as well, for charts. Owners that an agent
  pushes past the brain are read from labels, where it writes those (`agent.push_owner_labels`).
- An instant query sees five minutes back (look-back) and not the newest seconds (``-search.latencyOffset``). Nothing
  here depends on either: reads go through ``/api/v1/export``, which gives stored samples as they are.
- A write that was answered is searchable within about a second, and on disk within about five: a killed server can lose
  those. The embedded store is durable on return.
- Retention is the server's own flag ``-retentionPeriod``; `prune` removes from the embedded file alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import httpx2
import numpy as np
import structlog

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Owner, Reading
from tocsin.http_client import http_client
from tocsin.store import points
from tocsin.store.grid import Grid, Instants, Numbers
from tocsin.store.identity import Announcer
from tocsin.store.line_protocol.encode import encode, head_text, point_line
from tocsin.store.points import Point, PointError
from tocsin.store.port import Columns, Series, StoreRejected, StoreUnavailable
from tocsin.store.samples import Rows
from tocsin.store.upkeep import FileStore, Retention, Upkeep
from tocsin.store.victoriametrics.labels import MARK, gpu_of, key_of
from tocsin.store.victoriametrics.newest import FORMAT, newest_readings

log = structlog.get_logger()

# ---------------------------------------------------------------------- selectors and export
#
# The export has stored samples as they are, a line of JSON for each series.

MARKS = (MARK, "gpu_temperature_celsius", "gpu_power_watts", "gpu_memory_used_bytes")
"""What nearly every reading has, also one that VictoriaMetrics scraped itself."""

PUSHED_EVENT = "gpu_event_message"
"""A text field, so of events that an agent pushed itself: the store sends the server the numbers of events alone."""
PUSHED_OWNER = "gpu_owner_pid"
"""The number of a process, with all else of an owner as labels: of agents that push here with `push_owner_labels`."""
_OTHERS = "gpu_(event|finding|prediction|info|owner)_.+"
_NO_OTHERS = f'__name__!~"{_OTHERS}"'
_EVERY = f'__name__=~"gpu_.+",{_NO_OTHERS}'
ANY_MARK = f'{{__name__=~"{"|".join(MARKS)}"}}'
MOST_ANSWERED = 1 << 30
"""Most bytes of an answer to a query (own choice): what 10,000 GPUs said last is a tenth of it."""
_MAX_NAMED = 100
"""More GPUs than these are not named in a selector: all are read, and the others left out here."""

_STAMPS = b',"timestamps":['
_MAX_STAMPS = 4_096


@dataclass(slots=True)
class Exported:
    """One series: the metric or variant `key` of `gpu`, or the reasons for its absence; empty key for `MARK`."""

    gpu: Gpu
    key: str
    is_reason: bool
    at_ms: Instants
    values: Numbers


def every_series(gpus: Collection[str] | None) -> list[str]:
    """Selectors of all that readings of `gpus` are made of."""
    return _of_gpus(_EVERY, gpus)


def series_on_cards(cards: Collection[str]) -> list[str]:
    """Selectors of all that readings of these GPUs and of their MIG instances are made of, with what else names them.

    A pattern that every name fits makes the server go through the names of all series, once for each selector that it
    has not met since a series was added: ten times the work.
    """
    return [f"{{{_NO_OTHERS},gpu_uuid=~{_one_of(cards)}}}"]


def chosen_series(metrics: Iterable[str], gpus: Collection[str] | None) -> list[str]:
    """Selectors of `MARK` and of the series of `metrics`; names that nobody knows are left out."""
    plain = {MARK}
    labelled: dict[tuple[str, str], set[str]] = {}
    for key in metrics:
        name, _, value = split_variant(key)
        if (spec := METRICS.get(name)) is not None and spec.label:
            labelled.setdefault((name, spec.label), set()).add(value)
        elif spec is not None:
            plain.add(name)
    found = _of_gpus(f'__name__=~"{"|".join(sorted(plain))}"', gpus)
    for (name, label), values in sorted(labelled.items()):
        found += _of_gpus(f'__name__="{name}",{label}=~{_one_of(values)}', gpus)
    return found


def _of_gpus(condition: str, gpus: Collection[str] | None) -> list[str]:
    if gpus is None or len(gpus) > _MAX_NAMED:
        return [f"{{{condition}}}"]
    chosen = _one_of(gpus)
    return [f'{{{condition},gpu_uuid=~{chosen},mig_uuid=""}}', f"{{{condition},mig_uuid=~{chosen}}}"]


def _one_of(values: Collection[str]) -> str:
    return json.dumps("|".join(re.escape(value) for value in sorted(values)), ensure_ascii=False)


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, without their ends, of a body that comes in pieces; empty ones are left out."""
    rest: list[bytes] = []
    for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(tail)
            continue
        rest.append(head)
        yield from filter(None, b"".join(rest).split(b"\n"))
        rest = [tail]
    yield from filter(None, (b"".join(rest),))


def parse(
    lines: Iterable[bytes], gpus: Collection[str] | None, refused: Callable[[str], None] = lambda _problem: None
) -> Iterator[Exported]:
    """The series of an export that belong to readings, of all GPUs or of `gpus`; samples without a number are left out.

    `refused` is told of each line that no series of ours can have. Many series have the same instants, so their text is
    parsed once.
    """
    stamps: dict[bytes, Instants] = {}
    chosen = None if gpus is None else set(gpus)
    for line in lines:
        try:
            found = _series(line, chosen, stamps)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            refused(f"{type(error).__name__}: {str(error)[:200]}")
            continue
        if found is not None:
            yield found


def _series(line: bytes, chosen: Collection[str] | None, stamps: dict[bytes, Instants]) -> Exported | None:
    cut = line.rindex(_STAMPS)
    document = json.loads(line[:cut].decode() + "}")
    labels = document["metric"]
    if (key := key_of(labels)) is None:
        return None
    gpu = gpu_of(labels["gpu_uuid"], labels.get("host", ""), labels.get("mig_uuid", ""))
    if chosen is not None and gpu.uuid not in chosen:
        return None
    if (at_ms := stamps.get(line[cut:])) is None:
        if len(stamps) >= _MAX_STAMPS:
            stamps.clear()
        at_ms = np.array(json.loads(line[cut + len(_STAMPS) - 1 : -1]), dtype=np.int64)
        if at_ms.ndim != 1 or bool(((at_ms < 0) | (at_ms > points.LAST_MS)).any()):
            raise ValueError("its instants lie before 1970 or behind 2199")
        stamps[line[cut:]] = at_ms
    values = np.array(document["values"], dtype=np.float64)
    if values.shape != at_ms.shape:
        raise ValueError(f"it has {values.size} values at {at_ms.size} instants")
    there = np.isfinite(values)
    return Exported(gpu, *key, at_ms, values) if there.all() else Exported(gpu, *key, at_ms[there], values[there])


def clusters(newest: Mapping[str, int], span_ms: int) -> list[tuple[int, int, Sequence[str]]]:
    """The GPUs of `newest` by instant, in groups of at most `span_ms`: first and last instant, and the UUIDs."""
    found: list[tuple[int, int, list[str]]] = []
    for at_ms, uuid in sorted((at_ms, uuid) for uuid, at_ms in newest.items()):
        if found and at_ms < found[-1][0] + span_ms:
            first, _, members = found[-1]
            members.append(uuid)
            found[-1] = (first, at_ms, members)
        else:
            found.append((at_ms, at_ms, [uuid]))
    return [(first, last, members) for first, last, members in found]


# ---------------------------------------------------------------------- the store

_READINGS_PER_REQUEST = 2_000
_WINDOW = 10 * MINUTE
_NEWEST_SPAN = MINUTE
"""GPUs whose newest readings lie this close together are asked for at once."""

_CARDS_AT_ONCE = 100
"""GPUs of one request where all readings of a large fleet are asked for: some 10,000 series, first sent in 0.3 s."""

_REFUSED = frozenset({400, 413, 422})


class VictoriaMetricsStore:
    """Implements `tocsin.store.port.Store`; safe to use from several threads."""

    name = "victoriametrics"

    def __init__(self, settings: StoreSettings, beside: FileStore, clock: Clock | None = None) -> None:
        """`beside` keeps what VictoriaMetrics cannot: text, so attributes, owners, events, findings and predictions."""
        self._clock = clock or SystemClock()
        token = settings.token.get_secret_value()
        self._writer = http_client(settings.timeout_seconds, base_url=settings.url, token=token, proxies=True)
        asked = settings.read_url or settings.url
        self._reader = http_client(
            settings.timeout_seconds, base_url=asked, token=token, proxies=True, most_bytes=MOST_ANSWERED
        )
        # An export is read line by line, however long it is.
        self._exporter = http_client(
            settings.timeout_seconds, base_url=asked, token=token, proxies=True, most_bytes=None
        )
        self._beside = beside
        self._announcer = Announcer(min(DAY, int(settings.raw_days * DAY / 2)))
        self.unusable = 0

    def init(self) -> None:
        """Create the embedded file, then write a sample ``tocsin_ready`` to the server and ask a query.

        A server may be up and yet take no writes, or be none that answers queries, such as vmagent. Raises
        StoreUnavailable or StoreRejected.
        """
        self._beside.init()
        self._send(point_line(Point("tocsin_ready", {}, {"value": 1.0}, self._clock.now_ms())))
        self._ask("/api/v1/query", {"query": "vector(1)", "nocache": "1"})

    # ------------------------------------------------------------------ writing

    def write(self, batch: Batch) -> None:
        for start in range(0, len(batch.readings), _READINGS_PER_REQUEST):
            part = Batch(readings=batch.readings[start : start + _READINGS_PER_REQUEST])
            self._send(encode(part, info=False) + _marks(part.readings))
        self._send("".join(f"{line}\n" for line in _numbers(batch)))
        due = self._announcer.due(batch.readings)
        beside = [Reading(r.gpu, r.at_ms, {}, {}, r.owners) for r in (*due, *(r for r in batch.readings if r.owners))]
        self._beside.write(Batch(beside, batch.events, batch.findings, batch.predictions))
        self._announcer.written(due)

    def _send(self, text: str) -> None:
        if text:
            self._post(self._writer, "/api/v2/write", params={"precision": "ms"}, content=text.encode())

    def _ask(self, path: str, data: Mapping[str, str | list[str]]) -> Any:
        """What a query finds. Raises StoreUnavailable where a part of a cluster did not answer: half is no answer."""
        response = self._post(self._reader, path, data=data)
        try:
            answer = response.json()
            found = answer["data"] if answer.get("status") == "success" else None
        except (ValueError, AttributeError, KeyError, RecursionError):
            answer, found = {}, None
        if found is None or answer.get("isPartial"):
            problem = "only a part of the cluster answered" if found is not None else "no answer to a query"
            raise StoreUnavailable(f"VictoriaMetrics at {self._reader.base_url}: {problem}: {response.text[:300]}")
        return found

    def _post(
        self,
        server: httpx2.Client,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: Mapping[str, str | list[str]] | None = None,
        content: bytes | None = None,
    ) -> httpx2.Response:
        try:
            response = server.post(path, params=params, data=data, content=content)
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"VictoriaMetrics at {server.base_url}: {error}") from None
        if response.status_code >= 400:
            _refuse(server, response)
        return response

    # ------------------------------------------------------------------ reading

    def _known(self) -> dict[str, Gpu]:
        return {gpu.uuid: gpu for gpu in self._beside.gpus()}

    def gpus(self) -> list[Gpu]:
        found: dict[str, Gpu] = {}
        for mark in MARKS:  # one by one: the server bounds the series of an answer
            data = {"match[]": f'{{__name__="{mark}"}}', "start": "1"}
            rows = self._ask("/api/v1/series", data)
            found.update((gpu.uuid, gpu) for _, gpu in self._of_ours(rows, lambda row: row))
        # The file beside knows the GPUs written here, the server also those that agents write to it themselves.
        known = {**found, **self._known()}
        return [known[uuid] for uuid in sorted(known)]

    def latest(self, since_ms: int) -> list[Reading]:
        last: dict[str, Reading] = {}
        for reading in self._latest_there(since_ms):
            if (known := last.get(reading.gpu.uuid)) is None or known.at_ms <= reading.at_ms:
                last[reading.gpu.uuid] = reading
        for beside in (*self._latest_owners(last), *self._beside.latest(since_ms)):
            if not beside.owners:
                continue
            found = last.get(beside.gpu.uuid)
            if found is None or found.at_ms < beside.at_ms:
                last[beside.gpu.uuid] = replace(beside, values={}, missing={})
            elif found.at_ms == beside.at_ms:
                last[beside.gpu.uuid] = replace(found, owners=beside.owners)
        known_gpus = self._known()
        return [replace(last[uuid], gpu=known_gpus.get(uuid, last[uuid].gpu)) for uuid in sorted(last)]

    def _latest_owners(self, last: Mapping[str, Reading]) -> Iterator[Reading]:
        """The owners that agents pushed with the readings `last`."""
        for first, end, _ in clusters({uuid: one.at_ms for uuid, one in last.items()}, _NEWEST_SPAN):
            for one in self._pushed_owners(first, end + 1, None):
                if (found := last.get(one.gpu.uuid)) is not None and found.at_ms == one.at_ms:
                    yield one

    def _pushed_owners(self, start_ms: int, end_ms: int, gpus: Collection[str] | None) -> list[Reading]:
        """Readings of owners alone that agents pushed in [`start_ms`, `end_ms`), of all GPUs or of `gpus`."""
        found: dict[tuple[str, int], tuple[Gpu, set[Owner]]] = {}
        for line in self._exported(_of_gpus(f'__name__="{PUSHED_OWNER}"', gpus), start_ms, end_ms):
            try:
                series = json.loads(line)
                labels = series["metric"]
                gpu = gpu_of(labels["gpu_uuid"], labels.get("host", ""), labels.get("mig_uuid", ""))
                for at_ms, pid in zip(series["timestamps"], series["values"], strict=True):
                    points.check_instant(at_ms)
                    # A set: the server keeps what an agent sent twice, since its answer was lost, as two samples.
                    found.setdefault((gpu.uuid, at_ms), (gpu, set()))[1].add(points.owner_of_labels(labels, pid))
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                self._left_out(str(error)[:200])
        return [
            Reading(gpu, at_ms, {}, {}, tuple(sorted(owners)))
            for (uuid, at_ms), (gpu, owners) in found.items()
            if gpus is None or uuid in gpus
        ]

    def _latest_there(self, since_ms: int) -> Iterator[Reading]:
        """The newest readings of all GPUs, and older ones among them, as the server has them."""
        for start_ms, end_ms, wanted, there in self._newest_spans(since_ms):
            if len(there) > _MAX_NAMED:
                yield from self._latest_in_parts(start_ms, end_ms, wanted, there)
            else:
                yield from _rows(self._export(start_ms, end_ms, wanted, None), ()).readings({})

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        return _grid(metrics, self._newest(since_ms, metrics)).columns(newest=True)

    def _newest(self, since_ms: int, metrics: Sequence[str]) -> Iterator[Exported]:
        """What the newest values of all GPUs are among: few instants, however long some GPUs have been silent."""
        for start_ms, end_ms, wanted, _ in self._newest_spans(since_ms):
            yield from self._export(start_ms, end_ms, wanted, metrics)

    def _newest_spans(self, since_ms: int) -> Iterator[tuple[int, int, Sequence[str] | None, Collection[Gpu]]]:
        """Where the newest readings of all GPUs are: [start, end), of which UUIDs or all, and the GPUs there."""
        end_ms = max(self._clock.now_ms(), since_ms) + MAX_FUTURE_MS + 1
        seen = self._extremes("max", "tlast_over_time", since_ms, end_ms)
        groups = clusters({gpu.uuid: at_ms for gpu, at_ms in seen.items()}, _NEWEST_SPAN)
        by_uuid = {gpu.uuid: gpu for gpu in seen}
        for first, last, members in groups[:-1]:
            yield first, last + 1, members, [by_uuid[uuid] for uuid in members]
        # The very newest samples are in an export before a query sees them, of whichever GPU; if it sees none, what is
        # there was written just now, however old it is.
        if groups and len(groups[-1][2]) > _MAX_NAMED:
            yield groups[-1][0], end_ms, None, {*seen, *self._beside.gpus()}
        else:
            yield groups[-1][0] if groups else since_ms, end_ms, None, ()

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        if gpus is not None and not gpus:
            return
        end_ms = min(end_ms, self._clock.now_ms() + HOUR)
        known = self._known()
        for start, end in self._windows(start_ms, end_ms):
            beside = (*self._pushed_owners(start, end, gpus), *self._beside.readings(start, end, gpus))
            rows = _rows(self._export(start, end, gpus, None), beside)
            yield from rows.readings(known)

    def _windows(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """Parts of [`start_ms`, `end_ms`) that are short enough to be held, from the first sample on."""
        first = self._extremes("min", "tfirst_over_time", start_ms, end_ms).values()
        if not first:
            # The newest samples are in an export before a query sees them, and here only those can be there: few.
            yield start_ms, end_ms
            return
        for start in range(max(start_ms, min(first)), end_ms, _WINDOW):
            yield start, min(start + _WINDOW, end_ms)

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        if gpus is not None and not gpus:
            return Grid(metrics).columns()
        return _grid(metrics, self._export(start_ms, end_ms, gpus, metrics)).columns()

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        found = self.columns(metrics, start_ms, end_ms, [gpu])
        return Series(gpu, found.metrics, found.at_ms, found.values)

    def _extremes(self, outer: str, inner: str, start_ms: int, end_ms: int) -> dict[Gpu, int]:
        """An instant, whole milliseconds, for each GPU with samples in [`start_ms`, `end_ms`)."""
        span = max(end_ms - max(start_ms, DAY), 1)  # an empty answer where it would look back to before 1970
        query = f"{outer}({inner}({ANY_MARK}[{span}ms])) by (gpu_uuid, mig_uuid)"
        data = {"query": query, "time": f"{(end_ms - 1) / SECOND:.3f}", "nocache": "1"}
        result = self._ask("/api/v1/query", data)["result"]
        found: dict[Gpu, int] = {}
        for row, gpu in self._of_ours(result, lambda row: row["metric"]):
            try:
                at_ms = round(float(row["value"][1]) * SECOND)
                points.check_instant(at_ms)
                found[gpu] = at_ms
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                self._left_out(str(error)[:200])
        return found

    def _of_ours(self, rows: Iterable[Any], labels_of: Callable[[Any], Any]) -> Iterator[tuple[Any, Gpu]]:
        """Rows with the GPU that their labels name; one that names none of ours is left out and counted."""
        for row in rows:
            try:
                if (labels := labels_of(row)).get("gpu_uuid"):
                    yield row, points.gpu_of_tags(labels)
            except (points.PointError, LookupError, TypeError, AttributeError) as error:
                self._left_out(str(error)[:200])

    def _left_out(self, problem: str) -> None:
        """A series of the server that is none of ours: others may write to it, too."""
        if not self.unusable:
            log.warning(
                "the server has what cannot be used; it is left out", url=self._reader.base_url, problem=problem
            )
        self.unusable += 1

    def _export(
        self, start_ms: int, end_ms: int, gpus: Collection[str] | None, metrics: Sequence[str] | None
    ) -> Iterator[Exported]:
        """Series in [`start_ms`, `end_ms`) as they stream in: of `metrics`, or of all that readings have if None."""
        if end_ms <= start_ms:
            return
        chosen = every_series(gpus) if metrics is None else chosen_series(metrics, gpus)
        yield from parse(self._exported(chosen, start_ms, end_ms), gpus)

    def _latest_in_parts(
        self, start_ms: int, end_ms: int, gpus: Collection[str] | None, there: Collection[Gpu]
    ) -> Iterator[Reading]:
        """The newest readings in [`start_ms`, `end_ms`) of `gpus`, or of all that are `there`, some cards at a time.

        Of a large fleet the server gathers all series before it sends the first, for longer than a request may take.
        """
        chosen = None if gpus is None else set(gpus)
        cards = sorted({gpu.parent or gpu.uuid for gpu in there})
        for at in range(0, len(cards), _CARDS_AT_ONCE):
            part = series_on_cards(cards[at : at + _CARDS_AT_ONCE])
            # Never with `reduce_mem_usage`: a server of 1.79 then now and then writes a value of another series.
            asked = {**_asked(part, start_ms, end_ms), "format": FORMAT}
            found = newest_readings(self._post(self._reader, "/api/v1/export/csv", data=asked).content, chosen)
            if found is None:
                series = parse(self._exported(part, start_ms, end_ms), gpus, self._left_out)
                found = list(_rows(series, ()).readings({}))
            yield from found

    def _exported(self, chosen: list[str], start_ms: int, end_ms: int) -> Iterator[bytes]:
        data = _asked(chosen, start_ms, end_ms)
        try:
            with self._exporter.stream("POST", "/api/v1/export", data=data) as response:
                if response.status_code >= 400:
                    response.read()
                    _refuse(self._reader, response)
                yield from lines_of(response.iter_bytes())
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"VictoriaMetrics at {self._reader.base_url}: {error}") from None

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        """Events of the file beside, and those that agents pushed to the server: of these all but the text is there."""
        found: dict[str, Event] = {}
        # Those of the file are there also while the server is not.
        with suppress(StoreUnavailable):
            found.update((one.id, one) for one in self._pushed(start_ms, end_ms) if gpu is None or one.gpu == gpu)
        found.update((event.id, event) for event in self._beside.events(start_ms, end_ms, gpu))
        return sorted(found.values(), key=lambda event: (event.at_ms, event.id))

    def _pushed(self, start_ms: int, end_ms: int) -> Iterator[Event]:
        for line in self._exported([f'{{__name__="{PUSHED_EVENT}"}}'], start_ms, end_ms):
            series = json.loads(line)
            for at_ms in series["timestamps"]:
                point = Point(points.EVENT, series["metric"], {"source": "victoriametrics"}, int(at_ms))
                with suppress(PointError):
                    yield points.read_event(point)

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        return self._beside.findings(start_ms, end_ms)

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        return self._beside.predictions(start_ms, end_ms, gpu)

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:
        """Remove events, findings, predictions and old attributes; the server removes readings by its own flag."""
        return self._beside.prune(before_ms)

    def maintain(self, now_ms: int, retention: Retention) -> Upkeep:
        """Look after the embedded file: events and findings stay in it as long as in the embedded store."""
        done = self._beside.maintain(now_ms, retention)
        return replace(done, damaged_rows=done.damaged_rows + self.unusable)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._exporter.close()
        self._beside.close()


def _asked(chosen: list[str], start_ms: int, end_ms: int) -> dict[str, str | list[str]]:
    """Parameters of an export of what stands in [`start_ms`, `end_ms`)."""
    start, end = max(start_ms, 0) / SECOND, max(end_ms - 1, 0) / SECOND
    return {"match[]": chosen, "start": f"{start:.3f}", "end": f"{end:.3f}"}


def _refuse(server: httpx2.Client, response: httpx2.Response) -> NoReturn:
    problem = f"VictoriaMetrics at {server.base_url} answers {response.status_code}: {response.text[:600]}"
    raise (StoreRejected if response.status_code in _REFUSED else StoreUnavailable)(problem)


def _grid(metrics: Sequence[str], series: Iterable[Exported]) -> Grid:
    grid = Grid(metrics)
    for one in series:
        if one.is_reason or not one.key:
            grid.seen(one.gpu.uuid, one.at_ms)
        else:
            grid.add(one.gpu.uuid, one.key, one.at_ms, one.values)
    return grid


def _rows(series: Iterable[Exported], beside: Iterable[Reading]) -> Rows:
    """The readings of the server, with the owners of `beside`."""
    rows = Rows()
    for one in series:
        rows.add_series(one.gpu, one.key, one.is_reason, one.at_ms.tolist(), one.values.tolist())
    for reading in beside:
        if reading.owners:
            rows.add_owners(reading.gpu, reading.at_ms, reading.owners)
    return rows


def _marks(readings: Sequence[Reading]) -> str:
    """A line with the mark of each reading, which also tells of a reading that has no values."""
    heads = ((head_text(points.INFO, points.gpu_tags(one.gpu)), one.gpu.index, one.at_ms) for one in readings)
    return "".join(f"{head} index={-1 if index is None else index}i {at_ms}\n" for head, index, at_ms in heads)


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
