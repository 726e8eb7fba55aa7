"""What every model of failure offers, the laws it keeps (``tests/laws/test_scorer_laws.py``), and its settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.phrase import Phrase, say
from tocsin.forecaster.features.examples import HORIZONS_MS, Examples, Floats

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

    def score(self, examples: Examples) -> Floats:
        """float64[n, horizons]: probability of an onset within each horizon, never falling along a row; NaN in rows
        whose past is shorter than `min_history_ms`."""

    def state(self) -> State:
        """All that `build` with the same settings needs to answer alike after `restore`."""

    def restore(self, state: State) -> None:
        """Take up a state. Raises InputError for one of another family or version."""


def short_history(name: str, history_ms: int, needed_ms: int) -> Phrase:
    """Why a row has no score, in the words of every scorer."""
    there, needed = f"{history_ms / HOUR:.1f}", f"{needed_ms / HOUR:.1f}"
    return say("{scorer}: {n} h of history, {needed} h needed", scorer=name, n=there, needed=needed)


# Settings of scorers: plain data, so that an artefact can build the same scorer again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every family has.

    `features` are shell patterns of the features that may be looked at; one with a leading ``!`` leaves out what it
    matches. `min_onsets` different onsets must fall within the longest horizon of some row, or the fit is refused.
    Whatever is chosen inside a fit is chosen on `folds` folds that are disjoint by device.
    """

    horizons_ms: tuple[int, ...] = HORIZONS_MS
    min_history_ms: int = 0
    min_onsets: int = 3
    features: tuple[str, ...] = ("*",)
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        horizons = self.horizons_ms
        if not horizons or horizons[0] <= 0 or any(b <= a for a, b in pairwise(horizons)):
            raise InputError("horizons_ms", horizons, "not a rising list of spans", "give for example [3600000]")
        if self.folds < 2:
            raise InputError("folds", self.folds, "fewer than 2", "give 2 or more")


SettingsT = TypeVar("SettingsT", bound=Common)
MadeT = TypeVar("MadeT")


def _plain(value: object) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    return value


def make(kind: type[MadeT], family: str, given: Mapping[str, object]) -> MadeT:
    """Settings of a family from plain data; lists become tuples. Raises InputError for a name it does not have."""
    known = inspect.signature(kind).parameters
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{family}.{name}", value, "no such setting", f"there are {', '.join(sorted(known))}")
    return kind(**{name: _plain(value) for name, value in given.items()})


def header(scorer: Scorer, settings: Common) -> Json:
    """What every state says: of which family and version, and the settings to `make` the scorer with again."""
    return {"family": scorer.name, "version": scorer.version, "build": asdict(settings)}
