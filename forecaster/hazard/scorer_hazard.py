"""Regularised discrete-time hazard: one linear risk shared by all horizons, a curve for each interval. The default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Singles
from tocsin.forecaster.hazard.physics import RISING, is_rising
from tocsin.forecaster.hazard.rows import LearningRows, Preparation, balanced, device_folds, from_arrays, prepare, thin
from tocsin.forecaster.hazard.scorer import Common, State, make
from tocsin.forecaster.hazard.tabular import Arrays, TabularScorer

WORTH = 0.01
"""A softer prior must lower the loss on other devices by this share: a smaller gain is within its noise. Own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardSettings(Common):
    """`strengths` are the candidates for the variance of the normal prior of a coefficient, in logits per standard
    deviation of its feature, smaller is stiffer; from the stiffest on, the fit goes on as long as the loss on devices
    that it did not learn from falls. Rows with an onset get the share `balance` of the loss, if that is more than they
    have: without it a few quiet rows of large weight steer the whole fit. At most `max_quiet` quiet rows are used,
    re-weighted to stand for all. `rising` are shell patterns of features along which the risk never falls."""

    strengths: tuple[float, ...] = (0.0001, 0.001, 0.01, 0.1)
    balance: float = 0.1
    max_quiet: int = 60_000
    rising: tuple[str, ...] = RISING

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not self.strengths or min(self.strengths) <= 0:
            raise InputError("hazard.strengths", self.strengths, "empty or not above 0", "give for example [0.01]")
        if not 0 <= self.balance < 1:
            raise InputError("hazard.balance", self.balance, "not a share below 1", "give for example 0.1")


class HazardScorer(TabularScorer[HazardSettings]):
    """Logistic regression on features made even.

    Its risk is in log-odds, of rows as balanced as the fit saw them; the curves, fitted on devices held out and with
    the true weights, bring the probabilities back.
    """

    name = "hazard"
    version = "1"

    def __init__(self, settings: HazardSettings) -> None:
        super().__init__(settings)
        self._preparation: Preparation | None = None
        self._coefficients = np.zeros(0)
        self.strength = settings.strengths[0]

    def _learn(self, rows: LearningRows) -> Floats:
        # scikit-learn is most of the memory of a process that loads it; one that scores alone does without.
        from tocsin.forecaster.hazard.hazard_fit import fit, held_out

        settings = self.settings
        kept, weight = thin(rows.onset, rows.weight, settings.max_quiet, settings.seed)
        weight = balanced(rows.onset[kept], weight, settings.balance)
        weight /= weight[rows.onset[kept]].mean()
        self._preparation = prepare(rows.x)
        z, onset = self._preparation.apply(rows.x[kept]), rows.onset[kept]
        least = self._least()
        fold = device_folds(rows, settings.folds, settings.seed)[kept]
        best, others = np.inf, np.zeros(onset.size)
        for strength in sorted(settings.strengths):
            risk = held_out(z, onset, weight, fold, strength, least)
            loss = float((weight * (np.logaddexp(0, risk) - onset * risk)).sum())
            if loss > best * (1 - WORTH):
                break
            best, others, self.strength = loss, risk, strength
        self._coefficients = fit(z, onset, weight, self.strength, least)
        whole = self._linear(rows.x)
        whole[kept] = others
        return whole

    def _least(self) -> Floats:
        """The least that each coefficient may be, of even columns and marks of missing values."""
        assert self._preparation is not None
        least = np.full(self._preparation.columns.size + self._preparation.marked.size, -np.inf)
        names = [self.features[column] for column in self._preparation.columns.tolist()]
        least[: len(names)][[is_rising(name, self.settings.rising) for name in names]] = 0.0
        return least

    def _linear(self, x: Singles) -> Floats:
        if self._preparation is None:
            return np.zeros(len(x))
        risk: Floats = self._preparation.apply(x) @ self._coefficients[:-1] + self._coefficients[-1]
        return risk

    def risk(self, examples: Examples) -> Floats:
        return self._linear(self._aligned(examples))

    def attributions(self, examples: Examples) -> Floats:
        """float64[n, features]: what each of `features` adds to the risk, in logits, beside that of a typical row."""
        made = np.zeros((len(examples), len(self.features)))
        if self._preparation is not None:
            shares = self._preparation.apply(self._aligned(examples)) * self._coefficients[:-1]
            split = self._preparation.columns.size
            made[:, self._preparation.columns] += shares[:, :split]
            made[:, self._preparation.marked] += shares[:, split:]
        return made

    def _parts(self) -> tuple[Arrays, Mapping[str, object]]:
        assert self._preparation is not None
        return {**self._preparation.arrays(), "coefficients": self._coefficients}, {}

    def _take_up(self, state: State) -> None:
        self._preparation = from_arrays(state.arrays)
        self._coefficients = np.asarray(state.arrays["coefficients"], np.float64)


def build(**settings: object) -> HazardScorer:
    """The scorer with `HazardSettings`."""
    return HazardScorer(make(HazardSettings, HazardScorer.name, settings))
