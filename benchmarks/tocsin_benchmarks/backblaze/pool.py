"""The test rows of all folds as one table, with what each model and each trivial predictor said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY, BASE_RATES, RECENCY, always_healthy, base_rates
from tocsin.forecaster.features.examples import Codes, Examples, Floats, Mask
from tocsin_benchmarks.backblaze.folds import Fold, Parts
from tocsin_benchmarks.backblaze.models import HORIZON_MS, MODELS, Judged

TRIVIAL_RANKS = (RECENCY,)
"""Scores that are no probabilities."""


@dataclass(frozen=True, slots=True)
class Pool:
    """`rows` are test snapshots, `sweep` every day of some drives; neither has features any more. `scores` [rows] by
    model, trivial ones among them; `alarms` and `sweep_alarms` by model and budget, at thresholds set on drives of the
    train part. `silent` [rows] have no sector counter above zero, `later` [rows] are decisions after the end of the
    train part, `shared` [rows] those of its own drives."""

    rows: Examples
    sweep: Examples
    scores: Mapping[str, Floats]
    alarms: Mapping[tuple[str, float], Mask]
    sweep_alarms: Mapping[tuple[str, float], Mask]
    silent: Mask
    later: Mask
    shared: Mask
    sweep_later: Mask
    sweep_shared: Mask

    def part(self, rows: Mask, sweep: Mask) -> Pool:
        """Some rows and some of the sweep."""
        return Pool(
            rows=self.rows.take(rows),
            sweep=self.sweep.take(sweep),
            scores={name: score[rows] for name, score in self.scores.items()},
            alarms={key: alarm[rows] for key, alarm in self.alarms.items()},
            sweep_alarms={key: alarm[sweep] for key, alarm in self.sweep_alarms.items()},
            silent=self.silent[rows],
            later=self.later[rows],
            shared=self.shared[rows],
            sweep_later=self.sweep_later[sweep],
            sweep_shared=self.sweep_shared[sweep],
        )


def pool_of(fold: Fold, parts: Parts, judged: Judged) -> Pool:
    """One fold. `parts` may be forgotten afterwards."""
    cut_ms = fold.cut * DAY
    scores = {**{name: judged.test[name] for name in MODELS}, **_trivial(parts)}
    return Pool(
        rows=bare(parts.test),
        sweep=bare(parts.sweep),
        scores=scores,
        alarms=_alarms(judged.test, judged.thresholds),
        sweep_alarms=_alarms(judged.sweep, judged.thresholds),
        silent=parts.test.column("defect_kinds") == 0,
        later=parts.test.at_ms >= cut_ms,
        shared=fold.shared[parts.test.device],
        sweep_later=parts.sweep.at_ms >= cut_ms,
        sweep_shared=fold.shared[parts.sweep.device],
    )


def _trivial(parts: Parts) -> dict[str, Floats]:
    newest = parts.test.column("defects_unchanged_log_h").astype(np.float64)
    return {
        ALWAYS_HEALTHY: always_healthy(parts.test),
        BASE_RATES: base_rates(parts.learn, parts.test, HORIZON_MS),
        RECENCY: np.nan_to_num(1.0 / (1.0 + newest), nan=0.0),
    }


def _alarms(
    scores: Mapping[str, Floats], thresholds: Mapping[str, Mapping[float, float]]
) -> dict[tuple[str, float], Mask]:
    return {
        (name, budget): np.nan_to_num(scores[name], nan=-np.inf) >= limit
        for name, limits in thresholds.items()
        for budget, limit in limits.items()
    }


def bare(examples: Examples) -> Examples:
    """The same rows without features."""
    none = np.zeros((len(examples), 0), dtype=np.float32)
    return replace(examples, names=(), features=none, sequences=None)


def pooled(pools: Sequence[Pool]) -> Pool:
    """All folds as one. A drive stands in one fold only."""
    if len(pools) == 1:
        return pools[0]
    first = pools[0]
    return Pool(
        rows=joined([one.rows for one in pools]),
        sweep=joined([one.sweep for one in pools]),
        scores={name: np.concatenate([one.scores[name] for one in pools]) for name in first.scores},
        alarms={key: np.concatenate([one.alarms[key] for one in pools]) for key in first.alarms},
        sweep_alarms={key: np.concatenate([one.sweep_alarms[key] for one in pools]) for key in first.sweep_alarms},
        silent=np.concatenate([one.silent for one in pools]),
        later=np.concatenate([one.later for one in pools]),
        shared=np.concatenate([one.shared for one in pools]),
        sweep_later=np.concatenate([one.sweep_later for one in pools]),
        sweep_shared=np.concatenate([one.sweep_shared for one in pools]),
    )


def joined(tables: Sequence[Examples]) -> Examples:
    """Rows of several tables without features; drives and models by name."""
    whole: dict[str, Any] = {}
    for name in ("at_ms", "features", "seen_ms", "history_ms", "event_ms", "until_ms", "event_class", "weight"):
        whole[name] = np.concatenate([getattr(one, name) for one in tables])
    devices, device = _codes([(one.devices, one.device) for one in tables])
    groups, group = _codes([(one.groups, one.group) for one in tables])
    return Examples(devices=devices, device=device, groups=groups, group=group, names=(), **whole)


def _codes(parts: Sequence[tuple[tuple[str, ...], Codes]]) -> tuple[tuple[str, ...], Codes]:
    names = tuple(dict.fromkeys(name for every, _ in parts for name in every))
    place = {name: number for number, name in enumerate(names)}
    mapped = [np.asarray([place[name] for name in every], dtype=np.int32)[code] for every, code in parts]
    return names, np.concatenate(mapped)
