"""Detectors on one machine: its own detector and the rivals, each with the alarm set by its trailing days alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tocsin.forecaster.anomaly.alarm_level import FOLDS, held_out, trailing_levels
from tocsin.forecaster.anomaly.detector import DetectorSettings, Scores, exponential_mean, learn
from tocsin.forecaster.features.examples import Floats, Mask
from tocsin_benchmarks.smd.data import Machine
from tocsin_benchmarks.smd.events import Outcome, average_precision, outcome

DETECTOR, LEVEL, FOREST = "detector", "largest deviation", "isolation forest"
ALLOWED_PER_DAY = 1.0
"""False alarms a day that the bar allows."""
TREES, ROWS = 100, 512

Fit = Callable[[Floats], Callable[[Floats], Floats]]


@dataclass(frozen=True, slots=True)
class Judged:
    """One detector on one machine: `alarm` bool[k] of the test part, what came of it, the median of its levels, and the
    average precision of the score that ranks times."""

    machine: Machine
    alarm: Mask
    outcome: Outcome
    level: float
    precision: float
    pulse_precision: float


def judge(machine: Machine, name: str, seed: int) -> Judged:
    """Learn from the train part of `machine`, score its test part."""
    if name == DETECTOR:
        calm = held_out(machine.train, machine.step_ms)
        told = learn(machine.train, machine.step_ms).score(machine.test)
    else:
        calm, told = _rival(machine, _FITS[name](seed))
    levels = trailing_levels(calm.pulse, told.pulse, machine.step_ms)
    alarm = np.asarray(np.nan_to_num(told.pulse, nan=-np.inf) > levels)
    precision, pulse = (average_precision(score, machine.label) for score in (told.state, told.pulse))
    found = outcome(alarm, machine.label, machine.step_ms)
    return Judged(machine, alarm, found, float(np.median(levels)), precision, pulse)


def _rival(machine: Machine, fit: Fit) -> tuple[Scores, Scores]:
    """The same folds and the same means over time for a detector that looks at single rows."""
    edges = np.linspace(0, len(machine.train), FOLDS + 1).astype(int)
    parts = []
    for first, last in pairwise(edges):
        score = fit(np.concatenate([machine.train[:first], machine.train[last:]]))
        parts.append(score(machine.train[first:last]))
    calm, told = np.concatenate(parts), fit(machine.train)(machine.test)
    usual = float(np.quantile(calm, 0.5)) or 1.0
    return _smoothed(calm / usual, machine.step_ms), _smoothed(told / usual, machine.step_ms)


def _smoothed(score: Floats, step_ms: int) -> Scores:
    spans = DetectorSettings()
    return Scores(*(exponential_mean(score, span / step_ms) for span in (spans.pulse_ms, spans.state_ms)))


def _deviation(_seed: int) -> Fit:
    def fit(train: Floats) -> Callable[[Floats], Floats]:
        middle = np.median(train, axis=0)
        spread = np.maximum(np.std(train, axis=0), 0.01)
        return lambda rows: np.asarray(np.abs((rows - middle) / spread).max(axis=1), np.float64)

    return fit


def _forest(seed: int) -> Fit:
    from sklearn.ensemble import IsolationForest

    def fit(train: Floats) -> Callable[[Floats], Floats]:
        forest = IsolationForest(n_estimators=TREES, max_samples=min(ROWS, len(train)), random_state=seed).fit(train)
        return lambda rows: np.asarray(-forest.score_samples(rows), np.float64)

    return fit


_FITS: Mapping[str, Callable[[int], Fit]] = {LEVEL: _deviation, FOREST: _forest}
