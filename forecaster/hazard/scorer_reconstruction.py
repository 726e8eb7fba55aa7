"""What each metric should be, from the other metrics and from the peers; the strangest few residuals are the score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.features.examples import Floats, Ints, Singles
from tocsin.forecaster.hazard.peers import apart
from tocsin.forecaster.hazard.prepare import Preparation, from_arrays, prepare
from tocsin.forecaster.hazard.reconstruct import Reconstruction, reconstruction, strangest
from tocsin.forecaster.hazard.scorer import State
from tocsin.forecaster.hazard.settings import make
from tocsin.forecaster.hazard.tabular import Arrays
from tocsin.forecaster.hazard.unseen import UnseenScorer, UnseenSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(UnseenSettings):
    """`ridge` is that of the regressions, on metrics of spread 1; the `top` largest residuals make the score. With
    `peers` a residual counts half by itself and half against the devices of the same group at the same instant."""

    ridge: float = 0.1
    top: int = 3
    peers: bool = True


class ReconstructionScorer(UnseenScorer[Settings]):
    """A fault that no one has seen yet breaks the usual relation of a metric to the others, or to that of the peers."""

    name = "reconstruction"
    version = "1"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._preparation: Preparation | None = None
        self._model: Reconstruction | None = None

    def _learn_quiet(self, x: Singles) -> None:
        self._preparation = prepare(x)
        z = self._preparation.apply(x)[:, : self._preparation.columns.size]
        self._model = reconstruction(z, self.settings.ridge)

    def _residuals(self, x: Singles, company: Ints) -> Floats:
        """float64[n, columns]; NaN where the value is missing."""
        assert self._preparation is not None
        assert self._model is not None
        columns = self._preparation.columns
        own = self._model.residuals(self._preparation.apply(x)[:, : columns.size])
        own[np.isnan(x[:, columns])] = np.nan
        if not self.settings.peers or not len(x):
            return own
        against, has_peers = apart(own, company)
        return np.where(has_peers[:, None], (own + against) / 2, own)

    def _strange(self, x: Singles, company: Ints) -> Floats:
        return strangest(self._residuals(x, company), self.settings.top)

    def _parts(self) -> tuple[Arrays, dict[str, object]]:
        assert self._preparation is not None
        assert self._model is not None
        arrays, estimators = super()._parts()
        own = {"precision": self._model.precision, "residual_spread": self._model.spread}
        return {**arrays, **self._preparation.arrays(), **own}, estimators

    def _take_up(self, state: State) -> None:
        super()._take_up(state)
        self._preparation = from_arrays(state.arrays)
        precision, spread = (np.asarray(state.arrays[name], np.float64) for name in ("precision", "residual_spread"))
        self._model = Reconstruction(precision, spread)


def build(**settings: object) -> ReconstructionScorer:
    """The scorer with `Settings`."""
    return ReconstructionScorer(make(Settings, ReconstructionScorer.name, settings))
