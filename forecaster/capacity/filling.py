"""Growth without a plateau: when will memory be full, or free memory lie in pieces?

Many series at once, on an even grid of time. A straight line is fitted to the newest part of each, of several lengths;
it speaks where it rises by more than noise and ripples do, and still rises in its newer half. What filled up after a
start and stays has a plateau, and a jump is a new job, not a trend. Memory that has grown since its process began, or
since it was first seen, says nothing: a cache that fills and holds looks like a leak until it has come to its level.

The probability of a statement is the share of its way that the growth was seen to go. That orders statements and is no
chance yet: the record of the kind makes it one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.finding import Subject, SubjectKind, evidence_of
from tocsin.domain.metrics import split_variant
from tocsin.domain.number_row import Names, shape_of
from tocsin.domain.phrase import say
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity.leak import MODEL, VERSION, WORDS, Leak, LeakingGpu, LeakWatch, leak_statement
from tocsin.forecaster.trend.lines import Floats, fit_lines
from tocsin.forecaster.trend.statements import where
from tocsin.store.identity import is_bare
from tocsin.store.port import Columns

STEP_MS = MINUTE
WINDOWS = (8, 12, 20, 40, 80, 160)
"""Steps looked at (own choice): leaks take 2 to 12 hours, holes between tensors open within the hour."""
PAST = max(WINDOWS)
"""Steps that are looked at at most."""
JUMP = 0.08
"""Change of a share within a step that no growth makes: another job, another process."""
GAP = 3
"""Steps without a value that end what was: another process may have begun meanwhile."""
LEAST_RISE = 0.012
"""Rise over a window, as a share of the whole, below which nothing is said."""
SIGNIFICANCE = 6.0
"""Slope over its standard error: tens of thousands of windows are looked at every day."""
STILL = 0.5
"""Share of its slope that a line must keep in its newer half."""
NEWEST = 5
"""Newest steps, which must not show that the rise has ended."""
FLAT_STEPS = 4
FLAT = 0.003
"""What filled up from its start has come to its level once it rose by less over so many steps (own choice)."""
LEAST_FILLED = 0.75
"""Share of a window's steps that must have a value."""
STEEPEST = 2.1
"""Rise over a window of the steepest line through values that differ by one at most: 1.5 where all are there, 2.06
where the first and the last of eight are missing."""
BEYOND = 1.0
"""How far above all its values such a line ends at most; 0.71 where a quarter of 160 is missing."""


@dataclass(frozen=True, slots=True)
class FillLimit:
    """`limit` is where it hurts, `ahead_steps` how far ahead a crossing is said to come."""

    metric: str
    limit: float
    ahead_steps: int


MEMORY = FillLimit("gpu_memory_used_ratio", 0.985, 20)
"""An allocation fails before the last hundredth is used (own choice)."""
INSTANCE = FillLimit("gpu_mig_instance_memory_used_ratio", 0.985, 20)
HOLES = FillLimit("gpu_allocator_external_fragmentation_ratio", 0.30, 30)
"""The product's limit of fragmentation."""
LAYOUT = FillLimit("gpu_mig_fragmentation_ratio", 0.30, 0)
LAYOUT_HORIZON_MS = 8 * HOUR
"""A layout that has begun to decay is said to pass its limit within this, and when is not known (own choice)."""
STEP_UP = 0.01
"""Rise of a layout's index above the least of its past: layouts change in steps, so that there is no line to fit."""


@dataclass(frozen=True, slots=True)
class FillOutlook:
    """Of each series: steps until the limit is reached (infinite: no such growth), fitted level, rise a step, and the
    share of its way to the limit that the line has been watched for (0 to 1): what was seen for long goes on."""

    steps: Floats
    level: Floats
    slope: Floats
    seen: Floats


def outlook(values: Floats, limit: float, within: float = math.inf) -> FillOutlook:
    """`values` float64[n, t] on an even grid, the newest last, NaN where missing: shares of a whole. What is further
    than `within` steps away may be left out."""
    count = len(values)
    newest = _since_jump(values[:, -PAST:])
    width, before = newest.shape[1], 0
    highest, lowest = np.full(count, np.nan), np.full(count, np.nan)
    steps, level, slope = np.full(count, np.inf), np.full(count, np.nan), np.zeros(count)
    seen = np.zeros(count)
    for window in WINDOWS:
        if window > width:
            break
        further, before = newest[:, width - window : width - before], window
        highest = np.fmax(highest, np.fmax.reduce(further, axis=1))
        lowest = np.fmin(lowest, np.fmin.reduce(further, axis=1))
        rows = np.flatnonzero(_may_arrive(highest, lowest, limit, within / window))
        if not rows.size:
            continue
        found = _line(newest[rows, -window:], window)
        ahead = np.where(found.rises, (limit - found.level) / np.where(found.rises, found.slope, 1.0), np.inf)
        ahead = np.maximum(ahead, 0.0)
        nearer = ahead < steps[rows]
        put = rows[nearer]
        steps[put], seen[put] = ahead[nearer], (window / (window + ahead))[nearer]
        level[put], slope[put] = found.level[nearer], found.slope[nearer]
    return FillOutlook(steps, level, slope, seen)


def stepped_up(values: Floats) -> npt.NDArray[np.bool_]:
    """Which series [n, t] stand above the least of their past, at the newest step."""
    known = np.isfinite(values)
    least = np.where(known, values, np.inf).min(axis=1)
    return np.asarray(known[:, -1] & (values[:, -1] - least >= STEP_UP))


def still_starting(values: Floats, before: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which series [..., t] have grown ever since their process began, at the newest step.

    One began where the value jumped, up or down from what another held, and has come to its level once it stayed flat.
    `before` is the answer a step earlier.
    """
    if values.shape[-1] <= FLAT_STEPS:
        return before
    began = np.nan_to_num(np.abs(values[..., -1] - values[..., -2]), nan=0.0) > JUMP
    return np.asarray(began | (before & ~_flat(values)))


def still_unknown(values: Floats, before: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which series [..., t] have grown ever since they were first seen, at the newest step: each may be one that
    starts. What was watched for all of `t` steps is known. `before` is the answer a step earlier."""
    if values.shape[-1] <= FLAT_STEPS:
        return before
    return np.asarray(before & ~_flat(values) & np.isnan(values[..., 0]))


def _flat(values: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(values[..., -1] - values[..., -1 - FLAT_STEPS]) < FLAT)


def _since_jump(values: Floats) -> Floats:
    """The same without what lies before the last jump or gap."""
    broken = np.zeros(values.shape, np.bool_)
    broken[:, :-1] = np.abs(np.diff(values, axis=1)) > JUMP
    missing = np.isnan(values)
    gap = np.ones_like(missing[:, GAP - 1 :])
    for back in range(GAP):
        gap &= missing[:, back : back + gap.shape[1]]
    broken[:, GAP - 1 :] |= gap
    rows = np.flatnonzero(broken.any(axis=1))
    if not rows.size:
        return values
    after = np.logical_or.accumulate(broken[rows, ::-1], axis=1)[:, ::-1]
    since = values.copy()
    since[rows] = np.where(after, np.nan, values[rows])
    return since


def _may_arrive(highest: Floats, lowest: Floats, limit: float, windows: float) -> npt.NDArray[np.bool_]:
    """Through which series, whose values lie between `lowest` and `highest`, a line may go that rises by `LEAST_RISE`
    and is at `limit` after `windows` times as many steps as they have."""
    differ = highest - lowest
    rises = STEEPEST * differ >= LEAST_RISE
    if windows < math.inf:
        rises &= highest + (BEYOND + STEEPEST * windows) * differ >= limit
    return np.asarray(rises)


@dataclass(frozen=True, slots=True)
class _Line:
    level: Floats
    slope: Floats
    rises: npt.NDArray[np.bool_]


def _line(values: Floats, window: int) -> _Line:
    """The line through each series; its newer half and its end are looked at where the whole rises."""
    whole = fit_lines(values)
    rises = (
        (whole.filled >= LEAST_FILLED * window)
        & np.isfinite(values[:, -1])
        & (whole.slope * window >= LEAST_RISE)
        & (whole.slope >= SIGNIFICANCE * whole.error)
    )
    rows = np.flatnonzero(rises)
    if rows.size:
        some, slope = values[rows], whole.slope[rows]
        newest = fit_lines(some[:, -NEWEST:])
        goes_on = fit_lines(some[:, window // 2 :]).slope >= STILL * slope
        rises[rows] = goes_on & (newest.slope + 2.0 * newest.error >= STILL * slope)
    return _Line(whole.level, whole.slope, rises)


# The same for a running service: fed with every batch, it keeps the newest hours and says what fills up.

NAME = MODEL
AT_ONCE = 1_000
"""Rows that are worked on at once: what that takes beside them is as much as they are, several times."""
IN_A_ROW = 2
"""Minutes in a row that must say so before it is said."""
LATE_MS = 2 * MINUTE
"""How far a reading's instant may lie from when it came in (own choice: clocks, batches and retries take seconds)."""
OUT_OF_MEMORY, FRAGMENTATION = "out_of_memory", "fragmentation"
_WORDS = WORDS | {
    HOLES.metric: ("allocator fragmentation", "分配器碎片率"),
    LAYOUT.metric: ("MIG fragmentation", "MIG 碎片率"),
}
_TARGETS = {MEMORY: OUT_OF_MEMORY, INSTANCE: OUT_OF_MEMORY, HOLES: FRAGMENTATION, LAYOUT: FRAGMENTATION}
_MEMORY = (MEMORY, INSTANCE)
"""The first of `_TARGETS`."""
_PLACE = {limit.metric: place for place, limit in enumerate(_TARGETS)}
WATCHED = tuple(_PLACE)
"""Metrics that are looked at, and their variants."""
RECALLED = (MEMORY.metric, LAYOUT.metric)
"""Plain metrics, whose past a store gives back by name."""


class FillingWatch:
    """Rows of the newest `PAST` minutes for every GPU that is known. Safe to use from several threads.

    A value stands in the minute in which it came in; of several of a GPU within a minute the last counts, of several
    processes or instances the fullest. A reading whose instant is more than `LATE_MS` away is left out: it tells
    nothing of now, and a clock that is wrong on one node must not move the others' minutes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: list[Gpu] = []
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._kept: list[Floats] = [_unseen(0) for _ in _TARGETS]
        self._keys: list[list[str]] = []
        # Names with those of processes are a GPU's own, and the same from one reading to the next.
        self._watched: dict[int, tuple[tuple[Names | None, int], tuple[tuple[int, str], ...]]] = {}
        self._said = np.zeros((len(_TARGETS), 0), np.int64)
        self._starting = np.zeros((len(_TARGETS), 0), np.bool_)
        self._unknown = np.zeros((len(_TARGETS), 0), np.bool_)
        self._step: int | None = None
        self._found: list[_Filling] = []
        self._leaks = LeakWatch(tuple(limit.limit for limit in _MEMORY))
        self._leaking: dict[Leak, LeakingGpu] = {}
        self._stated: dict[tuple[str, str], Prediction] = {}

    def recall(self, columns: Columns, gpus: Sequence[Gpu], now_ms: int) -> None:
        """Take up the past of the metrics in `columns` after a start; variants have none, and begin anew."""
        with self._lock:
            self._go_on(now_ms // STEP_MS)
            rows = {gpu.uuid: self._row(gpu) for gpu in gpus if not gpu.is_mig}
            if not rows:
                return
            known = np.array([rows.get(uuid, -1) for uuid in columns.gpus], np.int64)
            age = now_ms // STEP_MS - columns.at_ms // STEP_MS
            row = known[columns.gpu] if known.size else np.zeros(0, np.int64)
            inside = (row >= 0) & (age >= 0) & (age < PAST)
            for column, metric in enumerate(columns.metrics):
                if metric in _PLACE:
                    there = inside & np.isfinite(columns.values[:, column])
                    if there.any():
                        kept = self._writable(_PLACE[metric])
                        kept[row[there], PAST - 1 - age[there]] = columns.values[there, column]
            for back in range(PAST - FLAT_STEPS, IN_A_ROW, -1):
                self._watch_starts(self._until(back))
                self._watch_leaks(self._until(back), now_ms // STEP_MS - back)
            for back in range(IN_A_ROW, 0, -1):
                self._close(self._until(back), now_ms // STEP_MS - back)

    def take(self, readings: Sequence[Reading], now_ms: int) -> None:
        with self._lock:
            self._go_on(now_ms // STEP_MS)
            for reading in sorted(readings, key=lambda one: one.at_ms):
                if abs(reading.at_ms - now_ms) <= LATE_MS and not reading.gpu.is_mig:
                    row = self._row(reading.gpu)
                    for place, (value, key) in self._values(row, reading).items():
                        self._writable(place)[row, -1], self._keys[row][place] = value, key

    def forget(self, gpus: Iterable[Gpu]) -> None:
        """These GPUs are known no longer: their rows are for those that come next."""
        with self._lock:
            rows = [self._numbers.pop(gpu.uuid) for gpu in gpus if gpu.uuid in self._numbers]
            if not rows:
                return
            self._begin_anew(rows)
            self._free += rows
            self._found = [one for one in self._found if one.gpu.uuid in self._numbers]

    def _begin_anew(self, rows: Sequence[int]) -> None:
        for kept in self._kept:
            if kept.flags.writeable:
                kept[rows] = np.nan
        self._said[:, rows], self._starting[:, rows], self._unknown[:, rows] = 0, False, True
        for row in rows:
            self._keys[row] = [limit.metric for limit in _TARGETS]
            self._watched.pop(row, None)
        self._leaks.forget(rows)
        gone = set(rows)
        self._leaking = {leak: one for leak, one in self._leaking.items() if leak.row not in gone}

    def _values(self, row: int, reading: Reading) -> dict[int, tuple[float, str]]:
        """The largest value of each watched metric that the reading has, and its key, by place."""
        shape, known = shape_of(reading.values), self._watched.get(row)
        if known is None or known[0] != shape:
            known = self._watched[row] = (shape, _watched(tuple(reading.values)))
        largest: dict[int, tuple[float, str]] = {}
        for place, key in known[1]:
            value = reading.values.get(key)
            if value is not None and (place not in largest or value > largest[place][0]):
                largest[place] = (value, key)
        return largest

    def predictions(self, now_ms: int) -> list[Prediction]:
        """What is expected to fill up by the newest minute that is over, a statement for each GPU and target. Of the
        others nothing is said, but once that what was said is void."""
        with self._lock:
            self._go_on(now_ms // STEP_MS)
            leaking = [self._leaking[leak] for leak in self._leaks.found]
            made = [_statement(one, now_ms) for one in self._found] + [
                leak_statement(one, now_ms) for one in _soonest(leaking) if one.eta_ms > now_ms
            ]
            return made + self._given_back(made, now_ms)

    def _given_back(self, made: Sequence[Prediction], now_ms: int) -> list[Prediction]:
        """That what was said before, and is not in `made`, is void: its job has ended or given back what it held. What
        only stops growing keeps its statement to the instant that it named: it may go on."""
        said, self._stated = self._stated, {(one.subject.name, one.target): one for one in made}
        found = []
        for key, one in said.items():
            row = self._numbers.get(one.subject.name)
            if key in self._stated or row is None or now_ms > one.at_ms + one.horizon_ms:
                continue
            value = self._newest(_PLACE[split_variant(one.metric)[0]], row)
            if value < (one.value or 0.0) - JUMP:
                found.append(_void(one, self._gpus[row], value, now_ms))
            else:
                self._stated[key] = one
        return found

    def _newest(self, place: int, row: int) -> float:
        """The newest value of the last minutes; NaN where there is none."""
        values = self._kept[place][row, -GAP:]
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else math.nan

    def _go_on(self, step: int) -> None:
        passed = 0 if self._step is None else min(max(step - self._step, 0), PAST)
        # Whoever read the clock just before the minute turned comes a minute late; only a clock set back goes back.
        if self._step is None or step != self._step - 1:
            self._step = step
        if not passed:
            return
        self._close(self._kept, step - passed)
        if passed > 1:  # a minute without a value ends every row of minutes
            self._said[:] = 0
            self._found = []
            self._leaks.skip(passed - 1)
        for kept in self._kept:
            if kept.flags.writeable:
                for first in range(0, len(kept), AT_ONCE):
                    some = kept[first : first + AT_ONCE]
                    some[:, :-passed] = some[:, passed:].copy()
                kept[:, -passed:] = np.nan

    def _until(self, back: int) -> list[Floats]:
        """What was kept, without the newest `back` minutes."""
        return [kept[:, :-back] for kept in self._kept]

    def _writable(self, place: int) -> Floats:
        """What is kept of a metric; nothing before there is any, as in fleets without instances and allocators."""
        if not self._kept[place].flags.writeable:
            self._kept[place] = np.full(self._kept[place].shape, np.nan)
        return self._kept[place]

    def _row(self, gpu: Gpu) -> int:
        row = self._numbers.get(gpu.uuid)
        if row is None and self._free:
            row = self._numbers[gpu.uuid] = self._free.pop()
            self._gpus[row] = gpu
        elif row is None:
            row = self._numbers[gpu.uuid] = len(self._gpus)
            self._gpus.append(gpu)
            self._keys.append([limit.metric for limit in _TARGETS])
            if row == self._said.shape[1]:
                more = max(64, row // 4)  # so that a fleet that introduces itself is not copied for each GPU
                self._kept = [_longer(kept, more) for kept in self._kept]
                self._said = np.concatenate([self._said, np.zeros((len(_TARGETS), more), np.int64)], axis=1)
                self._starting = np.concatenate([self._starting, np.zeros((len(_TARGETS), more), np.bool_)], axis=1)
                self._unknown = np.concatenate([self._unknown, np.ones((len(_TARGETS), more), np.bool_)], axis=1)
        elif not is_bare(gpu):
            self._gpus[row] = gpu  # it may have moved, or have been known by its UUID alone
        return row

    def _close(self, kept: Sequence[Floats], step: int) -> None:
        """The newest minute of `kept`, number `step`, is over: what has been due for `IN_A_ROW` minutes is said."""
        found: dict[tuple[int, str], _Filling] = {}
        self._watch_starts(kept)
        self._watch_leaks(kept, step)
        leaks = {(leak.place, leak.row): leak.used for leak in self._leaks.found}
        for place, (limit, target) in enumerate(_TARGETS.items()):
            told = _due(kept[place], limit)
            # A cache that fills from its process' start on is no leak: it holds where it was made to.
            fills = self._starting[place] | self._unknown[place] if target == OUT_OF_MEMORY else np.zeros_like(told.due)
            self._said[place] = np.where(told.due & ~fills, self._said[place] + 1, 0)
            for row in np.flatnonzero(self._said[place] >= IN_A_ROW).tolist():
                one = _Filling(
                    gpu=self._gpus[row],
                    limit=limit,
                    target=target,
                    key=self._keys[row][place],
                    value=float(kept[place][row, -1]),
                    steps=float(told.steps[row]),
                    slope=float(told.slope[row]),
                    gone=max(float(told.gone[row]), leaks.get((place, row), 0.0)),
                )
                found.setdefault((row, target), one)
        self._found = list(found.values())

    def _watch_starts(self, kept: Sequence[Floats]) -> None:
        for place, values in enumerate(kept):
            self._starting[place] = still_starting(values, self._starting[place])
            self._unknown[place] = still_unknown(values, self._unknown[place])

    def _watch_leaks(self, kept: Sequence[Floats], step: int) -> None:
        of_memory = slice(0, len(_MEMORY))
        newest = np.stack([values[:, -1] for values in kept[of_memory]])
        self._leaks.close(newest, (self._starting | self._unknown)[of_memory])
        known, at_ms = self._leaking, (step + 1) * STEP_MS
        self._leaking = {leak: known.get(leak) or self._leaking_gpu(leak, kept, at_ms) for leak in self._leaks.found}

    def _leaking_gpu(self, leak: Leak, kept: Sequence[Floats], at_ms: int) -> LeakingGpu:
        """`leak` of a look that ended at `at_ms`."""
        return LeakingGpu(
            gpu=self._gpus[leak.row],
            metric=_MEMORY[leak.place].metric,
            key=self._keys[leak.row][leak.place],
            limit=_MEMORY[leak.place].limit,
            value=float(kept[leak.place][leak.row, -1]),
            since_ms=at_ms - round(leak.since) * MINUTE,
            eta_ms=at_ms + round(leak.steps * MINUTE),
            used=leak.used,
            slope=leak.slope,
        )


def _unseen(rows: int) -> Floats:
    """float64[rows, PAST] without a value, in no memory; not to be written to."""
    return np.broadcast_to(np.float64(np.nan), (rows, PAST))


def _longer(kept: Floats, more: int) -> Floats:
    """`kept` with `more` rows that have no value yet."""
    if not kept.flags.writeable:
        return _unseen(len(kept) + more)
    return np.concatenate([kept, np.full((more, PAST), np.nan)])


def _soonest(leaking: Sequence[LeakingGpu]) -> list[LeakingGpu]:
    """One of each GPU, whose instance fills up before the whole of it does."""
    first: dict[str, LeakingGpu] = {}
    for one in sorted(leaking, key=lambda one: one.eta_ms):
        first.setdefault(one.gpu.uuid, one)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class _Filling:
    """One that fills up: the metric or variant `key` stands at `value` and reaches the limit in `steps` (NaN: not
    known), rising by `slope` a step; `gone` is the share of its way there that it was seen to go."""

    gpu: Gpu
    limit: FillLimit
    target: str
    key: str
    value: float
    steps: float
    slope: float
    gone: float


def _watched(keys: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Places and keys of the watched metrics and variants among `keys`."""
    named = ((split_variant(key)[0], key) for key in keys if key.startswith(WATCHED))
    return tuple((_PLACE[name], key) for name, key in named if name in _PLACE)


@dataclass(frozen=True, slots=True)
class _Due:
    """By row: whether it is to be warned of, in how many minutes (NaN: not known), how fast it rises, and the share of
    its way that it was seen to go."""

    due: npt.NDArray[np.bool_]
    steps: Floats
    slope: Floats
    gone: Floats


def _due(values: Floats, limit: FillLimit) -> _Due:
    newest = values[:, -1]
    below = np.isfinite(newest) & (newest < limit.limit)
    due, steps, slope = below.copy(), np.full(len(values), np.nan), np.full(len(values), np.nan)
    gone = np.ones(len(values))  # a step of a layout tells all there is: it does not mend by itself
    rows = np.flatnonzero(below)
    if limit is LAYOUT:
        due[rows] = stepped_up(values[rows])
    else:
        for first in range(0, rows.size, AT_ONCE):
            some = rows[first : first + AT_ONCE]
            told = outlook(values[some], limit.limit, limit.ahead_steps)
            due[some] = told.steps <= limit.ahead_steps
            steps[some], slope[some], gone[some] = told.steps, told.slope, told.seen
    return _Due(due, steps, slope, gone)


def _void(said: Prediction, gpu: Gpu, value: float, now_ms: int) -> Prediction:
    """That what was `said` holds no more; no claim that it will not fill up."""
    english, chinese = _WORDS[split_variant(said.metric)[0]]
    at = to_minute(now_ms)
    return replace(
        said,
        at_ms=now_ms,
        status=PredictionStatus.NO_CROSSING,
        sentence=f"{where(gpu)}: {english} was given back ({value:.1%} at {at}): what was said of its growth is over.",
        sentence_zh=f"{where(gpu)}：{chinese}已回落（{at} 为 {value:.1%}），此前的增长预测已失效。",
        threshold=None,
        value=value,
        probability=None,
        raw=None,
        eta_ms=None,
        evidence=(),
    )


def _statement(one: _Filling, now_ms: int) -> Prediction:
    english, chinese = _WORDS[one.limit.metric]
    limit, value, gpu = one.limit.limit, one.value, where(one.gpu)
    eta_ms = None if np.isnan(one.steps) else now_ms + round(one.steps * STEP_MS)
    if eta_ms is None:
        seen = f"{value:.1%} at {to_minute(now_ms)}"
        text = f"{gpu}: {english} has begun to grow ({seen}; from {limit:.0%} on larger instances stay out)."
        text_zh = (
            f"{gpu}：{chinese}开始上升（{to_minute(now_ms)} 为 {value:.1%}）；超过 {limit:.0%} 后较大的实例将无法创建。"
        )
    else:
        text = f"{gpu}: {english} grows without a plateau and reaches {limit:.1%} at {to_minute(eta_ms)}."
        text_zh = f"{gpu}：{chinese}持续上升、没有平台，预计在 {to_minute(eta_ms)} 达到 {limit:.1%}。"
    rise = say("rises in steps") if np.isnan(one.slope) else say("rises {n} an hour", n=f"{one.slope * 60:.1%}")
    return Prediction(
        subject=Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool),
        target=one.target,
        at_ms=now_ms,
        horizon_ms=one.limit.ahead_steps * STEP_MS or LAYOUT_HORIZON_MS,
        status=PredictionStatus.CROSSING,
        model=NAME,
        model_version=VERSION,
        sentence=text,
        sentence_zh=text_zh,
        metric=one.key,
        threshold=limit,
        value=value,
        probability=min(one.gone, 1.0),
        eta_ms=eta_ms,
        evidence=(evidence_of(one.limit.metric, rise, now_ms, value),),
        simulated=one.gpu.simulated,
    )
