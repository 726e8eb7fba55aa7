"""Time to threshold of temperature, thermal margin, memory and row-remap spares, GPU by GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

import numpy as np

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE, to_iso
from tocsin.domain.finding import Subject, SubjectKind, evidence_of
from tocsin.domain.metrics import METRICS as TABLE
from tocsin.domain.phrase import Phrase, say
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.trend.growth import Growth, growth
from tocsin.forecaster.trend.protocol import Forecaster, GpuHistory
from tocsin.forecaster.trend.resample import (
    MAX_POINTS,
    EvenGrid,
    Floats,
    Instants,
    Mask,
    cadence,
    frozen,
    resample,
    since_reset,
)
from tocsin.forecaster.trend.smoothing import Trend, block_gains, level_look, look, may_rise
from tocsin.forecaster.trend.statements import crossing, hours, no_crossing, reached, unknown, where
from tocsin.store.port import Series

# When does a wandering level first reach a limit? By simulated paths, the same numbers every time.

PATHS = 400
MAX_STEPS = 2 * MAX_POINTS + 20
UNCLAIMED = 0.49
"""Upper bound where no crossing is claimed."""
_SEED = 20_261_121


@dataclass(frozen=True, slots=True)
class Passage:
    """When each path reached the limit, in steps from the last grid point; infinite where it never did."""

    first: Floats

    def probability(self, steps: float) -> float:
        return float((self.first <= steps).mean())

    def quantile(self, share: float) -> float:
        """Step by which `share` of the paths have arrived; infinite where they never do."""
        return float(np.quantile(self.first, share, method="inverted_cdf"))


@cache
def _noise() -> tuple[Floats, Floats]:
    """Standard normal numbers for lines [2, PATHS] and steps [MAX_STEPS, PATHS]; never written to."""
    rng = np.random.default_rng(_SEED)
    return rng.standard_normal((2, PATHS)), rng.standard_normal((MAX_STEPS, PATHS))


def simulate(trend: Trend, limit: float) -> Passage:
    """First passage of the level through `limit` from below, over `MAX_STEPS` steps.

    Each path follows a line of its own and makes excursions around it. The lines' slope is the robust one, spread by
    its standard error; a line turns about the middle of the history, where it is known best. Excursions begin on the
    line and stay as wide as the history's noise where that is autocorrelated, so that workload swings do not grow into
    a random walk. Observation noise is left out: a limit is reached when the level is there, not when one sample is.
    """
    lines, shocks = _noise()
    turn = trend.slope_error * lines[0]
    start = trend.level + turn * trend.points / 2 + trend.noise / math.sqrt(trend.effective) * lines[1]
    drift = trend.slope + turn
    again = (trend.points - trend.effective) / (trend.points + trend.effective)
    shock = trend.noise * again * math.sqrt(1 - again * again)
    keep = math.sqrt(1 - (shock / trend.noise) ** 2) if trend.noise > 0.0 else 0.0
    offset = np.zeros(PATHS)
    levels = shock * shocks
    for row in levels:
        offset = np.add(keep * offset, row, out=row)
    levels += start + drift * np.arange(1.0, MAX_STEPS + 1)[:, None]
    there = levels >= limit
    arrived, paths = there.argmax(axis=0), np.arange(PATHS)
    level = levels[arrived, paths]
    before = np.where(arrived > 0, levels[arrived - 1, paths], trend.level)
    share = ((level - limit) / np.maximum(level - before, 1e-300)).clip(0.0, 1.0)
    first = np.where(there.any(axis=0), arrived + 1 - share, np.inf)
    return Passage(first)


def screened_probability(trend: Trend, limit: float, steps: float) -> float:
    """Chance of standing at `limit` after `steps`, without a fit; never falls with `steps`, below one half.

    A steady trend goes on with normal errors of noise and slope. Without one nothing but the recent level and the
    swings around it is known, and these do not depend on `steps`.
    """
    if trend.steady:
        width = math.hypot(trend.noise, trend.slope_error * steps)
        reach = trend.level + trend.slope * steps - limit
    else:
        width, reach = trend.swing, trend.recent - limit
    return min(NormalDist().cdf(reach / width), UNCLAIMED) if width > 0.0 else 0.0


# What is forecast: which metric, towards which threshold, in which direction.

TEMPERATURE_LIMIT = 85.0
"""Degrees Celsius; the project's own temperature threshold."""
SLOWDOWN_RESERVE = 7.0
"""Degrees below the slowdown threshold at which load should already leave a GPU."""
MEMORY_LIMIT = 0.9
"""Share of the frame buffer in use; the project's own memory threshold."""
REMAP_LIMIT = 512.0
"""Rows: DCGM's health check warns from 512 uncorrectable remapped rows on (DcgmHealthWatch, Ampere and newer)."""
MARGIN_LIMIT = 5.0
"""Degrees left to the maximum operating temperature, for parts that report a margin (Ada and newer). Throttling starts
at zero and the reported value can lag, hence the reserve."""

_SLOWDOWN = "gpu_temperature_slowdown_celsius"
LIVELY = ("gpu_power_watts", "gpu_energy_joules_total")
"""Metrics that always move on a live GPU: where they stand still, so does the telemetry."""


@dataclass(frozen=True, slots=True)
class Target:
    """`metric` going to `limit`, from below where `rising`. A `cumulative` metric only grows between resets.

    An `optional` metric is spoken of only where the GPU has it. What `fills` does so in straight lines that may stop.
    """

    metric: str
    limit: float
    rising: bool = True
    cumulative: bool = False
    optional: bool = False
    fills: bool = False

    @property
    def name(self) -> str:
        return f"time_to_threshold:{self.metric}"


_TARGETS = (
    Target("gpu_temperature_celsius", TEMPERATURE_LIMIT),
    Target("gpu_thermal_margin_celsius", MARGIN_LIMIT, rising=False, optional=True),
    Target("gpu_memory_used_ratio", MEMORY_LIMIT, fills=True),
    Target("gpu_row_remap_uncorrectable_total", REMAP_LIMIT, cumulative=True),
)

METRICS = (*(target.metric for target in _TARGETS), _SLOWDOWN, *LIVELY)
"""Everything that the forecast reads."""


def column(series: Series, metric: str) -> Floats | None:
    """Values of `metric`, float64[n] with NaN where absent; None where the series has no such metric."""
    if metric not in series.metrics:
        return None
    return np.asarray(series.values[:, series.metrics.index(metric)], np.float64)


def targets(series: Series) -> list[Target]:
    """The targets of one GPU: temperature stops at its slowdown threshold less the reserve where that is lower."""
    chosen = []
    for target in _TARGETS:
        if target.optional:
            values = column(series, target.metric)
            if values is None or not np.isfinite(values).any():
                continue
        if target.metric == "gpu_temperature_celsius":
            target = Target(target.metric, _temperature_limit(series))
        chosen.append(target)
    return chosen


def _temperature_limit(series: Series) -> float:
    slowdown = column(series, _SLOWDOWN)
    known = slowdown[np.isfinite(slowdown)] if slowdown is not None else np.empty(0)
    return min(TEMPERATURE_LIMIT, float(known[-1]) - SLOWDOWN_RESERVE) if known.size else TEMPERATURE_LIMIT


MIN_POINTS = 12
"""Fewer samples, or grid points, carry no trend with an interval."""
MIN_SPAN_MS = 30 * MINUTE
REACH, REACH_DAY = 1, 2
"""A past speaks of a future as long as itself, from a whole day on of twice that: a rise within less than a day may be
the day's own cycle."""
PARTS = (1, 2, 4, 8, 16, 32)
"""Shares of the past in which a trend is looked for, the longest first: a trend that began lately shows in none but
the last ones."""
NEWEST = 4
"""The newest part in so many must bear out the rise of the whole."""
STILL = 0.5
"""Share of its slope that a rise must keep there, within two standard errors."""
STALE_STEPS = 6
STALE_MS = 15 * MINUTE
"""The newest sample may be this old, or `STALE_STEPS` of its own cadence if that is more."""


@dataclass(frozen=True, slots=True)
class _Past:
    """Usable samples of one metric, turned so that the limit is reached from below."""

    at_ms: Instants
    values: Floats

    def since(self, start_ms: int) -> _Past:
        """The samples from `start_ms` on."""
        first = np.searchsorted(self.at_ms, start_ms)
        return _Past(self.at_ms[first:], self.values[first:])


@dataclass(frozen=True, slots=True)
class _Finding:
    grid: EvenGrid
    trend: Trend
    passage: Passage | None


class ThresholdForecaster:
    """Robust lines towards a fixed limit, and simulated paths about them.

    Each metric of each GPU stands alone, so there is nothing to learn from others. `horizon_hours` bounds how far it
    looks ahead, `coverage` is that of the interval.
    """

    name = "threshold"
    version = "1"
    metrics = METRICS

    def __init__(self, horizon_hours: float = 48.0, coverage: float = 0.8) -> None:
        self._horizon_ms = int(horizon_hours * HOUR)
        self._coverage = coverage

    def learn(self, history: Sequence[GpuHistory]) -> None:
        """Nothing: the whole model is fitted anew for each prediction."""

    def predict(self, history: Sequence[GpuHistory], now_ms: int) -> list[Prediction]:
        return [prediction for one in history for prediction in self._gpu(one, now_ms)]

    def _gpu(self, history: GpuHistory, now_ms: int) -> list[Prediction]:
        series = history.series
        keep = series.at_ms <= now_ms
        series = replace(series, at_ms=series.at_ms[keep], values=series.values[keep])
        found = [values for metric in LIVELY if (values := column(series, metric)) is not None]
        stuck = frozen(series.at_ms, np.column_stack(found)) if found else np.zeros(series.at_ms.size, np.bool_)
        return [self._target(history, target, series, stuck, now_ms) for target in targets(series)]

    def _target(self, history: GpuHistory, target: Target, series: Series, stuck: Mask, now_ms: int) -> Prediction:
        at_ms, values = series.at_ms, column(series, target.metric)
        if values is None or not np.isfinite(values).any():
            return unknown(self._blank(history, target, now_ms), say("the metric has no value"))
        present = np.flatnonzero(np.isfinite(values))
        if stuck[present[-1]]:
            moved = np.flatnonzero(~stuck[: present[-1]])
            since = to_iso(int(at_ms[moved[-1]]))
            why = say("telemetry is frozen: power and energy have not moved since {since}", since=since)
            return unknown(self._blank(history, target, now_ms), why)
        usable = present[~stuck[present]]
        past = _Past(at_ms[usable], values[usable] if target.rising else -values[usable])
        if target.cumulative:
            first = since_reset(past.values)
            past = _Past(past.at_ms[first:], past.values[first:])
        blank = self._blank(history, target, now_ms, float(values[usable[-1]]))
        reason = _lacks(past, now_ms)
        if reason is not None:
            return unknown(blank, reason)
        limit = target.limit if target.rising else -target.limit
        if target.fills:
            return self._filling(blank, past, now_ms)
        found = _examine(past, limit)
        if found is None:
            return unknown(blank, say("samples too uneven for {n} even steps", n=MIN_POINTS))
        return self._state(blank, target, found, float(past.values[-1]), limit, now_ms)

    def _filling(self, blank: Prediction, past: _Past, now_ms: int) -> Prediction:
        """What is said of memory: of a level that holds, that it does, and no probability."""
        limit, end_ms = blank.threshold or 0.0, int(past.at_ms[-1])
        span, step_ms = end_ms - int(past.at_ms[0]), cadence(past.at_ms)
        reach_ms = reach_of(span, step_ms)
        grows = growth(past.at_ms, past.values, limit) if past.values[-1] < limit else None
        if isinstance(grows, Phrase):
            return unknown(blank, grows)
        if grows is not None:
            return self._growing(blank, grows, end_ms, step_ms, reach_ms, now_ms)
        holds = say("no growth at the end of the last {span}", span=hours(span))
        evidence = (evidence_of(blank.metric, holds, end_ms, blank.value),)
        made = replace(blank, horizon_ms=min(self._horizon_ms, reach_ms), evidence=evidence)
        return no_crossing(made) if past.values[-1] < limit else reached(made)

    def _growing(
        self, blank: Prediction, grows: Growth, end_ms: int, step_ms: int, reach_ms: int, now_ms: int
    ) -> Prediction:
        """What is said of memory that grows, read each `step_ms` to `end_ms`: up to twice the time that it needs."""
        wanted = max(HOUR, end_ms - now_ms + round(2 * grows.quantile(0.5)))
        horizon = min(self._horizon_ms, reach_ms, wanted)
        chance = grows.comes_within(now_ms + horizon - end_ms)
        said = evidence_of(blank.metric, _pace(blank, grows.slope, end_ms - grows.since_ms), end_ms, blank.value)
        made = replace(blank, horizon_ms=horizon, evidence=(said,), probability=chance)
        if chance < 0.5:
            return no_crossing(made)
        low, high = grows.ends(self._coverage, step_ms)
        low_ms, high_ms = end_ms + round(low), end_ms + round(high) if math.isfinite(high) else None
        return crossing(
            made,
            eta_ms=max(now_ms, end_ms + round(grows.quantile(0.5))),
            low_ms=max(now_ms, low_ms),
            high_ms=max(now_ms, high_ms) if high_ms is not None and high_ms <= now_ms + horizon else None,
        )

    def _blank(self, history: GpuHistory, target: Target, now_ms: int, value: float | None = None) -> Prediction:
        gpu = history.gpu
        return Prediction(
            subject=Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool),
            target=target.name,
            at_ms=now_ms,
            horizon_ms=self._horizon_ms,
            status=PredictionStatus.NO_CROSSING,
            model=self.name,
            model_version=self.version,
            sentence=f"{where(gpu)}: {target.metric}",
            metric=target.metric,
            value=value,
            threshold=target.limit,
            coverage=self._coverage,
            simulated=gpu.simulated,
        )

    def _state(
        self, blank: Prediction, target: Target, found: _Finding, newest: float, limit: float, now_ms: int
    ) -> Prediction:
        grid, trend = found.grid, found.trend
        horizon = min(self._horizon_ms, _reach(grid))
        said = _pace(blank, trend.slope / grid.step_ms, grid.span_ms, target.rising)
        evidence = evidence_of(target.metric, said, grid.end_ms, blank.value)
        if newest >= limit:
            return reached(replace(blank, horizon_ms=horizon, evidence=(evidence,)))
        age = now_ms - grid.end_ms
        steps = (horizon + age) / grid.step_ms
        passage = found.passage
        chance = passage.probability(steps) if passage else screened_probability(trend, limit, steps)
        made = replace(blank, horizon_ms=horizon, evidence=(evidence,), probability=min(max(chance, 0.0), 1.0))
        if passage is None or chance < 0.5:
            return no_crossing(made)
        low, mid, high = (
            passage.quantile(share) for share in ((1 - self._coverage) / 2, 0.5, (1 + self._coverage) / 2)
        )
        return crossing(
            made,
            eta_ms=max(now_ms, _instant(grid, mid)),
            low_ms=max(now_ms, _instant(grid, low)),
            high_ms=max(now_ms, _instant(grid, high)) if high <= steps else None,
        )


def _pace(blank: Prediction, slope: float, span_ms: int, rising: bool = True) -> Phrase:
    """`slope` a millisecond over `span_ms`, in words."""
    rise = f"{slope * HOUR:.3g} {TABLE[blank.metric].unit}/h"
    template = "rises {pace} over the last {span}" if rising else "falls {pace} over the last {span}"
    return say(template, pace=rise, span=hours(span_ms))


def _lacks(past: _Past, now_ms: int) -> Phrase | None:
    """Why `past` carries no forecast; None where it does."""
    if past.at_ms.size < MIN_POINTS:
        return say("{n} usable samples, {needed} needed", n=past.at_ms.size, needed=MIN_POINTS)
    span = int(past.at_ms[-1] - past.at_ms[0])
    if span < MIN_SPAN_MS:
        return say("samples span {span}, {needed} needed", span=hours(span), needed=hours(MIN_SPAN_MS))
    allowed = max(STALE_MS, STALE_STEPS * cadence(past.at_ms))
    if now_ms - past.at_ms[-1] > allowed:
        age = hours(int(now_ms - past.at_ms[-1]))
        return say("the newest usable sample is {age} old, {allowed} allowed", age=age, allowed=hours(allowed))
    return None


def _examine(past: _Past, limit: float) -> _Finding | None:
    """Look for a trend in the whole past, then in its last half, quarter and so on: the first that arrives, more likely
    than not, as far ahead as its past reaches.

    Which one that is does not depend on the horizon, so that a longer one never lowers a probability. None where the
    samples are too uneven for a grid.
    """
    whole: _Finding | None = None
    span = int(past.at_ms[-1] - past.at_ms[0])
    for part in PARTS:
        recent = past.since(past.at_ms[-1] - span // part)
        values = recent.values
        if values.size < MIN_POINTS or (part > 1 and span // part < MIN_SPAN_MS):
            break
        if whole is not None and values.min() == values.max():
            break  # what stands still does not rise in any shorter part either
        grid = resample(recent.at_ms, values)
        if grid.values.size < MIN_POINTS:
            break
        gains = block_gains(grid.values)
        rises = may_rise(gains)
        if whole is not None and not rises:
            continue
        trend = look(grid.values) if rises else level_look(grid.values, gains)
        whole = whole or _Finding(grid, trend, None)
        ahead = _reach(grid) / grid.step_ms
        arrives = trend.level + trend.noise + trend.slope * ahead >= limit
        if trend.steady and arrives and not _stopped(past, part, span, trend.slope / grid.step_ms):
            passage = simulate(trend, limit)
            if passage.probability(ahead) >= 0.5:
                return _Finding(grid, trend, passage)
    return whole


def _stopped(past: _Past, part: int, span: int, slope: float) -> bool:
    """Whether the newest quarter of the part, or half an hour, shows that a rise of `slope` a millisecond has ended:
    what filled up and holds its level goes nowhere."""
    newest_ms = min(max(span // part // NEWEST, MIN_SPAN_MS), span)
    newest = past.since(past.at_ms[-1] - newest_ms)
    grid = resample(newest.at_ms, newest.values)
    if grid.values.size < MIN_POINTS:
        return False
    now = look(grid.values)
    return (now.slope + 2 * now.slope_error) / grid.step_ms < STILL * slope


def _reach(grid: EvenGrid) -> int:
    """How far ahead, in milliseconds, the past on `grid` says anything."""
    return reach_of(grid.span_ms, grid.step_ms)


def reach_of(span_ms: int, step_ms: int) -> int:
    """How far ahead, in milliseconds, a past of `span_ms` with a sample each `step_ms` says anything."""
    return span_ms * (REACH_DAY if span_ms >= DAY - 2 * step_ms else REACH)


def _instant(grid: EvenGrid, steps: float) -> int:
    return grid.end_ms + round(steps * grid.step_ms)


def build(settings: ForecastSettings) -> Forecaster:
    """The model as the settings want it."""
    return ThresholdForecaster(settings.horizon_hours, settings.coverage)
