"""The GPUs that a dcgm-exporter shows on its page of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx2

from tocsin.collector.dcgm.exposition import Heads, Sample, Use, samples
from tocsin.collector.dcgm.fields import SXID_FATAL, Field
from tocsin.collector.dcgm.http import ScrapeFailed, fetch, is_http
from tocsin.collector.dcgm.readings import (
    FATAL,
    NON_FATAL,
    Counted,
    DcgmRow,
    SxidOnsets,
    XidOnsets,
    XidState,
    absent,
    counters,
)
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("dcgm_exporter")

NAME = "dcgm_exporter"
LOST_MS = 10 * MINUTE
"""How long a GPU that the exporter no longer shows is reported as lost, before it counts as no longer there."""
RESTARTED, NO_START_TIME = "exporter_restart", "no_start_time"
"""Why nobody can tell whether a latched code is new: the exporter was started anew, or does not say whether it was."""
MAX_TIMEOUT_SECONDS = 5.0
"""A page of eight GPUs takes the exporter some 10 ms; the longest that one scrape may delay a reading."""


@dataclass(slots=True)
class ScrapedPage:
    """One page, sorted by what its lines are about."""

    rows: dict[str, DcgmRow] = field(default_factory=dict)
    counts: dict[str, dict[int, Counted]] = field(default_factory=dict)
    switches: list[tuple[str, str, str, int]] = field(default_factory=list)
    """(host, switch, severity, code)."""
    started: float | None = None
    lines: Counter[str] = field(default_factory=Counter)

    def take(self, sample: Sample) -> None:
        head, use = sample.head, sample.head.use
        if (use is Use.METRIC or use is Use.XID) and head.gpu is not None and head.field is not None:
            self._metric(sample, head.gpu, head.field)
        elif use is Use.XID_COUNT and head.gpu is not None and sample.blank is None:
            self._row(head.gpu)
            of_gpu = self.counts.setdefault(head.gpu.uuid, {})
            of_gpu[head.code] = Counted(int(sample.raw), head.window_ms)
            self.lines["used"] += 1
        elif use is Use.SXID and sample.blank is None:
            severity = FATAL if head.name in SXID_FATAL else NON_FATAL
            self.switches.append((head.host, head.part, severity, int(sample.raw)))
            self.lines["used"] += 1
        elif use is Use.PROCESS_START:
            self.started = sample.raw
        else:
            self.lines["blank" if sample.blank is not None else use.value] += 1

    def _row(self, gpu: Gpu) -> DcgmRow:
        if (row := self.rows.get(gpu.uuid)) is None:
            row = self.rows[gpu.uuid] = DcgmRow(gpu)
        return row

    def _metric(self, sample: Sample, gpu: Gpu, which: Field) -> None:
        head, row = sample.head, self._row(gpu)
        plausible = row.add(which, head.key, sample.raw, sample.blank)
        if head.owner is not None:
            row.owners.add(head.owner)
        self.lines["blank" if sample.blank is not None else "used" if plausible else "implausible"] += 1


def read_page(text: str, heads: Heads) -> ScrapedPage:
    """Everything on one page; lines that cannot be used are counted."""
    page = ScrapedPage()

    def bad(_line: str) -> None:
        page.lines["malformed"] += 1

    for sample in samples(text, heads, bad):
        page.take(sample)
    heads.keep(page.lines.total())
    return page


@dataclass(slots=True)
class _RememberedGpu:
    """What is remembered of one GPU: the names it ever had, its counters, and since when it is gone."""

    gpu: Gpu
    names: dict[str, None] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    gone_ms: int | None = None


class DcgmExporterSource:
    """A `Source` over one dcgm-exporter.

    A page that does not come in time gives readings without values (timed out), never the values of before; it is
    counted and tried again at the next reading. A name that was on the page and no longer is is blank. A GPU that the
    page no longer has is lost.
    """

    name = NAME

    def __init__(
        self,
        url: str,
        node: NodeIdentity,
        clock: Clock,
        own: OwnMetrics,
        *,
        timeout_seconds: float = MAX_TIMEOUT_SECONDS,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url = checked_url(url)
        self._clock = clock
        self._own = own
        self._seconds = timeout_seconds
        # Half for the connection and half for the first bytes; `fetch` watches over the whole.
        self._client = http_client(timeout_seconds / 2, transport=transport, most_bytes=None)
        self._heads = Heads(node)
        self._known: dict[str, _RememberedGpu] = {}
        self._xids = XidOnsets(NAME)
        self._sxids = SxidOnsets(NAME)
        self._transitions = Transitions(NAME)
        self._started: float | None = None
        self._doubts: dict[str, str] = {}
        self._failing = ""

    def gpus(self) -> list[Gpu]:
        # Before the first reading nobody knows the GPUs but the page.
        if not self._known and (page := self._page()) is not None:
            self._remember(page)
        return [known.gpu for known in self._known.values()]

    def read(self, now_ms: int) -> Batch:
        if (page := self._page()) is None:
            return Batch([absent(k.gpu, now_ms, k.names, Missing.TIMED_OUT) for k in self._known.values()])
        self._remember(page)
        self._forget_gone(page, now_ms)
        self._notice_restart(page)
        readings = [self._reading(known, page, now_ms) for known in self._known.values()]
        return Batch(readings, self._events(page, readings, now_ms))

    def close(self) -> None:
        self._client.close()

    def _page(self) -> ScrapedPage | None:
        """The page, or None where it did not come or has no GPU, which is how an exporter that starts looks."""
        problem, page = "", None
        try:
            page = read_page(fetch(self._client, self._url, self._clock, self._seconds), self._heads)
            for outcome, number in page.lines.items():
                self._own.count("tocsin_dcgm_lines_total", number, outcome=outcome)
            if not page.rows:
                problem = "the page shows no GPU"
        except ScrapeFailed as error:
            problem = str(error)
        if problem:
            self._own.count("tocsin_source_failures_total", source=NAME)
        if problem != self._failing:
            self._failing = problem
            if problem:
                _log.warning("dcgm-exporter cannot be read (said once per problem)", url=self._url, problem=problem)
            else:
                _log.info("dcgm-exporter can be read again", url=self._url)
        return None if problem else page

    def _remember(self, page: ScrapedPage) -> None:
        for uuid, row in page.rows.items():
            if (known := self._known.get(uuid)) is None:
                known = self._known[uuid] = _RememberedGpu(row.gpu)
            known.gpu, known.gone_ms = row.gpu, None
            known.names.update(dict.fromkeys((*row.values, *row.missing)))

    def _forget_gone(self, page: ScrapedPage, now_ms: int) -> None:
        """A GPU that became instances is not lost, and neither is an instance whose GPU is still there."""
        parents = {row.gpu.parent for row in page.rows.values() if row.gpu.parent}
        for uuid in [uuid for uuid in self._known if uuid not in page.rows]:
            known = self._known[uuid]
            known.gone_ms = now_ms if known.gone_ms is None else known.gone_ms
            reshaped = uuid in parents or known.gpu.parent in page.rows or known.gpu.parent in parents
            if reshaped or now_ms - known.gone_ms > LOST_MS:
                self._transitions.forget(uuid)
                del self._known[uuid]

    def _notice_restart(self, page: ScrapedPage) -> None:
        """Note whose latched codes may be old, and why: see `tocsin.collector.dcgm.readings`."""
        datable = page.started is not None and self._started is not None
        restarted = datable and page.started != self._started
        self._started = page.started if page.started is not None else self._started
        if restarted:
            _log.info("dcgm-exporter was started anew", url=self._url)
        self._doubts = dict.fromkeys(page.rows, RESTARTED) if restarted else {}
        for uuid, row in page.rows.items():
            known, now = self._known[uuid], counters(row.values)
            if any(now[key] < before for key, before in known.counters.items() if key in now) and not restarted:
                what = "the driver was loaded anew" if datable else "driver or exporter was started anew"
                _log.info(f"counters fell: {what}", gpu=uuid)
                if not datable:
                    self._doubts[uuid] = NO_START_TIME
            known.counters.update(now)

    def _reading(self, known: _RememberedGpu, page: ScrapedPage, now_ms: int) -> Reading:
        if (row := page.rows.get(known.gpu.uuid)) is None:
            return absent(known.gpu, now_ms, known.names, Missing.LOST)
        reading = row.reading(now_ms, known.names)
        known.names.update(dict.fromkeys(reading.values))
        return reading

    def _events(self, page: ScrapedPage, readings: Iterable[Reading], now_ms: int) -> list[Event]:
        events = self._transitions.note([one for one in readings if not one.gpu.is_mig], now_ms)
        for uuid, row in page.rows.items():
            doubt = self._doubts.get(uuid, "")
            look = XidState(row.gpu, row.latched_xid, page.counts.get(uuid, {}))
            events += self._xids.note(look, now_ms, settled=not doubt)
            self._report(self._xids.unsettled, "xid", doubt)
        restarted = RESTARTED in self._doubts.values()
        for host in {switch[0] for switch in page.switches}:
            codes = [(switch, severity, code) for at, switch, severity, code in page.switches if at == host]
            events += self._sxids.note(host, codes, now_ms, settled=not restarted)
        self._report(self._sxids.unsettled, "sxid", RESTARTED)
        return events

    def _report(self, unsettled: list[tuple[str, int]], kind: str, reason: str) -> None:
        """Say and count the codes that may be new, and clear them."""
        for part, code in unsettled:
            self._own.count("tocsin_dcgm_unsettled_errors_total", kind=kind, reason=reason)
            _log.warning("an error may be new or old: no event", kind=kind, code=code, part=part, reason=reason)
        unsettled.clear()


def checked_url(url: str) -> str:
    """`url` where it is one of http or https. Raises InputError."""
    if not is_http(url):
        remedy = "name the exporter's page, for example http://127.0.0.1:9400/metrics"
        raise InputError("agent.dcgm_url", url, "is no http or https URL", remedy)
    return url


def open_dcgm_exporter(
    settings: Settings, clock: Clock, own: OwnMetrics, transport: httpx2.BaseTransport | None = None
) -> DcgmExporterSource:
    """The source `dcgm_exporter` of the settings. An exporter that does not answer yet is no error: it is tried again
    at every reading. Raises InputError for a URL that is none."""
    wanted = settings.agent
    node = NodeIdentity(wanted.host, wanted.pool, wanted.rack, wanted.labels)
    seconds = min(MAX_TIMEOUT_SECONDS, wanted.interval_seconds)
    return DcgmExporterSource(wanted.dcgm_url, node, clock, own, timeout_seconds=seconds, transport=transport)
