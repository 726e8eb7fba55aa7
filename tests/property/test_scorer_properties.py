"""What holds for any scores and any data."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import DAY
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.calibration import fit_map, rank_table
from tocsin.forecaster.hazard.curves import Curves
from tocsin.forecaster.hazard.rows import prepare
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.hazard.scorer_calibrated import quiet
from tocsin_testing.scored import SMALL, fleet

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
SCORES = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=60)
WILD = st.one_of(st.just(np.nan), st.just(np.inf), st.just(-np.inf), st.floats(-(2.0**127), 2.0**127, width=32))
PAST, LATER = fleet(devices=50, seed=1), fleet(devices=4, seed=2)


@given(
    st.lists(FINITE, min_size=1, max_size=30),
    st.lists(st.tuples(st.floats(-40, 40), st.floats(0.001, 50)), min_size=1, max_size=5),
)
def test_curves_rise_with_the_horizon_and_with_the_risk(risk: list[float], curves: list[tuple[float, float]]) -> None:
    intercept, slope = np.array(curves).T
    risks = np.sort(np.array(risk))
    made = Curves(intercept, slope, -1e5, 1e5).probability(risks)
    assert ((made >= 0) & (made <= 1)).all()
    assert (np.diff(made, axis=1) >= 0).all()
    assert (np.diff(made, axis=0) >= -1e-15).all()


@given(SCORES, st.floats(0.001, 0.9), st.integers(0, 2**32 - 1))
def test_no_more_quiet_rows_than_promised_are_above_the_threshold(scores: list[float], share: float, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(1, 5, len(scores)).astype(np.float64)
    limit = quiet(np.array(scores), weights).threshold(share)
    assert weights[np.array(scores) > limit].sum() <= share * (weights.sum() + 1)


@given(SCORES, SCORES)
def test_ranks_keep_the_order_within_0_and_1(reference: list[float], asked: list[float]) -> None:
    scores = np.sort(np.array(asked))
    made = rank_table(np.array(reference), np.ones(len(reference))).apply(scores)
    assert ((made > 0) & (made < 1)).all()
    assert (np.diff(made) >= 0).all()


@given(SCORES, st.integers(0, 2**32 - 1), st.sampled_from(["isotonic", "platt"]))
def test_a_map_rises_within_0_and_1(scores: list[float], seed: int, method: str) -> None:
    told = np.array(scores)
    onset = np.random.default_rng(seed).random(told.size) < 0.5
    made = fit_map(told, onset, np.ones(told.size), method).apply(np.linspace(0, 1, 50))  # type: ignore[arg-type]
    assert ((made >= 0) & (made <= 1)).all()
    assert (np.diff(made) >= 0).all()


@given(st.lists(st.lists(WILD, min_size=3, max_size=3), min_size=1, max_size=40))
def test_any_table_can_be_prepared(table: list[list[float]]) -> None:
    x = np.array(table, np.float32)
    x[~np.isfinite(x)] = np.nan
    made = prepare(x)
    assert np.isfinite(made.apply(x)).all()
    assert np.isfinite(made.apply(np.full((2, 3), np.nan, np.float32))).all()


@cache
def fitted(name: str) -> Scorer:
    made = registry.build(name, **SMALL.get(name, {}))
    made.fit(PAST)
    return made


@pytest.mark.parametrize("name", ["hazard", "boosting", "isolation", "reconstruction", "rules"])
@settings(max_examples=25)
@given(values=st.lists(WILD, min_size=6, max_size=6))
def test_any_row_gets_a_probability_for_each_horizon(name: str, values: list[float]) -> None:
    row = LATER.take(np.array([3]))
    score = fitted(name).score(replace(row, features=np.array([values], np.float32)))
    assert np.isfinite(score).all()
    assert ((score >= 0) & (score <= 1)).all()
    assert (np.diff(score) >= 0).all()


@settings(max_examples=15)
@given(shift_days=st.integers(-3000, 3000))
def test_the_date_of_a_history_does_not_matter(shift_days: int) -> None:
    shift = shift_days * DAY
    moved = replace(LATER, at_ms=LATER.at_ms + shift, until_ms=LATER.until_ms + shift, seen_ms=LATER.seen_ms + shift)
    assert np.array_equal(fitted("hazard").score(moved), fitted("hazard").score(LATER))
