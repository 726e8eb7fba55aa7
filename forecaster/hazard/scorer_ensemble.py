"""Several scorers as one: the mean of their ranks among rows that none learned from, or of their log-odds, brought to
probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard.calibration import Map, Ranks, fit_map, log_odds, rank_table
from tocsin.forecaster.hazard.registry import build_inner, inner_of, with_inner
from tocsin.forecaster.hazard.rows import device_folds, known_rows, require, settled
from tocsin.forecaster.hazard.scorer import Common, Scorer, State, header, make
from tocsin.forecaster.hazard.tabular import check_state


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleSettings(Common):
    """`members` are families, `of` the own settings of each, `weights` their weights (empty: equal). `mean` says of
    what: of ranks, which suits members whose scores are no probabilities, or of log-odds, which lets a member that is
    sure prevail. One of `folds` folds of devices is kept from the members and gives ranks and probabilities; with
    `refit` they then learn from all devices."""

    members: tuple[str, ...] = ("hazard", "boosting")
    of: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    mean: Literal["rank", "odds"] = "rank"
    refit: bool = True

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if not self.members or len(set(self.members)) != len(self.members):
            raise InputError("ensemble.members", self.members, "empty or twice the same", "name different families")
        if self.weights and (len(self.weights) != len(self.members) or min(self.weights) <= 0):
            raise InputError("ensemble.weights", self.weights, "not one above 0 a member", "give as many, or none")
        if self.mean not in ("rank", "odds"):
            raise InputError("ensemble.mean", self.mean, "no such mean", "use rank or odds")


class Ensemble:
    """An average over each horizon; a member that refuses a row is left out of that row's mean."""

    name = "ensemble"
    version = "1"

    def __init__(self, members: Sequence[Scorer], settings: EnsembleSettings) -> None:
        for member in members:
            if tuple(member.horizons_ms) != settings.horizons_ms:
                raise InputError("horizons_ms", settings.horizons_ms, f"{member.name} has others", "give all the same")
        self.members = tuple(members)
        self.settings = settings
        self.horizons_ms = settings.horizons_ms
        self.min_history_ms = settings.min_history_ms
        self._weights = np.array(settings.weights or [1.0] * len(self.members))
        self._ranks: list[list[Ranks]] = []
        self._maps: list[Map] = []

    def fit(self, examples: Examples) -> None:
        rows = known_rows(examples, (), self.settings)
        require(self.name, rows, self.settings)
        fold = device_folds(rows, self.settings.folds, self.settings.seed)
        apart = np.zeros(len(examples.devices), np.bool_)
        apart[rows.device[fold == 0]] = True
        held_out = apart[examples.device]
        learn = examples.take(~held_out)
        for member in self.members:
            member.fit(learn)
        self.combine(examples.take(held_out))
        if self.settings.refit:
            for member in self.members:
                member.fit(examples)

    def combine(self, examples: Examples) -> None:
        """Take ranks and probabilities from `examples`; the members are fitted already, on other devices."""
        scores = [member.score(examples) for member in self.members]
        weight = examples.weight
        self._ranks = [[rank_table(score[:, k], weight) for score in scores] for k in range(len(self.horizons_ms))]
        self._maps = []
        for k, horizon_ms in enumerate(self.horizons_ms):
            mean = self._mean(scores, k)
            onset, known = settled(examples, horizon_ms)
            rows = known & np.isfinite(mean)
            self._maps.append(fit_map(mean[rows], onset[rows], weight[rows], "platt"))

    def _mean(self, scores: Sequence[Floats], k: int) -> Floats:
        """float64[n] in (0, 1), to be mapped; NaN where no member has a score."""
        if self.settings.mean == "odds":
            odds = self._weighted([log_odds(score[:, k]) for score in scores])
            return np.asarray(1 / (1 + np.exp(-odds)), np.float64)
        return _spread(self._weighted([t.apply(score[:, k]) for t, score in zip(self._ranks[k], scores, strict=True)]))

    def _weighted(self, of_member: Sequence[Floats]) -> Floats:
        values = np.stack(of_member)
        weights = np.isfinite(values) * self._weights[:, None]
        total = weights.sum(axis=0)
        mean = np.where(total > 0, (np.nan_to_num(values) * weights).sum(axis=0) / np.maximum(total, 1e-300), np.nan)
        return np.asarray(mean, np.float64)

    def score(self, examples: Examples) -> Floats:
        if not self._maps:
            raise Conflict(f"{self.name}: not fitted yet")
        scores = [member.score(examples) for member in self.members]
        made = [one.apply(self._mean(scores, k)) for k, one in enumerate(self._maps)]
        rising: Floats = np.maximum.accumulate(np.stack(made, axis=1), axis=1)
        rising[examples.history_ms < self.min_history_ms] = np.nan
        return rising

    def state(self) -> State:
        if not self._maps:
            raise Conflict(f"{self.name}: not fitted yet")
        arrays: dict[str, Floats] = {}
        for k, one in enumerate(self._maps):
            arrays[f"map{k}"] = one.platt
            for member, table in zip(self.members, self._ranks[k], strict=True):
                arrays |= {f"rank{k}.{member.name}": np.stack([table.scores, table.ranks])}
        return with_inner(
            State(header(self, self.settings), arrays), {member.name: member.state() for member in self.members}
        )

    def restore(self, state: State) -> None:
        check_state(self.name, self.version, state)
        for member in self.members:
            member.restore(inner_of(state, member.name))
        places = range(len(self.horizons_ms))
        none = np.zeros(0)
        self._maps = [Map(none, none, np.asarray(state.arrays[f"map{k}"], np.float64)) for k in places]
        self._ranks = [
            [Ranks(*np.asarray(state.arrays[f"rank{k}.{member.name}"], np.float64)) for member in self.members]
            for k in places
        ]


def _spread(rank: Floats) -> Floats:
    """A rank as a probability whose log-odds are -log(1 - rank) up to a constant: the tail is what tells."""
    tail = -np.log1p(-rank)
    return np.asarray(1 / (1 + np.exp(-(tail - 10))), np.float64)


def build(**settings: object) -> Ensemble:
    """The scorer with `EnsembleSettings`."""
    made = make(EnsembleSettings, Ensemble.name, settings)
    return Ensemble([build_inner(name, made, made.of.get(name, {})) for name in made.members], made)
