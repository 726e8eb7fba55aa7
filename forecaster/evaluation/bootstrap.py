"""Intervals by resampling devices: rows of one device stand or fall together, so whole devices are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import Figure
from tocsin.forecaster.features.examples import Floats

Draws = Mapping[str, Floats]
"""Figures by name: float64[1 + draws], the sample's own value first."""

LOW, HIGH = 2.5, 97.5
"""Percentiles of the 95 % interval."""

DEFINED = 0.5
"""An interval is given only where the figure exists in more than this share of the draws (own choice)."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """What is drawn as one: `code` int[n] is the cluster of each row, `times` float64[clusters, 1 + draws] how often
    each was drawn. Column 0 is the sample itself: every cluster once."""

    code: npt.NDArray[np.intp]
    times: Floats

    def total(self, values: Floats) -> Floats:
        """Sum of float64[n] `values` in each draw."""
        by_cluster = np.bincount(self.code, weights=values, minlength=len(self.times))
        return np.asarray(by_cluster @ self.times, dtype=np.float64)


def clusters(code: npt.NDArray[np.generic], draws: int, seed: int) -> Clusters:
    """Draw as many clusters as there are, with replacement, `draws` times. Raises InputError without rows."""
    if code.size == 0:
        raise InputError("rows", 0, "nothing to evaluate", "give at least one row of known label")
    names, dense = np.unique(code, return_inverse=True)
    rng = np.random.default_rng(seed)
    times = np.ones((names.size, 1 + draws))
    for draw in range(1, 1 + draws):
        times[:, draw] = np.bincount(rng.integers(0, names.size, names.size), minlength=names.size)
    return Clusters(dense, times)


def ratio(above: Floats, below: Floats) -> Floats:
    """`above / below`, NaN where `below` is zero."""
    out = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=out, where=np.asarray(below) > 0)
    return out


def figure(values: Floats) -> Figure:
    """The sample's own value with the interval of the draws that have one."""
    drawn = values[1:][np.isfinite(values[1:])]
    if drawn.size <= DEFINED * (values.size - 1):
        return Figure(float(values[0]))
    low, high = np.percentile(drawn, [LOW, HIGH])
    return Figure(float(values[0]), float(low), float(high))
