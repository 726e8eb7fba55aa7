"""How far one threshold on one feature gets: what makes the simulated faults hard, or shows that they are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.evaluation.result import ReportTable
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin_benchmarks.simulator.models import HORIZON_MS, best_threshold

MOST_QUIET = 30_000
"""Quiet rows on which a threshold is tuned."""
SHOWN = 5
CLASSES = ("memory", "bus", "nvlink", "thermal")


@dataclass(frozen=True, slots=True)
class Single:
    """A feature with its threshold, tuned on the train part; `falling` where an alarm is at and below it. `balanced`
    is the balanced accuracy on the test part, `tuned` that on the train part."""

    feature: str
    threshold: float
    falling: bool
    balanced: float
    tuned: float

    def score(self, examples: Examples) -> Floats:
        """1 where it would alarm, else 0."""
        return _alarms(examples.column(self.feature).astype(np.float64), self.threshold, self.falling).astype(float)


def _alarms(values: Floats, threshold: float, falling: bool) -> Mask:
    side = -values if falling else values
    return np.asarray(np.where(np.isnan(side), -np.inf, side) >= threshold)


def single_thresholds(train: Examples, test: Examples, seed: int) -> list[Single]:
    """Every feature's best threshold in either direction, tuned with full knowledge of `train`, judged on `test`; the
    best on `test` first. So the first is what one could get by knowing the test part as well."""
    train = _thinned(train, seed)
    label, judged = train.label(HORIZON_MS)[0], test.label(HORIZON_MS)[0]
    found = []
    for place, name in enumerate(train.names):
        values = train.features[:, place].astype(np.float64)
        (up, gain), (down, loss) = best_threshold(values, label), best_threshold(-values, label)
        falling, threshold = (loss > gain, down if loss > gain else up)
        alarm = _alarms(test.features[:, place].astype(np.float64), threshold, falling)
        found.append(Single(name, threshold, falling, balanced_accuracy(alarm, judged), max(gain, loss)))
    return sorted(found, key=lambda one: (-one.balanced, one.feature))


def _thinned(examples: Examples, seed: int) -> Examples:
    label = examples.label(HORIZON_MS)[0]
    quiet = np.flatnonzero(~label)
    kept = np.random.default_rng(seed).choice(quiet, min(MOST_QUIET, quiet.size), replace=False)
    return examples.take(np.sort(np.concatenate([np.flatnonzero(label), kept])))


def balanced_accuracy(alarm: Mask, label: Mask) -> float:
    """Mean of the shares found among `label` and passed over among the others; 0.5 where one side is empty."""
    if label.all() or not label.any():
        return 0.5
    return float((alarm[label].mean() + (~alarm[~label]).mean()) / 2)


def single_table(train: Examples, test: Examples, found: list[Single], seed: int) -> ReportTable:
    """The best features over all faults, and the best of each class of faults alone."""
    rows = [("all", one.feature, one.balanced) for one in found[:SHOWN]]
    for name in CLASSES:
        parts = [_of_class(examples, name) for examples in (train, test)]
        if all(part.label(HORIZON_MS)[0].any() for part in parts):
            best = single_thresholds(parts[0], parts[1], seed)[0]
            rows.append((name, best.feature, best.balanced))
    return ReportTable("Best thresholds on one feature", ("faults", "feature", "balanced accuracy"), rows)


def _of_class(examples: Examples, name: str) -> Examples:
    label = examples.label(HORIZON_MS)[0]
    return examples.take(~label | (examples.event_class == name))
