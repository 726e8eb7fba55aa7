"""The product's scorers on drives: hazard, boosting, LSTM and the mean of their log-odds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.evaluation.ranking import BUDGETS, budget_threshold
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.calibration import log_odds
from tocsin.forecaster.hazard.scorer import Scorer, State
from tocsin.forecaster.hazard.scorer_ensemble import Ensemble, EnsembleSettings
from tocsin_benchmarks.backblaze.folds import Parts, Sizes
from tocsin_benchmarks.backblaze.snapshots import HORIZON_H, stratum

# A scorer that learns from sampled snapshots as they are, and has its odds put right by what each stood for.
# Snapshots without a failure are sampled by stratum, and the stratum is known from features: for each, the odds among
# the sampled are those in truth times how many snapshots each stands for (case-control sampling, Prentice and Pyke
# 1979). So weights can be left out of the fit, where a few rows that stand for hundreds would drown the many that
# tell.

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


HORIZON_MS = HORIZON_H * HOUR
SINGLE = ("hazard", "boosting", "lstm")
MEMBERS = ("boosting", "lstm")
"""Of the ensemble: with the hazard in it, it was no better on drives and days before the cut."""
WEIGHTS = (3.0, 1.0)
UNWEIGHTED = ("boosting", "lstm")
"""These learn from the sampled snapshots as they are; chosen before the cut, as the weights of the members."""
ENSEMBLE = "ensemble"
MODELS = (*SINGLE, ENSEMBLE)

TUNE_DAYS = 180
"""Thresholds come from the last so many days before the cut (own choice): the fleet changes."""

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "hazard": {"features": ("*", "!smart_10_[cu]*", "!*_14d"), "strengths": (0.01, 0.1)},
    "boosting": {
        "features": ("*", "!smart_10_[cu]*"),
        "balance": 0.0,
        "folds": 3,
        "learning_rate": 0.05,
        "max_iter": 150,
        "max_features": 0.15,
        "min_samples_leaf": 40,
        "l2_regularization": 30.0,
    },
    "lstm": {"max_rows": 200_000, "members": 2, "longest": 40, "learning_rate": 5e-4},
}
"""Chosen on the development drives before the cut."""

QUICK: Mapping[str, Mapping[str, object]] = {
    "hazard": {"strengths": (0.01,), "folds": 2},
    "boosting": {"balance": 0.0, "folds": 2, "max_iter": 20, "max_features": 0.3},
    "lstm": {"max_rows": 2_000, "hidden": 8, "epochs": 2, "folds": 2},
}

FULL_SIZES = Sizes((20_000, 30_000, 30_000), (40_000, 20_000), 150)
QUICK_SIZES = Sizes((1_000, 1_000, 1_000), (2_000, 2_000), 20)


class Remembered:
    """A scorer that keeps its newest answer, since the ensemble asks its members for what they were asked before."""

    def __init__(self, inner: Scorer) -> None:
        self._inner = inner
        self.name, self.version = inner.name, inner.version
        self.horizons_ms, self.min_history_ms = inner.horizons_ms, inner.min_history_ms
        self._asked: Examples | None = None
        self._answer = np.zeros((0, len(self.horizons_ms)))

    def fit(self, examples: Examples) -> None:
        self._asked = None
        self._inner.fit(examples)

    def score(self, examples: Examples) -> Floats:
        if self._asked is not examples:
            self._answer, self._asked = self._inner.score(examples), examples
        return self._answer

    def state(self) -> State:
        return self._inner.state()

    def restore(self, state: State) -> None:
        self._asked = None
        self._inner.restore(state)


@dataclass(frozen=True, slots=True)
class Judged:
    """Scores by model: of the test rows and of the sweep, and alarm thresholds by budget, set on the tune part."""

    test: Mapping[str, Floats]
    sweep: Mapping[str, Floats]
    thresholds: Mapping[str, Mapping[float, float]]


def singles(seed: int, *, quick: bool) -> list[Remembered]:
    """The unfitted scorers, each by itself."""
    settings = QUICK if quick else SETTINGS
    shared: dict[str, object] = {"horizons_ms": (HORIZON_MS,), "seed": seed}
    built = [registry.build(name, **{**shared, **settings[name]}) for name in SINGLE]
    return [Remembered(Unweighted(one) if one.name in UNWEIGHTED else one) for one in built]


def judge(parts: Parts, seed: int, *, quick: bool) -> Judged:
    """Fit on `parts.learn`, rank on `parts.tune`, score the rest."""
    every = singles(seed, quick=quick)
    for one in every:
        one.fit(parts.learn)
    chosen = [one for one in every if one.name in MEMBERS]
    settings = EnsembleSettings(members=MEMBERS, weights=WEIGHTS, mean="odds", horizons_ms=(HORIZON_MS,), seed=seed)
    ensemble = Ensemble(chosen, settings)
    ensemble.combine(parts.tune)
    scorers: list[Scorer] = [*every, ensemble]
    tune, test, sweep = (
        {one.name: one.score(part)[:, -1] for one in scorers} for part in (parts.tune, parts.test, parts.sweep)
    )
    return Judged(test, sweep, {name: _thresholds(score, parts.tune) for name, score in tune.items()})


def _thresholds(score: Floats, tune: Examples) -> dict[float, float]:
    recent = tune.at_ms >= tune.at_ms.max() - TUNE_DAYS * DAY
    return {budget: budget_threshold(score[recent], tune.weight[recent], budget) for budget in BUDGETS}
