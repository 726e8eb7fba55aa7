"""Where to set an alarm without a single label: by how many episodes of alarm the trailing days would have held."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.anomaly.detector import Detector, DetectorSettings, Scores, learn
from tocsin.forecaster.features.examples import Floats, Ints, Mask

MERGE_MS = HOUR
"""Alarms at most so far apart are one episode."""
HIGHEST = 0.2
"""An alarm is never set so low that a greater share of the past lies above it (own choice)."""
TRIED = 400
"""Levels that are tried, closer together where alarms are rare."""
LEAST = 1.0
"""Lowest alarm, in usual scores: below it all is as usual."""
FOLDS = 4
TRAILING_DAYS = 28.0
"""Days before an instant that set its level: four weeks hold what a week repeats (own choice)."""
PER_DAY = 2.0
"""Episodes of alarm a day that the trailing days may hold: one false one, and as many true ones (own choice)."""
MOST_TIME = 0.01
"""Share of the trailing days that may lie above the level: half of what quiet time in alarm is allowed. A score that
has stuck above it raises it, so that no alarm stays on for good."""
RENEWED_MS = DAY
"""How often the level is set anew."""


def episodes(alarm: Mask, step_ms: int, merge_ms: int = MERGE_MS) -> list[tuple[int, int]]:
    """First and last row of each episode of `alarm` [n] on an even grid."""
    rows = np.flatnonzero(alarm)
    if rows.size == 0:
        return []
    cut = np.flatnonzero(np.diff(rows) * step_ms > merge_ms)
    first, last = np.append(0, cut + 1), np.append(cut, rows.size - 1)
    return list(zip(rows[first].tolist(), rows[last].tolist(), strict=True))


def alarm_level(score: Floats, step_ms: int, per_day: float) -> float:
    """The lowest level above which `score` [n] has at most `per_day` episodes a day, going down from its maximum until
    that is exceeded for the first time: far below, episodes run together and their number means nothing. NaN is no
    alarm. A past without any variation gives `LEAST`, which is also the least."""
    known = score[np.isfinite(score)]
    if known.size == 0:
        return LEAST
    falling = np.sort(known)[::-1]
    level = float(falling[0])
    days = score.size * step_ms / DAY
    above = np.nan_to_num(score, nan=-np.inf)
    for place in _places(falling.size):
        if len(episodes(above > falling[place], step_ms)) > per_day * days:
            break
        level = float(falling[place])
    return max(level, LEAST)


def trailing_levels(
    past: Floats,
    score: Floats,
    step_ms: int,
    *,
    per_day: float = PER_DAY,
    days: float = TRAILING_DAYS,
    most_time: float = MOST_TIME,
) -> Floats:
    """float64[k]: the level of each row of `score` [k], which goes on from `past` [n] on the same grid.

    It is set anew every `RENEWED_MS` from the `days` before, by `alarm_level`, and never so low that more than the
    share `most_time` of those lies above it. Nothing at or after a row decides its level, and no label does.
    """
    whole = np.concatenate([past, score])
    span, every = max(1, round(days * DAY / step_ms)), max(1, RENEWED_MS // step_ms)
    out = np.empty(score.size)
    for begin in range(0, score.size, every):
        now = past.size + begin
        behind = whole[max(0, now - span) : now]
        known = behind[np.isfinite(behind)]
        capped = float(np.quantile(known, 1.0 - most_time)) if known.size else LEAST
        out[begin : begin + every] = max(alarm_level(behind, step_ms, per_day), capped)
    return out


def _places(size: int) -> Ints:
    last = max(1, int(size * HIGHEST))
    return np.unique(np.geomspace(1, last, TRIED).astype(np.int64)) - 1


def held_out(values: Floats, step_ms: int, settings: DetectorSettings | None = None, folds: int = FOLDS) -> Scores:
    """Score each of `folds` stretches of `values` [n, m] by a detector that learnt from the others, so that the level
    of an alarm is set on what was not learnt. Raises NotEnoughData for a past that is too short for it."""
    edges = np.linspace(0, len(values), folds + 1).astype(int)
    parts = [
        learn(np.concatenate([values[:first], values[last:]]), step_ms, settings).score(values[first:last])
        for first, last in pairwise(edges)
    ]
    return Scores(np.concatenate([part.pulse for part in parts]), np.concatenate([part.state for part in parts]))


@dataclass(frozen=True, slots=True)
class Watch:
    """A detector, with what it said of a past that it had not learnt from: `calm` float64[n]."""

    detector: Detector
    calm: Floats
    per_day: float

    def alarm(self, values: Floats) -> Mask:
        """Whether each row of float64[k, m] `values`, which go on from the past, is an alarm by its trailing days."""
        pulse = self.detector.score(values).pulse
        levels = trailing_levels(self.calm, pulse, self.detector.step_ms, per_day=self.per_day)
        return np.asarray(np.nan_to_num(pulse, nan=-np.inf) > levels)


def watch(values: Floats, step_ms: int, per_day: float = PER_DAY, settings: DetectorSettings | None = None) -> Watch:
    """Learn from `values` [n, m] and alarm at the level at which the trailing days held at most `per_day` episodes a
    day.

    Part of those are true: a past of a fleet is seldom free of faults. Raises NotEnoughData for a short past.
    """
    return Watch(learn(values, step_ms, settings), held_out(values, step_ms, settings).pulse, per_day)
