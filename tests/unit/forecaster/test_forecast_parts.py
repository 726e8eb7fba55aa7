"""Grid, frozen stretches, trend, smoothing and first passage, each alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.forecaster.trend.model_threshold import UNCLAIMED, screened_probability, simulate
from tocsin.forecaster.trend.resample import MAX_POINTS, frozen, grid_step, resample, since_reset
from tocsin.forecaster.trend.smoothing import block_gains, level_look, look, may_rise, theil_sen
from tocsin_testing.builders import T0
from tocsin_testing.histories import noise


def instants(n: int, step_ms: int) -> np.ndarray:
    return T0 + step_ms * np.arange(n, dtype=np.int64)


@pytest.mark.parametrize(
    ("n", "cadence", "step"),
    [
        (8640, 10 * SECOND, 10 * MINUTE),
        (144, 10 * MINUTE, 10 * MINUTE),
        (60, 10 * SECOND, 10 * SECOND),
        (90, MINUTE, MINUTE),
    ],
)
def test_the_grid_follows_the_length_of_the_past(n: int, cadence: int, step: int) -> None:
    assert grid_step(instants(n, cadence)) == step


@given(
    st.lists(st.integers(1, 3 * HOUR), min_size=2, max_size=400),
    st.floats(-1e3, 1e3),
    st.floats(-10, 10),
)
def test_a_line_stays_on_its_line_and_within_the_point_limit(gaps: list[int], level: float, slope: float) -> None:
    at_ms = T0 + np.cumsum(np.array(gaps, np.int64))
    grid = resample(at_ms, level + slope * (at_ms - at_ms[0]) / HOUR)
    assert grid.values.size <= MAX_POINTS
    assert np.isfinite(grid.values).all()
    low, high = sorted((level, level + slope * float(at_ms[-1] - at_ms[0]) / HOUR))
    assert grid.values.min() >= low - 1e-6
    assert grid.values.max() <= high + 1e-6
    assert at_ms[0] <= grid.end_ms <= at_ms[-1]


def test_a_mean_is_dated_at_the_middle_of_its_samples() -> None:
    at_ms = instants(8641, 10 * SECOND)
    grid = resample(at_ms, (at_ms - T0) / HOUR)
    assert grid.values[-1] == pytest.approx((grid.end_ms - T0) / HOUR, abs=0.002)


def test_only_long_repetition_is_frozen() -> None:
    at_ms = instants(30, 10 * MINUTE)
    power = 300 + noise(30, 1.0)
    power[5:7] = 250.0
    power[20:] = 83.0
    assert np.flatnonzero(frozen(at_ms, power[:, None])).tolist() == list(range(21, 30))
    assert not frozen(instants(30, 10 * SECOND), np.full((30, 1), 83.0)).any()
    moving = np.column_stack((np.full(30, 83.0), np.arange(30.0)))
    assert not frozen(at_ms, moving).any()


def test_without_a_lively_metric_nothing_is_called_frozen() -> None:
    assert not frozen(instants(30, 10 * MINUTE), np.full((30, 2), np.nan)).any()


def test_a_counter_starts_again_after_its_last_decrease() -> None:
    assert since_reset(np.array([5.0, 6, 0, 1, 2, 1, 1, 4])) == 5
    assert since_reset(np.array([0.0, 0, 3])) == 0


def test_wild_points_do_not_move_the_slope() -> None:
    line = 0.5 * np.arange(60)
    line[::5] += 100
    assert theil_sen(line) == pytest.approx(0.5, abs=0.2)


def test_a_steady_rise_is_told_from_steps_and_noise() -> None:
    assert look(50 + 0.1 * np.arange(100) + noise(100, 0.5)).steady
    assert not look(50 + noise(100, 0.5)).steady
    assert not look(np.where(np.arange(100) > 50, 70.0, 50.0) + noise(100, 0.5)).steady
    assert not look(80 - 0.1 * np.arange(100) + noise(100, 0.5)).steady


def test_a_level_is_described_without_a_line_as_with_one() -> None:
    falling = 80 - 0.1 * np.arange(100) + noise(100, 0.5)
    gains = block_gains(falling)
    assert not may_rise(gains)
    quick, whole = level_look(falling, gains), look(falling)
    assert quick.slope == pytest.approx(whole.slope, abs=0.01)
    assert (quick.recent, quick.swing, quick.steady) == (whole.recent, whole.swing, whole.steady)
    level = np.full(20, 3.0)
    assert level_look(level, block_gains(level)).slope == 0.0


def test_a_path_without_noise_arrives_when_the_line_does() -> None:
    line = 50 + 0.5 * np.arange(40)
    trend = look(line)
    passage = simulate(trend, 80.0)
    assert passage.first == pytest.approx(np.full(passage.first.size, (80 - 69.5) / 0.5), abs=1e-6)
    assert passage.probability(20.9) == 0.0
    assert passage.probability(21.1) == 1.0


@given(st.floats(0.01, 5), st.floats(1, 50), st.integers(0, 1000))
def test_the_chance_of_arriving_never_falls_with_time(scale: float, distance: float, seed: int) -> None:
    values = 50 + 0.05 * np.arange(50) + noise(50, scale, seed)
    trend = look(values)
    chances = [screened_probability(trend, 50 + distance, steps) for steps in (1, 10, 100, 400)]
    assert chances == sorted(chances)
    assert all(0 <= chance <= UNCLAIMED for chance in chances)
