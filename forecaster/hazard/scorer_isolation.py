"""Isolation forest over quiet rows: what is easily cut off from them is strange (Liu, Ting and Zhou 2008)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import IsolationForest

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Floats, Ints, Singles
from tocsin.forecaster.hazard.scorer import State, make
from tocsin.forecaster.hazard.tabular import Arrays
from tocsin.forecaster.hazard.unseen import UnseenScorer, UnseenSettings

FOREST = "forest"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings(UnseenSettings):
    """`trees` trees of `sample` rows each."""

    trees: int = 200
    sample: int = 256


class IsolationScorer(UnseenScorer[IsolationSettings]):
    """Knows no onset and no feature by name; sees rows that are unlike all quiet ones.

    A missing value counts as usual: gaps are rare and would be the easiest to cut off.
    """

    name = "isolation"
    version = "1"

    def __init__(self, settings: IsolationSettings) -> None:
        super().__init__(settings)
        self._forest: IsolationForest | None = None

    def _learn_quiet(self, z: Floats) -> None:
        forest = IsolationForest(
            n_estimators=self.settings.trees,
            max_samples=min(self.settings.sample, len(z)),
            random_state=self.settings.seed,
        )
        self._forest = forest.fit(_table(z))

    def _strange(self, x: Singles, _company: Ints) -> Floats:
        assert self._forest is not None
        return np.asarray(-self._forest.score_samples(_table(self._even(x))), np.float64) if len(x) else np.zeros(0)

    def _parts(self) -> tuple[Arrays, dict[str, object]]:
        return super()._parts()[0], {FOREST: self._forest}

    def _take_up(self, state: State) -> None:
        super()._take_up(state)
        forest = state.estimators.get(FOREST)
        if not isinstance(forest, IsolationForest):
            raise InputError("estimators", sorted(state.estimators), "no forest", "use the state of a fitted scorer")
        self._forest = forest


def _table(z: Floats) -> Singles:
    """One column of zeros where none varies: a forest needs one."""
    return (z if z.shape[1] else np.zeros((len(z), 1))).astype(np.float32)


def build(**settings: object) -> IsolationScorer:
    """The scorer with `IsolationSettings`."""
    return IsolationScorer(make(IsolationSettings, IsolationScorer.name, settings))
