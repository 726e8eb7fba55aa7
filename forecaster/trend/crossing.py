"""When does a wandering level first reach a limit? By simulated paths, the same numbers every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from tocsin.forecaster.trend.resample import MAX_POINTS, Floats
from tocsin.forecaster.trend.smoothing import Smoothed
from tocsin.forecaster.trend.trend import Trend

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
        """Share of the paths that arrive within `steps`."""
        return float((self.first <= steps).mean())

    def quantile(self, share: float) -> float:
        """Step by which `share` of the paths have arrived; infinite where they never do."""
        return float(np.quantile(self.first, share, method="inverted_cdf"))


@cache
def _noise() -> tuple[Floats, Floats]:
    """Standard normal numbers for lines [2, PATHS] and steps [MAX_STEPS, PATHS]; never written to."""
    rng = np.random.default_rng(_SEED)
    return rng.standard_normal((2, PATHS)), rng.standard_normal((MAX_STEPS, PATHS))


def simulate(state: Smoothed, trend: Trend, limit: float) -> Passage:
    """First passage of the level through `limit` from below, over `MAX_STEPS` steps.

    Each path follows a line of its own and makes excursions around it. The lines' slope is half the smoothed and half
    the robust one, spread by the robust one's standard error, by how far the smoothed one wandered and by half their
    difference; a line turns about the middle of the history, where it is known best. Excursions begin where the
    smoothed level stands, get shocks of `alpha` * `sigma`, and stay as wide as the history's were, so that workload
    swings do not grow into a random walk. Observation noise is left out: a limit is reached when the level is there,
    not when one sample is.
    """
    lines, shocks = _noise()
    spread = math.hypot(trend.slope_error, state.slope_wander, (state.slope - trend.slope) / 2)
    turn = spread * lines[0]
    start = trend.level + turn * trend.points / 2 + trend.noise / math.sqrt(trend.effective) * lines[1]
    drift = (state.slope + trend.slope) / 2 + turn
    shock = min(state.alpha * state.sigma, trend.noise)
    keep = math.sqrt(1 - (shock / trend.noise) ** 2) if trend.noise > 0.0 else 0.0
    offset = np.full(PATHS, state.level - trend.level)
    first = np.full(PATHS, np.inf)
    before = np.full(PATHS, state.level)
    for step in range(1, MAX_STEPS + 1):
        offset = keep * offset + shock * shocks[step - 1]
        level = start + drift * step + offset
        arrived = (level >= limit) & np.isinf(first)
        first[arrived] = step - ((level - limit) / np.maximum(level - before, 1e-300))[arrived].clip(0.0, 1.0)
        before = level
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
