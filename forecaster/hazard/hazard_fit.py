"""Coefficients of the hazard model: logistic regression with a normal prior and, where asked, a least value of each."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from tocsin.forecaster.features.examples import Floats, Ints, Mask
from tocsin.forecaster.hazard.curves import sigmoid

ITERATIONS = 500


def fit(z: Floats, onset: Mask, weight: Floats, strength: float, least: Floats) -> Floats:
    """Coefficients, the intercept last; none is below `least`, float64[columns]."""
    if onset.all() or not onset.any() or not z.shape[1]:
        return np.zeros(z.shape[1] + 1)
    model = LogisticRegression(C=strength, max_iter=ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(z, onset, sample_weight=weight)
    free = np.append(model.coef_[0], model.intercept_[0])
    return free if (free[:-1] >= least).all() else _bounded(z, onset, weight, strength, least, free)


def _bounded(z: Floats, onset: Mask, weight: Floats, strength: float, least: Floats, begin: Floats) -> Floats:
    """The same loss as scikit-learn's, its minimum within the bounds; `begin` is that without bounds."""

    def loss(at: Floats) -> tuple[float, Floats]:
        risk = z @ at[:-1] + at[-1]
        value = float((weight * (np.logaddexp(0.0, risk) - onset * risk)).sum()) + float(at[:-1] @ at[:-1]) / (
            2 * strength
        )
        miss = weight * (sigmoid(risk) - onset)
        return value, np.append(z.T @ miss + at[:-1] / strength, miss.sum())

    bounds = [(low if np.isfinite(low) else None, None) for low in least.tolist()]
    found = minimize(
        loss, np.append(np.maximum(begin[:-1], least), begin[-1]), jac=True, method="L-BFGS-B",
        bounds=[*bounds, (None, None)], options={"maxiter": ITERATIONS},
    )  # fmt: skip
    return np.asarray(found.x, np.float64)


def held_out(z: Floats, onset: Mask, weight: Floats, fold: Ints, strength: float, least: Floats) -> Floats:
    """The risk of each row by the model of the other folds."""
    risk = np.zeros(onset.size)
    for one in np.unique(fold):
        out = fold == one
        coefficients = fit(z[~out], onset[~out], weight[~out], strength, least)
        risk[out] = z[out] @ coefficients[:-1] + coefficients[-1]
    return risk
