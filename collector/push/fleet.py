"""Readings and events out of series that others push.

What must hold: a body may have any part of a scrape, and parts of several, in any order; so values are kept by GPU and
instant, and an error is judged only forward in time. What a GPU shows in the first minute, or after a gap, is no onset:
other parts of that scrape may still be on their way. An agent outranks whoever pushes, for it sees more and sooner.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tocsin.collector.dcgm.exporter import RESTARTED
from tocsin.collector.dcgm.exposition import Head, Use
from tocsin.collector.dcgm.fields import SXID_FATAL, Field, blank_number
from tocsin.collector.dcgm.readings import FATAL, NON_FATAL, Counted, DcgmRow, SxidOnsets, XidOnsets, XidState
from tocsin.collector.promql.heads import Labelled, SeriesHeads, labelled
from tocsin.collector.push.samples import PushedSeries
from tocsin.config.promql import PromqlSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("push")

NAME = "push"
SETTLE_MS = MINUTE
"""A GPU that is new here is looked at for this long before a change of its codes is an error."""
GAP_MS = 5 * MINUTE
FORGET_MS = 60 * MINUTE
MAX_LABEL_COST = 100_000_000
"""About the bytes of label sets and heads that are kept to be met again; a fleet of 10,000 GPUs has half as much."""
_COST_OF_LABEL, _COST_OF_HEAD = 200, 300
_LEAST_PRUNED = 10_000
MAX_KNOWN = 100_000
"""Most GPUs and switches of which something is remembered."""

Admits = Callable[[str, Collection[str]], str]
"""Why the sender may not speak for a host and these GPUs on it; empty where it may."""


@dataclass(slots=True)
class Taken:
    """What became of some series: readings and events, samples by outcome, how many were refused and why first."""

    batch: Batch
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    problem: str = ""

    def reject(self, outcome: str, count: int, problem: str) -> None:
        """`count` samples are refused."""
        self.outcomes[outcome] += count
        self.rejected += count
        self.problem = self.problem or problem


@dataclass(slots=True)
class _Known:
    """A GPU as its errors were seen last."""

    gpu: Gpu
    since_ms: int
    at_ms: int
    latched: int | None = None
    counts: dict[int, tuple[int, Counted]] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """A GPU at one instant."""

    values: DcgmRow
    counts: dict[int, Counted] = field(default_factory=dict)


class PushedFleet:
    """Carries from body to body what is known of each GPU; safe to use from several threads.

    `newest` gives the reading that the brain has of a GPU, and whether it is of before its start.
    """

    def __init__(
        self,
        settings: PromqlSettings,
        own: OwnMetrics,
        newest: Callable[[str], tuple[Reading | None, bool]],
        fresh_ms: int,
    ) -> None:
        self._heads = SeriesHeads(settings, ("otel_hardware", "otel_sensors"))
        self._own = own
        self._newest = newest
        self._fresh_ms = fresh_ms
        self._lock = threading.Lock()
        self._labelled: dict[tuple[tuple[str, str], ...], Labelled] = {}
        self._cost = 0
        self._most = _LEAST_PRUNED
        self._mine: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        self._switch_ms: dict[tuple[str, str], int] = {}
        self._restarts: dict[str, tuple[float, int]] = {}
        self._xids, self._sxids = XidOnsets(NAME), SxidOnsets(NAME)

    def take(self, series: Iterable[PushedSeries], admits: Admits, now_ms: int) -> Taken:
        """Readings and events of `series`; of what `admits` speaks against nothing is remembered either."""
        with self._lock:
            taken = Taken(Batch())
            rows: dict[tuple[str, int], _Row] = {}
            switches: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
            allowed: dict[tuple[str, str], str] = {}
            for one in series:
                head = self._head(one)
                # Of a host that shows no GPU here nothing is taken in, and nobody needs to be told.
                if head.use is Use.PROCESS_START and self._shows_gpus(head.host):
                    if not self._may(head, one, admits, allowed, now_ms, taken):
                        continue
                    self._started(head, one)
                if head.field is None and head.use not in (Use.XID_COUNT, Use.SXID):
                    taken.outcomes["other"] += len(one.samples)
                elif self._may(head, one, admits, allowed, now_ms, taken):
                    self._sort(head, one, rows, switches, now_ms, taken)
            readings = [self._reading(row, at_ms) for (_, at_ms), row in sorted(rows.items(), key=_by_time)]
            events: list[Event] = []
            for (_, at_ms), row in sorted(rows.items(), key=_by_time):
                events += self._onsets(row, at_ms)
            for (host, at_ms), codes in sorted(switches.items(), key=_by_time):
                events += self._switched(host, at_ms, codes)
            self._forget(now_ms)
            taken.batch = Batch(readings, events)
            return taken

    def _head(self, one: PushedSeries) -> Head:
        key = tuple(one.labels.items())
        if (known := self._labelled.get(key)) is None:
            self._spend(sum(_COST_OF_LABEL + len(name) + len(text) for name, text in key))
            known = self._labelled[key] = labelled(one.labels)
        if (head := known.heads.get(one.name)) is None:
            self._spend(_COST_OF_HEAD + len(one.name))
            own = _own_head(one.name, one.labels)
            head = known.heads[one.name] = self._heads.of(one.name, known) if own is None else own
        return head

    def _spend(self, cost: int) -> None:
        """Make room for something of that cost."""
        self._cost += cost
        if self._cost > MAX_LABEL_COST:
            self._labelled.clear()
            self._cost = cost

    def _may(
        self,
        head: Head,
        one: PushedSeries,
        admits: Admits,
        allowed: dict[tuple[str, str], str],
        now_ms: int,
        taken: Taken,
    ) -> bool:
        """Whether the samples of `one` are to be looked at."""
        gpu, count = head.gpu, len(one.samples)
        uuid = "" if gpu is None else gpu.uuid
        if (problem := allowed.get((head.host, uuid))) is None:
            names = [] if gpu is None else [name for name in (gpu.parent, gpu.uuid) if name]
            problem = admits(head.host, names)
            if not problem and any(self._has_agent(name, now_ms) for name in names):
                problem = "agent"
            allowed[head.host, uuid] = problem
        if problem == "agent":
            taken.outcomes["agent"] += count
        elif problem:
            taken.reject("refused", count, problem)
        return not problem

    def _has_agent(self, uuid: str, now_ms: int) -> bool:
        """Whether the newest of a GPU came in another way, lately."""
        reading, recalled = self._newest(uuid)
        fresh = reading is not None and now_ms - reading.at_ms < self._fresh_ms
        return fresh and not recalled and reading is not None and reading.at_ms != self._mine.get(uuid)

    def _sort(
        self,
        head: Head,
        one: PushedSeries,
        rows: dict[tuple[str, int], _Row],
        switches: dict[tuple[str, int], list[tuple[str, str, int]]],
        now_ms: int,
        taken: Taken,
    ) -> None:
        for at_ms, raw in one.samples:
            if not 0 <= at_ms <= now_ms + MAX_FUTURE_MS:
                taken.reject("future", 1, f"a sample of {one.name[:100]} is of a time that has not come")
            elif head.use is Use.SXID:
                blank = blank_number(raw)
                if blank is None:
                    kind = FATAL if head.name in SXID_FATAL else NON_FATAL
                    switches.setdefault((head.host, at_ms), []).append((head.part, kind, int(raw)))
                taken.outcomes["used" if blank is None else "blank"] += 1
            elif head.gpu is not None:
                row = rows.setdefault((head.gpu.uuid, at_ms), _Row(DcgmRow(head.gpu)))
                taken.outcomes[_put(row, head, raw)] += 1

    def _reading(self, row: _Row, at_ms: int) -> Reading:
        reading = row.values.reading(at_ms, {})
        uuid = reading.gpu.uuid
        self._mine[uuid] = max(at_ms, self._mine.get(uuid, 0))
        return reading

    def _onsets(self, row: _Row, at_ms: int) -> list[Event]:
        gpu, latched = row.values.gpu, row.values.latched_xid
        known = self._known.get(gpu.uuid)
        if latched is None and not row.counts:
            return []
        if known is not None and at_ms < known.at_ms:
            return []
        if known is None or at_ms - known.at_ms > GAP_MS or known.gpu.host != gpu.host:
            if len(self._known) >= MAX_KNOWN:
                return []
            known = self._known[gpu.uuid] = _Known(gpu, at_ms, at_ms)
        known.at_ms = at_ms
        known.latched = known.latched if latched is None else latched
        known.counts = {code: one for code, one in known.counts.items() if at_ms - one[0] <= GAP_MS}
        known.counts |= {code: (at_ms, count) for code, count in row.counts.items()}
        look = XidState(gpu, known.latched, {code: count for code, (_, count) in known.counts.items()})
        if at_ms - known.since_ms < SETTLE_MS:
            self._xids.forget(gpu)
        _, restarted_ms = self._restarts.get(gpu.host, (0.0, 0))
        settled = not 0 <= at_ms - restarted_ms < SETTLE_MS
        events = self._xids.note(look, at_ms, settled=settled)
        self._report(self._xids.unsettled, "xid")
        return events

    def _switched(self, host: str, at_ms: int, codes: list[tuple[str, str, int]]) -> list[Event]:
        newest = {part: max(self._switch_ms.get((host, part), 0), 0) for part, _, _ in codes}
        fresh = [one for one in codes if at_ms >= newest[one[0]]]
        if len(self._switch_ms) + len(newest) > MAX_KNOWN:
            return []
        gap = any(at_ms - at > GAP_MS for at in newest.values() if at)
        self._switch_ms.update({(host, part): max(at_ms, at) for part, at in newest.items()})
        events = self._sxids.note(host, fresh, at_ms, settled=not gap)
        self._report(self._sxids.unsettled, "sxid")
        return events

    def _prune(self, now_ms: int) -> None:
        """Drop GPUs that are long gone, and those that the brain has not taken: made-up names must not fill memory."""
        self._mine = {
            uuid: at_ms
            for uuid, at_ms in self._mine.items()
            if now_ms - at_ms < FORGET_MS and self._newest(uuid)[0] is not None
        }
        for uuid in [uuid for uuid in self._known if uuid not in self._mine]:
            self._xids.forget(self._known.pop(uuid).gpu)
        self._most = max(_LEAST_PRUNED, 2 * len(self._mine))

    def _shows_gpus(self, host: str) -> bool:
        return any(known.gpu.host == host for known in self._known.values())

    def _started(self, head: Head, one: PushedSeries) -> None:
        """An exporter's process that started anew may show codes of days ago."""
        if one.samples:
            at_ms, value = one.samples[-1]
            before = self._restarts.get(head.host)
            if before is None or before[0] != value:
                self._restarts[head.host] = value, 0 if before is None else at_ms

    def _report(self, unsettled: list[tuple[str, int]], kind: str) -> None:
        for part, code in unsettled:
            self._own.count("tocsin_dcgm_unsettled_errors_total", kind=kind, reason=RESTARTED)
            _log.warning("an error may be new or old: no event", kind=kind, code=code, part=part, reason=RESTARTED)
        unsettled.clear()

    def _forget(self, now_ms: int) -> None:
        for uuid in [uuid for uuid, known in self._known.items() if now_ms - known.at_ms > FORGET_MS]:
            self._xids.forget(self._known.pop(uuid).gpu)
        if len(self._mine) > self._most:
            self._prune(now_ms)
        for key in [key for key, at_ms in self._switch_ms.items() if now_ms - at_ms > FORGET_MS]:
            del self._switch_ms[key]
            self._sxids.forget(key[0])


def _by_time(item: tuple[tuple[str, int], object]) -> int:
    return item[0][1]


def _put(row: _Row, head: Head, raw: float) -> str:
    """Put one sample into its row; what became of it."""
    blank = blank_number(raw)
    if head.use is Use.XID_COUNT:
        if blank is None:
            row.counts[head.code] = Counted(int(raw), head.window_ms)
        return "used" if blank is None else "blank"
    assert head.field is not None
    plausible = row.values.add(head.field, head.key, raw, blank)
    if head.owner is not None:
        row.values.owners.add(head.owner)
    return "blank" if blank is not None else "used" if plausible else "implausible"


def _own_head(name: str, labels: Mapping[str, str]) -> Head | None:
    """A series of Tocsin's own agent; None where it is another's."""
    spec, host, uuid = METRICS.get(name), labels.get("host", ""), labels.get("gpu_uuid", "")
    if spec is None or spec.entity != "gpu" or not host or not uuid:
        return None
    index, part = labels.get("gpu_index", ""), labels.get("mig_uuid", "")
    gpu = Gpu(
        part or uuid,
        host,
        index=int(index) if index.isdecimal() and len(index) < 5 else None,
        model=labels.get("model", ""),
        parent=uuid if part else "",
        mig_profile=labels.get("mig_profile", ""),
        pool=labels.get("pool", "") or "default",
        simulated=labels.get("simulated") == "true",
    )
    variant = labels.get(spec.label, "") if spec.label else ""
    found = Field(spec, variant, scale=1.0)
    key = found.key()
    use = Use.XID if key == "gpu_xid_last_code" else Use.METRIC
    return Head(name, use, gpu, found, key, host=host)
