"""The LSTM's score of windows of 96 steps x 40 channels with gaps, against the plain LSTM of torch over the same steps
without masks, scales, features or patches. One thread each."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.clock import HOUR
from tocsin.forecaster.deep.network import settled
from tocsin.forecaster.deep.scorer_lstm import LstmScorer, LstmSettings, build
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences

STEPS, CHANNELS, FEATURES, HIDDEN = 96, 40, 120, 64
WINDOWS, FLEET, LEARNED = 2048, 8000, 2000
GROUP = f"LSTM over {WINDOWS} windows of {STEPS} x {CHANNELS}"


def fleet(n: int) -> Examples:
    """Rows of noise with a tenth missing; one in twenty is followed by an onset."""
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n, STEPS, CHANNELS), dtype=np.float32)
    values[rng.random(values.shape, dtype=np.float32) < 0.1] = np.nan
    at_ms = np.zeros(n, np.int64)
    event_ms = np.where(np.arange(n) % 20 == 0, 6 * HOUR, NEVER)
    return Examples(
        devices=tuple(str(i) for i in range(n)),
        device=np.arange(n, dtype=np.int32),
        groups=("g",),
        group=np.zeros(n, np.int32),
        at_ms=at_ms,
        names=tuple(f"f{i}" for i in range(FEATURES)),
        features=rng.standard_normal((n, FEATURES), dtype=np.float32),
        seen_ms=at_ms,
        history_ms=np.full(n, 96 * HOUR),
        event_ms=event_ms,
        until_ms=np.full(n, 1000 * HOUR),
        event_class=np.where(event_ms < NEVER, "bus", ""),
        weight=np.ones(n),
        sequences=HeldSequences(tuple(f"c{i}" for i in range(CHANNELS)), values),
    )


@pytest.fixture(scope="module")
def scorer() -> LstmScorer:
    made = build(hidden=HIDDEN, epochs=1)
    made.fit(fleet(LEARNED))
    return made


@pytest.fixture(scope="module")
def plain() -> Callable[[], object]:
    """The baseline."""
    with settled(torch.device("cpu"), 1):
        network, values = torch.nn.LSTM(CHANNELS, HIDDEN, batch_first=True), torch.randn(WINDOWS // 2, STEPS, CHANNELS)

    def forward() -> object:
        with settled(torch.device("cpu"), 1), torch.inference_mode():
            return [network(values)[0][:, -1] for _ in range(2)]

    return forward


def fastest(work: Callable[[], object], rounds: int = 5) -> float:
    """Processor seconds of the quickest of `rounds`: a busy neighbour does not count."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def test_the_score_costs_at_most_two_plain_lstms(
    scorer: LstmScorer, plain: Callable[[], object], say: Callable[[str], None]
) -> None:
    examples = fleet(WINDOWS)
    scorer.score(examples)
    plain()
    ours, baseline = fastest(lambda: scorer.score(examples)), fastest(plain)
    say(f"LSTM score on one core: {WINDOWS / ours:,.0f} windows a second, plain LSTM {WINDOWS / baseline:,.0f}")
    assert ours <= 2 * baseline, f"{ours * 1e3:.0f} ms against {baseline * 1e3:.0f} ms"


@pytest.mark.benchmark(group=GROUP)
def test_score(benchmark: BenchmarkFixture, scorer: LstmScorer) -> None:
    assert benchmark(scorer.score, fleet(WINDOWS)).shape == (WINDOWS, 4)


@pytest.mark.benchmark(group=GROUP)
def test_baseline_plain_lstm(benchmark: BenchmarkFixture, plain: Callable[[], object]) -> None:
    assert benchmark(plain)


@pytest.mark.benchmark(group=f"LSTM over a fleet of {FLEET} GPUs, {STEPS} x {CHANNELS} and {FEATURES} features")
def test_score_of_a_fleet(benchmark: BenchmarkFixture, scorer: LstmScorer) -> None:
    examples = fleet(FLEET)
    assert benchmark.pedantic(scorer.score, (examples,), rounds=3).shape == (FLEET, 4)


def test_training_is_a_matter_of_minutes(say: Callable[[str], None]) -> None:
    """There is no plain counterpart to compare with, so the time is said and bounded."""
    examples = fleet(LEARNED)
    made = build(hidden=HIDDEN, epochs=8)
    begun = time.process_time()
    made.fit(examples)
    rate = LEARNED * len(made.progress[0].watched) / (time.process_time() - begun)
    shipped = LstmSettings()
    minutes = shipped.max_rows * shipped.epochs / rate / 60
    rows = f"{shipped.max_rows:,} rows x {shipped.epochs} epochs take at most {minutes:.1f} min"
    say(f"LSTM training on one core: {rate:,.0f} rows a second; {rows}")
    assert minutes < 20
