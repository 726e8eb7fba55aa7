"""Gradient-boosted trees (scikit-learn's HistGradientBoosting) as a bag over device folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Mask, Singles
from tocsin.forecaster.hazard.physics import RISING
from tocsin.forecaster.hazard.rows import LearningRows, balanced, device_folds
from tocsin.forecaster.hazard.scorer import Common, State, make
from tocsin.forecaster.hazard.tabular import Arrays, TabularScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSettings(Common):
    """`bags` times `folds` models are fitted, each on all folds but one and stopped early by that one.

    `balance` is the share of the loss that rows with an onset get while the trees grow (0: as they come); the curves
    over the horizons bring the probabilities back. `rising` and `falling` are shell patterns of features along which
    the risk may only rise or only fall. The others are those of scikit-learn.
    """

    bags: int = 1
    balance: float = 0.5
    learning_rate: float = 0.05
    max_iter: int = 300
    patience: int = 20
    max_leaf_nodes: int = 15
    min_samples_leaf: int = 20
    l2_regularization: float = 1.0
    max_features: float = 0.5
    rising: tuple[str, ...] = RISING
    falling: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not 0 <= self.balance < 1:
            raise InputError("boosting.balance", self.balance, "not a share below 1", "give for example 0.5")


class BoostingScorer(TabularScorer[BoostingSettings]):
    """A bag of boosted trees; the risk is the mean of their log-odds."""

    name = "boosting"
    version = "1"

    def __init__(self, settings: BoostingSettings) -> None:
        super().__init__(settings)
        self._columns = np.zeros(0, np.int64)
        self._edges = np.zeros((0, 0), np.float32)
        self._usual = np.zeros(0, np.float32)
        self._models: list[HistGradientBoostingClassifier] = []

    def _learn(self, rows: LearningRows) -> Floats:
        self._columns = np.flatnonzero(_varies(rows.x))
        self._models = []
        self._edges = edges(rows.x[:, self._columns])
        x = self._used(rows.x)
        self._usual = np.nanmedian(x, axis=0).astype(np.float32)
        held_out = np.zeros(len(rows))
        for bag in range(self.settings.bags):
            seed = self.settings.seed * 1000 + bag
            fold = device_folds(rows, self.settings.folds, seed)
            for one in range(int(fold.max()) + 1):
                out = fold == one
                model = self._model(seed + 37 * one)
                weight = balanced(rows.onset, rows.weight, self.settings.balance)
                _fit(model, x, rows.onset, weight, out)
                self._models.append(model)
                held_out[out] += model.decision_function(x[out]) / self.settings.bags
        return held_out

    def _model(self, seed: int) -> HistGradientBoostingClassifier:
        s = self.settings
        names = [self.features[i] for i in self._columns]
        monotone = [_direction(name, s) for name in names] or [0]
        return HistGradientBoostingClassifier(
            learning_rate=s.learning_rate,
            max_iter=s.max_iter,
            max_leaf_nodes=s.max_leaf_nodes,
            min_samples_leaf=s.min_samples_leaf,
            l2_regularization=s.l2_regularization,
            max_features=s.max_features,
            early_stopping=True,
            n_iter_no_change=s.patience,
            monotonic_cst=monotone,
            categorical_features=None,
            random_state=seed,
        )

    def risk(self, examples: Examples) -> Floats:
        if not len(examples):
            return np.zeros(0)
        return self._odds(self._used(self._aligned(examples)))

    def attributions(self, examples: Examples) -> Floats:
        """float64[n, features]: by how much the log-odds fall when a feature gets its usual value instead."""
        made = np.zeros((len(examples), len(self.features)))
        for row, values in enumerate(self._used(self._aligned(examples))):
            count = self._columns.size
            changed = np.tile(values, (count + 1, 1))
            changed[np.arange(count), np.arange(count)] = self._usual[:count]
            odds = self._odds(changed)
            made[row, self._columns] = odds[-1] - odds[:-1]
        return made

    def _odds(self, x: Singles) -> Floats:
        return np.asarray(np.mean([model.decision_function(x) for model in self._models], axis=0), np.float64)

    def _used(self, x: Singles) -> Singles:
        """The bins of the columns that vary; one that does not, where there are none."""
        return numbered(x[:, self._columns], self._edges) if self._columns.size else np.zeros((len(x), 1), np.float32)

    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        return {"columns": self._columns, "edges": self._edges, "usual": self._usual}, {
            f"tree{i:03}": model for i, model in enumerate(self._models)
        }

    def _take_up(self, state: State) -> None:
        self._columns = np.asarray(state.arrays["columns"], np.int64)
        self._edges = np.asarray(state.arrays["edges"], np.float32)
        self._usual = np.asarray(state.arrays["usual"], np.float32)
        estimators = state.estimators
        models = [estimators[name] for name in sorted(estimators)]
        if not models or not all(isinstance(one, HistGradientBoostingClassifier) for one in models):
            raise InputError("estimators", sorted(estimators), "not boosted trees", "use the state of a fitted scorer")
        self._models = models


def _varies(x: Singles) -> Mask:
    """Columns with two different values, or with one that is missing now and then."""
    missing = np.isnan(x)
    low, high = np.where(missing, np.inf, x).min(axis=0), np.where(missing, -np.inf, x).max(axis=0)
    varies: Mask = (low < high) | (missing.any(axis=0) & ~missing.all(axis=0))
    return varies


def _direction(name: str, settings: BoostingSettings) -> int:
    if any(fnmatchcase(name, pattern) for pattern in settings.rising):
        return 1
    return -1 if any(fnmatchcase(name, pattern) for pattern in settings.falling) else 0


def _fit(model: HistGradientBoostingClassifier, x: Singles, onset: Mask, weight: Floats, out: Mask) -> None:
    """Fit on what is not `out`, and stop early by what is."""
    kept: Ints = np.flatnonzero(~out)
    if not onset[kept].any():
        kept = np.arange(onset.size)
    learn = x[kept]
    learn[0, np.isnan(learn).all(axis=0)] = 0.0  # scikit-learn cannot bin a column that is missing throughout
    model.fit(
        learn, onset[kept], sample_weight=weight[kept],
        X_val=x[out], y_val=onset[out], sample_weight_val=weight[out],
    )  # fmt: skip


def build(**settings: object) -> BoostingScorer:
    """The scorer with `BoostingSettings`."""
    return BoostingScorer(make(BoostingSettings, BoostingScorer.name, settings))


# Values as the numbers of their bins. Trees split between bins anyway. With weights, the own binning of scikit-learn
# 1.9 sums up the weights anew for each of 255 quantiles of each feature, which costs many times what the trees do; of
# fewer different values it takes the middles between them, for nothing.

MOST = 200
"""Bins of a feature at most."""
SAMPLE = 100_000
"""Rows that quantiles are taken from: evenly spaced, so that the choice needs no chance."""


def edges(x: Singles) -> Singles:
    """float32[f, k]: rising edges between the bins of each column of `x` float32[n, f], filled up with infinity.

    Quantiles go by rows, not by weights: rows with an onset are dense where it matters.
    """
    sample = x[:: max(1, -(-len(x) // SAMPLE))]
    found = [_column(sample[:, i]) for i in range(x.shape[1])]
    made = np.full((len(found), max((one.size for one in found), default=0)), np.inf, np.float32)
    for row, one in zip(made, found, strict=True):
        row[: one.size] = one
    return made


def _column(values: Singles) -> Singles:
    values = values[~np.isnan(values)]
    distinct = np.unique(values)
    if distinct.size <= MOST:
        return distinct[:-1]
    return np.unique(np.quantile(values, np.linspace(0, 1, MOST + 1)[1:-1], method="inverted_cdf"))


def numbered(x: Singles, limits: Singles) -> Singles:
    """float32[n, f]: how many of the column's edges lie below each value; NaN where it is missing."""
    columns = np.ascontiguousarray(x.T)
    made = np.empty(columns.shape, np.float32)
    for column, row, to in zip(columns, limits, made, strict=True):
        to[:] = np.searchsorted(row, column, side="left")
    made[np.isnan(columns)] = np.nan
    return np.ascontiguousarray(made.T)
