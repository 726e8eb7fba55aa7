"""Figures of a million windows with 200 bootstrap draws, against scikit-learn's two figures without any."""

from __future__ import annotations

import statistics
import time

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture
from sklearn import metrics

from tocsin.forecaster.evaluation.figures import standard
from tocsin_testing.eval_data import HORIZON, rows

WINDOWS = 1_000_000
DRAWS = 200
MOST = 20.0
"""Times as long as scikit-learn needs for the sample alone; drawing 200 times by it would be 200 times."""


def test_two_hundred_draws_of_a_million_windows(benchmark: BenchmarkFixture) -> None:
    rng = np.random.default_rng(0)
    device, day = rng.integers(0, 42_000, WINDOWS), rng.integers(0, 400, WINDOWS).astype(float)
    event = np.where(rng.random(WINDOWS) < 0.001, day + rng.uniform(0.1, 10, WINDOWS), np.nan)
    examples = rows(device, day, event)
    label, _ = examples.label(HORIZON)
    score = np.clip(rng.random(WINDOWS) + 0.3 * label, 0, 1)

    spans = []
    for _ in range(3):
        begun = time.perf_counter()
        metrics.roc_auc_score(label, score)
        metrics.average_precision_score(label, score)
        spans.append(time.perf_counter() - begun)
    baseline = statistics.median(spans)

    told = benchmark.pedantic(lambda: standard({"m": score}, examples, HORIZON, draws=DRAWS), rounds=3)
    assert abs(told["m"]["roc_auc"].value - metrics.roc_auc_score(label, score)) < 1e-12
    if benchmark.stats is not None:
        ratio = benchmark.stats.stats.min / baseline
        benchmark.extra_info["times_scikit_learn_once"] = ratio
        assert ratio < MOST
