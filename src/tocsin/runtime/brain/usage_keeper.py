"""Keeps the sums of who used which GPU: of readings as they come, and of the store where they came late.

What the file has is always what the store has up to the instant that the file names for each GPU. After a start it goes
on from there; a file that is new has the days counted that are open and that the store has already. A reading that
comes too late to be counted in its place puts its host and day on a list, on file too; those days are counted anew from
the store.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import structlog

from tocsin.accounting.holders import Holder, Said
from tocsin.accounting.meter import ENERGY, LEFT_MS, Meter, Row, RowKey, hosts_and_days
from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import Place, UsageTable
from tocsin.actions.planning.facts import WorkloadFacts
from tocsin.config.usage import UsageSettings
from tocsin.domain.clock import DAY, HOUR, SECOND, Clock
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Reading
from tocsin.store.identity import is_bare
from tocsin.store.port import Store
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

WRITE_SECONDS = 300.0
"""Time between two writes of the sums: so much is read again from the store after a crash."""
RECOVER_MS = HOUR
"""How much past a start counts before the service answers; what others wrote after that is counted later."""
SKEW_MS = 3 * MAX_FUTURE_MS
"""So far apart the newest readings of two hosts that both report may be."""
PROBED = 50
"""Hosts that are asked whether the store has a day (own choice: a day that none of them has is of no weight)."""
LATE_AT_ONCE = 20
"""Days of hosts that one look counts anew (own choice: some seconds of one core)."""


@dataclass(frozen=True, slots=True)
class UsageParts:
    """The file of the sums, and what is paid."""

    table: UsageTable
    prices: PriceList


@dataclass(frozen=True, slots=True)
class Counted:
    """What a keeper has counted by its end: the sums that are not on file yet, where each GPU stands, and late days."""

    meter: Meter
    late: set[tuple[str, int]]


class UsageKeeper:
    """Safe to use from several threads; `take` never fails and never waits for the file.

    `wake` is set when a file that is new has its first readings to note: without an instant on file a brain that dies
    could not go on from there. `gpu_of` gives a GPU with its attributes by UUID, `facts` what managers tell of work by
    its id. `counted` is of the keeper before this one over the same file, which goes on from there; None where the file
    and the store are asked.
    """

    def __init__(
        self,
        store: Store,
        parts: UsageParts,
        settings: UsageSettings,
        clock: Clock,
        metrics: OwnMetrics,
        gpu_of: Callable[[str], Gpu | None],
        facts: Callable[[], Mapping[str, WorkloadFacts]],
        counted: Counted | None = None,
    ) -> None:
        self._store = store
        self.table, self.prices = parts.table, parts.prices
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._gpu_of = gpu_of
        self._facts = facts
        self._gap_ms = round(settings.gap_seconds * SECOND)
        self._goes_on = counted is not None
        before = counted or Counted(Meter(self._gap_ms), set())
        self._meter, self._late = before.meter, before.late
        self._counting, self._writing = threading.Lock(), threading.RLock()
        self._learned: dict[str, tuple[Holder, frozenset[str] | None, int]] = {}
        self._written_ms = clock.now_ms()
        self.wake = threading.Event()
        self._begun = bool(self.table.cursors())

    @property
    def counted_ms(self) -> int:
        """The instant of the last write: what came since is not in the sums yet."""
        return self._written_ms

    def take(self, readings: Sequence[Reading]) -> None:
        """Count readings that the store has."""
        named = [self._named(one) for one in readings]
        with self._counting:
            late = self._meter.take(named)
            if late:
                self._late |= hosts_and_days(late, self._clock.now_ms() // DAY)
            if named and not self._begun:
                self._begun = True
                self.wake.set()

    def _named(self, reading: Reading) -> Reading:
        """With its profile and model, which most readings of a MIG instance come without."""
        if not reading.gpu.parent or not is_bare(reading.gpu):
            return reading
        known = self._gpu_of(reading.gpu.uuid)
        return reading if known is None else replace(reading, gpu=known)

    # ---------------------------------------------------------------------- start

    def recover(self, now_ms: int) -> None:
        """Count what the store has and the file has not; nothing where the keeper before has counted up to now. Raises
        StoreUnavailable."""
        cursors = self.table.cursors()
        if not cursors:
            self._begin(now_ms)
            return
        newest = max(cursors.values())
        if self._goes_on and now_ms - newest <= self._gap_ms:
            return
        # Clocks of hosts differ: one that is behind is not silent.
        live = [at_ms for at_ms in cursors.values() if at_ms >= newest - SKEW_MS]
        first, end_ms = min(live) - 2 * self._gap_ms, min(now_ms, newest + RECOVER_MS)
        self._meter.resume(cursors)
        self.take(self._silent({key: at_ms for key, at_ms in cursors.items() if at_ms < first}))
        for group in _instants(self._store.readings(first, end_ms + 1)):
            self.take(group)
        for start in range(end_ms, now_ms, HOUR):
            self._mark_written(start, min(start + HOUR, now_ms))
        # Up to here days are counted anew: what comes goes on from the newest readings.
        newer = [one for one in self._store.latest(end_ms + 1) if one.at_ms <= now_ms]
        self.take(sorted(newer, key=lambda one: one.at_ms))

    def _begin(self, now_ms: int) -> None:
        """Have the open days counted that the store had before the file was, up to the newest reading of each GPU.

        GPUs of some hosts tell whether there is anything of a day.
        """
        hosts, today = {gpu.host: gpu.uuid for gpu in self._store.gpus()}, now_ms // DAY
        asked, first = list(hosts.values())[:PROBED], today - self._settings.open_days
        days = range(first, today + 1) if hosts else ()
        kept = [day for day in days if self._store.columns((), day * DAY, (day + 1) * DAY, asked).gpus]
        self._late |= {(host, day) for host in hosts for day in kept}
        if kept:
            newest = [one for one in self._store.latest(first * DAY) if one.at_ms <= now_ms]
            self.take(sorted(newest, key=lambda one: one.at_ms))

    def _silent(self, cursors: Mapping[tuple[str, str], int]) -> list[Reading]:
        """The last instants of GPUs that were silent, with their energy counters."""
        wanted: dict[int, list[str]] = defaultdict(list)
        for (_, uuid), at_ms in cursors.items():
            wanted[at_ms].append(uuid)
        found = [_edge(self._store, uuids, at_ms, at_ms + 1, last=True) for at_ms, uuids in sorted(wanted.items())]
        hosts = {uuid: host for host, uuid in cursors}
        return [Reading(Gpu(uuid, hosts[uuid]), *one) for part in found for uuid, one in part.items()]

    def _mark_written(self, start_ms: int, end_ms: int) -> None:
        """What others wrote to the store while no brain ran is counted anew, day by day."""
        uuids = set(self._store.columns((), start_ms + 1, end_ms + 1).gpus)
        hosts = {gpu.host for gpu in self._store.gpus() if gpu.uuid in uuids} if uuids else set()
        instants = [(host, at_ms) for host in hosts for at_ms in (start_ms, end_ms)]
        self._late |= hosts_and_days(instants, self._clock.now_ms() // DAY)

    # ---------------------------------------------------------------------- upkeep

    def look(self) -> None:
        """Write the sums, count late days anew, and close old ones. Raises StoreUnavailable."""
        self.write()
        now_ms = self._clock.now_ms()
        for host, day in self.table.late()[:LATE_AT_ONCE]:
            self._count_anew(host, day)
        with self._counting:
            gone = self._meter.forget(now_ms - LEFT_MS)
        self.table.forget_cursors(gone)
        today = now_ms // DAY
        closed = self.table.close_days(today - self._settings.open_days, today - self._settings.keep_days)
        if closed:
            # Holders are let go of with their days: what comes of one then is new.
            self._learned = {}
            log.info("days of usage closed", days=closed)

    def write(self) -> None:
        """Put on file what was counted since the last time; what cannot be written waits for the next."""
        self._write("")

    def _write(self, host: str) -> dict[str, int] | None:
        """The same; the instants up to which GPUs of `host` are on file then, None where it could not be written."""
        with self._writing:
            now_ms = self._clock.now_ms()
            with self._counting:
                rows, holders = self._meter.drain()
                cursors, counted = self._meter.cursors(), self._meter.counted_to(host)
                late, self._late = self._late, set()
            try:
                lost = self.table.add(rows, holders, cursors, late, self._place)
            except sqlite3.Error as error:
                log.warning("the sums of usage cannot be written and wait", rows=len(rows), error=str(error))
                with self._counting:
                    self._meter.give_back(rows, holders)
                    self._late |= late
                return None
            self._written_ms = now_ms
            for reason, count in (+lost).items():
                self._metrics.count("tocsin_dropped_total", count, what="usage", reason=reason)
            self._learn()
            return counted

    def _learn(self) -> None:
        """Team, account, user and job of the work that managers know, for the hosts where they show it: they may tell
        it only after it was counted, and another host may say something new of it."""
        facts = self._facts()
        known = {
            key: (Holder(key, one.gang, "", one.user, one.team, one.account), one.hosts, words)
            for key, one in facts.items()
            if (words := self.table.words_of(key))
        }
        new = [told for key, told in known.items() if self._learned.get(key) != told]
        where = {one.key: hosts for one, hosts, _ in new if hosts is not None}
        self.table.learn((one for one, *_ in new), where)
        # What it came to is counted: rows of where the work is shown are among them now.
        self._learned = {key: (one, hosts, self.table.words_of(key)) for key, (one, hosts, _) in known.items()}

    def _place(self, key: RowKey, stored: Mapping[str, Gpu] | None = None) -> Place:
        gpu = self._gpu_of(key.gpu) or (stored or {}).get(key.gpu)
        if gpu is None:
            return Place()
        return Place(gpu.pool, gpu.model, self._settings.kind_of(gpu.pool, gpu.host, dict(gpu.labels)))

    def close(self) -> None:
        """Write what is counted, and let go of the file."""
        self.write()
        self.table.close()

    def counted(self) -> Counted | None:
        """What the next keeper over the same file goes on from, once this one is closed; None where the file was
        another brain's."""
        return None if self.table.kept_elsewhere else Counted(self._meter, self._late)

    # ---------------------------------------------------------------------- late readings

    def _count_anew(self, host: str, day: int) -> None:
        with self._writing:
            counted = self._write(host)
            if counted is not None:
                gpus = [gpu for gpu in self._store.gpus() if gpu.host == host]
                rows, holders = count_day(self._store, gpus, day, self._gap_ms, counted)
                # Many a one has left the fleet since: what the store knows of it goes on.
                stored = {gpu.uuid: gpu for gpu in gpus}
                self.table.replace(host, {day}, rows, holders, partial(self._place, stored=stored))


def count_day(
    store: Store, gpus: Sequence[Gpu], day: int, gap_ms: int, counted: Mapping[str, int]
) -> tuple[dict[RowKey, Row], Said]:
    """The sums of one day of the GPUs of one host from the store, each up to the instant in `counted`.

    Raises StoreUnavailable.
    """
    meter, uuids = Meter(gap_ms), [gpu.uuid for gpu in gpus]
    start, end = day * DAY, (day + 1) * DAY
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    # What a reading at the day's edge was depends on those of its node in the gap before.
    first = start - 2 * gap_ms
    before = _edge(store, uuids, start - LEFT_MS, first, last=True)
    for uuid, (at_ms, counter) in sorted(before.items(), key=lambda one: one[1][0]):
        meter.take([Reading(by_uuid[uuid], at_ms, counter)])

    def open_(readings: Iterable[Reading]) -> list[Reading]:
        return [one for one in readings if one.at_ms <= counted.get(_whole(one.gpu)[1], 0)]

    for group in _instants(store.readings(first, end + gap_ms, uuids)):
        meter.take(open_(group))
    # Of a gap beyond the day's end only its end matters.
    after = _edge(store, uuids, end + gap_ms, end + LEFT_MS, last=False)
    closing = [Reading(by_uuid[uuid], *one) for uuid, one in after.items() if not by_uuid[uuid].parent]
    meter.take(open_(closing))
    rows, holders = meter.drain()
    return {key: row for key, row in rows.items() if key.day == day}, holders


def _edge(
    store: Store, uuids: Collection[str], start_ms: int, end_ms: int, *, last: bool
) -> dict[str, tuple[int, dict[str, float]]]:
    """The last or first instant at which each GPU was read in a span, with its energy counter where that was told."""
    columns = store.columns((ENERGY,), start_ms, end_ms, uuids)
    found: dict[str, tuple[int, dict[str, float]]] = {}
    rows = zip(columns.gpu.tolist(), columns.at_ms.tolist(), columns.values[:, 0].tolist(), strict=True)
    # The later of two entries stays.
    for place, at_ms, joules in rows if last else reversed(list(rows)):
        found[columns.gpus[place]] = at_ms, {} if math.isnan(joules) else {ENERGY: joules}
    return found


def _whole(gpu: Gpu) -> tuple[str, str]:
    return gpu.host, gpu.parent or gpu.uuid


def _instants(readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    """Readings of one instant together; they come by instant."""
    for _, group in groupby(readings, key=lambda one: one.at_ms):
        yield list(group)
