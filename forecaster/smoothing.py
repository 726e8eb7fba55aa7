"""Exponential smoothing with a trend, by statsmodels: the only module that knows the library."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.resample import Floats


@dataclass(frozen=True, slots=True)
class Smoothed:
    """State at the last point: `level`, `slope` per step and how far that slope wandered, one-step noise `sigma`,
    and `alpha`, the share of it that stays in the level."""

    level: float
    slope: float
    slope_wander: float
    sigma: float
    alpha: float


def fit(values: Floats) -> Smoothed | None:
    """Fit ETS(A, A, N) (Hyndman et al. 2008) by maximum likelihood; `values` float64[n] even samples, n >= 10.

    None where the optimiser finds no finite state; that it stopped early is no reason, the state is usable then.
    """
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    scale = float(values.std())
    if scale <= 0.0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = ETSModel((values - values.mean()) / scale, error="add", trend="add").fit(disp=False, maxiter=200)
        except (ValueError, np.linalg.LinAlgError, FloatingPointError, ZeroDivisionError):
            return None
    level, slope = np.asarray(result.level, np.float64), np.asarray(result.slope, np.float64)
    sigma = math.sqrt(max(float(result.mse), 0.0))
    state = Smoothed(
        level=float(level[-1]) * scale + float(values.mean()),
        slope=float(slope[-1]) * scale,
        slope_wander=float(slope[slope.size // 2 :].std()) * scale,
        sigma=sigma * scale,
        alpha=float(result.smoothing_level),
    )
    finite = all(math.isfinite(x) for x in (state.level, state.slope, state.slope_wander, state.sigma, state.alpha))
    return state if finite else None
