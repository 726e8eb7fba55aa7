"""What the threshold model says, and to whom it refuses an answer."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings
from tocsin.domain.clock import HOUR, MINUTE, to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.trend.model_threshold import ThresholdForecaster
from tocsin.forecaster.trend.protocol import build
from tocsin.forecaster.trend.statements import REACHED
from tocsin_testing.builders import T0
from tocsin_testing.histories import MARGIN, MEMORY, POWER, REMAP, SLOWDOWN, TEMPERATURE, history, noise, thinned

N = 720


def one(columns: dict[str, np.ndarray], metric: str, *, horizon: float = 48.0, step_ms: int = MINUTE) -> Prediction:
    (found,) = [
        p for p in ThresholdForecaster(horizon).predict([history(columns, step_ms=step_ms)], T0) if p.metric == metric
    ]
    return found


def rising(start: float, per_hour: float, scale: float, n: int = N) -> np.ndarray:
    return start + per_hour * np.arange(n) / 60 + noise(n, scale)


@pytest.mark.parametrize(
    ("slowdown", "limit"), [(90.0, 83.0), (95.0, 85.0), (None, 85.0)], ids=["slowdown first", "85 first", "unknown"]
)
def test_temperature_stops_at_85_or_at_slowdown_less_7(slowdown: float | None, limit: float) -> None:
    columns = {TEMPERATURE: rising(60, 1.0, 0.5)}
    if slowdown is not None:
        columns[SLOWDOWN] = np.full(N, slowdown)
    assert one(columns, TEMPERATURE).threshold == limit


def test_a_margin_falls_to_its_limit_where_the_part_has_one() -> None:
    found = one({TEMPERATURE: rising(60, 0.1, 0.5), MARGIN: 30 - rising(0, 1.5, 0.3)}, MARGIN)
    assert found.status is PredictionStatus.CROSSING
    assert found.threshold == 5.0
    truth = T0 + (25 / 1.5 - (N - 1) / 60) * HOUR
    assert found.eta_ms == pytest.approx(truth, abs=HOUR)
    assert all(p.metric != MARGIN for p in ThresholdForecaster().predict([history({TEMPERATURE: noise(N, 1)})], T0))


def test_a_leak_of_memory_is_found() -> None:
    found = one({MEMORY: rising(0.3, 0.03, 0.004)}, MEMORY)
    assert found.status is PredictionStatus.CROSSING
    assert found.threshold == 0.9


def test_what_filled_up_and_holds_its_level_goes_nowhere() -> None:
    """A cache that fills for two hours and stays at 88 %, just below the limit, is no leak."""
    filled = np.minimum(0.5 + 0.38 * np.arange(N) / 120, 0.88) + noise(N, 0.0005)
    for seen in (150, 180, 240, 480, N):
        found = one({MEMORY: filled[:seen]}, MEMORY)
        assert found.status is PredictionStatus.NO_CROSSING, seen


def test_remapped_rows_count_from_the_last_reset_of_the_counter() -> None:
    rows = np.floor(np.concatenate((np.linspace(300, 500, 200), np.linspace(0, 300, N - 200))))
    found = one({REMAP: rows}, REMAP)
    assert found.status is PredictionStatus.CROSSING
    per_hour = 300 / ((N - 200) / 60)
    assert found.eta_ms == pytest.approx(T0 + (512 - 300) / per_hour * HOUR, abs=2 * HOUR)


def test_what_is_there_already_is_said_to_be() -> None:
    found = one({TEMPERATURE: rising(88, 0.0, 0.2)}, TEMPERATURE)
    assert (found.status, found.eta_ms, found.probability) == (PredictionStatus.NO_CROSSING, None, None)
    assert found.reason == REACHED
    assert "has reached 85 °C" in found.sentence


@pytest.mark.parametrize(
    "shape",
    [
        45 + 25 * (np.sin(np.arange(N) / 60) > 0) + noise(N, 1.0),
        45 + 25 * (np.arange(N) > 400) + noise(N, 1.0),
        np.minimum(45 + 0.2 * np.arange(N), 75) + noise(N, 1.0),
    ],
    ids=["phases of work", "one step", "a rise that ended"],
)
def test_work_that_comes_and_goes_is_no_trend(shape: np.ndarray) -> None:
    found = one({TEMPERATURE: shape}, TEMPERATURE)
    assert found.status is PredictionStatus.NO_CROSSING
    assert found.probability is not None
    assert found.probability < 0.5


def test_a_trend_that_began_lately_is_found() -> None:
    late = 60 + np.maximum(0, np.arange(N) - 600) * 0.1 + noise(N, 0.8)
    found = one({TEMPERATURE: late}, TEMPERATURE)
    assert found.status is PredictionStatus.CROSSING
    assert found.eta_ms == pytest.approx(T0 + (85 - 72) / 6 * HOUR, abs=HOUR)


def test_a_short_past_speaks_of_a_short_future() -> None:
    found = one({TEMPERATURE: rising(60, 1.0, 0.5, 60)}, TEMPERATURE)
    assert found.horizon_ms == pytest.approx(59 * MINUTE, rel=0.05)
    assert found.status is PredictionStatus.NO_CROSSING


def test_the_rise_of_a_morning_is_not_carried_into_the_night() -> None:
    morning = 60 + 8 * np.sin(2 * np.pi * (np.arange(300) - 200) / 1440) + noise(300, 0.5)
    assert one({TEMPERATURE: morning}, TEMPERATURE).status is PredictionStatus.NO_CROSSING


def test_a_whole_day_speaks_of_the_next_two() -> None:
    found = one({TEMPERATURE: rising(50, 0.5, 0.3, 1440)}, TEMPERATURE)
    assert found.status is PredictionStatus.CROSSING
    assert found.eta_ms == pytest.approx(T0 + (70 - 1439 / 60) * HOUR, abs=2 * HOUR)
    assert found.horizon_ms == pytest.approx(48 * HOUR, rel=0.02)


def test_a_slow_ramp_is_not_claimed_within_a_short_horizon() -> None:
    columns = {TEMPERATURE: rising(65, 1.0, 0.3)}
    assert one(columns, TEMPERATURE, horizon=6).status is PredictionStatus.NO_CROSSING
    assert one(columns, TEMPERATURE, horizon=48).status is PredictionStatus.CROSSING


def refused(columns: dict[str, np.ndarray], keep: np.ndarray | None = None, now_ms: int = T0) -> Prediction:
    past = history(columns)
    found = ThresholdForecaster().predict([past if keep is None else thinned(past, keep)], now_ms)[0]
    assert found.metric == TEMPERATURE
    assert found.status is PredictionStatus.NOT_ENOUGH_DATA
    return found


def test_refusals_say_exactly_why() -> None:
    column = rising(60, 1.0, 0.5)
    few = np.arange(N) >= N - 8
    assert refused({TEMPERATURE: column}, few).reason == "8 usable samples, 12 needed"
    short = np.arange(N) >= N - 20
    assert refused({TEMPERATURE: column}, short).reason == "samples span 19 min, 30 min needed"
    old = refused({TEMPERATURE: column}, now_ms=T0 + 2 * HOUR)
    assert old.reason == "the newest usable sample is 2.0 h old, 15 min allowed"
    assert refused({TEMPERATURE: np.full(N, np.nan)}).reason == "the metric has no value"
    assert refused({MEMORY: column}).reason == "the metric has no value"
    assert old.sentence == (
        "node-1 GPU 0: gpu_temperature_celsius: not enough data for a forecast: "
        "the newest usable sample is 2.0 h old, 15 min allowed."
    )


def test_frozen_telemetry_is_not_taken_for_data() -> None:
    power = 300 + noise(N, 5.0)
    power[300:] = 83.0
    stuck = refused({TEMPERATURE: rising(60, 1.0, 0.5), POWER: power})
    since = to_iso(T0 - (N - 1 - 300) * MINUTE)
    assert stuck.reason == f"telemetry is frozen: power and energy have not moved since {since}"


def test_a_frozen_stretch_in_the_past_is_left_out() -> None:
    ramp, power = rising(60, 1.0, 0.3), 300 + noise(N, 5.0)
    clean = one({TEMPERATURE: ramp.copy(), POWER: power.copy()}, TEMPERATURE)
    power[100:300], ramp[100:300] = 83.0, 24.0
    masked = one({TEMPERATURE: ramp, POWER: power}, TEMPERATURE)
    assert masked.eta_ms == pytest.approx(clean.eta_ms, abs=HOUR)


def test_uneven_samples_that_give_no_grid_are_refused() -> None:
    keep = np.zeros(N, np.bool_)
    keep[-1 - 60 * np.arange(8)] = True
    keep[-5:] = True
    found = refused({TEMPERATURE: rising(60, 1, 0.5)}, keep)
    assert found.reason == "samples too uneven for 12 even steps"


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        column = 65 + 1.2 * np.arange(N) / 60 + noise(N, 1.0, seed)
        found = one({TEMPERATURE: column}, TEMPERATURE)
        truth = T0 + (20 / 1.2 - (N - 1) / 60) * HOUR
        assert found.eta_low_ms is not None
        held += found.eta_low_ms <= truth <= (found.eta_high_ms or T0 + 48 * HOUR)
    assert 0.7 <= held / 60 <= 1.0


def test_the_sentence_names_host_gpu_metric_instant_and_interval() -> None:
    found = one({TEMPERATURE: rising(66, 1.0, 0.3)}, TEMPERATURE)
    assert found.sentence.startswith("node-1 GPU 0: gpu_temperature_celsius is expected to reach 85 °C at ")
    assert "(80% interval " in found.sentence
    assert " min " not in found.sentence, "instants alone: it is read later"
    assert found.evidence[0].text.startswith("rises ")


def test_an_unknown_family_is_an_error_that_names_the_known() -> None:
    with pytest.raises(InputError, match="threshold"):
        build("oracle", ForecastSettings())
