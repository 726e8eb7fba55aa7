"""Probabilities made honest on data that the scorer did not learn from: isotonic, or a logistic curve (Platt).

Also ranks among the scores of a reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tocsin.forecaster.features.examples import Floats, Mask
from tocsin.forecaster.hazard.curves import logistic, sigmoid
from tocsin.forecaster.hazard.scorer import NotEnoughData

Method = Literal["auto", "isotonic", "platt"]

ISOTONIC_ROWS = 200
"""From so many rows with an onset on, `auto` takes the isotonic curve: with fewer its steps are noise. Own choice."""
BLEND = 0.001
"""Share of the former probability that stays in, so that rows on one step of the isotonic curve keep their order."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Map:
    """A rising map of probabilities: through knots `x`, `y` by straight lines; of its log-odds by `platt`, an intercept
    and a slope, where that is not NaN; the identity where there is neither."""

    x: Floats
    y: Floats
    platt: Floats

    def apply(self, probability: Floats) -> Floats:
        """float64[n] for float64[n]; NaN stays."""
        if np.isfinite(self.platt).all():
            made = self.platt[0] + self.platt[1] * log_odds(probability)
            return sigmoid(made)
        if self.x.size == 0:
            return probability
        return (1 - BLEND) * np.interp(probability, self.x, self.y) + BLEND * probability


def log_odds(probability: Floats) -> Floats:
    """float64[n] for float64[n], held within 1e-9 of either end; NaN stays."""
    held = np.clip(probability, _TINY, 1 - _TINY)
    return np.asarray(np.log(held / (1 - held)), np.float64)


def fit_map(probability: Floats, onset: Mask, weight: Floats, method: Method = "auto") -> Map:
    """The map that brings `probability` in line with what happened; the identity where nothing did."""
    none, no_platt = np.zeros(0), np.full(2, np.nan)
    if not onset.any() or onset.all():
        return Map(none, none, no_platt)
    isotonic = method == "isotonic" or (method == "auto" and int(onset.sum()) >= ISOTONIC_ROWS)
    if not isotonic:
        risk = log_odds(probability)
        centre, spread = float(np.average(risk, weights=weight)), float(risk.std()) or 1.0
        intercept, slope = logistic((risk - centre) / spread, onset, weight, spread)
        return Map(none, none, np.array([intercept - slope / spread * centre, slope / spread]))
    return Map(*_isotonic(probability, onset, weight), no_platt)


def _isotonic(probability: Floats, onset: Mask, weight: Floats) -> tuple[Floats, Floats]:
    """Knots at the centre of each step of the isotonic curve (Oron and Flournoy 2017), so that the map rises between
    them instead of jumping."""
    from sklearn.isotonic import IsotonicRegression  # takes seconds to load, and only those who fit need it

    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    level = model.fit(probability, onset.astype(np.float64), sample_weight=weight).predict(probability)
    levels, step = np.unique(level, return_inverse=True)
    mass = np.bincount(step, weight)
    centre = np.bincount(step, weight * probability) / mass
    return centre, levels


# Where a score stands among those of a reference, as a share of their weight.

KNOTS = 2000


@dataclass(frozen=True, slots=True)
class Ranks:
    """A rising table: `scores` float64[k] and `ranks` float64[k] in (0, 1)."""

    scores: Floats
    ranks: Floats

    def apply(self, score: Floats) -> Floats:
        """float64[n] in (0, 1); NaN for NaN. Beyond either end the order is kept, ever closer to 0 and 1."""
        rank = np.interp(score, self.scores, self.ranks)
        low, high = self.scores[0], self.scores[-1]
        with np.errstate(invalid="ignore"):
            over, under = np.maximum(score - high, 0), np.maximum(low - score, 0)
        rank += (1 - self.ranks[-1]) * over / (1 + over) / 2
        rank -= self.ranks[0] * under / (1 + under) / 2
        rank[np.isnan(score)] = np.nan
        return np.asarray(rank, np.float64)


def rank_table(score: Floats, weight: Floats) -> Ranks:
    """The table of `score`, NaN left out: of equal scores the middle rank, the tail in full, the rest at knots."""
    there = np.isfinite(score)
    if not there.any():
        raise NotEnoughData("none of the rows set aside for ranks has a score")
    values, of_row = np.unique(score[there], return_inverse=True)
    mass = np.bincount(of_row, weight[there])
    below = np.cumsum(mass) - mass
    ranks = (below + mass / 2) / mass.sum()
    if values.size > 2 * KNOTS:
        body = np.linspace(0, values.size - KNOTS - 1, KNOTS).round().astype(np.int64)
        keep = np.concatenate([body, np.arange(values.size - KNOTS, values.size)])
        values, ranks = values[keep], ranks[keep]
    return Ranks(values, ranks)
