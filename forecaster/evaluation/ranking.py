"""Figures that depend on the order of scores alone, exact under ties and weights, in every bootstrap draw at once.

Between two neighbouring scores of positive rows the order of the negatives changes nothing. So rows are gathered into
alternating bins, "between two positive scores" and "at a positive score", and a draw is one sparse product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.evaluation.bootstrap import Clusters, ratio
from tocsin.forecaster.evaluation.leads import LOOKBACK_MS, warned
from tocsin.forecaster.evaluation.result import Curve
from tocsin.forecaster.features.examples import Examples, Floats, Mask

BUDGETS = (0.001, 0.01)
"""Shares of all device-windows that may carry an alert."""

CELLS = 4_000_000
"""Bins times draws that are held at once."""


def budget_name(budget: float) -> str:
    """0.01 to `1pct`."""
    return f"{budget * 100:g}pct"


def order_figures(
    score: Floats, label: Mask, weight: Floats, drawn: Clusters, budgets: Sequence[float] = BUDGETS
) -> dict[str, Floats]:
    """`roc_auc`, `auprc` (average precision), `auprc_x_base` and recall and precision at each alert budget.

    Arrays are [n]; a score of NaN ranks below all others. Rows of equal score are alerted in the same proportion, which
    is what breaking the tie at random gives on average: of a constant score, 1 % of the failures are found at 1 %
    budget. NaN in draws without a positive row or without a negative one.
    """
    bins, index = _bins(np.where(np.isnan(score), -np.inf, score), label)
    positive, negative = (_by_bin(bins, index, drawn, weight, rows) for rows in (label, ~label))
    step = max(1, CELLS // bins)
    parts = [
        _figures(positive @ drawn.times[:, at : at + step], negative @ drawn.times[:, at : at + step], budgets)
        for at in range(0, drawn.times.shape[1], step)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _bins(score: Floats, label: Mask) -> tuple[int, npt.NDArray[np.intp]]:
    levels = np.unique(score[label])
    left, right = np.searchsorted(levels, score, "left"), np.searchsorted(levels, score, "right")
    return 2 * levels.size + 1, 2 * (levels.size - left) - (right > left)


def _by_bin(
    bins: int, index: npt.NDArray[np.intp], drawn: Clusters, weight: Floats, rows: Mask
) -> npt.NDArray[np.float64]:
    from scipy.sparse import csr_array

    cells = (weight[rows], (index[rows], drawn.code[rows]))
    matrix: npt.NDArray[np.float64] = csr_array(cells, shape=(bins, len(drawn.times)))
    return matrix


def _figures(positive: Floats, negative: Floats, budgets: Sequence[float]) -> dict[str, Floats]:
    every = positive + negative
    found, alerted = np.cumsum(positive, axis=0), np.cumsum(every, axis=0)
    hits, total = found[-1], alerted[-1]
    misses = total - hits
    below = misses - (alerted - found) + negative / 2
    precision = np.divide(found, alerted, out=np.zeros_like(found), where=alerted > 0)
    auprc = ratio((positive * precision).sum(axis=0), hits)
    out = {
        "roc_auc": ratio((positive * below).sum(axis=0), hits * misses),
        "auprc": auprc,
        "auprc_x_base": ratio(auprc * total, hits),
    }
    for budget in budgets:
        caught = _caught(positive, every, found, alerted, budget)
        out[f"recall_at_{budget_name(budget)}"] = ratio(caught, hits)
        out[f"precision_at_{budget_name(budget)}"] = ratio(caught, budget * total)
    return out


def _caught(positive: Floats, every: Floats, found: Floats, alerted: Floats, budget: float) -> Floats:
    target = budget * alerted[-1]
    at = np.minimum((alerted < target).sum(axis=0), len(every) - 1)[None]
    here, hit = (np.take_along_axis(values, at, axis=0)[0] for values in (every, positive))
    through, found_through = (np.take_along_axis(values, at, axis=0)[0] for values in (alerted, found))
    share = np.divide(target - (through - here), here, out=np.zeros_like(here), where=here > 0)
    return np.asarray(found_through - hit * (1.0 - share))


def budget_threshold(score: Floats, weight: Floats, budget: float) -> float:
    """The lowest score at and above which lie at most `budget` of all windows by weight; infinity where the highest
    score alone is more than that. NaN scores are windows without an alert."""
    levels, index = np.unique(np.where(np.isnan(score), -np.inf, score), return_inverse=True)
    above = np.cumsum(np.bincount(index, weights=weight)[::-1])[::-1]
    allowed = levels[(above <= budget * weight.sum() * (1 + 1e-12)) & np.isfinite(levels)]
    return float(allowed[0]) if allowed.size else float("inf")


# Curves of the report: precision against recall, and lead time against warned onsets.

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
