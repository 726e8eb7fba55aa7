"""Memory that was level and grows for hours: a process that keeps what it should free.

What fills up from its start on is left out by the caller: a cache does that and holds. Of the rest each series keeps
means of five minutes over half a day. It leaks where it has used up much of the room that it had when it began to grow,
has risen evenly since, and still does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import MINUTE, to_minute
from tocsin.domain.finding import Subject, SubjectKind, evidence_of
from tocsin.domain.phrase import say
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu
from tocsin.forecaster.trend.lines import Floats, fit_lines
from tocsin.forecaster.trend.statements import where

Mask = npt.NDArray[np.bool_]

BIN = 5
"""Minutes in a mean."""
KEPT = 144
"""Means that are kept: half a day."""
ROOM_USED = 0.45
"""Share of the room that must be gone (own choice): a leak that stops by itself stops anywhere, so that less would warn
of more of those, and more would leave less than half of the time there was."""
AHEAD = 6 * 60
"""Minutes within which it is full: what is further off can wait for the next look (own choice)."""
LEAST_RISE = 0.006
"""Rise, as a share of the whole, below which nothing is said: a plateau of 97 % leaves little room."""
BEGINS = 0.1
"""The growth begins where the last tenth of it, seen from the level before, has not begun."""
LEVEL_BEFORE = 0.35
"""How far the means before may lie above the least, as a share of the growth: waves come back to where they were."""
LEAST_MEANS = 6
"""Half an hour of growth."""
NEWEST_MEANS = 4
STRAIGHT = 0.8
"""Share of the variance that lies on the line: ripples of a sound job do not."""
STILL, STILL_NOW = 0.5, 0.3
"""Shares of its slope that a line must keep in its newer half, and in its newest means."""
IN_A_ROW = 2
"""Looks in a row that must say so before it is said."""
LEAST_SEEN = 3
"""Minutes without a value that end what was."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Series `row` of table `place` has grown for `since` minutes, has `used` up that share of its room, and reaches
    the limit in `steps` minutes, rising by `slope` a minute."""

    place: int
    row: int
    since: float
    used: float
    steps: float
    slope: float


class LeakWatch:
    """Tables [place, row] of shares of a whole, a value a minute. Not safe to use from several threads."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = np.array(limits)
        self._means = np.full((len(limits), 0, KEPT), np.nan, np.float32)
        self._sums = np.zeros((len(limits), 0))
        self._counts = np.zeros((len(limits), 0), np.int64)
        self._missing = np.zeros((len(limits), 0), np.int64)
        self._said = np.zeros((len(limits), 0), np.int64)
        self._minute = 0
        self.found: tuple[Leak, ...] = ()
        """What leaked at the last look and did not begin anew since."""

    def close(self, values: Floats, young: Mask) -> None:
        """A minute is over: `values` [place, row], NaN where missing; `young` ones begin anew. No row goes."""
        self._grow(values.shape[1])
        known = np.isfinite(values)
        self._missing = np.where(known, 0, self._missing + 1)
        anew = young | (self._missing >= LEAST_SEEN)
        self._begin_anew(anew)
        taken = known & ~anew
        self._sums[taken] += values[taken]
        self._counts[taken] += 1
        self._minute += 1
        if self._minute % BIN == 0:
            self._look()

    def skip(self, minutes: int) -> None:
        """Minutes passed of which nothing is known."""
        self._missing += minutes
        self._begin_anew(self._missing >= LEAST_SEEN)

    def forget(self, rows: Sequence[int]) -> None:
        """The next values of `rows` are of something else."""
        which = np.zeros(self._said.shape, np.bool_)
        which[:, [row for row in rows if row < which.shape[1]]] = True
        self._missing[which] = 0
        self._begin_anew(which)

    def _begin_anew(self, which: Mask) -> None:
        self._means[which] = np.nan
        self._sums[which], self._counts[which], self._said[which] = 0.0, 0, 0
        self.found = tuple(one for one in self.found if not which[one.place, one.row])

    def _grow(self, rows: int) -> None:
        more = rows - self._means.shape[1]
        if more <= 0:
            return
        places = len(self._limits)
        self._means = np.concatenate([self._means, np.full((places, more, KEPT), np.nan, np.float32)], axis=1)
        self._sums = np.concatenate([self._sums, np.zeros((places, more))], axis=1)
        zeros = np.zeros((places, more), np.int64)
        self._counts, self._missing, self._said = (
            np.concatenate([table, zeros], axis=1) for table in (self._counts, self._missing, self._said)
        )

    def _look(self) -> None:
        self._means[:, :, :-1] = self._means[:, :, 1:].copy()
        self._means[:, :, -1] = np.where(self._counts > 0, self._sums / np.maximum(self._counts, 1), np.nan)
        self._sums[:], self._counts[:] = 0.0, 0
        leaking = {(one.place, one.row): one for one in self._leaks()}
        told = np.zeros(self._said.shape, np.bool_)
        for place, row in leaking:
            told[place, row] = True
        self._said = np.where(told, self._said + 1, 0)
        self.found = tuple(one for at, one in leaking.items() if self._said[at] >= IN_A_ROW)

    def _leaks(self) -> Iterator[Leak]:
        for place, limit in enumerate(self._limits.tolist()):
            means = self._means[place]
            level = means[:, -1]
            least = np.where(np.isfinite(means), means, np.inf).min(axis=1, initial=np.inf)
            risen = np.subtract(level, least, where=np.isfinite(least), out=np.full(len(level), np.nan, np.float32))
            room = np.maximum(limit - least, 1e-6)
            near = (level < limit) & (risen >= LEAST_RISE) & (risen >= ROOM_USED * room)
            rows = np.flatnonzero(near)
            if rows.size:
                yield from _growing(place, rows, means[rows].astype(np.float64), limit)


def _growing(place: int, rows: npt.NDArray[np.int64], means: Floats, limit: float) -> Iterator[Leak]:
    """Those of `rows`, whose means are `means` [n, KEPT], that rise evenly up to now."""
    at = np.arange(KEPT)
    least, level = np.nanmin(means, axis=1), means[:, -1]
    low = np.isfinite(means) & (means <= (least + BEGINS * (level - least))[:, None])
    begins = KEPT - 1 - np.argmax(low[:, ::-1], axis=1)
    since = KEPT - begins
    whole = fit_lines(np.where(at >= begins[:, None], means, np.nan))
    newer = fit_lines(np.where(at >= (begins + since // 2)[:, None], means, np.nan)).slope
    newest = (level - means[:, -NEWEST_MEANS]) / (NEWEST_MEANS - 1)
    before = np.nan_to_num(np.where(at < begins[:, None], means, np.nan), nan=0.0).max(axis=1)
    steps = (limit - level) / np.maximum(newer, 1e-9) * BIN
    leaks = (
        (whole.filled >= LEAST_MEANS)
        & (before <= least + LEVEL_BEFORE * (level - least))
        & (whole.slope > 0.0)
        & (whole.explained >= STRAIGHT)
        & (newer >= STILL * whole.slope)
        & (newest >= STILL_NOW * whole.slope)
        & (steps <= AHEAD)
    )
    for number in np.flatnonzero(leaks).tolist():
        used = (level[number] - least[number]) / (limit - least[number])
        yield Leak(
            place=place,
            row=int(rows[number]),
            since=float(since[number] * BIN),
            used=float(used),
            steps=float(steps[number]),
            slope=float(newer[number] / BIN),
        )


# What is said of one.

MODEL, VERSION = "filling", "2"
MEMORY_LEAK = "memory_leak"
HORIZON_MS = (AHEAD + 120) * MINUTE
"""A leak that is said to be full within `AHEAD` came true if it was within two hours more (own choice)."""
WORDS = {
    "gpu_memory_used_ratio": ("memory", "显存"),
    "gpu_mig_instance_memory_used_ratio": ("memory of a MIG instance", "MIG 实例的显存"),
}


@dataclass(frozen=True, slots=True)
class LeakingGpu:
    """The metric or variant `key` of `gpu` stood at `value` when it was looked at, has grown since `since_ms`, `used`
    up that share of its room, and reaches `limit` at `eta_ms`, rising by `slope` a minute."""

    gpu: Gpu
    metric: str
    key: str
    limit: float
    value: float
    since_ms: int
    eta_ms: int
    used: float
    slope: float


def leak_statement(one: LeakingGpu, now_ms: int) -> Prediction:
    """What is said of it at `now_ms`."""
    english, chinese = WORDS[one.metric]
    gpu, since, until = where(one.gpu), to_minute(one.since_ms), to_minute(one.eta_ms)
    return Prediction(
        subject=Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool),
        target=MEMORY_LEAK,
        at_ms=now_ms,
        horizon_ms=HORIZON_MS,
        status=PredictionStatus.CROSSING,
        model=MODEL,
        model_version=VERSION,
        sentence=(
            f"{gpu}: {english} was level and has grown evenly since {since}. {one.used:.0%} of what was free then is "
            f"gone; at this rate it reaches {one.limit:.1%} at {until}."
        ),
        sentence_zh=(
            f"{gpu}：{chinese}原本平稳，自 {since} 起匀速上升，当时的空闲部分已用掉 {one.used:.0%}；"
            f"照此速度将在 {until} 达到 {one.limit:.1%}。"
        ),
        metric=one.key,
        threshold=one.limit,
        value=one.value,
        probability=min(one.used, 1.0),
        eta_ms=one.eta_ms,
        evidence=(evidence_of(one.metric, say("rises {n} an hour", n=f"{one.slope * 60:.1%}"), now_ms, one.value),),
        simulated=one.gpu.simulated,
    )
