"""A rate that is stated in a feature already, such as one that is counted live from histories of events.

The model keeps the order of the rate and learns only how its probability reads within each horizon, so it has next to
nothing to overfit with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tocsin.forecaster.examples import Examples, Floats, Singles
from tocsin.forecaster.scorer import State
from tocsin.forecaster.scorers.curves import Curves
from tocsin.forecaster.scorers.rows import Rows
from tocsin.forecaster.scorers.settings import Common, make
from tocsin.forecaster.scorers.tabular import Arrays, TabularScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Common):
    """`rate` is the feature with the logarithm of the rate, in any unit of time."""

    rate: str = "log_rate"


class RateScorer(TabularScorer[Settings]):
    """The stated log rate as the risk; a row without one gets the mean of those that were learned from.

    Unlike other scores, a rate beyond those that were seen is believed as it stands: fleets do get worse than they ever
    were.
    """

    name = "rate"
    version = "1"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._mean = 0.0

    def _learn(self, rows: Rows) -> Floats:
        rate = self._stated(rows.x)
        known = np.isfinite(rate)
        self._mean = float(np.average(rate[known], weights=rows.weight[known])) if known.any() else 0.0
        return np.where(known, rate, self._mean)

    def _fit_curves(self, risk: Floats, rows: Rows) -> Curves:
        return replace(super()._fit_curves(risk, rows), low=-np.inf, high=np.inf)

    def _stated(self, x: Singles) -> Floats:
        if self.settings.rate not in self.features:
            return np.full(len(x), np.nan)
        return x[:, self.features.index(self.settings.rate)].astype(np.float64)

    def risk(self, examples: Examples) -> Floats:
        rate = self._stated(self._aligned(examples))
        return np.where(np.isfinite(rate), rate, self._mean)

    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        return {"mean": np.array([self._mean])}, {}

    def _take_up(self, state: State) -> None:
        self._mean = float(np.asarray(state.arrays["mean"], np.float64)[0])


def build(**settings: object) -> RateScorer:
    """The scorer with `Settings`."""
    made = make(Settings, RateScorer.name, settings)
    return RateScorer(replace(made, features=(made.rate,)))
