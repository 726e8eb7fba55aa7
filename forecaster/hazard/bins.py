"""Values as the numbers of their bins.

Trees split between bins anyway. With weights, the own binning of scikit-learn 1.9 sums up the weights anew for each of
255 quantiles of each feature, which costs many times what the trees do; of fewer different values it takes the middles
between them, for nothing.
"""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.features.examples import Singles

MOST = 200
"""Bins of a feature at most."""
SAMPLE = 100_000
"""Rows that quantiles are taken from: evenly spaced, so that the choice needs no chance."""


def edges(x: Singles) -> Singles:
    """float32[f, k]: rising edges between the bins of each column of `x` float32[n, f], filled up with infinity.

    Quantiles go by rows, not by weights: rows with an onset are dense where it matters.
    """
    sample = x[:: max(1, -(-len(x) // SAMPLE))]
    found = [_column(sample[:, i]) for i in range(x.shape[1])]
    made = np.full((len(found), max((one.size for one in found), default=0)), np.inf, np.float32)
    for row, one in zip(made, found, strict=True):
        row[: one.size] = one
    return made


def _column(values: Singles) -> Singles:
    values = values[~np.isnan(values)]
    distinct = np.unique(values)
    if distinct.size <= MOST:
        return distinct[:-1]
    return np.unique(np.quantile(values, np.linspace(0, 1, MOST + 1)[1:-1], method="inverted_cdf"))


def numbered(x: Singles, limits: Singles) -> Singles:
    """float32[n, f]: how many of the column's edges lie below each value; NaN where it is missing."""
    columns = np.ascontiguousarray(x.T)
    made = np.empty(columns.shape, np.float32)
    for column, row, to in zip(columns, limits, made, strict=True):
        to[:] = np.searchsorted(row, column, side="left")
    made[np.isnan(columns)] = np.nan
    return np.ascontiguousarray(made.T)
