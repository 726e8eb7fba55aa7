"""From a risk score to the probability of an onset within each horizon.

Discrete-time hazard: of the rows without an onset up to the start of an interval, the share with one in it is
h = sigmoid(a + s u) for the risk u, one curve for each interval between horizons. The probability up to a horizon is
1 - prod(1 - h), which can never fall from one horizon to the next (Singer and Willett 1993).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import Floats, Mask
from tocsin.forecaster.hazard.rows import LearningRows

SLOPE_SPREAD = 1.0
"""Standard deviation of the prior of log s around the slope that the score has by itself: own choice."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Curves:
    """Fitted curves: `intercept` and `slope` float64[k]; a risk outside of [low, high], the range that was seen, counts
    as the nearer end."""

    intercept: Floats
    slope: Floats
    low: float
    high: float

    def probability(self, risk: Floats) -> Floats:
        """float64[n, k] for `risk` float64[n]."""
        held = np.clip(risk, self.low, self.high)
        log_survival = -np.logaddexp(0.0, self.intercept + held[:, None] * self.slope)
        return np.asarray(-np.expm1(np.cumsum(log_survival, axis=1)), np.float64)

    def arrays(self) -> dict[str, Floats]:
        return {"curve": np.stack([self.intercept, self.slope]), "seen": np.array([self.low, self.high])}


def from_arrays(arrays: dict[str, Floats]) -> Curves:
    """The reverse of `Curves.arrays`."""
    low, high = (float(value) for value in arrays["seen"])
    return Curves(arrays["curve"][0], arrays["curve"][1], low, high)


def prior_curves(horizons_ms: tuple[int, ...], per_day: float, slope: float, low: float, high: float) -> Curves:
    """Curves that know nothing but a prior rate of onsets: `per_day` where the risk is 0."""
    spans = np.diff(np.array([0, *horizons_ms])) / DAY
    share = np.minimum(per_day * spans, 0.5)
    return Curves(np.log(share / (1 - share)), np.full(spans.size, slope), low, high)


def at_risk(rows: LearningRows, start_ms: int, end_ms: int) -> tuple[Mask, Mask]:
    """Whether an onset falls in (at + start, at + end], and whether the row counts for that interval: none before,
    and known. Also here the tail of the observation is left out."""
    after = rows.event_ms - rows.at_ms
    early = (after > 0) & (after <= start_ms)
    onset = (after > start_ms) & (after <= end_ms)
    known = onset | (rows.until_ms - rows.at_ms >= end_ms)
    return onset, ~early & known & (rows.at_ms + end_ms <= rows.end_ms)


def fit_curves(risk: Floats, rows: LearningRows, horizons_ms: tuple[int, ...]) -> Curves:
    """One curve for each interval between 0 and the horizons.

    `risk` should be of models that did not learn from the row, or the probabilities come out too sure. An interval
    without any onset gets the rate that half an onset would make, or the mean rate over all horizons if lower.
    """
    centre, spread = float(np.average(risk, weights=rows.weight)), float(risk.std()) or 1.0
    unit = (risk - centre) / spread
    rate = float(np.average(rows.onset, weights=rows.weight)) / horizons_ms[-1]
    starts = (0, *horizons_ms[:-1])
    fitted = []
    for start_ms, end_ms in zip(starts, horizons_ms, strict=True):
        onset, counts = at_risk(rows, start_ms, end_ms)
        if onset[counts].any():
            fitted.append(logistic(unit[counts], onset[counts], rows.weight[counts], spread))
        else:
            exposure = float(rows.weight[counts].sum())
            share = min(rate * (end_ms - start_ms), 0.5 / exposure if exposure > 0 else 1.0, 0.5)
            fitted.append((float(np.log(share / (1 - share))), spread))
    unit_intercept, unit_slope = np.array(fitted).T
    slope = unit_slope / spread
    return Curves(unit_intercept - slope * centre, slope, float(risk.min()), float(risk.max()))


def sigmoid(log_odds: Floats) -> Floats:
    """The probabilities of `log_odds`, any shape."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(log_odds, -500.0, 500.0))), np.float64)


def logistic(unit: Floats, onset: Mask, weight: Floats, slope: float) -> tuple[float, float]:
    """Intercept and slope of the most probable logistic curve over `unit`, a score of mean 0 and spread 1.

    The slope stays positive and is drawn towards `slope`.
    """
    total = weight.sum()
    share = min(max(float(weight[onset].sum() / total), _TINY), 1 - _TINY)
    shift = float(np.log(slope))

    def loss(at: Floats) -> tuple[float, Floats]:
        rise = np.exp(at[1])
        logit = at[0] + rise * unit
        miss = weight * (sigmoid(logit) - onset)
        value = float((weight * (np.logaddexp(0, logit) - onset * logit)).sum())
        away = (at[1] - shift) / SLOPE_SPREAD
        gradient = np.array([miss.sum(), rise * (miss * unit).sum() + away / SLOPE_SPREAD])
        return value + away**2 / 2, gradient

    # What reads a curve does not fit one, and does without SciPy.
    from scipy.optimize import minimize

    found = minimize(
        loss, np.array([np.log(share / (1 - share)), min(shift, 1.0)]), jac=True, method="L-BFGS-B",
        bounds=[(-40, 40), (-6, 4)],
    )  # fmt: skip
    return float(found.x[0]), float(np.exp(found.x[1]))
