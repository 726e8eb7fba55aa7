"""What a leak would have claimed: the same features and model on a row-random split, beside the honest figure.

The only place that judges by a row-random split, and its section says in title and text that it is no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.figures import standard
from tocsin.forecaster.evaluation.result import Figure, ReportSection
from tocsin.forecaster.evaluation.split import Split
from tocsin.forecaster.features.examples import Examples, Floats, Ints

Fit = Callable[[Examples, Examples], Floats]
"""(train, test) to scores float64[n of test]: fit on the one, score the other."""

HONEST = "honest split"
LEAK = "row-random split (leak)"
NOTE = (
    "No claim: rows of one device at neighbouring instants stand on both sides of the row-random split, so its model"
    " recognises devices instead of foreseeing failures. The evaluator refuses such a split everywhere else."
)
FACTORS = ("roc_auc", "auprc", "auprc_x_base", "recall_at_1pct", "accuracy", "balanced_accuracy")
FOLDS = 5


def out_of_fold(fit: Fit, examples: Examples, splits: Sequence[Split], horizon_ms: int) -> Floats:
    """Scores of the rows that are in the test of a split, float64[n], NaN elsewhere. Every split is checked."""
    scores = np.full(len(examples), np.nan)
    for split in splits:
        train, test = split.parts(examples, horizon_ms)
        scores[split.test] = fit(train, test)
    return scores


def leak_factor(
    fit: Fit,
    examples: Examples,
    honest: Sequence[Split],
    horizon_ms: int,
    *,
    seed: int = 0,
    draws: int = 200,
    threshold: float = 0.5,
) -> ReportSection:
    """Judge `fit` on the test rows of `honest` twice: as split there, and as a row-random split would have it.

    `threshold` is where a score becomes an alarm for the accuracies. Raises InputError where `honest` is refused.
    """
    if not honest:
        raise InputError("honest", 0, "no split to compare with", "give at least one")
    tested = np.unique(np.concatenate([split.test for split in honest]))
    scores = {
        HONEST: out_of_fold(fit, examples, honest, horizon_ms)[tested],
        LEAK: _leaked(fit, examples, horizon_ms, seed)[tested],
    }
    thresholds = dict.fromkeys(scores, threshold)
    judged = examples.take(tested)
    models = standard(scores, judged, horizon_ms, draws=draws, seed=seed, thresholds=thresholds)
    kept = {name: {key: one for key, one in row.items() if key in FACTORS} for name, row in models.items()}
    kept[LEAK]["leak_factor"] = Figure(_factor(kept))
    return ReportSection(
        title="What a row-random split would have claimed (a leak, not a result)",
        models=kept,
        population={"rows": int(tested.size), "honest_splits": len(honest), "leak_folds": FOLDS},
        notes=(NOTE, "The leak factor is the AUPRC of the leak over the honest one."),
    )


def _leaked(fit: Fit, examples: Examples, horizon_ms: int, seed: int) -> Floats:
    _, known = examples.label(horizon_ms)
    order: Ints = np.random.default_rng(seed).permutation(len(examples))
    scores = np.full(len(examples), np.nan)
    for fold in range(FOLDS):
        test = np.sort(order[fold::FOLDS])
        train = np.setdiff1d(np.flatnonzero(known), test, assume_unique=True)
        scores[test] = fit(examples.take(train), examples.take(test))
    return scores


def _factor(models: Mapping[str, Mapping[str, Figure]]) -> float:
    honest, leak = (models[name]["auprc"].value for name in (HONEST, LEAK))
    return leak / honest if honest > 0 else float("inf")
