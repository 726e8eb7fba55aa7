"""Named signs, each with a weight, and a table of base rates: what an operator would say without any training."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import numpy as np
from sklearn.isotonic import IsotonicRegression

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin.forecaster.hazard.curves import Curves, fit_curves, prior_curves
from tocsin.forecaster.hazard.rows import LearningRows, known_rows, onsets, usable
from tocsin.forecaster.hazard.scorer import Common, State, make
from tocsin.forecaster.hazard.tabular import Arrays, RiskScorer

Term = tuple[str, str, float, float]
"""Shell pattern of features, ``>=`` or ``<=``, limit, and weight: the logarithm of how much likelier an onset is."""

_WHEN = (">=", "<=")


@cache
def shipped_terms() -> tuple[Term, ...]:
    """The terms of ``rule_terms.csv``; limits are in the units of the feature, weights are own choice."""
    text = files("tocsin.forecaster.hazard").joinpath("rule_terms.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple((row["pattern"], row["when"], float(row["at"]), float(row["weight"])) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleScorerSettings(Common):
    """`terms` are added up where a feature that matches is beyond the limit (none given: the shipped ones).
    `prior_per_day` is the rate of onsets of a device without any sign, until `min_onsets` are known."""

    terms: tuple[Term, ...] = ()
    prior_per_day: float = 0.0004
    min_onsets: int = 10

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        for term in self.terms:
            if len(term) != 4 or term[1] not in _WHEN:
                raise InputError("rules.terms", term, "not [pattern, >= or <=, limit, weight]", "give all four")


class RulesScorer(RiskScorer[RuleScorerSettings]):
    """Works without a fit, on any feature names: a term without its feature adds nothing."""

    name = "rules"
    version = "1"

    def __init__(self, settings: RuleScorerSettings) -> None:
        super().__init__(settings)
        self._terms = settings.terms or shipped_terms()
        self._weights = np.array([term[3] for term in self._terms])
        self._names = tuple(term[0] for term in self._terms)
        self._table = np.array([[0.0], [0.0]])
        self._curves = self._prior()

    def _prior(self) -> Curves:
        top = float(sum(max(term[3], 0.0) for term in self._terms))
        low = float(sum(min(term[3], 0.0) for term in self._terms))
        return prior_curves(self.horizons_ms, self.settings.prior_per_day, 1.0, low, top)

    def holding(self, examples: Examples) -> Mask:
        """bool[n, terms]: which terms hold."""
        made = np.zeros((len(examples), len(self._terms)), np.bool_)
        for place, (pattern, when, limit, _) in enumerate(self._terms):
            for column in (i for i, name in enumerate(examples.names) if fnmatchcase(name, pattern)):
                values = examples.features[:, column]
                made[:, place] |= np.isfinite(values) & ((values >= limit) if when == ">=" else (values <= limit))
        return made

    def points(self, examples: Examples) -> Floats:
        """float64[n]: sum of the weights of the terms that hold."""
        return np.asarray(self.holding(examples) @ self._weights, np.float64)

    def risk(self, examples: Examples) -> Floats:
        points = self.points(examples)
        return points if self._table.shape[1] < 2 else np.interp(points, *self._table)

    def fit(self, examples: Examples) -> None:
        self._table, self._curves = np.zeros((2, 1)), self._prior()
        rows = known_rows(examples, (), self.settings)
        if onsets(rows) < self.settings.min_onsets or rows.onset.all():
            return
        points = self.points(examples)[usable(examples, self.settings)]
        self._table = base_rates(points, rows)
        self._curves = fit_curves(np.interp(points, *self._table), rows, self.horizons_ms)

    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        return {"table": self._table}, {}

    def _take_up(self, state: State) -> None:
        self._table = np.asarray(state.arrays["table"], np.float64)


def base_rates(points: Floats, rows: LearningRows) -> Floats:
    """float64[2, k]: a rising table from points to the log-odds of an onset within the longest horizon.

    Each number of points has the rate that was seen, drawn to the mean rate by as much exposure as one onset takes.
    """
    values, of_row = np.unique(points.round(6), return_inverse=True)
    mass = np.bincount(of_row, rows.weight)
    found = np.bincount(of_row, rows.weight * rows.onset)
    mean = found.sum() / mass.sum()
    rate = (found + 1) / (mass + 1 / mean)
    level = IsotonicRegression().fit(values, rate, sample_weight=mass + 1 / mean).predict(values)
    level = np.clip(level, 1e-12, 1 - 1e-12)
    return np.stack([values, np.log(level / (1 - level))])


def build(**settings: object) -> RulesScorer:
    """The scorer with `RulesSettings`."""
    return RulesScorer(make(RuleScorerSettings, RulesScorer.name, settings))
