"""What the families on rows of features share: columns by name, refusals, curves over the horizons, state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import Examples, Floats, Singles
from tocsin.forecaster.hazard.curves import Curves, fit_curves, from_arrays
from tocsin.forecaster.hazard.rows import LearningRows, aligned, chosen_names, known_rows, require, too_short
from tocsin.forecaster.hazard.scorer import SettingsT, State, header

Arrays = Mapping[str, npt.NDArray[np.generic]]


class RiskScorer(ABC, Generic[SettingsT]):
    """A scorer that makes one risk of each row; curves over the horizons make probabilities of it."""

    name: str
    version: str

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings
        self.horizons_ms = settings.horizons_ms
        self.min_history_ms = settings.min_history_ms
        self._names: tuple[str, ...] = ()
        self._curves: Curves | None = None

    @property
    def features(self) -> tuple[str, ...]:
        return self._names

    @abstractmethod
    def fit(self, examples: Examples) -> None:
        """See the protocol."""

    def score(self, examples: Examples) -> Floats:
        if self._curves is None:
            raise Conflict(f"{self.name}: not fitted yet")
        probability = self._curves.probability(self.risk(examples))
        probability[too_short(examples, self.settings)] = np.nan
        return probability

    @abstractmethod
    def risk(self, examples: Examples) -> Floats:
        """float64[n]: the score itself, higher is worse, without a unit."""

    def state(self) -> State:
        if self._curves is None:
            raise Conflict(f"{self.name}: not fitted yet")
        arrays, estimators = self._parts()
        settings = {**header(self, self.settings), "names": list(self._names)}
        return State(settings, {**arrays, **self._curves.arrays()}, estimators)

    def restore(self, state: State) -> None:
        check_state(self.name, self.version, state)
        names = state.settings["names"]
        if not isinstance(names, list):
            raise InputError("names", names, "not a list of features", "use the state of a fitted scorer")
        self._names = tuple(str(name) for name in names)
        self._take_up(state)
        self._curves = from_arrays({name: np.asarray(state.arrays[name], np.float64) for name in ("curve", "seen")})

    @abstractmethod
    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        """Arrays and estimators of the state."""

    @abstractmethod
    def _take_up(self, state: State) -> None:
        """The reverse of `_parts`."""


class TabularScorer(RiskScorer[SettingsT]):
    """A scorer that learns its risk from a table of features, found by name."""

    def fit(self, examples: Examples) -> None:
        names = chosen_names(examples.names, self.settings.features)
        rows = known_rows(examples, names, self.settings)
        self._require(rows)
        self._names, self._curves = names, None
        self._curves = self._fit_curves(self._learn(rows), rows)

    def _aligned(self, examples: Examples) -> Singles:
        return aligned(examples, self._names)

    def _require(self, rows: LearningRows) -> None:
        require(self.name, rows, self.settings)

    def _fit_curves(self, risk: Floats, rows: LearningRows) -> Curves:
        return fit_curves(risk, rows, self.horizons_ms)

    @abstractmethod
    def _learn(self, rows: LearningRows) -> Floats:
        """Fit, and give the risk of each row, wherever possible from a model that did not learn from its device."""


def check_state(name: str, version: str, state: State) -> None:
    """Raises InputError where `state` is of another family or version."""
    found = (state.settings.get("family"), state.settings.get("version"))
    if found != (name, version):
        problem = f"not a state of {name} {version}"
        raise InputError("state", " ".join(str(part) for part in found), problem, "train anew, or use that version")
