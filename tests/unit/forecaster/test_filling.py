"""Growth without a plateau is told from what fills and stays, from jumps and from ripples."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.forecaster.capacity import filling
from tocsin.forecaster.capacity.filling import HOLES, LEAST_RISE, MEMORY, outlook, stepped_up
from tocsin.forecaster.trend.lines import Floats as Values


def noise(count: int, length: int, seed: int = 1, width: float = 0.001) -> Values:
    return width * np.random.default_rng(seed).standard_normal((count, length))


def steps(values: Values, limit: float = MEMORY.limit) -> Values:
    return outlook(values, limit).steps


@pytest.mark.smoke
def test_a_leak_is_dated() -> None:
    line = 0.60 + 0.002 * np.arange(150)
    ahead = steps(line + noise(20, 150))
    assert ahead == pytest.approx((MEMORY.limit - line[-1]) / 0.002, abs=8)


def test_a_leak_that_began_lately_shows_in_the_short_windows() -> None:
    line = 0.6 + np.concatenate([np.zeros(140), 0.01 * np.arange(1, 21)])
    assert steps(line + noise(5, 160)) == pytest.approx((MEMORY.limit - 0.8) / 0.01, abs=4)


def test_what_fills_up_and_stays_is_no_leak() -> None:
    minutes = np.arange(160)
    warming = 0.9 - 0.15 * np.exp(-minutes / 25)
    assert np.isinf(steps(warming + noise(50, 160))).all()


def test_level_noise_and_ripples_say_nothing() -> None:
    minutes = np.arange(160)
    for seed in range(20):
        ripple = 0.9 + 0.004 * np.sin(2 * np.pi * minutes / 41 + seed)
        assert (steps(ripple + noise(50, 160, seed)) > MEMORY.ahead_steps).all()


def test_a_jump_is_a_new_job() -> None:
    line = np.concatenate([np.full(80, 0.2), np.full(80, 0.8)])
    assert np.isinf(steps(line + noise(5, 160))).all()
    climbing = np.concatenate([0.1 + 0.005 * np.arange(80), np.full(80, 0.8)])
    assert np.isinf(steps(climbing + noise(5, 160))).all()


def test_a_gap_ends_what_was() -> None:
    line = 0.60 + 0.002 * np.arange(160)
    line = np.tile(line, (2, 1)) + noise(2, 160)
    line[1, 152:156] = np.nan
    ahead = steps(line)
    assert np.isfinite(ahead[0])
    assert np.isinf(ahead[1])


def test_single_missing_values_do_no_harm() -> None:
    line = np.tile(0.60 + 0.002 * np.arange(160), (3, 1)) + noise(3, 160)
    holed = line.copy()
    holed[:, 4::7] = np.nan
    assert steps(holed) == pytest.approx(steps(line), abs=8)


def test_short_empty_and_unknown_pasts_say_nothing() -> None:
    assert np.isinf(steps(np.full((3, 4), 0.9))).all()
    assert np.isinf(steps(np.full((3, 160), np.nan))).all()
    assert steps(np.empty((0, 160))).size == 0


def test_rows_do_not_touch_each_other() -> None:
    rows = np.vstack([0.60 + 0.002 * np.arange(160) + noise(1, 160)[0], np.full(160, 0.5), 0.3 + noise(1, 160, 3)[0]])
    together = steps(rows)
    for place in range(3):
        assert steps(rows[place : place + 1])[0] == pytest.approx(together[place])


def test_what_hardly_moves_is_left_out_and_nothing_that_rises_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    slopes = rng.uniform(0.2, 4.0, (4000, 1)) * LEAST_RISE / rng.choice([8.0, 20.0, 80.0, 160.0], (4000, 1))
    rows = rng.uniform(0.3, 0.99, (4000, 1)) + slopes * np.arange(-159, 1)
    rows += rng.uniform(0, 4e-4, (4000, 1)) * rng.standard_normal((4000, 160))
    rows[rng.uniform(size=rows.shape) < rng.uniform(0, 0.24, (4000, 1))] = np.nan
    screened, near = outlook(rows, 0.985), outlook(rows, 0.985, 20)
    monkeypatch.setattr(filling, "STEEPEST", 1e9)
    every = outlook(rows, 0.985)
    np.testing.assert_allclose(screened.steps, every.steps)
    np.testing.assert_allclose(screened.slope, every.slope, atol=1e-12)
    np.testing.assert_allclose(_near(near.steps), _near(every.steps))
    assert 0.2 < np.isfinite(every.steps).mean() < 0.9
    assert np.isfinite(_near(every.steps)).sum() > 50
    assert np.isfinite(near.steps).sum() < 0.5 * np.isfinite(every.steps).sum(), "what is far is not looked at"


def _near(ahead: Values) -> Values:
    return np.where(ahead <= 20, ahead, np.inf)


def test_inputs_stay_as_they_were() -> None:
    rows = np.tile(0.60 + 0.002 * np.arange(160), (2, 1))
    before = rows.copy()
    outlook(rows, 0.9)
    np.testing.assert_array_equal(rows, before)


def test_holes_between_tensors_open_quickly() -> None:
    line = np.concatenate([np.full(60, 0.1), 0.1 + 0.012 * np.arange(1, 9)])
    assert (steps(line + noise(5, 68, width=0.003), HOLES.limit) <= HOLES.ahead_steps).all()


def test_a_layout_that_stands_above_its_least_has_stepped_up() -> None:
    nan = np.nan
    rows = np.array([[0.0, 0.0, 0.02], [0.0, 0.0, 0.0], [0.4, 0.0, 0.0], [nan, nan, nan], [nan, 0.39, 0.39]])
    assert stepped_up(rows).tolist() == [True, False, False, False, False]


def test_the_share_of_its_way_that_is_gone_is_the_line_against_what_is_left() -> None:
    rising = np.array([0.9 - 0.003 * np.arange(160.0)[::-1]])
    near, far = (outlook(rising, limit) for limit in (0.906, 0.96))
    # Two and twenty minutes to go, by a line of eight minutes or more.
    assert near.seen[0] >= 8 / 10 > 0.7 > far.seen[0] >= 8 / 28
    assert outlook(np.full((1, 160), 0.9), 0.96).seen[0] == 0.0, "without growth there is no way"
