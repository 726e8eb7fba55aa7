"""Readings and events out of series that others push.

What must hold: a body may have any part of a scrape, and parts of several, in any order; so values are kept by GPU and
instant, and an error is judged only forward in time. What a GPU shows in the first minute, or after a gap, is no onset:
other parts of that scrape may still be on their way. An agent outranks whoever pushes, for it sees more and sooner.

And whatever one sender names, what is remembered and judged of the hosts of others is the same as without it: nothing
is taken in of what it may not say, each host has room of its own, and what is remembered counts for who named it first.
Work grows with the bytes that are sent, not with what is remembered.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from tocsin.collector.dcgm.exporter import RESTARTED
from tocsin.collector.dcgm.exposition import Head, Use
from tocsin.collector.dcgm.fields import SXID_FATAL, Field, blank_number
from tocsin.collector.dcgm.readings import (
    FATAL,
    MAX_CODES,
    NON_FATAL,
    Counted,
    DcgmRow,
    SxidOnsets,
    XidOnsets,
    XidState,
)
from tocsin.collector.promql.heads import Labelled, SeriesHeads, Target, labelled, target_of
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
MAX_KNOWN = 100_000
"""Most GPUs and switches that are remembered of one sender."""
MAX_SWITCHES = 256
"""The same of switches of one host; an NVL72 rack has 18."""

MAX_TARGETS = 16
"""Most jobs and instances that are known to show the GPUs of one host."""

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
    """A GPU that `sender` named first: pushed last at `seen_ms` by the brain's clock, with its newest reading of
    `mine_ms`, and as its errors were seen from `since_ms` to `at_ms`, -1 where none was."""

    sender: str
    seen_ms: int
    gpu: Gpu
    mine_ms: int = 0
    since_ms: int = 0
    at_ms: int = -1
    latched: int | None = None
    counts: dict[int, tuple[int, Counted]] = field(default_factory=dict)


@dataclass(slots=True)
class _Switch:
    """The same of a switch: its newest code is of `at_ms`, 0 where there is none."""

    sender: str
    seen_ms: int
    at_ms: int = 0


@dataclass(slots=True)
class _Host:
    """What is remembered of one host, however it is spelt: GPUs by UUID and switches, each longest silent first.

    `starts` has when the process of each job and instance that shows its GPUs was started, None where that was not
    said; `restarted_ms` when one was last seen that was not there before.
    """

    name: str
    gpus: dict[str, _Known] = field(default_factory=dict)
    switches: dict[str, _Switch] = field(default_factory=dict)
    starts: dict[Target, float | None] = field(default_factory=dict)
    restarted_ms: int = 0


@dataclass(slots=True)
class _Row:
    """A GPU at one instant."""

    values: DcgmRow
    counts: dict[int, Counted] = field(default_factory=dict)


@dataclass(slots=True)
class _Body:
    """Series of one sender that are taken together: rows by GPU and instant, codes of switches by host and instant,
    and why it may not speak for a host, a GPU and its parent."""

    sender: str
    admits: Admits
    now_ms: int
    taken: Taken = field(default_factory=lambda: Taken(Batch()))
    rows: dict[tuple[str, int], _Row] = field(default_factory=dict)
    switches: dict[tuple[str, int], list[tuple[str, str, int]]] = field(default_factory=dict)
    allowed: dict[tuple[str, str, str], str] = field(default_factory=dict)


class PushedFleet:
    """Carries from body to body what is known of each GPU; safe to use from several threads.

    `newest` gives the reading that the brain has of a GPU, and whether it is of before its start. Of one host
    `gpus_per_host` GPUs and MIG instances are taken.
    """

    def __init__(
        self,
        settings: PromqlSettings,
        own: OwnMetrics,
        newest: Callable[[str], tuple[Reading | None, bool]],
        fresh_ms: int,
        gpus_per_host: int,
    ) -> None:
        self._heads = SeriesHeads(settings, ("otel_hardware", "otel_sensors"))
        self._own = own
        self._newest = newest
        self._fresh_ms = fresh_ms
        self._gpus_per_host = gpus_per_host
        self._lock = threading.Lock()
        self._labelled: dict[tuple[tuple[str, str], ...], Labelled] = {}
        self._cost = 0
        self._hosts: dict[str, _Host] = {}
        self._kept: Counter[str] = Counter()
        self._looked_ms = 0
        self._xids, self._sxids = XidOnsets(NAME), SxidOnsets(NAME)

    def take(self, series: Iterable[PushedSeries], sender: str, admits: Admits, now_ms: int) -> Taken:
        """Readings and events of `series`; of what `admits` speaks against nothing is remembered either."""
        with self._lock:
            body = _Body(sender, admits, now_ms)
            for one in series:
                head = self._head(one)
                if head.use is Use.PROCESS_START:
                    self._started(head, one, body)
                elif head.field is None and head.use not in (Use.XID_COUNT, Use.SXID):
                    body.taken.outcomes["other"] += len(one.samples)
                elif self._may(head, one, body) and self._has_room(head, one, body):
                    self._sort(head, one, body)
            rows = sorted(body.rows.items(), key=_by_time)
            readings = [self._reading(row, at_ms) for (_, at_ms), row in rows]
            events: list[Event] = []
            for (_, at_ms), row in rows:
                events += self._onsets(row, at_ms)
            for (host, at_ms), codes in sorted(body.switches.items(), key=_by_time):
                events += self._switched(self._hosts[host], at_ms, codes)
            self._forget(now_ms)
            body.taken.batch = Batch(readings, events)
            return body.taken

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

    def _may(self, head: Head, one: PushedSeries, body: _Body) -> bool:
        """Whether the samples of `one` are to be looked at."""
        gpu, count = head.gpu, len(one.samples)
        key = (head.host, "", "") if gpu is None else (head.host, gpu.uuid, gpu.parent)
        if (problem := body.allowed.get(key)) is None:
            names = [] if gpu is None else [name for name in (gpu.parent, gpu.uuid) if name]
            problem = body.admits(head.host, names)
            if not problem and any(self._has_agent(name, body.now_ms) for name in names):
                problem = "agent"
            body.allowed[key] = problem
        if problem == "agent":
            body.taken.outcomes["agent"] += count
        elif problem:
            body.taken.reject("refused", count, problem)
        return not problem

    def _has_agent(self, uuid: str, now_ms: int) -> bool:
        """Whether the newest of a GPU came in another way, lately."""
        reading, recalled = self._newest(uuid)
        if reading is None or recalled or now_ms - reading.at_ms >= self._fresh_ms:
            return False
        host = self._hosts.get(reading.gpu.host.lower())
        known = None if host is None else host.gpus.get(uuid)
        return known is None or known.mine_ms != reading.at_ms

    def _has_room(self, head: Head, one: PushedSeries, body: _Body) -> bool:
        """Whether the GPU or the switch is remembered, from now on where there is room for one more."""
        key, now_ms = head.host.lower(), body.now_ms
        host = self._hosts.get(key) or _Host(head.host)
        gpu = head.gpu
        kept: dict[str, _Known] | dict[str, _Switch] = host.switches if gpu is None else host.gpus
        name = head.part if gpu is None else gpu.uuid
        if name not in kept and (problem := self._too_many(host, kept, gpu is not None, body)):
            body.taken.reject("full", len(one.samples), problem)
            return False
        if name not in kept:
            self._hosts[key] = host
            self._kept[body.sender] += 1
        if gpu is None:
            switch = host.switches.pop(name, None) or _Switch(body.sender, now_ms)
            host.switches[name], switch.seen_ms = switch, now_ms
        else:
            known = host.gpus.pop(name, None) or _Known(body.sender, now_ms, gpu)
            host.gpus[name], known.seen_ms = known, now_ms
            if (target := target_of(one.labels)) not in host.starts:
                if len(host.starts) >= MAX_TARGETS:
                    del host.starts[next(iter(host.starts))]
                host.starts[target] = None
        return True

    def _too_many(self, host: _Host, kept: Mapping[str, _Known | _Switch], are_gpus: bool, body: _Body) -> str:
        """Why `host` cannot have one more of `kept`. One silent for so long that its next codes prove nothing gives
        way."""
        most = self._gpus_per_host if are_gpus else MAX_SWITCHES
        if len(kept) >= most:
            name, oldest = next(iter(kept.items()))
            if body.now_ms - oldest.seen_ms <= GAP_MS:
                what = f"{most} GPUs (api.limits.gpus_per_host)" if are_gpus else f"{most} NVSwitches"
                return f"host {host.name[:100]!r} shows more than {what}: give each node a host label of its own"
            self._drop(host, name, are_gpus)
        if self._kept[body.sender] >= MAX_KNOWN:
            return f"{body.sender[:100]} sends more than {MAX_KNOWN} GPUs and switches: spread them over more tokens"
        return ""

    def _drop(self, host: _Host, name: str, is_gpu: bool) -> None:
        if is_gpu:
            gone: _Known | _Switch = (known := host.gpus.pop(name))
            self._xids.forget(known.gpu)
        else:
            gone = host.switches.pop(name)
            self._sxids.forget(host.name, name)
        self._kept[gone.sender] -= 1

    def _sort(self, head: Head, one: PushedSeries, body: _Body) -> None:
        outcomes = body.taken.outcomes
        for at_ms, raw in one.samples:
            if not 0 <= at_ms <= body.now_ms + MAX_FUTURE_MS:
                body.taken.reject("future", 1, f"a sample of {one.name[:100]} is of a time that has not come")
            elif head.use is Use.SXID:
                blank = blank_number(raw)
                if blank is None:
                    kind = FATAL if head.name in SXID_FATAL else NON_FATAL
                    body.switches.setdefault((head.host.lower(), at_ms), []).append((head.part, kind, int(raw)))
                outcomes["used" if blank is None else "blank"] += 1
            elif head.gpu is not None:
                row = body.rows.setdefault((head.gpu.uuid, at_ms), _Row(DcgmRow(head.gpu)))
                outcomes[_put(row, head, raw)] += 1

    def _reading(self, row: _Row, at_ms: int) -> Reading:
        reading = row.values.reading(at_ms, {})
        known = self._known(reading.gpu)
        known.mine_ms = max(at_ms, known.mine_ms)
        return reading

    def _known(self, gpu: Gpu) -> _Known:
        return self._hosts[gpu.host.lower()].gpus[gpu.uuid]

    def _onsets(self, row: _Row, at_ms: int) -> list[Event]:
        gpu, latched = row.values.gpu, row.values.latched_xid
        known = self._known(gpu)
        if (latched is None and not row.counts) or at_ms < known.at_ms:
            return []
        if known.at_ms < 0 or at_ms - known.at_ms > GAP_MS or known.gpu.host != gpu.host:
            self._xids.forget(known.gpu)
            known.gpu, known.since_ms, known.latched, known.counts = gpu, at_ms, None, {}
        known.at_ms = at_ms
        known.latched = known.latched if latched is None else latched
        self._counted(known, row.counts)
        look = XidState(gpu, known.latched, {code: count for code, (_, count) in known.counts.items()})
        if at_ms - known.since_ms < SETTLE_MS:
            self._xids.forget(gpu)
        restarted_ms = self._hosts[gpu.host.lower()].restarted_ms
        settled = not 0 <= at_ms - restarted_ms < SETTLE_MS
        events = self._xids.note(look, at_ms, settled=settled)
        self._report(self._xids.unsettled, "xid")
        return events

    def _counted(self, known: _Known, counts: Mapping[int, Counted]) -> None:
        """Put the newest counts beside those of the last minutes: few, for each sample looks at all of them."""
        known.counts = {code: one for code, one in known.counts.items() if known.at_ms - one[0] <= GAP_MS}
        for code, count in counts.items():
            if code in known.counts or len(known.counts) < MAX_CODES:
                known.counts[code] = known.at_ms, count
            else:
                self._own.count("tocsin_dropped_total", what="value", reason="codes_per_gpu")

    def _switched(self, host: _Host, at_ms: int, codes: list[tuple[str, str, int]]) -> list[Event]:
        fresh = [one for one in codes if at_ms >= host.switches[one[0]].at_ms]
        before = [host.switches[part].at_ms for part, _, _ in fresh]
        gap = any(at_ms - at > GAP_MS for at in before if at)
        for part, _, _ in fresh:
            host.switches[part].at_ms = at_ms
        events = self._sxids.note(host.name, fresh, at_ms, settled=not gap)
        self._report(self._sxids.unsettled, "sxid")
        return events

    def _started(self, head: Head, one: PushedSeries, body: _Body) -> None:
        """An exporter that was started anew may show codes of days ago. Other processes of a host say when they were
        started too, and nothing is taken in of these."""
        host, target = self._hosts.get(head.host.lower()), target_of(one.labels)
        if host is None or target not in host.starts or not one.samples:
            body.taken.outcomes["other"] += len(one.samples)
        elif self._may(head, one, body):
            body.taken.outcomes["other"] += len(one.samples)
            at_ms, value = one.samples[-1]
            known = [start for start in host.starts.values() if start is not None]
            before, host.starts[target] = host.starts[target], value
            if known if before is None else before != value:
                host.restarted_ms = at_ms

    def _report(self, unsettled: list[tuple[str, int]], kind: str) -> None:
        for part, code in unsettled:
            self._own.count("tocsin_dcgm_unsettled_errors_total", kind=kind, reason=RESTARTED)
            _log.warning("an error may be new or old: no event", kind=kind, code=code, part=part, reason=RESTARTED)
        unsettled.clear()

    def _forget(self, now_ms: int) -> None:
        """Drop what is long gone: once a minute, for each body would look at the hosts of all."""
        if 0 <= now_ms - self._looked_ms < MINUTE:
            return
        self._looked_ms = now_ms
        for key, host in list(self._hosts.items()):
            for kept, are_gpus in ((host.gpus, True), (host.switches, False)):
                entries: Iterable[tuple[str, _Known | _Switch]] = kept.items()
                for name, _ in list(takewhile(lambda entry: now_ms - entry[1].seen_ms > FORGET_MS, entries)):
                    self._drop(host, name, are_gpus)
            if not host.gpus and not host.switches:
                del self._hosts[key]
        self._kept = +self._kept


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
