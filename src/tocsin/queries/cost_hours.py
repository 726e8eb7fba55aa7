"""Hour by hour, what the fleet was used for: read from the store when somebody asks, and kept once an hour is over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock
from tocsin.domain.reading import Gpu
from tocsin.domain.usage import Group, Usage
from tocsin.forecaster.diagnosis.account import CELL_MS, METRICS, Account, account, joined, silent
from tocsin.store.port import Store

KEPT_MS = 35 * DAY
"""Hours further back are not asked for: as long as the past of pools is kept."""
LATE_MS = 10 * MINUTE
"""So long after its end an hour may still change: agents send what they had to keep back."""
BUDGET_S = 3.0
"""How long one request reads the store; the next goes on from there."""
NEW_SECONDS = 30.0
"""An hour that may still change is read again after this."""
ROWS = 60_000
"""Readings of one hour that are read whole; of more, a part of each cell is (own choice: about 0.2 s)."""
PROBE_MS = 2 * MINUTE
_MIDDLE_MS = CELL_MS // 2


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour, or the `span_ms` of it whose cells are over; `sampled` where only a part of each cell was read.

    `late` are GPUs that were not read from its beginning on, with their group and the cells before their first reading:
    `account` does not count those as missing.
    """

    at_ms: int
    account: Account
    span_ms: int = HOUR
    sampled: bool = False
    late: Mapping[str, tuple[Group, int]] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        return sum(self.account.groups.values(), Usage())


@dataclass(frozen=True, slots=True)
class Pages:
    """Hours with readings that are known of a period, by instant, those without any, and how many it has."""

    hours: tuple[Hour, ...]
    empty: int
    wanted: int

    @property
    def read(self) -> int:
        """Hours that have been looked at."""
        return len(self.hours) + self.empty


class CostHours:
    """Accounts by hour. Safe to use from several threads; one of them reads at a time, the others get what is known.

    `clock` is the fleet's, `wall` the one that people wait by.
    """

    def __init__(self, store: Store, clock: Clock, wall: Clock) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._hours: dict[int, Hour] = {}
        self._read_s: dict[int, float] = {}

    def pages(self, start_ms: int, end_ms: int, present: Sequence[Gpu], budget_s: float) -> Pages:
        """The hours in [`start_ms`, `end_ms`), newest first as far as `budget_s` seconds allow.

        `present` are the GPUs of the fleet now. Raises StoreUnavailable.
        """
        now_ms = self._clock.now_ms()
        last = min(end_ms, now_ms // CELL_MS * CELL_MS)
        wanted = range(max(start_ms, now_ms - KEPT_MS) // HOUR * HOUR, last, HOUR)
        if self._lock.acquire(timeout=budget_s):
            try:
                self._read(list(wanted), now_ms, present, budget_s)
            finally:
                self._lock.release()
        known = {hour: one for hour, one in dict(self._hours).items() if hour in wanted}
        filled = self._with_silence(known, present)
        full = tuple(filled[hour] for hour in sorted(filled) if filled[hour].account.seen)
        return Pages(full, len(known) - len(full), len(wanted))

    def _read(self, wanted: list[int], now_ms: int, present: Sequence[Gpu], budget_s: float) -> None:
        begun = self._wall.monotonic()
        gpus: list[Gpu] | None = None
        for hour in reversed(wanted):
            now_s = self._wall.monotonic()
            settled = hour + HOUR + LATE_MS <= now_ms
            if hour in self._hours and (self._read_s[hour] < 0 or now_s - self._read_s[hour] < NEW_SECONDS):
                continue
            if now_s - begun > budget_s:
                break
            if gpus is None:
                gpus = sorted({gpu.uuid: gpu for gpu in (*self._store.gpus(), *present)}.values(), key=lambda g: g.uuid)
            self._hours[hour] = self._hour(hour, min(hour + HOUR, now_ms // CELL_MS * CELL_MS), gpus)
            self._read_s[hour] = -1.0 if settled else now_s
        oldest = now_ms - KEPT_MS - DAY
        for hour in [hour for hour in self._hours if hour < oldest]:
            del self._hours[hour], self._read_s[hour]

    def _hour(self, start_ms: int, end_ms: int, gpus: Sequence[Gpu]) -> Hour:
        probe = self._store.columns(METRICS, start_ms + _MIDDLE_MS, start_ms + _MIDDLE_MS + PROBE_MS)
        rows = len(probe.at_ms) * HOUR // PROBE_MS
        cells = range(start_ms, end_ms, CELL_MS)
        if rows <= ROWS:
            parts = [self._store.columns(METRICS, start_ms, end_ms)] * len(cells)
        else:
            # Twice the time between two readings: each GPU has one in it, and mostly the two that energy needs.
            step_ms = PROBE_MS * len(probe.gpus) // len(probe.at_ms)
            width = min(PROBE_MS, max(2 * step_ms, 20 * SECOND))
            middles = [begin + _MIDDLE_MS for begin in cells]
            parts = [self._store.columns(METRICS, middle, middle + width) for middle in middles]
        made: list[Account] = []
        first: dict[str, int] = {}
        for number, (begin, part) in enumerate(zip(cells, parts, strict=True)):
            # Once a GPU is read it is expected in each cell that follows.
            made.append(account(part, gpus, first, begin, begin + CELL_MS))
            first = dict.fromkeys(made[-1].seen, number) | first
        late = {gpu.uuid: ((gpu.pool, gpu.model), first[gpu.uuid]) for gpu in gpus if first.get(gpu.uuid)}
        return Hour(start_ms, joined(made), end_ms - start_ms, sampled=rows > ROWS, late=late)

    def _with_silence(self, known: Mapping[int, Hour], present: Sequence[Gpu]) -> dict[int, Hour]:
        """`known` with the GPUs counted as missing that were silent for a whole hour, or for the beginning of one, and
        had been read before: what has its first reading was not there yet."""
        gpus = {gpu.uuid: (gpu.pool, gpu.model) for gpu in present if not gpu.is_mig}
        seen = {hour: one.account.seen for hour, one in known.items() if one.account.seen}
        gaps = silent(seen, gpus, frozenset(gpus))
        before: set[str] = set()
        filled: dict[int, Hour] = {}
        for hour, one in sorted(known.items()):
            missing = {group: count * one.span_ms / HOUR for group, count in gaps.get(hour, Counter()).items()}
            for uuid, (group, cells) in one.late.items():
                if uuid in before:
                    missing[group] = missing.get(group, 0.0) + cells * CELL_MS / HOUR
            filled[hour] = _with_missing(one, missing)
            before |= one.account.seen
        return filled


def _with_missing(hour: Hour, missing: Mapping[Group, float]) -> Hour:
    """`hour` with GPU-hours by group that are missing in it."""
    if not missing:
        return hour
    groups = dict(hour.account.groups)
    for group, hours in missing.items():
        groups[group] = groups.get(group, Usage()) + Usage(missing=hours, unmetered=hours)
    return replace(hour, account=replace(hour.account, groups=groups))
