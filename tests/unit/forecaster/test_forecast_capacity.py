"""Capacity a week ahead: pools whose course is known because it was made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import SubjectKind
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.capacity.capacity import (
    LIMITS,
    PENDING,
    UTILISATION,
    CapacityForecaster,
    PoolPast,
    first_sustained,
)
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.forecaster.trend.seasonal import TooShort, outlook
from tocsin.runtime.brain.expectations import PoolPasts
from tocsin.store.factory import open_store
from tocsin_testing.builders import T0, gpu, reading

START = T0 // DAY * DAY
NONE = np.empty(0)


def course(
    days: int, *, level: float = 0.6, swing: float = 0.15, weekend: float = 0.0, daily: float = 0.0, seed: int = 5
) -> np.ndarray:
    """Hourly utilisation: busiest at 14:00, less at weekends, growing by `daily` a day, with noise."""
    hour = np.arange(days * 24)
    at_weekend = (hour // 24) % 7 >= 5
    day = np.cos(2 * np.pi * (hour % 24 - 14) / 24)
    noise = 0.015 * np.random.default_rng(seed).standard_normal(hour.size)
    return level + swing * day - weekend * at_weekend + daily * hour / 24 + noise


def past(values: np.ndarray, pending: np.ndarray | None = None) -> PoolPast:
    at_ms = START + HOUR * np.arange(values.size)
    return PoolPast("training", at_ms, values, np.full(values.size, np.nan) if pending is None else pending)


def predict(one: PoolPast, now_ms: int | None = None) -> dict[str, Prediction]:
    now = int(one.at_ms[-1]) + HOUR if now_ms is None else now_ms
    return {made.target: made for made in CapacityForecaster().predict([one], now)}


OVER, UNDER, WAITING = (limit.target for limit in LIMITS)


def test_growth_reaches_the_limit_when_the_truth_does() -> None:
    whole = course(28, daily=0.009)
    known = whole[: 22 * 24]
    made = predict(past(known))[OVER]
    # The truth, two hours on end above 0.9, by the very function that is tested below.
    first = first_sustained(whole[known.size :, None], LIMITS[0])[0]
    truth = START + HOUR * (known.size + int(first))
    assert made.status is PredictionStatus.CROSSING
    assert made.subject.kind is SubjectKind.POOL
    assert made.eta_ms is not None
    assert abs(made.eta_ms - truth) <= DAY
    assert made.eta_low_ms is not None
    assert made.eta_low_ms <= truth
    assert made.eta_high_ms is None or truth <= made.eta_high_ms
    assert "probability" in made.sentence
    assert "资源池 training" in made.sentence_zh
    chances = [chance for _, chance in made.curve]
    assert chances == sorted(chances)
    assert len(chances) == 7


def test_a_steady_course_below_the_limit_is_quiet() -> None:
    made = predict(past(course(21)))
    assert made[OVER].status is made[UNDER].status is PredictionStatus.NO_CROSSING
    assert WAITING not in made, "nobody tells what waits"
    assert made[OVER].probability is not None
    assert made[OVER].probability < 0.1


def test_the_quiet_weekend_is_seen_from_the_friday() -> None:
    known = course(33, level=0.5, swing=0.05, weekend=0.3)
    made = predict(past(known))[UNDER]
    assert made.status is PredictionStatus.CROSSING
    assert made.eta_ms is not None
    saturday = START + 33 * DAY
    assert abs(made.eta_ms - saturday) <= 3 * HOUR
    assert made.threshold == 0.3


def test_work_that_waits_is_forecast_where_a_scheduler_tells() -> None:
    queue = np.maximum(0.0, 40 * (course(14, level=0.3) - 0.35))
    assert predict(past(course(14), queue))[WAITING].status is PredictionStatus.CROSSING
    assert predict(past(course(14), np.zeros(14 * 24)))[WAITING].status is PredictionStatus.NO_CROSSING


def test_intervals_hold_about_as_often_as_they_say() -> None:
    inside = total = 0
    for seed in range(12):
        whole = course(21, seed=seed)
        ahead = outlook(whole[: 14 * 24], 48)
        truth = whole[14 * 24 : 16 * 24]
        inside += int(((ahead.quantile(0.1) <= truth) & (truth <= ahead.quantile(0.9))).sum())
        total += truth.size
    assert 0.7 <= inside / total <= 0.95


def test_the_week_counts_from_four_weeks_on() -> None:
    assert not outlook(course(27), 24).weekly
    assert outlook(course(28), 24).weekly


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (course(2), "48 hours of history, 72 needed"),
        (np.where(np.arange(240) % 2 == 0, course(10), np.nan), "119 of 239 hours are unknown, a quarter is the most"),
        (np.full(100, np.nan), "no hour of history"),
    ],
)
def test_too_little_says_how_much(values: np.ndarray, reason: str) -> None:
    made = predict(past(values))[OVER]
    assert made.status is PredictionStatus.NOT_ENOUGH_DATA
    assert made.reason == reason
    assert reason in made.sentence
    with pytest.raises(TooShort):
        outlook(values, 24)


def test_gaps_and_constants_are_no_trouble_and_inputs_stay() -> None:
    values = course(14)
    values[50:60] = np.nan
    before = values.copy()
    assert predict(past(values))[OVER].status is PredictionStatus.NO_CROSSING
    np.testing.assert_array_equal(values, before)
    assert predict(past(np.full(200, 0.5)))[OVER].probability == 0.0
    assert predict(past(np.full(200, 0.95)))[OVER].probability == 1.0


def test_what_comes_after_now_is_not_looked_at() -> None:
    whole = past(course(28, daily=0.009))
    now = START + 20 * DAY
    cut = PoolPast("training", whole.at_ms[: 20 * 24], whole.utilisation[: 20 * 24], whole.pending[: 20 * 24])
    assert predict(whole, now) == predict(cut, now)


def test_sustained_means_hours_on_end() -> None:
    paths = np.array([[0.0, 0.95, 0.95], [0.95, 0.1, 0.95], [0.1, 0.95, 0.1], [0.95, 0.1, 0.1], [0.95, 0.95, 0.95]])
    assert first_sustained(paths, LIMITS[0]).tolist() == [3.0, np.inf, 0.0]
    assert first_sustained(paths, replace(LIMITS[1], value=0.05)).tolist() == [np.inf] * 3


def test_the_worker_answers_for_pools_in_its_process_and_here() -> None:
    one, now = past(course(5)), START + 5 * DAY
    answers = []
    for process in (True, False):
        worker = ForecastWorker(ForecastSettings(worker=process))
        answers.append(worker.submit_pools([one], now).result(120))
        worker.close()
    assert answers[0] == answers[1]
    assert {made.metric for made in answers[0]} == {UTILISATION}


class TestPast:
    def test_hours_are_means_of_whole_gpus_by_pool(self) -> None:
        pasts = PoolPasts()
        mig = replace(gpu(9), parent="GPU-x")
        for minute, value in ((0, 0.2), (30, 0.4), (60, 0.9)):
            now = START + minute * MINUTE
            readings = [reading(gpu(n), now, utilization_ratio=value) for n in range(2)]
            pasts.observe([*readings, reading(mig, now, utilization_ratio=1.0)], [PoolState("default", 3.0)], now)
        (one,) = pasts.take()
        assert one.pool == "default"
        assert one.at_ms.tolist() == [START, START + HOUR]
        assert one.utilisation.tolist() == pytest.approx([0.3, 0.9])
        assert one.pending.tolist() == [3.0, 3.0]

    def test_the_store_gives_the_past_back_with_its_gaps(self) -> None:
        store = open_store(StoreSettings(kind=StoreKind.MEMORY))
        store.init()
        for hour in (0, 1, 4):
            at_ms = START + hour * HOUR + 30 * MINUTE + 5_000
            store.write(Batch(readings=[reading(gpu(n), at_ms, utilization_ratio=0.1 * hour) for n in range(2)]))
        pasts = PoolPasts()
        pasts.recall(store, START + 6 * HOUR)
        (one,) = pasts.take()
        np.testing.assert_allclose(one.utilisation, [0.0, 0.1, np.nan, np.nan, 0.4])
        assert PENDING not in {made.metric for made in CapacityForecaster().predict([one], START + 6 * HOUR)}

    def test_what_is_older_than_five_weeks_is_forgotten(self) -> None:
        pasts = PoolPasts()
        pasts.observe([reading(gpu(0), START, utilization_ratio=0.5)], [], START)
        pasts.observe([], [], START + 36 * DAY)
        assert pasts.take() == []
