"""Is there a trend at all? A robust look that costs microseconds, before any model is fitted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.trend.resample import Floats

BLOCKS = 6
SHARE = 0.25
"""A block counts as rising where it gains at least this share of the mean gain of a block."""
RISING_BLOCKS = 3
"""At least so many of the five gains, the newest among them, must rise: one step, or a rise that ended, is no trend."""
SIGNIFICANCE = 3.0
"""Slope over its standard error."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A robust line: `level` at the last point, `slope` per step with its standard error, `noise` around the line.

    `points` is n, `effective` the number of independent points that the autocorrelated noise is worth. `recent` is
    the median of the newest sixth, `swing` the standard deviation of all values without any line.

    `steady` says whether the rise goes on to the end and is more than noise.
    """

    level: float
    slope: float
    slope_error: float
    noise: float
    points: int
    effective: float
    recent: float
    swing: float
    steady: bool


def theil_sen(values: Floats) -> float:
    """Median slope over all pairs of points, per step (Sen 1968): up to 29 % of wild points do not move it."""
    first, second = np.triu_indices(values.size, 1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def _gains(values: Floats) -> Floats:
    return np.diff([float(np.median(part)) for part in np.array_split(values, BLOCKS)])


def may_rise(values: Floats) -> bool:
    """Whether `look` could find a steady rise: a cheap first question, never wrong when it says no."""
    rising = _gains(values) > 0
    return bool(rising[-1] and rising.sum() >= RISING_BLOCKS)


def _steady(values: Floats, slope: float) -> bool:
    enough = _gains(values) > SHARE * slope * values.size / BLOCKS
    return bool(slope > 0 and enough[-1] and enough.sum() >= RISING_BLOCKS)


def look(values: Floats) -> Trend:
    """The trend of even samples `values` (at least `BLOCKS`).

    The standard error is that of least squares, 12 s^2 / n^3, with n reduced for the first-order autocorrelation r of
    the residuals by (1 - r) / (1 + r) (Bayley and Hammersley 1946).
    """
    n = values.size
    slope = theil_sen(values)
    places = np.arange(n) - (n - 1)
    level = float(np.median(values - slope * places))
    rest = values - level - slope * places
    noise = float(rest.std())
    denominator = float((rest**2).sum())
    r = float((rest[1:] * rest[:-1]).sum()) / denominator if denominator > 0 else 0.0
    effective = max(3.0, n * (1 - r) / (1 + r)) if r > 0 else float(n)
    error = noise * math.sqrt(12 / (effective * n**2))
    recent = float(np.median(values[-max(1, n // BLOCKS) :]))
    steady = slope > SIGNIFICANCE * error and _steady(values, slope)
    return Trend(level, slope, error, noise, n, effective, recent, float(values.std()), steady)
