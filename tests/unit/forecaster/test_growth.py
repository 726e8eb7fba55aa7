"""Memory that grows towards its limit: when something may be said of it, and whether what is said comes."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import MINUTE
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.trend.growth import EARLY, FAR_MS, LATE, LATE_SHARES, USED, Growth, growth
from tocsin.forecaster.trend.model_threshold import MEMORY_LIMIT, ThresholdForecaster
from tocsin.forecaster.trend.statements import REACHED
from tocsin_testing.builders import T0
from tocsin_testing.histories import MEMORY, Floats, history, noise

TOP = 0.995


def said(memory: Floats, coverage: float = 0.8) -> Prediction:
    (found,) = [
        one
        for one in ThresholdForecaster(48.0, coverage).predict([history({MEMORY: memory})], T0)
        if one.metric == MEMORY
    ]
    return found


def leaking(minutes: int, base: float = 0.6, per_minute: float = 0.001) -> Floats:
    """Two hours level, then `minutes` of growth."""
    return base + per_minute * np.maximum(np.arange(120 + minutes) - 119.0, 0.0) + noise(120 + minutes, 0.0005)


class Life:
    """One process, on half of all GPUs one that has reserved most of the memory: level, then a leak, of which three in
    ten stop or shrink, anywhere."""

    def __init__(self, rng: np.random.Generator) -> None:
        still, lead = rng.uniform(120, 240), rng.uniform(120, 720)
        at = np.arange(int(still + lead) + 300)
        share = ((at - still) / lead).clip(0.0, 1.0)
        if rng.uniform() < 0.3:
            peak = rng.uniform(0.1, 0.9)
            share = np.minimum(share, peak) if rng.uniform() < 0.5 else peak * np.minimum(2 * share, 2 - 2 * share)
        reserved = rng.uniform() < 0.5
        wave = 0.004 * np.sin(2 * np.pi * (at + rng.uniform(0, 41)) / 41) * (not reserved)
        level = rng.uniform(0.86, 0.9) if reserved else rng.uniform(0.52, 0.82)
        base = level + wave + (0.0002 if reserved else 0.0007) * rng.normal(size=at.size).clip(-3, 3)
        self.values = base + share * (TOP - base)
        self.first = int(still) + 30 + int(rng.integers(5))

    def told(self) -> tuple[Growth, float] | None:
        """The first that is said of it, and how many minutes later it is there; infinite where it never is."""
        there = np.flatnonzero(self.values >= MEMORY_LIMIT)
        for seen in range(self.first, int(there[0]) if there.size else self.values.size, 15):
            found = growth(np.arange(seen) * MINUTE, self.values[:seen], MEMORY_LIMIT)
            if isinstance(found, Growth):
                return found, float(there[0] + 1 - seen) if there.size else np.inf
        return None


def test_what_is_said_of_simulated_lives_comes_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    told = [one for _ in range(600) if (one := Life(rng).told()) is not None]
    assert len(told) > 400
    came = np.mean([np.isfinite(minutes) for _, minutes in told])
    stated = np.mean([found.comes for found, _ in told])
    assert came == pytest.approx(stated, abs=0.08)
    ends = [(found, found.interval(0.8), minutes) for found, minutes in told]
    assert all(np.isfinite(high) == (found.lead_ms <= FAR_MS) for found, (_, high), _ in ends)
    closed = [(low, high, minutes) for _, (low, high), minutes in ends if np.isfinite(high)]
    assert len(closed) > 200
    # What comes early by far in a fleet comes of another process, of which a life here has none.
    early, late = (
        np.mean([minutes * MINUTE < low for low, _, minutes in closed]),
        np.mean([high < minutes * MINUTE < np.inf for _, high, minutes in closed]),
    )
    assert early <= 0.08
    assert 0.01 <= late <= 0.12
    assert 0.76 <= 1.0 - early - late - np.mean(np.isinf([minutes for *_, minutes in closed])) <= 0.9


def test_growth_since_a_process_began_is_no_leak_before_its_level_held() -> None:
    filling = np.concatenate((np.full(60, 0.05), 0.5 + 0.002 * np.arange(150))) + noise(210, 0.0005)
    found = said(filling)
    assert found.status is PredictionStatus.NOT_ENOUGH_DATA
    assert found.reason == "the level has not held since its process began"
    assert found.reason_zh
    held = np.concatenate((filling, np.full(60, 0.798), 0.798 + 0.001 * np.arange(60))) + noise(330, 0.0005)
    assert said(held).status is PredictionStatus.CROSSING


def test_a_process_that_begins_after_a_level_starts_anew() -> None:
    again = np.concatenate((np.full(180, 0.5), 0.56 + 0.002 * np.arange(120))) + noise(300, 0.0005)
    assert said(again).reason == "the level has not held since its process began"


def test_what_has_grown_for_longer_than_anything_fills_is_told() -> None:
    """Evenly for seven hours, with no level ever seen."""
    assert said(0.4 + 0.001 * np.arange(420) + noise(420, 0.0005)).status is PredictionStatus.CROSSING


def test_nothing_is_said_before_a_good_part_of_the_way_is_gone() -> None:
    early = said(leaking(60))
    assert early.status is PredictionStatus.NOT_ENOUGH_DATA
    assert early.reason.startswith("it grew ")
    assert early.reason.endswith(f" of its way to the limit, {USED:.0%} needed")
    late = said(leaking(180))
    assert late.status is PredictionStatus.CROSSING
    assert late.eta_ms == pytest.approx(T0 + 120 * MINUTE, abs=7 * MINUTE)


def test_ends_of_an_interval_are_instants_of_readings() -> None:
    memory = leaking(220) + noise(340, 0.004)
    found = said(memory)
    assert found.eta_low_ms is not None
    assert found.eta_high_ms is not None
    assert found.eta_ms is not None
    assert found.eta_low_ms <= found.eta_ms <= found.eta_high_ms
    assert (found.eta_low_ms - T0) % MINUTE == (found.eta_high_ms - T0) % MINUTE == 0
    exact = growth(np.arange(1 - memory.size, 1) * MINUTE, memory, MEMORY_LIMIT)
    assert isinstance(exact, Growth)
    low, high = exact.interval(0.8)
    # Those within: the quantiles are of readings at which it was seen.
    assert 0 <= found.eta_low_ms - T0 - low < MINUTE
    assert 0 <= T0 + high - found.eta_high_ms < MINUTE


def test_what_is_hours_ahead_has_no_late_end() -> None:
    far, near = said(leaking(176)), said(leaking(220))
    assert far.status is near.status is PredictionStatus.CROSSING
    assert far.eta_low_ms is not None
    assert far.eta_high_ms is None
    assert near.eta_high_ms is not None


def test_an_interval_has_no_end_where_too_much_of_what_grows_never_arrives() -> None:
    found = said(leaking(220), coverage=0.97)
    assert found.status is PredictionStatus.CROSSING
    assert found.probability is not None
    assert found.probability < 0.97
    assert found.eta_high_ms is None


def test_that_a_limit_is_reached_is_told_by_the_newest_value() -> None:
    """Over a day a step of the grid is ten minutes: its mean lags."""
    rising = np.full(1440, 0.85) + noise(1440, 0.0005)
    rising[-3:] = 0.91
    assert said(rising).reason == REACHED
    fallen = np.full(1440, 0.95)
    fallen[-3:] = 0.6
    assert said(fallen).reason != REACHED


def test_late_quantiles_rise() -> None:
    assert list(LATE_SHARES) == sorted(LATE_SHARES)
    assert list(LATE) == sorted(LATE)
    assert 0.0 < EARLY < 1.0
