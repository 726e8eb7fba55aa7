"""The standard figures of a set of scores, with intervals by device: what a section of a report is filled with.

    models = standard({"hazard": p, "rules": r}, test, 48 * HOUR, ranks=("rules",))
    better = difference(p, boosting, test, 48 * HOUR, "auprc")

Figures of one model by name:

- `roc_auc`; `auprc` (average precision) and `auprc_x_base`, its multiple of the base rate
- `recall_at_0.1pct`, `precision_at_0.1pct`, `recall_at_1pct`, `precision_at_1pct`: alerts on that share of all windows
- `brier`, `calibration_error`: of scores that are probabilities
- with a threshold, chosen on data that is not judged here: `accuracy`, `balanced_accuracy`, `recall`, `precision`,
  `incident_recall_any_lead`, `incident_recall_24h_lead`, `incident_recall_48h_lead`, `start_precision`,
  `false_alarms_per_1000_device_days`

All respect `Examples.weight`. Ties share an alert budget evenly. Point-adjusted F1 is not among them: a random score
reaches 0.9 by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.bootstrap import Clusters, clusters, figure, ratio
from tocsin.forecaster.evaluation.leads import LOOKBACK_MS, cadence_ms, lead_figures
from tocsin.forecaster.evaluation.ranking import BUDGETS, order_figures
from tocsin.forecaster.evaluation.reliability import calibration_figures, is_probability
from tocsin.forecaster.evaluation.result import Figure
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY, always_healthy
from tocsin.forecaster.features.examples import Examples, Floats, Mask

DRAWS = 200


class Panel:
    """Rows of known label, with the bootstrap draws that all models judged on them share."""

    def __init__(
        self,
        examples: Examples,
        horizon_ms: int,
        *,
        draws: int = DRAWS,
        seed: int = 0,
        cluster: npt.NDArray[np.generic] | None = None,
        every_ms: int | None = None,
        lookback_ms: int = LOOKBACK_MS,
    ) -> None:
        """`cluster` [n] is what is drawn as one, the device unless given. `every_ms` is the time that a row stands for,
        by default the usual step between rows of a device. Raises InputError where no row has a known label."""
        label, known = examples.label(horizon_ms)
        self.known = known
        self.examples = examples if known.all() else examples.take(known)
        self.label: Mask = label[known]
        self.drawn: Clusters = clusters((examples.device if cluster is None else cluster)[known], draws, seed)
        self._every_ms = cadence_ms(self.examples) if every_ms is None else every_ms
        self._lookback_ms = lookback_ms

    def draws(
        self,
        score: Floats,
        *,
        threshold: float | Floats | None = None,
        rank: bool = False,
        budgets: Sequence[float] = BUDGETS,
    ) -> dict[str, Floats]:
        """Every figure of `score` [rows of the examples given], float64[1 + draws]. `rank`: it is no probability;
        `threshold`: one, or one a row, from which on a score is an alarm."""
        if len(score) != self.known.size:
            raise InputError("scores", len(score), f"{self.known.size} rows are judged", "give one score per row")
        mine, weight = np.asarray(score, dtype=np.float64)[self.known], self.examples.weight
        out = order_figures(mine, self.label, weight, self.drawn, budgets)
        if not rank and is_probability(mine):
            out |= calibration_figures(mine, self.label, weight, self.drawn)
        if threshold is not None:
            limit = threshold if isinstance(threshold, float | int) else threshold[self.known]
            alarm = np.asarray(~np.isnan(mine) & (np.nan_to_num(mine) >= limit))
            out |= alarm_figures(alarm, self.label, weight, self.drawn)
            out |= lead_figures(self.examples, alarm, self.drawn, self._every_ms, self._lookback_ms)
        return out

    def figures(
        self, score: Floats, *, threshold: float | Floats | None = None, rank: bool = False
    ) -> dict[str, Figure]:
        """The same as figures with intervals; those that exist nowhere are left out."""
        drawn = self.draws(score, threshold=threshold, rank=rank)
        return {name: figure(values) for name, values in drawn.items() if np.isfinite(values[0])}


def alarm_figures(alarm: Mask, label: Mask, weight: Floats, drawn: Clusters) -> dict[str, Floats]:
    """`accuracy`, `balanced_accuracy`, `recall`, `precision` of windows with and without an alarm."""
    hits, misses, false, right = (
        drawn.total(np.where(chosen, weight, 0.0))
        for chosen in (alarm & label, ~alarm & label, alarm & ~label, ~alarm & ~label)
    )
    recall = ratio(hits, hits + misses)
    return {
        "accuracy": ratio(hits + right, hits + misses + false + right),
        "balanced_accuracy": (recall + ratio(right, right + false)) / 2,
        "recall": recall,
        "precision": ratio(hits, hits + false),
    }


def standard(
    scores: Mapping[str, Floats],
    examples: Examples,
    horizon_ms: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    cluster: npt.NDArray[np.generic] | None = None,
    thresholds: Mapping[str, float | Floats] | None = None,
    ranks: Collection[str] = (),
    every_ms: int | None = None,
) -> dict[str, dict[str, Figure]]:
    """All figures of each model in `scores` (float64[n], NaN: no score), and of the always-healthy predictor.

    Rows whose label within `horizon_ms` is unknown are left out. `thresholds` gives a model's alarm threshold (one, or
    one a row), chosen elsewhere; `ranks` names scores that are no probabilities. See `Panel` for the rest.
    """
    panel = Panel(examples, horizon_ms, draws=draws, seed=seed, cluster=cluster, every_ms=every_ms)
    limits: dict[str, float | Floats] = {ALWAYS_HEALTHY: 0.5, **(thresholds or {})}
    asked = {**scores, ALWAYS_HEALTHY: always_healthy(examples)}
    return {name: panel.figures(score, threshold=limits.get(name), rank=name in ranks) for name, score in asked.items()}


def difference(
    first: Floats,
    second: Floats,
    examples: Examples,
    horizon_ms: int,
    name: str,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    cluster: npt.NDArray[np.generic] | None = None,
) -> Figure:
    """By how much the figure `name` of `first` exceeds that of `second` in the same draws (paired bootstrap). It is
    above the noise where `low` is above 0. Raises InputError where there is no such figure."""
    panel = Panel(examples, horizon_ms, draws=draws, seed=seed, cluster=cluster)
    one, other = panel.draws(first), panel.draws(second)
    if name not in one or name not in other:
        raise InputError("figure", name, "not a figure of both models", f"there are {', '.join(one)}")
    return figure(one[name] - other[name])


def population(examples: Examples, horizon_ms: int) -> dict[str, float | int | str]:
    """What is judged: windows of known label by weight, rows, devices, onsets, base rate."""
    label, known = examples.label(horizon_ms)
    weight = float(examples.weight[known].sum())
    onsets = np.stack((examples.device[label].astype(np.int64), examples.event_ms[label]), axis=1)
    return {
        "windows": weight,
        "rows": int(known.sum()),
        "devices": int(np.unique(examples.device[known]).size),
        "onsets": len(np.unique(onsets, axis=0)),
        "base_rate": float(examples.weight[label].sum()) / weight if weight else float("nan"),
    }


def with_bars(figures: Mapping[str, Figure], bars: Mapping[str, float], *, least: bool = True) -> dict[str, Figure]:
    """The figures with the bars that they must reach. Raises InputError for a bar without its figure."""
    for name in bars:
        if name not in figures:
            raise InputError("bar", name, "no such figure", f"there are {', '.join(figures)}")
    return {name: replace(one, bar=bars[name], least=least) if name in bars else one for name, one in figures.items()}
