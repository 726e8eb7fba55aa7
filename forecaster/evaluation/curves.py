"""Curves of the report: precision against recall, and lead time against warned onsets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.evaluation.leads import LOOKBACK_MS, warned
from tocsin.forecaster.evaluation.ranking import budget_threshold
from tocsin.forecaster.evaluation.result import Curve
from tocsin.forecaster.features.examples import Examples, Floats, Mask

POINTS = 200
"""Points of a line: more cannot be seen."""


def precision_recall(scores: Mapping[str, Floats], label: Mask, weight: Floats) -> Curve:
    """Precision at each recall, as alerts go from the highest score down; equal scores are one step."""
    lines = {}
    for model, score in scores.items():
        levels, index = np.unique(np.where(np.isnan(score), -np.inf, score), return_inverse=True)
        every = np.cumsum(np.bincount(index, weights=weight, minlength=levels.size)[::-1])
        found = np.cumsum(np.bincount(index, weights=weight * label, minlength=levels.size)[::-1])
        steps = np.flatnonzero(np.diff(found, prepend=0.0) > 0)
        steps = steps[np.unique(np.linspace(0, steps.size - 1, min(POINTS, steps.size)).astype(np.int64))]
        recall = found[steps] / found[-1] if steps.size else found[:0]
        lines[model] = (recall.tolist(), (found[steps] / every[steps]).tolist())
    return Curve("Precision and recall", "recall", "precision", lines)


def lead_times(scores: Mapping[str, Floats], examples: Examples, budget: float = 0.01) -> Curve:
    """Share of onsets warned of at least so many hours before, with alarms on at most `budget` of the windows."""
    hours = np.linspace(0.0, LOOKBACK_MS / DAY * 24.0, 57)
    lines = {}
    for model, score in scores.items():
        alarm = np.nan_to_num(score, nan=-np.inf) >= budget_threshold(score, examples.weight, budget)
        lead_ms = warned(examples, alarm).lead_ms
        found = lead_ms[lead_ms > 0]
        share = [float((found >= one * HOUR).sum()) / max(lead_ms.size, 1) for one in hours]
        lines[model] = (hours.tolist(), share)
    title = f"Warned onsets, alarms on at most {budget * 100:g} % of the windows"
    return Curve(title, "hours before the onset, at least", "share of onsets", lines)
