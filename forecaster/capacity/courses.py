"""Hourly figures a week ahead as curves: what was, what is expected, and the interval around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.capacity.capacity import HORIZON_MS
from tocsin.forecaster.trend.resample import Floats, Instants
from tocsin.forecaster.trend.seasonal import Outlook, TooShort, outlook

SHOWN_MS = 3 * DAY
"""How much of the past goes with a forecast."""
_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure by the hour: `values` is float64[n], NaN where unknown, from `start_ms` on.

    What is expected never leaves `least` to `most`; None where that has no bound.
    """

    name: str
    start_ms: int
    values: Floats
    least: float | None = 0.0
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """The newest past, `at_ms` int64[k] and `known` float64[k], and the coming hours, `ahead_ms` int64[n] with the
    middle of what is expected and the interval of `coverage`, float64[n] each; empty where `reason` says why."""

    name: str
    at_ms: Instants
    known: Floats
    coverage: float
    ahead_ms: Instants = field(default_factory=lambda: np.empty(0, np.int64))
    middle: Floats = field(default_factory=lambda: _NONE)
    low: Floats = field(default_factory=lambda: _NONE)
    high: Floats = field(default_factory=lambda: _NONE)
    weekly: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CourseAsk:
    """What is asked for, fit to be sent to another process."""

    figures: Sequence[Figure]
    now_ms: int
    coverage: float = 0.8


def courses(ask: CourseAsk) -> list[Course]:
    """A course for each figure; hours that had not ended at `now_ms` are not looked at."""
    return [_course(one, ask.now_ms, ask.coverage) for one in ask.figures]


def _course(figure: Figure, now_ms: int, coverage: float) -> Course:
    at_ms = figure.start_ms + HOUR * np.arange(figure.values.size, dtype=np.int64)
    ended = at_ms + HOUR <= now_ms
    at_ms, values = at_ms[ended], figure.values[ended]
    shown = at_ms >= now_ms - SHOWN_MS
    found = np.flatnonzero(np.isfinite(values))
    if not found.size:
        return Course(figure.name, at_ms[shown], values[shown], coverage, reason="no hour of history")
    last_ms = int(at_ms[found[-1]])
    try:
        ahead = outlook(values[found[0] : found[-1] + 1], round((now_ms + HORIZON_MS - last_ms) / HOUR) - 1)
    except TooShort as error:
        return Course(figure.name, at_ms[shown], values[shown], coverage, reason=str(error))
    tail = (1.0 - coverage) / 2
    middle, low, high = (_within(ahead, share, figure) for share in (0.5, tail, 1.0 - tail))
    return Course(
        figure.name,
        at_ms[shown],
        values[shown],
        coverage,
        last_ms + HOUR * (1 + np.arange(len(ahead.paths), dtype=np.int64)),
        middle,
        low,
        high,
        weekly=ahead.weekly,
    )


def _within(ahead: Outlook, share: float, figure: Figure) -> Floats:
    return np.asarray(np.clip(ahead.quantile(share), figure.least, figure.most), dtype=np.float64)
