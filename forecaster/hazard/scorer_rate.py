"""A rate that is stated in a feature already, such as one that is counted live from histories of events.

By itself the model keeps the order of the rate and learns only how its probability reads within each horizon, so it has
next to nothing to overfit with. Given many onsets it can also learn by what factor the rate errs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Mask, Singles
from tocsin.forecaster.hazard.curves import Curves
from tocsin.forecaster.hazard.rows import LearningRows, device_folds, onsets
from tocsin.forecaster.hazard.scorer import Common, State, make
from tocsin.forecaster.hazard.tabular import Arrays, TabularScorer

LEAST_FACTOR = 1e-6
CORRECTION = "correction"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings(Common):
    """`rate` is the feature with the logarithm of the rate, in any unit of time. `correct` are shell patterns of the
    features that may correct it, none by default; below `correct_from` onsets nothing is corrected. The other settings
    are those of scikit-learn's trees; `l2_regularization` counts in onsets."""

    rate: str = "log_rate"
    correct: tuple[str, ...] = ()
    correct_from: int = 200
    learning_rate: float = 0.05
    max_iter: int = 300
    max_leaf_nodes: int = 4
    min_samples_leaf: int = 1000
    l2_regularization: float = 300.0


class RateScorer(TabularScorer[RateSettings]):
    """The stated log rate as the risk, plus the log of the factor by which it errs; a row without a rate gets the mean
    of those that were learned from.

    The factor comes from boosted trees under Poisson loss, with the onsets that the rate states as exposure: a target
    of onsets / stated with weight stated has the same likelihood as an offset. Unlike other scores, a rate beyond
    those that were seen is believed as it stands: fleets do get worse than they ever were.
    """

    name = "rate"
    version = "1"

    def __init__(self, settings: RateSettings) -> None:
        super().__init__(settings)
        self._mean = 0.0
        self._correction: HistGradientBoostingRegressor | None = None

    def _learn(self, rows: LearningRows) -> Floats:
        rate = self._stated(rows.x)
        known = np.isfinite(rate)
        self._mean = float(np.average(rate[known], weights=rows.weight[known])) if known.any() else 0.0
        rate = np.where(known, rate, self._mean)
        self._correction = None
        if not self.settings.correct or self._beside(rows.x).shape[1] == 0 or onsets(rows) < self.settings.correct_from:
            return rate
        fold = device_folds(rows, self.settings.folds, self.settings.seed)
        held_out = rate.copy()
        for one in np.unique(fold):
            out = fold == one
            held_out[out] += self._factor(self._fitted(rows, rate, ~out), rows.x[out])
        self._correction = self._fitted(rows, rate, np.ones_like(known))
        return held_out

    def _fitted(self, rows: LearningRows, rate: Floats, kept: Mask) -> HistGradientBoostingRegressor:
        s = self.settings
        model = HistGradientBoostingRegressor(
            loss="poisson", learning_rate=s.learning_rate, max_iter=s.max_iter, max_leaf_nodes=s.max_leaf_nodes,
            min_samples_leaf=s.min_samples_leaf, l2_regularization=s.l2_regularization, early_stopping=False,
            random_state=s.seed,
        )  # fmt: skip
        weight, onset = rows.weight[kept], rows.onset[kept]
        stated = np.exp(rate[kept] - rate[kept].max())
        stated *= (weight * onset).sum() / (weight * stated).sum()
        model.fit(self._beside(rows.x)[kept], onset / stated, sample_weight=weight * stated)
        return model

    def _factor(self, model: HistGradientBoostingRegressor, x: Singles) -> Floats:
        """Log of the factor."""
        if not len(x):
            return np.zeros(0)
        return np.asarray(np.log(np.maximum(model.predict(self._beside(x)), LEAST_FACTOR)), np.float64)

    def _fit_curves(self, risk: Floats, rows: LearningRows) -> Curves:
        return replace(super()._fit_curves(risk, rows), low=-np.inf, high=np.inf)

    def _stated(self, x: Singles) -> Floats:
        if self.settings.rate not in self.features:
            return np.full(len(x), np.nan)
        return x[:, self.features.index(self.settings.rate)].astype(np.float64)

    def _beside(self, x: Singles) -> Singles:
        return x[:, [i for i, name in enumerate(self.features) if name != self.settings.rate]]

    def risk(self, examples: Examples) -> Floats:
        x = self._aligned(examples)
        rate = self._stated(x)
        rate = np.where(np.isfinite(rate), rate, self._mean)
        return rate if self._correction is None else rate + self._factor(self._correction, x)

    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        trees = {} if self._correction is None else {CORRECTION: self._correction}
        return {"mean": np.array([self._mean])}, trees

    def _take_up(self, state: State) -> None:
        self._mean = float(np.asarray(state.arrays["mean"], np.float64)[0])
        trees = state.estimators.get(CORRECTION)
        if trees is not None and not isinstance(trees, HistGradientBoostingRegressor):
            raise InputError("estimators", CORRECTION, "not boosted trees", "use the state of a fitted scorer")
        self._correction = trees


def build(**settings: object) -> RateScorer:
    """The scorer with `RateSettings`."""
    made = make(RateSettings, RateScorer.name, settings)
    return RateScorer(replace(made, features=(made.rate, *made.correct)))
