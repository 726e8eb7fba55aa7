"""Features made even: robust scale, signed logarithm of the tails, marks for what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.examples import Floats, Ints, Singles

SAMPLE = 50_000
"""Rows that quantiles are taken from: evenly spaced, so that the choice needs no chance."""
QUARTILES_TO_SPREAD = 1.349
"""Quartile distance of the normal distribution in standard deviations."""
RARE = 0.002
"""A mark for a missing value is made where at least this share is missing and this share is there."""
LEAST_SPREAD = 0.1
"""A column spreads at least so much: one that is nearly constant would be blown up otherwise. Own choice."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """How columns are made even; float64[m] each.

    z = asinh((x - centre) / scale), held within [low, high] of the fit, then (z - mean) / spread: a line near the
    centre and a signed logarithm in the tails, so that counters and temperatures can be told by the same model.
    `columns` are those that vary; of `marked` columns it is also said whether they are missing. A missing value is 0.
    """

    columns: Ints
    marked: Ints
    centre: Floats
    scale: Floats
    low: Floats
    high: Floats
    mean: Floats
    spread: Floats

    def apply(self, x: Singles) -> Floats:
        """float64[n, columns + marked] for `x` float32[n, f]."""
        z = _even(x[:, self.columns], self.centre, self.scale)
        np.clip(z, self.low, self.high, out=z)
        z -= self.mean
        z /= self.spread
        z[np.isnan(z)] = 0.0
        return np.hstack([z, np.isnan(x[:, self.marked]).astype(np.float64)])

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """For the state of a scorer."""
        return {f"prepare.{one.name}": getattr(self, one.name) for one in fields(self)}


def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Preparation:
    """The reverse of `Preparation.arrays`."""
    return Preparation(**{one.name: np.asarray(arrays[f"prepare.{one.name}"]) for one in fields(Preparation)})


def _even(x: npt.NDArray[np.floating], centre: Floats, scale: Floats) -> Floats:
    z = x.astype(np.float64)
    z -= centre
    z /= scale
    return np.arcsinh(z, out=z)


def prepare(x: Singles) -> Preparation:
    """Learn from `x` float32[n, f], NaN where missing."""
    sample = x[:: max(1, -(-len(x) // SAMPLE))].astype(np.float64)
    missing = np.isnan(sample)
    columns = np.flatnonzero(~missing.all(axis=0))
    centre, scale = _centre_and_scale(sample[:, columns])
    varies = scale > 0
    columns, centre, scale = columns[varies], centre[varies], scale[varies]
    z = _even(sample[:, columns], centre, scale)
    mean = np.nanmean(z, axis=0)
    spread = np.maximum(np.nanstd(z, axis=0), LEAST_SPREAD)
    low, high = np.nanmin(z, axis=0), np.nanmax(z, axis=0)
    return Preparation(columns, _marked(missing), centre, scale, low, high, mean, spread)


def _centre_and_scale(sample: Floats) -> tuple[Floats, Floats]:
    """Median and quartile distance; where that is nothing, the median of what is not at the centre; 0: constant."""
    if not sample.shape[1]:
        return np.zeros(0), np.zeros(0)
    first, centre, third = np.nanquantile(sample, (0.25, 0.5, 0.75), axis=0)
    scale = (third - first) / QUARTILES_TO_SPREAD
    for i in np.flatnonzero(scale <= 0):
        away = np.abs(sample[:, i] - centre[i])
        away = away[away > 0]
        scale[i] = np.median(away) if away.size else 0.0
    return centre, scale


def _marked(missing: npt.NDArray[np.bool_]) -> Ints:
    """Columns that are missing now and then; of several that always are so together, the first."""
    share = missing.mean(axis=0)
    candidates = np.flatnonzero((share >= RARE) & (share <= 1 - RARE))
    if candidates.size == 0:
        return candidates
    _, first = np.unique(np.packbits(missing[:, candidates], axis=0), axis=1, return_index=True)
    return np.asarray(candidates[np.sort(first)], np.int64)
