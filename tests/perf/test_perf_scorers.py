"""Scoring a large fleet costs little beside reading its features: both on 8,000 rows of 300 features, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.hazard import registry
from tocsin_testing.scored import fleet

ROWS, FEATURES = 8000, 300
LIMITS = {"hazard": 4.0, "boosting": 15.0}
"""Times the baseline, which is to take the quartiles of each feature once."""
SETTINGS: dict[str, dict[str, object]] = {
    "hazard": {"strengths": [0.01]},
    "boosting": {"folds": 2, "max_iter": 60, "max_features": 0.1},
}


def wide(rows: int, seed: int) -> Examples:
    """A made-up fleet with 300 features, 6 of which tell something."""
    past = fleet(devices=200, seed=seed)
    past = past.take(np.arange(rows) % len(past))
    noise = np.random.default_rng(seed).normal(0, 1, (rows, FEATURES - 6)).astype(np.float32)
    names = (*past.names, *(f"other{i}" for i in range(FEATURES - 6)))
    return replace(past, names=names, features=np.hstack([past.features, noise]), sequences=None)


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_scoring_8000_rows_of_300_features(name: str, benchmark: BenchmarkFixture, say: Callable[[str], None]) -> None:
    past, now = wide(1500, 1), wide(ROWS, 2)
    scorer = registry.build(name, **SETTINGS[name])
    scorer.fit(past)
    baseline = seconds(lambda: np.quantile(now.features, (0.25, 0.5, 0.75), axis=0))
    benchmark.pedantic(scorer.score, (now,), rounds=3, warmup_rounds=1)
    ratio = seconds(lambda: scorer.score(now)) / baseline
    say(f"scoring with {name}: {ratio:.2f} times the quartiles of the same table")
    assert ratio < LIMITS[name]
