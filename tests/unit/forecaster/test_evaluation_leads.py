"""Alarms against onsets, and the predictors that know next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import DAY
from tocsin.forecaster.evaluation.bootstrap import clusters
from tocsin.forecaster.evaluation.leads import cadence_ms, lead_figures, lead_table, starts, warned
from tocsin.forecaster.evaluation.ranking import lead_times, precision_recall
from tocsin.forecaster.evaluation.trivial import base_rates, recency
from tocsin_testing.eval_data import HORIZON, rows


def table(alarm_days: list[float]):  # type: ignore[no-untyped-def]
    """Device 0 fails on day 20, device 1 never; rows every half day; alarms of device 0 and 1 on the same days."""
    days = np.arange(0, 30, 0.5)
    device = np.repeat([0, 1], days.size)
    at = np.tile(days, 2)
    event = np.where((device == 0) & (at < 20), 20.0, np.nan)
    examples = rows(device, at, event)
    return examples, np.isin(at, alarm_days)


def figures(alarm_days: list[float]) -> dict[str, float]:
    examples, alarm = table(alarm_days)
    drawn = clusters(examples.device, 0, 0)
    return {name: one[0] for name, one in lead_figures(examples, alarm, drawn, DAY // 2).items()}


def test_a_lead_is_counted_from_the_first_alarm_about_the_onset() -> None:
    examples, alarm = table([17.0, 19.5])
    found = warned(examples, alarm)
    assert (found.device.tolist(), (found.lead_ms / DAY).tolist()) == ([0], [3.0])
    told = figures([17.0, 19.5])
    assert [told[f"incident_recall_{name}"] for name in ("any_lead", "24h_lead", "48h_lead")] == [1.0, 1.0, 1.0]
    late = figures([18.5])
    assert [late[f"incident_recall_{name}"] for name in ("any_lead", "24h_lead", "48h_lead")] == [1.0, 1.0, 0.0]


def test_alarms_within_a_day_are_one_and_false_ones_are_counted_by_device_days() -> None:
    told = figures([17.0, 17.5, 19.5])
    assert told["start_precision"] == pytest.approx(0.5)
    assert told["false_alarms_per_1000_device_days"] == pytest.approx(1000 * 2 / 60)
    early = figures([2.0])
    assert (early["incident_recall_any_lead"], early["start_precision"]) == (0.0, 0.0)
    assert np.isnan(figures([])["start_precision"])


def test_starts_belong_to_devices() -> None:
    examples, alarm = table([1.0, 1.5, 2.5, 9.0])
    begun = starts(examples, alarm)
    assert (examples.device[begun].tolist()) == [0, 0, 0, 1, 1, 1]
    assert cadence_ms(examples) == DAY // 2
    assert cadence_ms(rows([0, 1], [0, 0])) == 0


def test_tables_and_curves() -> None:
    examples, alarm = table([17.0])
    told = lead_table("leads", warned(examples, alarm), (0, 48, 96))
    assert [row[1:] for row in told.rows] == [(1, 1, 1.0), (1, 1, 1.0), (0, 1, 0.0)]
    label, _ = examples.label(HORIZON)
    score = {"m": label.astype(np.float64)}
    x, y = precision_recall(score, label, examples.weight).lines["m"]
    assert (list(x), list(y)) == ([1.0], [1.0])
    hours, share = lead_times({"m": alarm.astype(np.float64)}, examples, 0.05).lines["m"]
    assert share[0] == 1.0
    assert share[-1] == 0.0
    assert hours[1] == 3.0


def test_base_rates_come_from_train_alone() -> None:
    train = rows([0, 1, 2, 3] * 500, [0] * 2000, [1, np.nan, np.nan, np.nan] * 500)
    test = rows([0, 2, 5], [9, 9, 9])
    rate = base_rates(train, test, HORIZON)
    overall = 0.25
    assert rate.tolist() == pytest.approx([(500 + 250) / 2000, 250 / 2000, overall])
    by_column = base_rates(train, rows([0], [0], features=np.array([[0.0]], dtype=np.float32)), HORIZON, "x")
    assert by_column[0] == pytest.approx((1 + 250) / 1001)


def test_recency_looks_back_only() -> None:
    past = rows([1, 2], [0, 0], [2, 3])
    test = rows([0, 1, 1, 2], [5, 2, 4, 4], [9, np.nan, np.nan, np.nan])
    score = recency(test, past)
    assert score[0] == 0.0
    assert score[1] == 0.0, "an onset at the instant itself is not known yet"
    assert score[2] == pytest.approx(1 / (1 + 48))
    assert score[3] > score[2]
    assert recency(rows([0], [0])).tolist() == [0.0]
