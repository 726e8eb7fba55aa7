"""Figures of alarms against labelled stretches of one machine. No point-adjustment: a stretch is hit or missed whole,
and every alarm episode that touches none is false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.anomaly.alarm_level import MERGE_MS, episodes
from tocsin.forecaster.features.examples import Floats, Mask


@dataclass(frozen=True, slots=True)
class Outcome:
    """`false` counts alarm episodes that touch no labelled stretch, `outside` those of the alarms outside of labelled
    stretches alone, where the tail of a hit counts as well; `quiet_share` is the share of unlabelled time in alarm."""

    hits: int
    stretches: int
    false: int
    outside: int
    days: float
    quiet_share: float

    @property
    def recall(self) -> float:
        return self.hits / self.stretches if self.stretches else float("nan")


def stretches(label: Mask) -> list[tuple[int, int]]:
    """First and last row of each run of `label` [n]."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], label.astype(np.int8), [0]))))
    return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def outcome(alarm: Mask, label: Mask, step_ms: int) -> Outcome:
    """What `alarm` [n] did on a test part labelled `label` [n]."""
    runs = stretches(label)
    hits = sum(bool(alarm[first : last + 1].any()) for first, last in runs)
    true = alarm & label
    false = sum(not true[first : last + 1].any() for first, last in episodes(alarm, step_ms, MERGE_MS))
    outside = alarm & ~label
    quiet = int((~label).sum())
    share = float(outside.sum() / quiet) if quiet else 0.0
    return Outcome(hits, len(runs), false, len(episodes(outside, step_ms, MERGE_MS)), alarm.size * step_ms / DAY, share)


def average_precision(score: Floats, label: Mask) -> float:
    """Pointwise average precision, ties taken together; NaN scores rank last, NaN without a labelled point."""
    if not label.any():
        return float("nan")
    values = np.nan_to_num(score, nan=-np.inf)
    levels, place = np.unique(-values, return_inverse=True)
    found = np.cumsum(np.bincount(place, weights=label, minlength=levels.size))
    alarmed = np.cumsum(np.bincount(place, minlength=levels.size))
    return float((np.diff(found, prepend=0.0) * found / alarmed).sum() / label.sum())


@dataclass(frozen=True, slots=True)
class Sums:
    """Figures over machines: recall of all stretches, the mean over machines of false alarms a day, and of the rest."""

    recall: float
    false_per_day: float
    outside_per_day: float
    quiet_share: float
    average_precision: float


def sums(outcomes: Sequence[Outcome], precisions: Sequence[float]) -> Sums:
    """Over the machines given, which may be drawn repeatedly."""
    found = sum(one.stretches for one in outcomes)
    known = [value for value in precisions if np.isfinite(value)]
    return Sums(
        sum(one.hits for one in outcomes) / found if found else float("nan"),
        float(np.mean([one.false / one.days for one in outcomes])),
        float(np.mean([one.outside / one.days for one in outcomes])),
        float(np.mean([one.quiet_share for one in outcomes])),
        float(np.mean(known)) if known else float("nan"),
    )
