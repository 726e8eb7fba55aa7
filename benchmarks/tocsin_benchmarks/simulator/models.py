"""The scorers of the simulated benchmark: what they learn from, and how their thresholds are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin.forecaster.hazard import registry, scorer_calibrated, scorer_ensemble
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin_benchmarks.simulator.fleet import Simulated

HORIZON_MS = 48 * HOUR
HORIZONS_MS = (24 * HOUR, HORIZON_MS)
QUIET_ROWS = 15_000
"""Rows without an onset that are learned from; their weight stands for all."""
HEADLINE = "ensemble"
MEMBERS = ("boosting", "lstm")
FEATURES = (
    "ecc_corrected.*",
    "remap_correctable.*",
    "pcie_replay.*",
    "pcie_errors.*",
    "pcie_lanes_lost.*",
    "nvlink_*",
    "thermal*",
    "temperature.vs_*",
    "temperature.score",
    "energy.level",
    "utilization.level",
)
"""What domain knowledge names as leading signals of memory, bus, NVLink and heat, with the load beside them; the other
features of a short simulated past are chance."""
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "hazard": {"strengths": (0.001, 0.01), "max_quiet": QUIET_ROWS},
    "boosting": {
        "folds": 3,
        "learning_rate": 0.08,
        "max_iter": 200,
        "max_leaf_nodes": 12,
        "min_samples_leaf": 40,
        "l2_regularization": 5.0,
        "max_features": 0.3,
    },
    "lstm": {
        "folds": 4,
        "hidden": 64,
        "members": 2,
        "max_rows": 16_000,
        "epochs": 40,
        "patience": 6,
        "dropout": 0.3,
        "weight_decay": 0.1,
        "learning_rate": 1e-3,
    },
}
QUICK: Mapping[str, Mapping[str, object]] = {
    "boosting": {"max_iter": 30, "folds": 2},
    "lstm": {"epochs": 1, "max_rows": 800, "members": 1},
}
"""What changes in a small run."""


def lessons(simulated: Simulated, seed: int, quiet_rows: int = QUIET_ROWS) -> Examples:
    """The rows to learn from: those whose fault had a precursor, and a share of the quiet ones.

    Rows before a fault that struck without one are left out: the simulation knows that nothing in them can tell, and
    there are several times as many of them.
    """
    examples = simulated.examples
    label, known = examples.label(HORIZON_MS)
    wanted = np.flatnonzero(known & label & simulated.warned)
    quiet = np.flatnonzero(known & ~label)
    kept = np.random.default_rng(seed).choice(quiet, min(quiet_rows, quiet.size), replace=False)
    weight = examples.weight.copy()
    weight[kept] *= quiet.size / max(kept.size, 1)
    return replace(examples, weight=weight).take(np.sort(np.concatenate([wanted, kept])))


def learn(train: Simulated, later: Examples, seed: int, quick: bool = False) -> dict[str, Scorer]:
    """Each family fitted on `train` and calibrated on `later`, which has other devices and every fault."""
    rows = lessons(train, seed)
    fitted = {name: _fitted(name, rows, seed, quick) for name in ("hazard", *MEMBERS)}
    ensemble = scorer_ensemble.build(horizons_ms=HORIZONS_MS, members=MEMBERS, seed=seed)
    together = scorer_ensemble.Ensemble([fitted[name] for name in MEMBERS], ensemble.settings)
    together.combine(later)
    return {name: _calibrated(scorer, later) for name, scorer in {**fitted, HEADLINE: together}.items()}


def _fitted(name: str, rows: Examples, seed: int, quick: bool) -> Scorer:
    settings = {**SETTINGS[name], **(QUICK.get(name, {}) if quick else {})}
    scorer = registry.build(name, horizons_ms=HORIZONS_MS, features=FEATURES, seed=seed, **settings)
    scorer.fit(rows)
    return scorer


def _calibrated(scorer: Scorer, later: Examples) -> Scorer:
    settings = scorer_calibrated.CalibratedSettings(horizons_ms=HORIZONS_MS, scorer=scorer.name)
    made = scorer_calibrated.Calibrated(scorer, settings)
    made.calibrate(later)
    return made


def best_threshold(score: Floats, label: Mask) -> tuple[float, float]:
    """The threshold with the highest balanced accuracy, and that: alarms are at and above it. NaN is no alarm."""
    known = np.where(np.isnan(score), -np.inf, score)
    order = np.argsort(-known, kind="stable")
    ranked, hits = known[order], label[order]
    found, false = np.cumsum(hits) / max(hits.sum(), 1), np.cumsum(~hits) / max((~hits).sum(), 1)
    last = np.append(ranked[1:] != ranked[:-1], True) & np.isfinite(ranked)
    balanced = np.where(last, (found + 1.0 - false) / 2, 0.0)
    place = int(balanced.argmax())
    return (float(ranked[place]), float(balanced[place])) if balanced[place] > 0 else (float("inf"), 0.5)
