"""Laws that every model family keeps."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.trend.protocol import Forecaster, GpuHistory, build, names
from tocsin_testing.builders import T0, gpu
from tocsin_testing.histories import MEMORY, REMAP, TEMPERATURE, history, noise, thinned

N = 720
"""Samples of 12 hours at one a minute."""


@pytest.fixture(params=names())
def model(request: pytest.FixtureRequest) -> Forecaster:
    return build(request.param, ForecastSettings())


def healthy() -> GpuHistory:
    return history({TEMPERATURE: 55 + noise(N, 1.0), MEMORY: np.full(N, 0.4), REMAP: np.zeros(N)})


def ramp(slope_per_hour: float = 1.5, start: float = 64.0, seed: int = 1) -> GpuHistory:
    hours = np.arange(N) / 60
    return history({TEMPERATURE: start + slope_per_hour * hours + noise(N, 0.5, seed), MEMORY: np.full(N, 0.4)})


def of(predictions: list[Prediction], metric: str) -> Prediction:
    (found,) = [p for p in predictions if p.metric == metric]
    return found


def test_the_registry_has_a_model() -> None:
    assert "threshold" in names()


def test_it_is_deterministic(model: Forecaster) -> None:
    assert model.predict([ramp(), healthy()], T0) == model.predict([ramp(), healthy()], T0)


def test_learning_and_predicting_leave_the_history_alone(model: Forecaster) -> None:
    past, same = ramp(), ramp()
    model.learn([past])
    model.predict([past], T0)
    assert np.array_equal(past.series.at_ms, same.series.at_ms)
    assert np.array_equal(past.series.values, same.series.values, equal_nan=True)


def test_each_gpu_is_judged_alike_alone_and_in_company(model: Forecaster) -> None:
    other = history({TEMPERATURE: 50 + noise(N, 1.0, 5)}, which=gpu(2))
    alone = model.predict([ramp()], T0)
    together = model.predict([ramp(), other], T0)
    assert [p for p in together if p.subject.name == gpu().uuid] == alone


def test_samples_after_the_instant_are_not_looked_at(model: Forecaster) -> None:
    past = ramp()
    before = past.series.at_ms <= T0 - 2 * HOUR
    assert model.predict([past], T0 - 2 * HOUR) == model.predict([thinned(past, before)], T0 - 2 * HOUR)


def test_gaps_and_missing_values_are_normal(model: Forecaster) -> None:
    past = ramp()
    keep = np.ones(N, np.bool_)
    keep[200:320] = False
    past.series.values[::7, past.series.metrics.index(TEMPERATURE)] = np.nan
    found = of(model.predict([thinned(past, keep)], T0), TEMPERATURE)
    assert found.status is PredictionStatus.CROSSING


@pytest.mark.parametrize("n", [0, 1, 5, 11])
def test_a_short_history_is_refused(model: Forecaster, n: int) -> None:
    past = thinned(ramp(), np.arange(N) >= N - n)
    for found in model.predict([past], T0):
        assert found.status is PredictionStatus.NOT_ENOUGH_DATA
        assert found.reason
        assert found.reason in found.sentence
        assert found.eta_ms is None
        assert found.probability is None


def test_a_healthy_gpu_gets_no_crossing(model: Forecaster) -> None:
    found = model.predict([healthy()], T0)
    assert {p.metric for p in found} >= {TEMPERATURE, MEMORY, REMAP}
    assert {p.status for p in found} == {PredictionStatus.NO_CROSSING}


def test_a_constant_series_gets_no_crossing(model: Forecaster) -> None:
    past = history({TEMPERATURE: np.full(N, 84.0), MEMORY: np.full(N, 0.89), REMAP: np.full(N, 511.0)})
    assert {p.status for p in model.predict([past], T0)} == {PredictionStatus.NO_CROSSING}


@pytest.mark.parametrize("slope", [1.0, 1.5, 2.0])
def test_a_planted_ramp_is_found_near_its_time(model: Forecaster, slope: float) -> None:
    found = of(model.predict([ramp(slope, 85 - slope * (9 + (N - 1) / 60))], T0), TEMPERATURE)
    truth = T0 + 9 * HOUR
    assert found.status is PredictionStatus.CROSSING
    assert found.eta_ms == pytest.approx(truth, abs=0.1 * (truth - T0))


def test_the_interval_holds_the_expected_instant(model: Forecaster) -> None:
    found = of(model.predict([ramp()], T0), TEMPERATURE)
    assert found.eta_low_ms is not None
    assert found.eta_ms is not None
    assert T0 <= found.eta_low_ms <= found.eta_ms
    assert found.eta_high_ms is None or found.eta_high_ms >= found.eta_ms
    assert found.eta_ms <= T0 + found.horizon_ms
    assert found.coverage == 0.8


@pytest.mark.parametrize(
    "past", [ramp(1.5), ramp(0.4), healthy(), ramp(-1.0, 70.0)], ids=["fast", "slow", "flat", "down"]
)
@pytest.mark.parametrize("name", names())
def test_a_longer_horizon_never_lowers_the_probability(name: str, past: GpuHistory) -> None:
    chances = []
    for hours in (3, 6, 12, 20, 24, 48):
        model = build(name, ForecastSettings(horizon_hours=hours))
        chances.append(of(model.predict([past], T0), TEMPERATURE).probability)
    assert None not in chances
    assert chances == sorted(chances)  # type: ignore[type-var]
    assert all(0 <= chance <= 1 for chance in chances if chance is not None)


def test_every_prediction_is_complete(model: Forecaster) -> None:
    simulated = history({TEMPERATURE: 55 + noise(N, 1.0)}, which=gpu(3, host="rack2-node7", simulated=True))
    found = model.predict([simulated, ramp()], T0)
    assert len({p.id for p in found}) == len(found)
    for one in found:
        assert (one.model, one.model_version, one.at_ms) == (model.name, model.version, T0)
        assert one.target == f"time_to_threshold:{one.metric}"
        assert one.horizon_ms > 0
        assert one.metric in one.sentence
        assert one.metric in model.metrics
        assert one.simulated is (one.subject.name == gpu(3).uuid)
        assert re.match(r"\S+ GPU \d+: ", one.sentence)
    assert {p.subject.host for p in found} == {"rack2-node7", "node-1"}


def test_a_steady_cadence_of_ten_minutes_does_as_well(model: Forecaster) -> None:
    hours = np.arange(144) / 6
    past = history({TEMPERATURE: 62 + 0.6 * hours + noise(144, 0.5)}, step_ms=10 * MINUTE)
    found = of(model.predict([past], T0), TEMPERATURE)
    assert found.status is PredictionStatus.CROSSING
