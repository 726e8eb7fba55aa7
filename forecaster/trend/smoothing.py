"""Exponential smoothing with a trend, by statsmodels, and a robust look for a trend without it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from tocsin.forecaster.trend.resample import Floats, Instants, median


def quantiles(values: Floats, ahead: Sequence[int], shares: Sequence[float], select: bool = False) -> Floats | None:
    """float64[len(ahead), len(shares)]: normal quantiles of the sample that many steps after the last one.

    ETS(A, A, N), or with `select` that of ETS(A, N, N), ETS(A, A, N) and ETS(A, Ad, N) with the least corrected Akaike
    criterion; variances as in Hyndman et al. (2008), chapter 6. `values` float64[n] even samples, n >= 10. A constant
    series stays what it is. None where no fit comes to a finite state.
    """
    scale = float(values.std())
    if scale <= 0.0:
        return np.full((len(ahead), len(shares)), values[-1])
    kinds = ((None, False), ("add", False), ("add", True)) if select else (("add", False),)
    even = (values - values.mean()) / scale
    found = [one for one in (_predicted(even, trend, damped, max(ahead)) for trend, damped in kinds) if one is not None]
    if not found:
        return None
    _, mean, spread = min(found, key=lambda one: one[0])
    at = np.asarray(ahead) - 1
    width = np.array([NormalDist().inv_cdf(share) for share in shares])
    return np.asarray((mean[at, None] + spread[at, None] * width) * scale + values.mean(), np.float64)


def _predicted(even: Floats, trend: str | None, damped: bool, steps: int) -> tuple[float, Floats, Floats] | None:
    """Criterion, mean and standard deviation of the next `steps` samples."""
    import pandas as pd
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = ETSModel(pd.Series(even), error="add", trend=trend, damped_trend=damped).fit(
                disp=False, maxiter=200
            )
            ahead = result.get_prediction(start=even.size, end=even.size + steps - 1)
        except (ValueError, np.linalg.LinAlgError, FloatingPointError, ZeroDivisionError):
            return None
    mean = np.asarray(ahead.predicted_mean, np.float64)
    spread = np.sqrt(np.maximum(np.asarray(ahead.forecast_variance, np.float64), 0.0))
    finite = math.isfinite(float(result.aicc)) and bool(np.isfinite(mean).all() and np.isfinite(spread).all())
    return (float(result.aicc), mean, spread) if finite else None


# Is there a trend at all? A robust look that costs microseconds, before any model is fitted.

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
    if values.min() == values.max():
        return 0.0
    ahead, apart = _pairs(values.size)
    # Each point and those after it round the ring: slices of one array, where gathering pairs would cost far more.
    ring = np.concatenate([values, values[: len(ahead)]])
    later = np.ndarray((len(ahead), values.size), np.float64, ring, values.itemsize, (values.itemsize,) * 2)
    slopes = later - values
    slopes /= apart
    # Adding zero takes the sign off a zero.
    return median(slopes.ravel() if values.size % 2 else slopes.ravel()[: -(values.size // 2)]) + 0.0


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[Instants, Floats]:
    """How many points further round a ring of `count` the second of a pair lies, and how many steps later it is, below
    zero where it came round; never written to. Half way round, the second half of the row has each pair again."""
    ahead = np.arange(1, count // 2 + 1)
    first = np.arange(count)
    return ahead, np.where(first + ahead[:, None] < count, ahead[:, None], ahead[:, None] - count).astype(np.float64)


def block_gains(values: Floats) -> Floats:
    """By how much each of the `BLOCKS` parts of even samples, but the first, lies above the one before: medians."""
    size, longer = divmod(values.size, BLOCKS)
    border = longer * (size + 1)
    parts = (values[:border].reshape(longer, size + 1), values[border:].reshape(BLOCKS - longer, size))
    medians: Floats = np.concatenate([_medians(part) for part in parts if len(part)])
    gains: Floats = medians[1:] - medians[:-1]
    return gains


def _medians(rows: Floats) -> Floats:
    """`numpy.median` of each row, without NaN. Rows are short: sorting them is quicker than choosing from them."""
    half = rows.shape[1] // 2
    ordered = np.sort(rows, axis=1)
    if rows.shape[1] % 2:
        return np.asarray(ordered[:, half])
    return np.asarray((ordered[:, half - 1] + ordered[:, half]) / 2)


def _deviation(values: Floats) -> float:
    """`numpy.std`, without its overhead."""
    apart = values - np.add.reduce(values) / values.size
    return math.sqrt(np.add.reduce(apart * apart) / values.size)


def may_rise(gains: Floats) -> bool:
    """Whether `look` could find a steady rise in samples of these `block_gains`: a cheap first question, never wrong
    when it says no."""
    rising = gains > 0
    return bool(rising[-1] and rising.sum() >= RISING_BLOCKS)


def level_look(values: Floats, gains: Floats) -> Trend:
    """What `look` says of even samples that `may_rise` denies by their `gains`, without its line: the slope is that
    from the oldest sixth to the newest, with no error, level and noise are those of no line."""
    n, swing = values.size, _deviation(values)
    recent = median(values[-max(1, n // BLOCKS) :])
    slope = float(np.add.reduce(gains)) * BLOCKS / ((BLOCKS - 1) * n)
    return Trend(recent, slope, 0.0, swing, n, float(n), recent, swing, steady=False)


def _steady(values: Floats, slope: float) -> bool:
    enough = block_gains(values) > SHARE * slope * values.size / BLOCKS
    return bool(slope > 0 and enough[-1] and enough.sum() >= RISING_BLOCKS)


def look(values: Floats) -> Trend:
    """The trend of even samples `values` (at least `BLOCKS`).

    The standard error is that of least squares, 12 s^2 / n^3, with n reduced for the first-order autocorrelation r of
    the residuals by (1 - r) / (1 + r) (Bayley and Hammersley 1946).
    """
    n = values.size
    if values.min() == values.max():
        level = float(values[0])
        return Trend(level, 0.0, 0.0, 0.0, n, float(n), level, _deviation(values), steady=False)
    slope = theil_sen(values)
    line = slope * (np.arange(n) - (n - 1))
    level = median(values - line)
    rest = values - level - line
    noise = _deviation(rest)
    denominator = float((rest * rest).sum())
    r = float((rest[1:] * rest[:-1]).sum()) / denominator if denominator > 0 else 0.0
    effective = max(3.0, n * (1 - r) / (1 + r)) if r > 0 else float(n)
    error = noise * math.sqrt(12 / (effective * n**2))
    recent = median(values[-max(1, n // BLOCKS) :])
    steady = slope > SIGNIFICANCE * error and _steady(values, slope)
    return Trend(level, slope, error, noise, n, effective, recent, _deviation(values), steady)
