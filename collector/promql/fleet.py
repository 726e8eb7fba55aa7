"""Readings and events out of the newest samples of a fleet.

What must hold: a reading is dated by its scrape, and holds only what that one scrape showed; a sample that was taken
once is never taken again. A GPU that several targets show has its values from one of them. A latched XID is an event
only where the one before is known and the exporter has not been started anew since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tocsin.collector.dcgm.exporter import NO_START_TIME, RESTARTED
from tocsin.collector.dcgm.exposition import Use
from tocsin.collector.dcgm.fields import SXID_FATAL, blank_number
from tocsin.collector.dcgm.readings import (
    FATAL,
    NON_FATAL,
    Counted,
    DcgmRow,
    SxidOnsets,
    XidOnsets,
    XidState,
    counters,
)
from tocsin.collector.promql.heads import Target
from tocsin.collector.promql.series import Series
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.event import Event
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("promql")

NAME = "promql"
SAME_SCRAPE_MS = SECOND
"""Samples of one scrape have one instant, but for exporters that date single lines themselves."""
GAP_MS = 5 * MINUTE
"""A GPU that was not seen for longer may have another exporter or driver behind it."""
FORGET_MS = 60 * MINUTE
"""What is remembered of a GPU that is no longer seen is dropped after this."""


@dataclass(slots=True)
class _Seen:
    """A GPU at its last scrape."""

    gpu: Gpu
    at_ms: int
    target: Target
    counters: dict[str, float]
    started: float | None


@dataclass(slots=True)
class _Sorted:
    """The series of one round, by what they are about."""

    gpus: dict[str, dict[Target, list[Series]]] = field(default_factory=dict)
    names: dict[str, Gpu] = field(default_factory=dict)
    switches: dict[tuple[str, Target], list[Series]] = field(default_factory=dict)
    started: dict[Target, float] = field(default_factory=dict)


class PromqlFleet:
    """Carries from round to round what was taken; `gpus` is how many the last round showed.

    `outcomes` counts the samples of the last round: used, blank, implausible, behind (of an earlier scrape of its
    target), second_target, repeated, future, other.
    """

    def __init__(self, lookback_ms: int, own: OwnMetrics) -> None:
        self._switch_ms = lookback_ms // 2
        self._own = own
        self._seen: dict[str, _Seen] = {}
        self._switch_seen: dict[tuple[str, Target], tuple[int, float | None]] = {}
        self._xids = XidOnsets(NAME)
        self._sxids = SxidOnsets(NAME)
        self.outcomes: Counter[str] = Counter()
        self.gpus = 0

    def batch(self, series: Iterable[Series], now_ms: int) -> Batch:
        """What is new since the round before."""
        self.outcomes.clear()
        found = self._sort(series)
        self.gpus = len(found.gpus)
        readings: list[Reading] = []
        events: list[Event] = []
        for uuid, targets in found.gpus.items():
            target = self._target(uuid, targets)
            scrape = self._scrape(uuid, targets[target], now_ms)
            if not scrape:
                continue
            reading, look = self._reading(scrape, found.names.get(uuid))
            readings.append(reading)
            events += self._noted(look, reading, target, found.started.get(target))
        for (host, target), codes in found.switches.items():
            events += self._switched(host, target, codes, found.started.get(target), now_ms)
        self._forget(now_ms)
        return Batch(readings, events)

    def _sort(self, series: Iterable[Series]) -> _Sorted:
        found = _Sorted()
        for one in series:
            head = one.head
            if one.raw != one.raw:
                self.outcomes["blank"] += 1  # VictoriaMetrics gives the mark of a series that has ended as NaN
            elif head.gpu is not None and head.use in (Use.METRIC, Use.XID, Use.XID_COUNT):
                found.gpus.setdefault(head.gpu.uuid, {}).setdefault(one.target, []).append(one)
            elif head.use is Use.SXID:
                found.switches.setdefault((head.host, one.target), []).append(one)
            elif head.use is Use.PROCESS_START:
                found.started[one.target] = one.raw
            elif head.gpu is not None and head.gpu.model:
                found.names[head.gpu.uuid] = head.gpu
            else:
                self.outcomes["other"] += 1
        return found

    def _target(self, uuid: str, targets: Mapping[Target, list[Series]]) -> Target:
        """Who speaks for a GPU: who did before, else who shows most of it; none that has fallen behind."""
        if len(targets) == 1:
            return next(iter(targets))
        newest = {target: max(one.at_ms for one in found) for target, found in targets.items()}
        least = max(newest.values()) - self._switch_ms
        fresh = [target for target in targets if newest[target] >= least]
        before = self._seen.get(uuid)
        chosen = max(fresh, key=lambda one: (before is not None and one == before.target, len(targets[one]), one))
        self.outcomes["second_target"] += sum(len(found) for target, found in targets.items() if target != chosen)
        return chosen

    def _scrape(self, uuid: str, samples: list[Series], now_ms: int) -> list[Series]:
        """The samples of the newest scrape; none where it was taken before, or is of a time that has not come."""
        newest = max(one.at_ms for one in samples)
        before = self._seen.get(uuid)
        if newest > now_ms + MAX_FUTURE_MS:
            self.outcomes["future"] += len(samples)
            return []
        if before is not None and newest <= before.at_ms:
            self.outcomes["repeated"] += len(samples)
            return []
        kept = [one for one in samples if newest - one.at_ms <= SAME_SCRAPE_MS]
        self.outcomes["behind"] += len(samples) - len(kept)
        return kept

    def _reading(self, scrape: list[Series], named: Gpu | None) -> tuple[Reading, XidState]:
        gpu = scrape[0].head.gpu
        assert gpu is not None
        if named is not None and not gpu.model:
            gpu = replace(named, labels={**gpu.labels, **named.labels})
        row, counts, at_ms = DcgmRow(gpu), dict[int, Counted](), 0
        for one in scrape:
            head, blank = one.head, blank_number(one.raw)
            at_ms = max(at_ms, one.at_ms)
            if head.use is Use.XID_COUNT:
                if blank is None:
                    counts[head.code] = Counted(int(one.raw), head.window_ms)
                self.outcomes["used" if blank is None else "blank"] += 1
            elif head.field is not None:
                plausible = row.add(head.field, head.key, one.raw, blank)
                if head.owner is not None:
                    row.owners.add(head.owner)
                self.outcomes["blank" if blank is not None else "used" if plausible else "implausible"] += 1
        return row.reading(at_ms, {}), XidState(gpu, row.latched_xid, counts)

    def _noted(self, look: XidState, reading: Reading, target: Target, started: float | None) -> list[Event]:
        uuid, now = look.gpu.uuid, counters(reading.values)
        before, doubt = self._seen.get(uuid), ""
        if before is not None:
            datable = started is not None and before.started is not None
            fell = any(now[key] < value for key, value in before.counters.items() if key in now)
            moved = target != before.target or reading.at_ms - before.at_ms > GAP_MS
            if moved or (datable and started != before.started):
                doubt = RESTARTED
            elif fell and not datable:
                doubt = NO_START_TIME
            now = {**before.counters, **now}
            started = started if started is not None else before.started
        self._seen[uuid] = _Seen(look.gpu, reading.at_ms, target, now, started)
        events = self._xids.note(look, reading.at_ms, settled=not doubt)
        self._report(self._xids.unsettled, "xid", doubt)
        return events

    def _switched(
        self, host: str, target: Target, codes: list[Series], started: float | None, now_ms: int
    ) -> list[Event]:
        at_ms = max(one.at_ms for one in codes)
        before_ms, before = self._switch_seen.get((host, target), (0, None))
        if at_ms <= before_ms or at_ms > now_ms + MAX_FUTURE_MS:
            return []
        restarted = bool(before_ms) and (
            at_ms - before_ms > GAP_MS or (before is not None and started is not None and before != started)
        )
        self._switch_seen[host, target] = at_ms, started if started is not None else before
        found = [
            (one.head.part, FATAL if one.head.name in SXID_FATAL else NON_FATAL, int(one.raw))
            for one in codes
            if at_ms - one.at_ms <= SAME_SCRAPE_MS and blank_number(one.raw) is None
        ]
        events = self._sxids.note(host, found, at_ms, settled=not restarted)
        self._report(self._sxids.unsettled, "sxid", RESTARTED)
        return events

    def _report(self, unsettled: list[tuple[str, int]], kind: str, reason: str) -> None:
        """Say and count the codes that may be new, and clear them."""
        for part, code in unsettled:
            self._own.count("tocsin_dcgm_unsettled_errors_total", kind=kind, reason=reason)
            _log.warning("an error may be new or old: no event", kind=kind, code=code, part=part, reason=reason)
        unsettled.clear()

    def _forget(self, now_ms: int) -> None:
        for uuid in [uuid for uuid, seen in self._seen.items() if now_ms - seen.at_ms > FORGET_MS]:
            self._xids.forget(self._seen.pop(uuid).gpu)
        for key in [key for key, (at_ms, _) in self._switch_seen.items() if now_ms - at_ms > FORGET_MS]:
            del self._switch_seen[key]
            self._sxids.forget(key[0])
