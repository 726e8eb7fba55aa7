"""Straight lines through the newest part of many series at once, by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_NOISE = 0.0005
"""Standard deviation about a line that is believed at least, of shares of a whole."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Of each series, float64[n]: `slope` a step, `level` at the newest step, `error` (the slope's standard error),
    `filled` (how many values there are), and `explained` (the share of the variance that lies on the line)."""

    slope: Floats
    level: Floats
    error: Floats
    filled: Floats
    explained: Floats


def fit_lines(values: Floats) -> Lines:
    """Fit each row of `values` [n, t], the newest last, NaN where missing."""
    window = values.shape[1]
    at = np.arange(window) - (window - 1.0)
    here = np.isfinite(values)
    known = np.where(here, values, 0.0)
    weight = here.astype(np.float64)
    count = np.maximum(weight.sum(axis=1), 1.0)
    mean_at, mean = weight @ at / count, known.sum(axis=1) / count
    spread = np.maximum(weight @ at**2 - count * mean_at**2, 1e-9)
    slope = (known @ at - count * mean_at * mean) / spread
    total = np.maximum((known**2).sum(axis=1) - count * mean**2, 0.0)
    rest = np.sqrt(np.maximum(total - slope**2 * spread, 0.0) / np.maximum(count - 2.0, 1.0))
    error = np.maximum(rest, LEAST_NOISE) / np.sqrt(spread)
    explained = np.minimum(slope**2 * spread / np.maximum(total, 1e-12), 1.0)
    return Lines(slope, mean - slope * mean_at, error, weight.sum(axis=1), explained)
