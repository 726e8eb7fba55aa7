"""What is compared on Titan: the counted rate, models that learn from the features, and predictors that know little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.evaluation.ranking import budget_threshold
from tocsin.forecaster.evaluation.trivial import BASE_RATES, RECENCY, base_rates
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin_benchmarks.titan.snapshots import HORIZON_MS

RATE, COUNTED, HAZARD, BOOSTING, AGE = "rate", "rate, uncorrected", "hazard", "boosting", "age only"
RANKS = (RECENCY, AGE)
BUDGET = 0.01
LATEST_DAYS = 180
CORRECTIONS = ("rate_of_place", "rate_of_own", "ratio_of_*", "own_*", "blade_days", "stays", "stay_days", "age_days")
"""What may correct the rate: what tells GPUs apart, not weeks."""
LEARNED = "!place_*"
"""Trees and the hazard see places through their rates alone: numbers of columns mean nothing to a line."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of the test rows by model, and alarm thresholds from the train part."""

    scores: dict[str, Floats]
    thresholds: dict[str, float]


def scorer(name: str, seed: int) -> Scorer:
    """A scorer with the settings of this benchmark."""
    common: dict[str, object] = {"horizons_ms": (24 * HOUR, HORIZON_MS), "seed": seed}
    if name == BOOSTING:
        trees = {"max_iter": 150, "max_leaf_nodes": 6, "min_samples_leaf": 100, "l2_regularization": 10.0, "folds": 3}
        return registry.build(name, **common, features=("*", LEARNED), **trees)
    if name == HAZARD:
        return registry.build(name, **common, features=("*", LEARNED))
    if name == COUNTED:
        return registry.build(RATE, **common)
    return registry.build(RATE, **common, correct=CORRECTIONS, folds=3)


@dataclass(frozen=True, slots=True)
class Learned:
    """Models fitted on `train`, and the threshold of the rate: that of 1 % of the last half year of `train`."""

    train: Examples
    models: dict[str, Scorer]
    threshold: float

    def judge(self, test: Examples) -> Scored:
        """Scores of the rows by all models, and by the predictors that need none."""
        scores = {name: model.score(test)[:, -1] for name, model in self.models.items()}
        scores[BASE_RATES] = base_rates(self.train, test, HORIZON_MS, "place_cage")
        scores[RECENCY] = own_recency(test)
        scores[AGE] = test.column("age_days").astype(np.float64)
        return Scored(scores, {RATE: self.threshold})


def learn(train: Examples, seed: int, names: tuple[str, ...]) -> Learned:
    """Fit the scorers of `names`, the rate among them. Raises NotEnoughData."""
    models = {name: scorer(name, seed) for name in names}
    for model in models.values():
        model.fit(train)
    latest = train.take(train.at_ms > int(train.at_ms.max()) - LATEST_DAYS * DAY)
    threshold = budget_threshold(models[RATE].score(latest)[:, -1], latest.weight, BUDGET)
    return Learned(train, models, threshold)


def fitted(name: str, train: Examples, test: Examples, seed: int) -> Floats:
    """Probability of an onset within the horizon for each test row."""
    model = scorer(name, seed)
    model.fit(train)
    return model.score(test)[:, -1]


def own_recency(rows: Examples) -> Floats:
    """The more lately the GPU had an error, the higher; 0 without one."""
    days = np.fmin(rows.column("own_dbe_days"), rows.column("own_otb_days")).astype(np.float64)
    return np.where(np.isnan(days), 0.0, 1.0 / (1.0 + np.nan_to_num(days)))
