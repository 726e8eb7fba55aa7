"""Where a score stands among those of a reference, as a share of their weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.hazard.scorer import NotEnoughData

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
