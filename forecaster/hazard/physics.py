"""What can only raise a hazard, whatever a past of few faults says: heat above peers, and errors and brakes that grow.

A fit on few faults learns chance: that a GPU which ran 15 K above its node mates, and was lent to tests for it, failed
less often. So that no score says that heat is healthy, linear fits keep these coefficients at 0 or above, and trees are
grown with monotonic constraints. `falls` shows whether a fitted scorer keeps to it; the gate hears none that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from tocsin.forecaster.features.examples import Examples, Mask
from tocsin.forecaster.hazard.scorer import Scorer

GROUPS: Mapping[str, tuple[str, ...]] = {
    "heat above peers": (
        "temperature.vs_*", "temperature.score", "memory_temperature.vs_*", "memory_temperature.score",
        "thermal.excess", "thermal.drift", "thermal.vs_*",
    ),
    "thermal slowdown": ("thermal_slowdown.*",),
    "corrected errors": ("ecc_corrected.*",),
    "uncorrectable errors": ("ecc_uncorrected.*",),
    "remaps": ("remap_correctable.*", "remap_uncorrectable.*", "retired_pages.*"),
    "replays": ("pcie_replay.*", "pcie_errors.*", "nvlink_replay.*", "nvlink_crc.*", "nvlink_symbol.*"),
    "link recoveries": ("nvlink_recovery.*",),
    "power brakes": ("power_brake.*",),
}  # fmt: skip
"""Shell patterns of features, by what they tell of."""
RISING = tuple(pattern for patterns in GROUPS.values() for pattern in patterns)
"""Patterns of the features along which a hazard never falls."""
MOST_ROWS = 400
"""Rows on which `falls` looks, evenly spaced."""
STEPS = (0.5, 2.0, 8.0)
"""By how much more values are raised, in their own spread and one unit."""
TOLERANCE = 1e-9


def is_rising(name: str, patterns: tuple[str, ...] = RISING) -> bool:
    """Whether a feature is one along which the hazard never falls."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def falls(scorer: Scorer, examples: Examples) -> tuple[str, ...]:
    """The groups of `GROUPS` of which more lowers the score of some row of `examples`: empty for a sound scorer.

    All features of a group rise together, where they are known, by each of `STEPS`.
    """
    rows = examples.take(np.unique(np.linspace(0, len(examples) - 1, min(len(examples), MOST_ROWS)).astype(np.int64)))
    before = scorer.score(rows)
    found = []
    for group, patterns in GROUPS.items():
        columns = np.array([is_rising(name, patterns) for name in rows.names], np.bool_)
        if columns.any() and any(
            bool((scorer.score(_raised(rows, columns, step)) < before - TOLERANCE).any()) for step in STEPS
        ):
            found.append(group)
    return tuple(found)


def _raised(rows: Examples, columns: Mask, step: float) -> Examples:
    features = rows.features.copy()
    chosen = features[:, columns]
    known = np.isfinite(chosen)
    spread = np.where(known, chosen, 0.0).std(axis=0)
    features[:, columns] = np.where(known, chosen + step * (1.0 + spread), chosen)
    return replace(rows, features=features)
