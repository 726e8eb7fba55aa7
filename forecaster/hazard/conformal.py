"""A threshold whose share of false alarms is promised by the quiet rows of a later slice, whatever the scorer.

Inductive conformal anomaly detection: with n quiet scores and a new one from the same source, the new one is among the
k highest of n + 1 with a probability of k / (n + 1) (Vovk, Gammerman and Shafer 2005; Bates et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Floats

KEPT = 20_000
"""The highest scores that are kept: thresholds of a rarer alarm are exact, others are refused."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Scores of rows without an onset: `scores` float64[m] from the highest down with their weights; `total` is the
    weight of all, also of those that are not kept."""

    scores: Floats
    weights: Floats
    total: float

    def threshold(self, share: float) -> float:
        """The lowest threshold such that at most `share` of quiet rows score above it; infinite where the slice is
        too small to promise that. Raises InputError for a share outside of (0, 1), or beyond the kept scores."""
        if not 0 < share < 1:
            raise InputError("share", share, "not between 0 and 1", "give for example 0.01")
        allowed = share * (self.total + 1) - 1
        if allowed < 0:
            return float("inf")
        above = np.cumsum(self.weights)
        first = int(np.searchsorted(above, allowed, side="right"))
        if first >= self.scores.size:
            kept = self.weights.sum() / (self.total + 1)
            raise InputError("share", share, f"only the highest {kept:.2%} of scores are kept", "ask for less")
        return float(self.scores[first])


def quiet(scores: Floats, weights: Floats, keep: int = KEPT) -> Quiet:
    """From the scores of rows without an onset, NaN left out."""
    there = np.isfinite(scores)
    order = np.argsort(-scores[there], kind="stable")
    return Quiet(scores[there][order][:keep], weights[there][order][:keep], float(weights[there].sum()))
