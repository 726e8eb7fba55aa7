"""Figures: equal to scikit-learn's with weights and ties, exact at budgets, honest about what does not exist."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.bootstrap import clusters
from tocsin.forecaster.evaluation.figures import Panel, difference, population, standard, with_bars
from tocsin.forecaster.evaluation.ranking import budget_threshold, order_figures
from tocsin.forecaster.evaluation.reliability import EDGES, calibration_figures, reliability_bins
from tocsin.forecaster.evaluation.result import Figure
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY
from tocsin_testing.eval_data import HORIZON, fleet, rows


def drawn(count: int):  # type: ignore[no-untyped-def]
    return clusters(np.arange(count), 0, 0)


@pytest.mark.parametrize("levels", [3, 40, 10**9])
def test_order_figures_are_those_of_scikit_learn(levels: int) -> None:
    rng = np.random.default_rng(levels)
    label = rng.random(500) < 0.1
    score = np.floor((rng.random(500) + 0.3 * label) * levels) / levels
    weight = rng.choice([1.0, 7.0, 30.5], 500)
    found = order_figures(score, label, weight, drawn(500))
    assert found["roc_auc"][0] == pytest.approx(metrics.roc_auc_score(label, score, sample_weight=weight))
    expected = metrics.average_precision_score(label, score, sample_weight=weight)
    assert found["auprc"][0] == pytest.approx(expected)
    base = weight[label].sum() / weight.sum()
    assert found["auprc_x_base"][0] == pytest.approx(expected / base)


def test_recall_and_precision_at_a_budget_count_weight() -> None:
    label = np.array([True, False, True, False])
    score, weight = np.array([0.9, 0.8, 0.7, 0.1]), np.array([1.0, 9.0, 1.0, 89.0])
    found = order_figures(score, label, weight, drawn(4), [0.01, 0.1, 0.11])
    assert [found[f"recall_at_{name}pct"][0] for name in ("1", "10", "11")] == pytest.approx([0.5, 0.5, 1.0])
    assert [found[f"precision_at_{name}pct"][0] for name in ("1", "10", "11")] == pytest.approx([1.0, 0.1, 2 / 11])


def test_a_tie_shares_its_budget_whatever_the_order_of_rows() -> None:
    label = np.array([True] + [False] * 9)
    for order in (np.arange(10), np.arange(10)[::-1]):
        found = order_figures(np.zeros(10), label[order], np.ones(10), drawn(10), [0.1])
        assert found["recall_at_10pct"][0] == pytest.approx(0.1)
        assert found["roc_auc"][0] == 0.5


def test_a_row_without_a_score_ranks_last() -> None:
    label = np.array([True, False, False])
    found = order_figures(np.array([np.nan, -5.0, -6.0]), label, np.ones(3), drawn(3))
    assert found["roc_auc"][0] == 0.0


def test_threshold_spends_no_more_than_its_budget() -> None:
    score = np.array([0.9, 0.8, 0.8, 0.8, 0.1, np.nan, 0.1, 0.1, 0.1, 0.1])
    assert budget_threshold(score, np.ones(10), 0.1) == 0.9
    assert budget_threshold(score, np.ones(10), 0.39) == 0.9
    assert budget_threshold(score, np.ones(10), 0.4) == 0.8
    assert budget_threshold(np.zeros(10), np.ones(10), 0.4) == np.inf
    assert budget_threshold(score, np.ones(10), 1.0) == 0.1


def test_brier_and_calibration_error() -> None:
    score, label = np.array([0.05, 0.05, 0.95, 0.95]), np.array([False, True, True, True])
    weight = np.array([3.0, 1.0, 1.0, 1.0])
    found = calibration_figures(score, label, weight, drawn(4))
    assert found["brier"][0] == pytest.approx(metrics.brier_score_loss(label, score, sample_weight=weight))
    assert found["calibration_error"][0] == pytest.approx((4 * 0.20 + 2 * 0.05) / 6)
    low, high = reliability_bins(score, label, weight)
    assert (low.weight, low.stated, low.observed, low.positive) == pytest.approx((4.0, 0.05, 0.25, 1.0))
    assert (EDGES[high.index], EDGES[high.index + 1]) == (0.9, 1.0)


def test_standard_has_every_figure_and_the_healthy_predictor() -> None:
    examples = fleet()
    x = examples.column("x").astype(np.float64)
    risk = 1 / (1 + np.exp(3 - x))
    models = standard({"x": risk, "rank": x}, examples, HORIZON, draws=50, thresholds={"x": 0.5}, ranks=("rank",))
    told = models["x"]
    assert told["roc_auc"].low is not None
    assert told["roc_auc"].high is not None
    assert told["roc_auc"].low < told["roc_auc"].value < told["roc_auc"].high
    assert told["roc_auc"].value > 0.9
    assert {"brier", "incident_recall_48h_lead", "false_alarms_per_1000_device_days"} <= told.keys()
    assert "brier" not in models["rank"]
    assert "incident_recall_any_lead" not in models["rank"]
    healthy = models[ALWAYS_HEALTHY]
    base = population(examples, HORIZON)["base_rate"]
    assert isinstance(base, float)
    assert healthy["accuracy"].value == pytest.approx(1 - base)
    assert (healthy["balanced_accuracy"].value, healthy["recall"].value) == (0.5, 0.0)
    assert "precision" not in healthy


def test_the_same_seed_gives_the_same_figures_and_another_only_another_interval() -> None:
    examples = fleet()
    x = examples.column("x").astype(np.float64)
    first, again, other = (standard({"x": x}, examples, HORIZON, draws=40, seed=seed)["x"] for seed in (1, 1, 2))
    assert first == again
    assert first["auprc"].value == other["auprc"].value
    assert first["auprc"].low != other["auprc"].low


def test_rows_of_unknown_label_are_not_judged() -> None:
    examples = rows([0, 1, 2], [0, 0, 0], [1, np.nan, np.nan], until_ms=np.array([0, 0, 2**60]))
    panel = Panel(examples, HORIZON, draws=0)
    assert panel.known.tolist() == [True, False, True]
    assert population(examples, HORIZON) == {
        "windows": 2.0, "rows": 2, "devices": 2, "onsets": 1, "base_rate": 0.5,
    }  # fmt: skip
    nothing = examples.take(np.array([1]))
    with pytest.raises(InputError, match="nothing to evaluate"):
        Panel(nothing, HORIZON)


def test_paired_difference_is_above_noise_where_a_model_knows_more() -> None:
    examples = fleet(devices=60)
    x, noise = (examples.column(name).astype(np.float64) for name in "xy")
    better = difference(x, noise, examples, HORIZON, "roc_auc", draws=60)
    assert better.low is not None
    assert better.low > 0
    same = difference(x, x, examples, HORIZON, "roc_auc", draws=60)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="not a figure of both"):
        difference(x, noise, examples, HORIZON, "point_adjusted_f1", draws=1)


def test_interval_draws_devices_not_rows() -> None:
    """Copies of the rows of a device add nothing to what is known."""
    examples = fleet(devices=30, days=20)
    x = examples.column("x").astype(np.float64)
    many = np.tile(np.arange(len(examples)), 10)
    once = standard({"x": x}, examples, HORIZON, draws=100)["x"]["roc_auc"]
    often = standard({"x": x[many]}, examples.take(many), HORIZON, draws=100)["x"]["roc_auc"]
    assert once.value == pytest.approx(often.value)
    assert (once.low, once.high) == pytest.approx((often.low, often.high))


def test_without_an_onset_ranking_figures_do_not_exist() -> None:
    told = standard({"x": np.zeros(3)}, rows([0, 1, 2], [0, 0, 0]), HORIZON, draws=5)["x"]
    assert "roc_auc" not in told
    assert "auprc" not in told
    assert told["brier"].value == 0.0


def test_bars_are_set_and_an_unknown_one_is_refused() -> None:
    told = with_bars({"roc_auc": Figure(0.9)}, {"roc_auc": 0.89})
    assert told["roc_auc"].holds
    assert with_bars({"e": Figure(0.9)}, {"e": 0.03}, least=False)["e"].holds is False
    with pytest.raises(InputError, match="no such figure"):
        with_bars({"roc_auc": Figure(0.9)}, {"f1": 1.0})


def test_scores_must_match_the_rows() -> None:
    with pytest.raises(InputError, match="3 rows are judged"):
        standard({"x": np.zeros(2)}, rows([0, 1, 2], [0, 0, 0]), HORIZON)


def test_there_is_no_point_adjusted_figure() -> None:
    examples = fleet(devices=8, days=10)
    names = standard({"x": np.zeros(len(examples))}, examples, HORIZON, draws=2, thresholds={"x": 0.5})["x"]
    assert not [name for name in names if "f1" in name or "adjust" in name]
