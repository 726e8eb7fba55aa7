"""What every model of failure offers, and the laws it keeps (``tests/laws/test_scorer_laws.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import TocsinError
from tocsin.forecaster.features.examples import Examples, Floats

Json = dict[str, object]


class NotEnoughData(TocsinError):
    """There is too little past to learn from; the text says how much there is and how much is needed."""


@dataclass(frozen=True, slots=True)
class State:
    """A fitted scorer as data: `settings` goes to JSON, `arrays` to safetensors, `estimators` (scikit-learn objects) to
    skops. Nothing is ever pickled."""

    settings: Json
    arrays: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    estimators: Mapping[str, object] = field(default_factory=dict)


class Scorer(Protocol):
    """A model family of the hazard of a new onset.

    Same examples and seed, same scores; inputs are never changed. Features are found by name: one that was not there
    at the fit is not looked at, one that is gone counts as missing, and gaps are normal. A constant healthy past gives
    no alarm.
    """

    name: str
    version: str
    horizons_ms: tuple[int, ...]
    min_history_ms: int
    """A row with a shorter past gets no score."""

    def fit(self, examples: Examples) -> None:
        """Learn from `examples`, rows of unknown label left out, weights respected. Raises NotEnoughData."""
        ...

    def score(self, examples: Examples) -> Floats:
        """float64[n, horizons]: probability of an onset within each horizon, never falling along a row; NaN in rows
        whose past is shorter than `min_history_ms`."""
        ...

    def state(self) -> State:
        """All that `build` with the same settings needs to answer alike after `restore`."""
        ...

    def restore(self, state: State) -> None:
        """Take up a state. Raises InputError for one of another family or version."""
        ...


def short_history(name: str, history_ms: int, needed_ms: int) -> str:
    """Why a row has no score, in the words of every scorer."""
    return f"{name}: {history_ms / HOUR:.1f} h of history, {needed_ms / HOUR:.1f} h needed"
