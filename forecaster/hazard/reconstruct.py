"""Each metric from all others, by ridge regressions that share one matrix.

With S the covariance of the metrics and P the inverse of S + r I, the ridge regression of metric j on the others leaves
the residual (P z)_j / P_jj: all regressions at once, without one fit for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.features.examples import Floats

FLOOR = 0.05
"""The least spread of a residual, in spreads of its metric: one that is always told exactly would alarm at dust."""
FAR = 10.0
"""A residual counts at most so many of its spreads: one broken sensor is as strange as can be, not more."""


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """`precision` float64[m, m] is P, `spread` float64[m] that of each residual among quiet rows."""

    precision: Floats
    spread: Floats

    def residuals(self, z: Floats) -> Floats:
        """float64[n, m], in spreads, for `z` float64[n, m]."""
        away = (z @ self.precision) / np.diag(self.precision) / self.spread
        return np.clip(away, -FAR, FAR)


def reconstruction(z: Floats, ridge: float) -> Reconstruction:
    """Learn from quiet rows `z` float64[n, m], of mean 0 and spread 1 each. The spread of a residual is from its
    quartiles, or where these are nothing from its mean square."""
    covariance = z.T @ z / len(z)
    precision = np.asarray(np.linalg.inv(covariance + ridge * np.eye(z.shape[1])), np.float64)
    away = (z @ precision) / np.diag(precision)
    first, third = np.quantile(away, (0.25, 0.75), axis=0)
    spread = np.maximum((third - first) / 1.349, np.sqrt((away**2).mean(axis=0)) / 3)
    return Reconstruction(precision, np.maximum(spread, FLOOR))


def strangest(residuals: Floats, top: int) -> Floats:
    """float64[n]: root mean square of the `top` largest residuals of a row; NaN counts as nothing."""
    size = np.nan_to_num(np.abs(residuals))
    count = min(top, size.shape[1])
    if count == 0:
        return np.zeros(len(size))
    largest = np.partition(size, size.shape[1] - count, axis=1)[:, size.shape[1] - count :]
    return np.asarray(np.sqrt((largest**2).mean(axis=1)), np.float64)
