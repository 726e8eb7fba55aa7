"""What each metric should be, from the other metrics and from the peers; the strangest few residuals are the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.features.examples import Floats, Ints, Singles
from tocsin.forecaster.hazard.scorer import State, make
from tocsin.forecaster.hazard.tabular import Arrays
from tocsin.forecaster.hazard.unseen import UnseenScorer, UnseenSettings, apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructionSettings(UnseenSettings):
    """`ridge` is that of the regressions, on metrics of spread 1; the `top` largest residuals make the score. With
    `peers` a residual counts half by itself and half against the devices of the same group at the same instant."""

    ridge: float = 0.1
    top: int = 3
    peers: bool = True


class ReconstructionScorer(UnseenScorer[ReconstructionSettings]):
    """A fault that no one has seen yet breaks the usual relation of a metric to the others, or to that of the peers."""

    name = "reconstruction"
    version = "1"

    def __init__(self, settings: ReconstructionSettings) -> None:
        super().__init__(settings)
        self._model: Reconstruction | None = None

    def _learn_quiet(self, z: Floats) -> None:
        self._model = reconstruction(z, self.settings.ridge)

    def _residuals(self, x: Singles, company: Ints) -> Floats:
        """float64[n, columns]; NaN where the value is missing."""
        assert self._preparation is not None
        assert self._model is not None
        own = self._model.residuals(self._even(x))
        own[np.isnan(x[:, self._preparation.columns])] = np.nan
        if not self.settings.peers or not len(x):
            return own
        against, has_peers = apart(own, company)
        return np.where(has_peers[:, None], (own + against) / 2, own)

    def _strange(self, x: Singles, company: Ints) -> Floats:
        return strangest(self._residuals(x, company), self.settings.top)

    def _parts(self) -> tuple[Arrays, dict[str, object]]:
        assert self._model is not None
        arrays, estimators = super()._parts()
        return {**arrays, "precision": self._model.precision, "residual_spread": self._model.spread}, estimators

    def _take_up(self, state: State) -> None:
        super()._take_up(state)
        precision, spread = (np.asarray(state.arrays[name], np.float64) for name in ("precision", "residual_spread"))
        self._model = Reconstruction(precision, spread)


def build(**settings: object) -> ReconstructionScorer:
    """The scorer with `ReconstructionSettings`."""
    return ReconstructionScorer(make(ReconstructionSettings, ReconstructionScorer.name, settings))


# Each metric from all others, by ridge regressions that share one matrix. With S the covariance of the metrics and P
# the inverse of S + r I, the ridge regression of metric j on the others leaves the residual (P z)_j / P_jj: all
# regressions at once, without one fit for each.

FLOOR = 0.05
"""The least spread of a residual, in spreads of its metric: one that is always told exactly would alarm at dust."""
FAR = 10.0
"""A residual counts at most so many of its spreads: one broken sensor is as strange as can be, not more."""


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """`precision` float64[m, m] is P, `spread` float64[m] that of each residual among quiet rows."""

    precision: Floats
    spread: Floats

    def residuals(self, z: Floats) -> Floats:
        """float64[n, m], in spreads, for `z` float64[n, m]."""
        away = (z @ self.precision) / np.diag(self.precision) / self.spread
        return np.clip(away, -FAR, FAR)


def reconstruction(z: Floats, ridge: float) -> Reconstruction:
    """Learn from quiet rows `z` float64[n, m], of mean 0 and spread 1 each. The spread of a residual is from its
    quartiles, or where these are nothing from its mean square."""
    covariance = z.T @ z / len(z)
    precision = np.asarray(np.linalg.inv(covariance + ridge * np.eye(z.shape[1])), np.float64)
    away = (z @ precision) / np.diag(precision)
    first, third = np.quantile(away, (0.25, 0.75), axis=0)
    spread = np.maximum((third - first) / 1.349, np.sqrt((away**2).mean(axis=0)) / 3)
    return Reconstruction(precision, np.maximum(spread, FLOOR))


def strangest(residuals: Floats, top: int) -> Floats:
    """float64[n]: root mean square of the `top` largest residuals of a row; NaN counts as nothing."""
    size = np.nan_to_num(np.abs(residuals))
    count = min(top, size.shape[1])
    if count == 0:
        return np.zeros(len(size))
    largest = np.partition(size, size.shape[1] - count, axis=1)[:, size.shape[1] - count :]
    return np.asarray(np.sqrt((largest**2).mean(axis=1)), np.float64)
