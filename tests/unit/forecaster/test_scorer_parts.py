"""The parts that scorers are made of, each alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER
from tocsin.forecaster.hazard.calibration import fit_map, rank_table
from tocsin.forecaster.hazard.curves import at_risk, fit_curves
from tocsin.forecaster.hazard.rows import (
    LearningRows,
    balanced,
    chosen_names,
    device_folds,
    known_rows,
    prepare,
    settled,
    thin,
)
from tocsin.forecaster.hazard.scorer import Common, NotEnoughData, make
from tocsin.forecaster.hazard.scorer_boosting import edges, numbered
from tocsin.forecaster.hazard.scorer_calibrated import later_slice, quiet
from tocsin.forecaster.hazard.scorer_reconstruction import reconstruction, strangest
from tocsin.forecaster.hazard.unseen import apart, companies
from tocsin_testing.builders import T0
from tocsin_testing.scored import fleet

DAYS2 = (2 * DAY,)


def rows_of(after_ms: list[int], observed_ms: int = 10 * DAY, weight: list[float] | None = None) -> LearningRows:
    """Rows at one instant of a device each; `after_ms` of 0 means no onset."""
    n = len(after_ms)
    after = np.array(after_ms, np.int64)
    event = np.where(after > 0, T0 + after, NEVER)
    return LearningRows(
        x=np.zeros((n, 1), np.float32), onset=(after > 0) & (after <= 2 * DAY),
        weight=np.ones(n) if weight is None else np.array(weight), device=np.arange(n, dtype=np.int32),
        group=np.zeros(n, np.int32), at_ms=np.full(n, T0), event_ms=event,
        until_ms=np.full(n, T0 + observed_ms), end_ms=T0 + observed_ms,
    )  # fmt: skip


def test_patterns_choose_names_and_refuse_others() -> None:
    names = ("ecc.1h", "ecc.24h", "power.1h")
    assert chosen_names(names, ("*",)) == names
    assert chosen_names(names, ("*.1h",)) == ("ecc.1h", "power.1h")
    assert chosen_names(names, ("*", "!power*")) == ("ecc.1h", "ecc.24h")


def test_the_tail_of_the_observation_is_left_out_with_its_onsets() -> None:
    past = fleet(seed=4)
    end = past.until_ms.max()
    onset, known = settled(past, 2 * DAY)
    tail = past.at_ms + 2 * DAY > end
    assert (onset & tail).any()
    assert not (known & tail).any()


def test_a_fold_keeps_a_device_together_and_deals_out_the_failed_ones() -> None:
    past = fleet(seed=5)
    rows = known_rows(past, past.names, Common())
    fold = device_folds(rows, 4, seed=0)
    for device in np.unique(rows.device):
        assert np.unique(fold[rows.device == device]).size == 1
    failed = [np.unique(rows.device[rows.onset & (fold == one)]).size for one in range(4)]
    assert max(failed) - min(failed) <= 1
    assert not np.array_equal(fold, device_folds(rows, 4, seed=1))


def test_there_are_no_more_folds_than_failed_devices_but_two() -> None:
    assert device_folds(rows_of([HOUR, 2 * HOUR, 0, 0, 0]), 5, 0).max() == 1
    assert device_folds(rows_of([HOUR, 0, 0, 0, 0]), 5, 0).max() == 1


def test_thinning_keeps_onsets_and_sums() -> None:
    onset = np.arange(1000) % 100 == 0
    weight = np.random.default_rng(0).random(1000)
    kept, made = thin(onset, weight, 50, seed=0)
    assert set(np.flatnonzero(onset)) <= set(kept)
    assert kept.size == 60
    assert made.sum() == pytest.approx(weight.sum())
    assert np.array_equal(made[onset[kept]], weight[onset])
    same, as_was = thin(onset, weight, 5000, seed=0)
    assert same.size == 1000
    assert as_was is weight


def test_balance_gives_onsets_their_share_of_the_loss() -> None:
    onset = np.arange(1000) < 3
    made = balanced(onset, np.ones(1000), 0.25)
    assert made[onset].sum() / made.sum() == pytest.approx(0.25)
    assert made.mean() == pytest.approx(1.0)
    assert balanced(onset, np.ones(1000), 0.001) == pytest.approx(np.ones(1000))


def test_settings_are_checked() -> None:
    assert make(Common, "x", {"horizons_ms": [1, 2], "features": ["a"]}).horizons_ms == (1, 2)
    with pytest.raises(InputError, match=r"x\.horizon = 5: no such setting"):
        make(Common, "x", {"horizon": 5})
    for wrong in ((), (0,), (5, 5), (9, 3)):
        with pytest.raises(InputError, match="not a rising list"):
            Common(horizons_ms=wrong)


def test_who_is_at_risk_in_an_interval() -> None:
    rows = rows_of([HOUR, 5 * HOUR, 30 * HOUR, 0], observed_ms=10 * DAY)
    onset, counts = at_risk(rows, HOUR, 6 * HOUR)
    assert onset.tolist() == [False, True, False, False]
    assert counts.tolist() == [False, True, True, True]
    _, unknown = at_risk(rows_of([0], observed_ms=3 * HOUR), HOUR, 6 * HOUR)
    assert not unknown.any()


def test_curves_give_the_rate_of_each_horizon_with_weights() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    after = np.where(rng.random(n) < 0.2, rng.uniform(1, 48 * HOUR, n), 0).astype(np.int64)
    weight = np.where(after > 0, 1.0, 50.0)
    rows = rows_of(after.tolist(), weight=weight.tolist())
    risk = rng.normal(0, 1, n) + (after > 0)
    horizons = (6 * HOUR, 24 * HOUR, 48 * HOUR)
    probability = fit_curves(risk, rows, horizons).probability(risk)
    for k, horizon in enumerate(horizons):
        truth = np.average((after > 0) & (after <= horizon), weights=weight)
        assert np.average(probability[:, k], weights=weight) == pytest.approx(truth, rel=0.05)


def test_an_interval_without_any_onset_gets_less_than_half_an_onset() -> None:
    rows = rows_of([30 * HOUR] * 5 + [0] * 995)
    probability = fit_curves(np.linspace(0, 1, 1000), rows, (HOUR, 48 * HOUR)).probability(np.array([0.5]))
    assert 0 < probability[0, 0] <= 0.5 / 1000
    assert probability[0, 1] == pytest.approx(0.005, rel=0.3)


def test_risks_beyond_what_was_seen_count_as_the_end() -> None:
    rows = rows_of([HOUR] * 50 + [0] * 950)
    risk = np.concatenate([np.full(50, 2.0), np.linspace(-1, 1, 950)])
    curves = fit_curves(risk, rows, DAYS2)
    assert curves.probability(np.array([1e9]))[0, 0] == curves.probability(np.array([2.0]))[0, 0]


def test_prepared_columns_have_mean_0_and_spread_1_and_marks_for_gaps() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(60, 5, 5000), rng.lognormal(0, 3, 5000), np.full(5000, 3.0), rng.random(5000)])
    x[:1000, 0] = np.nan
    x[:1000, 1] = np.nan
    made = prepare(x.astype(np.float32))
    z = made.apply(x.astype(np.float32))
    assert made.columns.tolist() == [0, 1, 3]
    assert made.marked.tolist() == [0], "columns that are missing together have one mark"
    assert z.shape == (5000, 4)
    assert z[1000:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert z[1000:, 0].std() == pytest.approx(1, abs=1e-6)
    assert np.abs(z).max() < 8
    assert z[:1000, 0].tolist() == [0.0] * 1000
    assert z[:, 3].tolist() == [1.0] * 1000 + [0.0] * 4000


def test_a_counter_that_is_mostly_zero_is_scaled_by_what_it_counts() -> None:
    x = np.zeros((1000, 1), np.float32)
    x[:20, 0] = 100.0
    x[20, 0] = 1e6
    z = prepare(x).apply(x)[:, 0]
    assert z[500] < z[0] < z[20] < 5 * z[0] + 20


def test_bins_keep_the_order_and_tell_few_values_apart() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(0, 1, 3000), rng.integers(0, 5, 3000), np.full(3000, np.nan)]).astype(np.float32)
    x[:10, 0] = np.nan
    limits = edges(x)
    made = numbered(x, limits)
    assert np.isnan(made[:10, 0]).all()
    assert np.isnan(made[:, 2]).all()
    assert np.array_equal(made[:, 1], x[:, 1])
    order = np.argsort(x[10:, 0])
    assert (np.diff(made[10:, 0][order]) >= 0).all()
    assert np.unique(made[10:, 0]).size == 200
    assert np.bincount(made[10:, 0].astype(int)).max() < 40
    assert numbered(np.array([[1e9, -1e9, 3.0]], np.float32), limits).tolist() == [[199.0, 0.0, 0.0]]


def test_residuals_are_those_of_a_ridge_regression_on_the_others() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1, (500, 4)) @ rng.normal(0, 1, (4, 4))
    ridge = 0.3
    made = reconstruction(z, ridge)
    covariance = z.T @ z / len(z)
    others = [0, 1, 3]
    slope = np.linalg.solve(covariance[np.ix_(others, others)] + ridge * np.eye(3), covariance[others, 2])
    by_hand = z[:, 2] - z[:, others] @ slope
    own = (z @ made.precision)[:, 2] / made.precision[2, 2]
    assert own == pytest.approx(by_hand, abs=1e-9)
    assert strangest(np.array([[3.0, -4.0, np.nan, 0.0]]), 2)[0] == pytest.approx(np.sqrt(12.5))
    assert strangest(np.zeros((2, 0)), 3).tolist() == [0.0, 0.0]


def test_the_odd_one_among_peers_stands_apart() -> None:
    group = np.array([0] * 8 + [1] * 2 + [2], np.int32)
    company = companies(group, np.full(11, T0))
    values = np.zeros((11, 2))
    values[:, 1] = np.arange(11) * 0.01
    values[3, 0] = 6.0
    values[5, 0] = np.nan
    values[10, 0] = 50.0
    away, told = apart(values, company)
    assert not told[10], "one alone is no company"
    assert told[:8].all()
    assert away[3, 0] == 10.0
    assert np.isnan(away[5, 0])
    assert np.abs(away[[0, 1, 2, 4, 6, 7], 0]).max() == 0.0
    assert np.isnan(away[10]).all()


def test_ranks_are_shares_of_the_weight_below() -> None:
    table = rank_table(np.array([1.0, 2.0, 2.0, 3.0, np.nan]), np.array([1.0, 1.0, 1.0, 1.0, 9.0]))
    assert table.apply(np.array([1.0, 2.0, 3.0])).tolist() == [0.125, 0.5, 0.875]
    low, high, higher = table.apply(np.array([-5.0, 4.0, 40.0]))
    assert 0 < low < 0.125
    assert 0.875 < high < higher < 1
    assert np.isnan(table.apply(np.array([np.nan]))).all()
    with pytest.raises(NotEnoughData):
        rank_table(np.array([np.nan]), np.ones(1))


def test_a_long_table_keeps_its_tail_in_full() -> None:
    score = np.random.default_rng(0).normal(0, 1, 50_000)
    table = rank_table(score, np.ones(score.size))
    assert table.scores.size == 4000
    exact = (np.argsort(np.argsort(score)) + 0.5) / score.size
    assert table.apply(score) == pytest.approx(exact, abs=2e-3)
    top = np.argsort(score)[-1000:]
    assert table.apply(score)[top] == pytest.approx(exact[top], abs=1e-12)


@pytest.mark.parametrize("method", ["isotonic", "platt", "auto"])
def test_a_map_undoes_a_distortion_and_keeps_the_order(method: str) -> None:
    rng = np.random.default_rng(0)
    truth = rng.beta(1, 20, 30_000)
    onset = rng.random(truth.size) < truth
    odds = 2 * np.log(truth / (1 - truth)) + 1
    told = 1 / (1 + np.exp(-odds))
    made = fit_map(told, onset, np.ones(truth.size), method).apply(told)  # type: ignore[arg-type]
    assert np.abs(made - truth).mean() < 0.01
    order = np.argsort(told)
    assert (np.diff(made[order]) >= 0).all()
    assert np.unique(made).size > 0.99 * np.unique(told).size


def test_without_an_onset_probabilities_stay() -> None:
    told = np.array([0.1, 0.2])
    assert fit_map(told, np.zeros(2, np.bool_), np.ones(2)).apply(told).tolist() == [0.1, 0.2]


def test_the_conformal_threshold_counts_exactly() -> None:
    kept = quiet(np.arange(99, dtype=np.float64), np.ones(99))
    assert kept.threshold(0.05) == 94.0, "of 100 exchangeable scores five are above the 95th"
    assert kept.threshold(0.009) == np.inf
    heavy = quiet(np.arange(99, dtype=np.float64), np.where(np.arange(99) == 98, 4.0, 1.0))
    assert heavy.threshold(0.05) == 97.0
    with pytest.raises(InputError, match="not between 0 and 1"):
        kept.threshold(1.0)
    with pytest.raises(InputError, match="are kept"):
        quiet(np.arange(99, dtype=np.float64), np.ones(99), keep=5).threshold(0.5)


def test_the_later_slice_begins_a_horizon_after_the_early_part() -> None:
    past = fleet(seed=6)
    early, later = later_slice(past, 2 * DAY, 0.3)
    cut_ms = past.at_ms[later].min()
    assert not (early & later).any()
    assert (past.at_ms[early] + 2 * DAY <= cut_ms).all()
    apart_early, apart_later = later_slice(past, 2 * DAY, 0.3, disjoint=True)
    assert not set(past.device[apart_early]) & set(past.device[apart_later])
    assert apart_later.sum() < later.sum()


def test_a_slice_that_would_be_empty_is_refused() -> None:
    past = fleet(seed=6)
    none = replace(past, event_ms=np.full(len(past), NEVER))
    with pytest.raises(NotEnoughData, match="no onset"):
        later_slice(none, 2 * DAY, 0.3)
    with pytest.raises(NotEnoughData, match="0 rows before"):
        later_slice(past.take((past.at_ms > T0 + 36 * HOUR) & (past.at_ms < T0 + 2 * DAY)), HOUR * 40, 0.999)
