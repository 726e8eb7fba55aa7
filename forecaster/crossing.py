"""When does a wandering level first reach a limit? By simulated paths, the same numbers every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from tocsin.forecaster.resample import Floats
from tocsin.forecaster.smoothing import Smoothed
from tocsin.forecaster.trend import Trend

PATHS = 400
MAX_STEPS = 800
_SEED = 20_261_121


@dataclass(frozen=True, slots=True)
class Passage:
    """First steps (1 is the next grid point) at which each path reached the limit; infinite where it never did."""

    first: Floats

    def probability(self, steps: float) -> float:
        """Share of the paths that arrive within `steps`."""
        return float((self.first <= steps).mean())

    def quantile(self, share: float) -> float:
        """Step by which `share` of the paths have arrived; infinite where they never do."""
        return float(np.quantile(self.first, share, method="inverted_cdf"))


@cache
def _noise() -> tuple[Floats, Floats]:
    """Standard normal numbers for slopes [PATHS] and steps [MAX_STEPS, PATHS]; never written to."""
    rng = np.random.default_rng(_SEED)
    return rng.standard_normal(PATHS), rng.standard_normal((MAX_STEPS, PATHS))


def simulate(state: Smoothed, trend: Trend, limit: float) -> Passage:
    """First passage of the smoothed level through `limit` from below, over `MAX_STEPS` steps.

    A path keeps one slope, drawn with the trend's standard error and the fitted slope's own wander; around it the
    level makes excursions that start with `alpha` * `sigma` and stay as wide as the history's were around its line,
    so that workload swings do not grow into a random walk. Observation noise is left out: a limit is reached when the
    level is there, not when one sample is.
    """
    slopes, shocks = _noise()
    spread = math.hypot(trend.slope_error, state.slope_wander)
    width = state.alpha * state.sigma
    keep = math.sqrt(max(0.0, 1 - (width / trend.noise) ** 2)) if trend.noise > width else 0.0
    shock = min(width, trend.noise)
    excursion = np.zeros(PATHS)
    drift = state.slope + spread * slopes
    first = np.full(PATHS, np.inf)
    for step in range(1, MAX_STEPS + 1):
        excursion = keep * excursion + shock * shocks[step - 1]
        arrived = (state.level + drift * step + excursion >= limit) & np.isinf(first)
        first[arrived] = step
    return Passage(first)


def screened_probability(trend: Trend, limit: float, steps: float) -> float:
    """Chance of standing at `limit` after `steps`, by the robust line alone; rises with `steps`.

    For series that are not worth a fit: normal errors of noise and slope, a falling slope taken as flat.
    """
    width = math.hypot(trend.noise, trend.slope_error * steps)
    reach = trend.level + max(trend.slope, 0.0) * steps - limit
    if width <= 0.0:
        return 1.0 if reach >= 0 else 0.0
    return NormalDist().cdf(reach / width)
