"""Which features made a score: the strongest contributions of a row, whatever scorer made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.hazard.scorer_calibrated import Calibrated
from tocsin.forecaster.hazard.scorer_ensemble import Ensemble


@runtime_checkable
class Explained(Protocol):
    """A scorer that can say what each feature adds to its risk."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that it looks at."""
        ...

    def attributions(self, examples: Examples) -> Floats:
        """float64[n, features]: what each adds, in a unit of the scorer's own; 0 for one that says nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Contribution:
    """`share` is the part of all contributions of the row, negative where the feature speaks against an onset; `value`
    is NaN where it is missing."""

    feature: str
    value: float
    share: float


def strongest(scorer: Scorer, examples: Examples, count: int = 5) -> list[tuple[Contribution, ...]]:
    """For each row at most `count` contributions, the largest first; none where the scorer cannot say.

    Of an ensemble the shares of those members count that can, by their weights.
    """
    columns = {name: place for place, name in enumerate(examples.names)}
    made = []
    for row, shares in enumerate(_shares(scorer, examples)):
        best = sorted(shares.items(), key=lambda item: (-abs(item[1]), item[0]))[:count]
        values = [float(examples.features[row, columns[name]]) if name in columns else np.nan for name, _ in best]
        made.append(tuple(Contribution(name, value, share) for (name, share), value in zip(best, values, strict=True)))
    return made


def _shares(scorer: Scorer, examples: Examples) -> Sequence[dict[str, float]]:
    if isinstance(scorer, Calibrated):
        return _shares(scorer.inner, examples)
    if isinstance(scorer, Ensemble):
        return _weighted([(_shares(one, examples), weight) for one, weight in scorer.weighted_members])
    if not isinstance(scorer, Explained):
        return [{} for _ in range(len(examples))]
    parts = scorer.attributions(examples)
    whole = np.abs(parts).sum(axis=1)
    names = scorer.features
    return [
        {names[i]: float(parts[row, i] / whole[row]) for i in np.flatnonzero(parts[row])} for row in range(len(parts))
    ]


def _weighted(members: Sequence[tuple[Sequence[dict[str, float]], float]]) -> list[dict[str, float]]:
    made = []
    for rows in zip(*(shares for shares, _ in members), strict=True):
        total = sum(weight for row, (_, weight) in zip(rows, members, strict=True) if row)
        sums: dict[str, float] = {}
        for row, (_, weight) in zip(rows, members, strict=True):
            for name, share in row.items():
                sums[name] = sums.get(name, 0.0) + share * weight / total
        made.append(sums)
    return made
