"""Heat at which hardware slows a GPU, from readings: no event tells of it, and it is the onset of a thermal fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.finding import Finding, SubjectKind
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Ints, Rows, rounds
from tocsin.forecaster.features.onsets import GAP_MS, QUIET_MS, Heat, Onset, SlowSpan, onsets_of
from tocsin.store.port import Columns, Store

HEAT_METRICS = (
    "gpu_hw_thermal_slowdown_seconds_total",
    "gpu_clocks_event_reasons_bitmask",
    "gpu_clocks_hw_thermal_slowdown",
)
"""Time in hardware thermal slowdown, and whether it is on: as a bit, and by itself. What the driver holds back for
heat, and what counts both, are left out: that begins sooner, and is no fault."""
SLOWED_BIT = 0x40
LEAST_SECONDS = 1.0
OVER_MS = 5 * MINUTE
"""More than `LEAST_SECONDS` within this is slowing, as the rule `RULE` has it; between readings further apart, too."""
RULE = "thermal_slowdown"
"""The rule whose findings are such spans."""
HELD_MS = 30 * DAY
"""How much later a finding may have been seen last: it is found by that instant."""


class HeatWatch:
    """Takes readings in the order of time and keeps the spans in which hardware slowed each GPU.

    Readings of slowing less than `quiet_ms` apart are of one span; so are two without any reading in between, however
    far apart, as nobody saw the GPU cool. A reading without any of `HEAT_METRICS` is none.
    """

    def __init__(self, quiet_ms: int = QUIET_MS) -> None:
        self._quiet_ms = quiet_ms
        self._numbers: dict[str, int] = {}
        self._spans: dict[int, list[SlowSpan]] = {}
        self._arrays = Arrays()
        self._arrays.add("seen_ms", (), np.int64, NOT_YET)
        self._arrays.add("slow", (), np.bool_)
        # The counter as it was at `since_ms`, from which its growth is counted.
        self._arrays.add("seconds", (), np.float64, np.nan)
        self._arrays.add("since_ms", (), np.int64, NOT_YET)

    def take(self, columns: Columns) -> None:
        """Take in rows, sorted by instant; those that are not newer than their GPU's last are left out."""
        values = np.full((len(HEAT_METRICS), columns.at_ms.size), np.nan)
        for place, name in enumerate(HEAT_METRICS):
            if name in columns.metrics:
                values[place] = columns.values[:, columns.metrics.index(name)]
        here = np.flatnonzero(np.isfinite(values).any(axis=0))
        if not here.size:
            return
        new = [uuid for uuid in columns.gpus if uuid not in self._numbers]
        self._numbers.update(zip(new, range(self._arrays.size, self._arrays.size + len(new)), strict=True))
        self._arrays.grow(len(new))
        number = np.array([self._numbers[uuid] for uuid in columns.gpus], dtype=np.intp)
        gpus, at_ms, values = number[columns.gpu[here]], columns.at_ms[here], values[:, here]
        for rows in rounds(gpus):
            newer = rows[at_ms[rows] > self._arrays["seen_ms"][gpus[rows]]]
            self._round(gpus[newer], at_ms[newer], values[:, newer])

    def _round(self, gpus: Rows, at_ms: Ints, values: Floats) -> None:
        """Take in readings `values` [metrics, n] of `gpus` [n], each another one."""
        seconds, reasons, on = values
        slow = self._counted(gpus, at_ms, seconds) | (on > 0)
        slow |= (np.nan_to_num(reasons).astype(np.int64) & SLOWED_BIT) > 0
        was = self._arrays["slow"][gpus]
        for row in np.flatnonzero(slow).tolist():
            self._slowed(int(gpus[row]), int(at_ms[row]), goes_on=bool(was[row]))
        self._arrays["slow"][gpus] = slow
        self._arrays["seen_ms"][gpus] = at_ms

    def _counted(self, gpus: Rows, at_ms: Ints, seconds: Floats) -> Bools:
        """Whether the counter has grown by as much; one that falls has started again from zero."""
        base, since_ms = self._arrays["seconds"][gpus], self._arrays["since_ms"][gpus]
        fell = seconds < base
        slow = np.where(fell, seconds, seconds - base) > LEAST_SECONDS
        anew = np.isfinite(seconds) & (slow | fell | np.isnan(base) | (at_ms - since_ms >= OVER_MS))
        self._arrays["seconds"][gpus[anew]] = seconds[anew]
        self._arrays["since_ms"][gpus[anew]] = at_ms[anew]
        return np.asarray(slow)

    def _slowed(self, gpu: int, at_ms: int, *, goes_on: bool) -> None:
        spans = self._spans.setdefault(gpu, [])
        if spans and (goes_on or at_ms - spans[-1].last_ms < self._quiet_ms):
            spans[-1] = SlowSpan(spans[-1].first_ms, at_ms)
        else:
            spans.append(SlowSpan(at_ms, at_ms))

    def heat(self) -> Heat:
        """What was found, by UUID."""
        return {uuid: self._spans[number] for uuid, number in self._numbers.items() if number in self._spans}


def heat_of(findings: Iterable[Finding]) -> Heat:
    """The same from the findings of a service; of one that holds still the last instant is that of its begin."""
    found: dict[str, list[SlowSpan]] = defaultdict(list)
    for one in sorted(findings, key=lambda one: one.started_ms):
        if one.rule == RULE and one.subject.kind is SubjectKind.GPU:
            found[one.subject.name].append(SlowSpan(one.started_ms, one.last_ms))
    return dict(found)


def stored_onsets(store: Store, start_ms: int, end_ms: int) -> list[Onset]:
    """The onsets that a service has put into `store` in [`start_ms`, `end_ms`), and some of before: what goes on from
    there is none. Raises StoreUnavailable."""
    since_ms = start_ms - QUIET_MS
    heat = heat_of(one for one in store.findings(since_ms, end_ms + HELD_MS) if one.started_ms < end_ms)
    return onsets_of(store.events(since_ms, end_ms), store.gpus(), heat=heat)


def slowed_at(store: Store, now_ms: int) -> frozenset[str]:
    """GPUs whose row at `now_ms` training would leave out for heat. Raises StoreUnavailable."""
    found = onsets_of((), heat=heat_of(store.findings(now_ms - GAP_MS, now_ms + 1)))
    return frozenset(one.device for one in found if now_ms < max(one.ended_ms, one.at_ms + GAP_MS))
