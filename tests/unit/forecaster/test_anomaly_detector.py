"""The unsupervised detector and the level of its alarm, on made-up servers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.forecaster.anomaly.alarm_level import (
    LEAST,
    MOST_TIME,
    alarm_level,
    episodes,
    held_out,
    trailing_levels,
    watch,
)
from tocsin.forecaster.anomaly.detector import DetectorSettings, from_state, learn
from tocsin.forecaster.hazard.scorer import NotEnoughData, State

ROWS, METRICS = 4_000, 8


def server(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    """Metrics that follow one daily load, each with its own noise; the last two stay the same."""
    rng = np.random.default_rng(seed)
    load = 0.5 + 0.2 * np.sin(np.arange(rows) / 1440 * 2 * np.pi)
    made = load[:, None] * np.linspace(0.5, 1.0, METRICS) + rng.normal(0, 0.01, (rows, METRICS))
    made[:, -2:] = 0.25
    return made


@pytest.fixture(scope="module")
def usual() -> np.ndarray:
    return server()


def test_scores_are_near_one_for_the_usual(usual: np.ndarray) -> None:
    scores = learn(usual, MINUTE).score(server(1))
    assert np.median(scores.pulse) == pytest.approx(1.0, abs=0.3)
    assert np.median(scores.state) == pytest.approx(1.0, abs=0.3)


def test_a_level_never_seen_stays_unusual_for_its_whole_length(usual: np.ndarray) -> None:
    asked = server(1)
    asked[2_000:2_200, :3] += 1.0
    scores = learn(usual, MINUTE).score(asked)
    assert scores.pulse[2_000:2_200].min() > 3 * np.quantile(scores.pulse[:2_000], 0.99)
    assert scores.state[2_100:2_200].min() > 3 * np.quantile(scores.state[:2_000], 0.99)


def test_a_jump_inside_the_usual_range_is_seen(usual: np.ndarray) -> None:
    asked = server(1)
    trough = int(np.argmin(asked[:, 0]))
    asked[trough : trough + 4, :6] = np.quantile(usual[:, :6], 0.9, axis=0)
    scores = learn(usual, MINUTE).score(asked)
    assert scores.pulse[trough : trough + 4].max() > 2 * np.quantile(scores.pulse[:trough], 0.999)


def test_a_metric_that_never_moved_counts_when_it_moves(usual: np.ndarray) -> None:
    asked = server(1)
    asked[3_000:, -1] = 0.5
    detector = learn(usual, MINUTE)
    assert detector.score(asked).pulse[3_010:].min() > 2 * np.quantile(detector.score(asked).pulse[:3_000], 0.99)
    assert (np.argmax(detector.blame(asked)[3_000:], axis=1) == METRICS - 1).all()


def test_gaps_are_normal_and_inputs_stay_as_they_were(usual: np.ndarray) -> None:
    past, asked = usual.copy(), server(1)
    past[100:200] = np.nan
    past[:, 3] = np.nan
    asked[500:600] = np.nan
    asked[::7, 1] = np.nan
    before = asked.copy(), past.copy()
    scores = learn(past, MINUTE).score(asked)
    assert np.isnan(scores.pulse[500:600]).all()
    assert np.isfinite(np.delete(scores.pulse, np.s_[500:600])).all()
    assert scores.pulse[600:700].max() < 4 * np.median(scores.pulse[:500])
    np.testing.assert_array_equal(asked, before[0])
    np.testing.assert_array_equal(past, before[1])


def test_what_is_scored_later_changes_nothing_before(usual: np.ndarray) -> None:
    detector, asked = learn(usual, MINUTE), server(1)
    whole, part = detector.score(asked), detector.score(asked[:1_000])
    np.testing.assert_allclose(whole.pulse[:1_000], part.pulse)
    np.testing.assert_allclose(whole.state[:1_000], part.state)


def test_the_same_past_gives_the_same_detector_and_its_state_another(usual: np.ndarray) -> None:
    asked = server(1)
    first, second = learn(usual, MINUTE), learn(usual.copy(), MINUTE)
    np.testing.assert_array_equal(first.score(asked).pulse, second.score(asked).pulse)
    kept = first.state()
    again = from_state(State(json.loads(json.dumps(kept.settings)), kept.arrays))
    np.testing.assert_array_equal(first.score(asked).state, again.score(asked).state)
    with pytest.raises(InputError, match="learn again"):
        from_state(State({**kept.settings, "version": "0"}, kept.arrays))


def test_a_constant_past_and_present_give_no_alarm() -> None:
    still = np.full((2_000, 5), 0.4)
    found = watch(still, MINUTE, per_day=2.0)
    assert not found.alarm(still).any()
    assert not found.alarm(still + np.random.default_rng(0).normal(0, 1e-4, still.shape)).any()


def test_too_little_and_wrong_input_are_refused(usual: np.ndarray) -> None:
    with pytest.raises(NotEnoughData, match="50 rows, 200 needed"):
        learn(usual[:50], MINUTE)
    with pytest.raises(InputError, match="values"):
        learn(np.zeros(500), MINUTE)
    with pytest.raises(InputError, match="values"):
        learn(usual, MINUTE).score(usual[:, :3])
    with pytest.raises(InputError, match="lags"):
        DetectorSettings(lags=(0, 1))
    with pytest.raises(InputError, match="ridge"):
        DetectorSettings(ridge=0.0)


def test_episodes_join_alarms_that_are_an_hour_apart_at_most() -> None:
    alarm = np.zeros(1_000, np.bool_)
    alarm[[10, 70, 200, 201, 262]] = True
    assert episodes(alarm, MINUTE) == [(10, 70), (200, 201), (262, 262)]
    assert episodes(alarm, 10 * MINUTE) == [(row, row) for row in (10, 70)] + [(200, 201), (262, 262)]
    assert episodes(np.zeros(5, np.bool_), MINUTE) == []


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=400),
    st.sampled_from([0.5, 1.0, 2.0, 10.0]),
    st.sampled_from([MINUTE, 5 * MINUTE, HOUR]),
)
def test_the_level_keeps_the_budget_of_the_past(values: list[float], per_day: float, step_ms: int) -> None:
    score = np.array(values)
    level = alarm_level(score, step_ms, per_day)
    assert level >= LEAST
    assert len(episodes(score > level, step_ms)) <= per_day * score.size * step_ms / DAY


def test_a_larger_budget_never_raises_the_level(usual: np.ndarray) -> None:
    pulse = held_out(usual, MINUTE).pulse
    levels = [alarm_level(pulse, MINUTE, per_day) for per_day in (0.5, 1, 2, 4)]
    assert levels == sorted(levels, reverse=True)
    assert alarm_level(np.full(10, np.nan), MINUTE, 1.0) == LEAST


def test_the_level_follows_the_trailing_days_and_no_later_ones() -> None:
    rng = np.random.default_rng(3)
    past, score = rng.gamma(2.0, 0.5, 40 * 144), rng.gamma(2.0, 0.5, 20 * 144)
    levels = trailing_levels(past, score, 10 * MINUTE)
    assert levels.shape == score.shape
    assert np.unique(levels).size <= 20, "once a day"
    changed = score.copy()
    changed[10 * 144 :] += 50.0
    assert trailing_levels(past, changed, 10 * MINUTE)[: 10 * 144].tolist() == levels[: 10 * 144].tolist()
    forgotten = past.copy()
    forgotten[: 5 * 144] += 50.0
    assert trailing_levels(forgotten, score, 10 * MINUTE).tolist() == levels.tolist(), "older than four weeks"


def test_a_score_that_sticks_raises_its_level_so_that_quiet_time_in_alarm_stays_small() -> None:
    rng = np.random.default_rng(5)
    past = rng.gamma(2.0, 0.3, 28 * 144)
    stuck = 6.0 + rng.gamma(2.0, 0.3, 60 * 144)
    alarm = stuck > trailing_levels(past, stuck, 10 * MINUTE)
    assert alarm[:144].all(), "at first it is news"
    assert alarm[28 * 144 :].mean() <= 2 * MOST_TIME


def test_a_watch_finds_what_its_past_did_not_have(usual: np.ndarray) -> None:
    asked = server(2)
    asked[1_500:1_560, :4] += 0.6
    found = watch(usual, MINUTE, per_day=1.0).alarm(asked)
    assert found[1_500:1_560].mean() > 0.9
    assert len(episodes(found[:1_500], MINUTE)) <= 3
