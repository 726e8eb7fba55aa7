"""A scorer that learns from sampled snapshots as they are, and has its odds put right by what each stood for.

Snapshots without a failure are sampled by stratum, and the stratum is known from features: for each, the odds among the
sampled are those in truth times how many snapshots each stands for (case-control sampling, Prentice and Pyke 1979).
So weights can be left out of the fit, where a few rows that stand for hundreds would drown the many that tell.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tocsin.forecaster.benchmarks.backblaze_snapshots import stratum
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard.calibration import log_odds
from tocsin.forecaster.hazard.scorer import Scorer, State

STRATA = 3


class Unweighted:
    """`inner`, fitted without weights; its odds divided by the mean weight of the quiet rows of the stratum."""

    def __init__(self, inner: Scorer) -> None:
        self._inner = inner
        self.name, self.version = inner.name, inner.version
        self.horizons_ms, self.min_history_ms = inner.horizons_ms, inner.min_history_ms
        self._log_weight = np.zeros(STRATA)

    def fit(self, examples: Examples) -> None:
        onset, _ = examples.label(self.horizons_ms[-1])
        rows = np.flatnonzero(~onset)
        of_row = stratum(examples)[rows]
        count = np.bincount(of_row, minlength=STRATA)
        total = np.bincount(of_row, examples.weight[rows], minlength=STRATA)
        self._log_weight = np.log(np.where(count > 0, total / np.maximum(count, 1), 1.0))
        self._inner.fit(replace(examples, weight=np.ones(len(examples))))

    def score(self, examples: Examples) -> Floats:
        odds = log_odds(self._inner.score(examples)) - self._log_weight[stratum(examples)][:, None]
        return np.asarray(1 / (1 + np.exp(-odds)), np.float64)

    def state(self) -> State:
        inner = self._inner.state()
        return replace(inner, arrays={**inner.arrays, "log_weight": self._log_weight})

    def restore(self, state: State) -> None:
        self._log_weight = np.asarray(state.arrays["log_weight"], np.float64)
        rest = {name: array for name, array in state.arrays.items() if name != "log_weight"}
        self._inner.restore(replace(state, arrays=rest))
