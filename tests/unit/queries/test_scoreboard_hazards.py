"""How stated probabilities of the running service are scored."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.cli.main import cli
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.features.onsets import SlowSpan
from tocsin.queries.scoreboard import Followed, is_hazard, score_hazards
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.fake_service import FakeService, serving

LATE = T0 + 60 * DAY


def stated(n: int, day: float, probability: float, *, likely: bool | None = None, horizon_h: int = 48) -> Prediction:
    warn = probability >= 0.5 if likely is None else likely
    return Prediction(
        subject=Subject(SubjectKind.GPU, gpu(n).uuid, "node-1"),
        target="hardware_fault",
        at_ms=T0 + round(day * DAY),
        horizon_ms=horizon_h * HOUR,
        status=PredictionStatus.LIKELY if warn else PredictionStatus.UNLIKELY,
        model="hazard",
        model_version="1",
        sentence="",
        probability=probability,
    )


def followed(events: list[Event] = [], statuses: list[DecisionStatus] = [], now_ms: int = LATE) -> Followed:  # noqa: B006
    return Followed(events, statuses, [gpu(n) for n in range(4)], {}, now_ms)


def verdict(n: int, day: float, *, approved: bool, category: Category = Category.HARDWARE) -> DecisionStatus:
    at_ms = T0 + round(day * DAY)
    decision = Decision(
        rule="forecast",
        subject=Subject(SubjectKind.GPU, gpu(n).uuid, "node-1"),
        action=ActionKind.DRAIN,
        mode=Mode.PROPOSE,
        severity=Severity.CRITICAL,
        category=category,
        at_ms=at_ms,
        expires_ms=at_ms + HOUR,
        key=f"{n}|{day}",
        sentence="",
    )
    state = DecisionState.DONE if approved else DecisionState.REJECTED
    return DecisionStatus(decision, (), Ruling.ALLOW, state, None, "ann" if approved else "", at_ms)


def test_heat_at_which_hardware_slows_a_gpu_is_what_was_warned_of() -> None:
    made = [stated(0, 0, 0.9), stated(1, 0, 0.1)]
    heat = {gpu(0).uuid: [SlowSpan(T0 + DAY, T0 + 3 * DAY)]}
    (told,) = score_hazards(made, dataclasses.replace(followed(), heat=heat))
    assert (told.onsets, told.alarms, told.false_alarms, told.precision) == (1, 1, 0, 1.0)


def test_a_prediction_counts_for_as_long_as_it_stood() -> None:
    made = [stated(0, 0, 0.1), stated(0, 1, 0.9), stated(1, 0, 0.1), stated(1, 1, 0.1)]
    (told,) = score_hazards(made, followed([xid(79, gpu(0), T0 + round(2.5 * DAY))]))
    assert (told.model, told.target, told.horizon_s) == ("hazard", "hardware_fault", 48 * 3600.0)
    assert (told.predictions, told.pending, told.onsets, told.alarms, told.false_alarms) == (4, 0, 1, 1, 0)
    assert told.gpu_days == pytest.approx(6.0), "the last of each GPU stands for its horizon, the others for a day"
    assert (told.precision, told.recall) == (1.0, 1.0)
    assert told.base_rate == pytest.approx(2 / 6)
    assert (told.roc_auc, told.auprc) == (1.0, 1.0)
    assert told.lead_s == [1.5 * 86400]
    assert (told.onset_recall, told.onset_recall_24h, told.onset_recall_48h) == (1.0, 1.0, 0.0)
    assert told.brier == pytest.approx(0.01)
    low, high = told.reliability
    assert (low.low, low.stated, low.observed) == pytest.approx((0.1, 0.1, 0.0))
    assert (high.high, high.observed, high.gpu_days) == pytest.approx((1.0, 1.0, 2.0))


def test_false_warnings_are_counted_by_gpu_days_and_repeats_are_one() -> None:
    made = [stated(n, day / 4, 0.9 if n == 0 else 0.01) for n in range(4) for day in range(40)]
    (told,) = score_hazards(made, followed())
    assert (told.alarms, told.false_alarms) == (1, 1)
    days = 4 * (39 / 4 + 2)
    assert told.false_alarms_per_1000_gpu_days == pytest.approx(1000 / days)
    assert (told.precision, told.recall, told.roc_auc, told.onset_recall) == (0.0, None, None, None)


def test_what_may_still_happen_is_pending_and_what_was_faulted_is_left_out() -> None:
    made = [stated(0, 0, 0.9), stated(0, 4, 0.9), stated(1, 4, 0.1)]
    at_day_5 = followed([xid(79, gpu(0), T0 + 3 * DAY)], now_ms=T0 + 5 * DAY)
    (told,) = score_hazards(made, at_day_5)
    assert (told.predictions, told.pending, told.left_out) == (1, 1, 1)
    (early,) = score_hazards([stated(0, 0, 0.9)], followed(now_ms=T0 + HOUR))
    assert (early.predictions, early.pending, early.roc_auc, early.gpu_days) == (0, 1, None, 0.0)


def test_a_fault_counts_no_sooner_than_its_absence() -> None:
    """Four GPUs, one fails within the first hours: until the windows are over nothing is known of any of them."""
    made = [stated(n, 0, 0.1) for n in range(4)]
    (early,) = score_hazards(made, followed([xid(79, gpu(0), T0 + HOUR)], now_ms=T0 + DAY))
    assert (early.predictions, early.pending, early.onsets, early.brier) == (0, 4, 0, None)
    (told,) = score_hazards(made, followed([xid(79, gpu(0), T0 + HOUR)]))
    assert (told.predictions, told.pending, told.onsets) == (4, 0, 1)
    assert told.reliability[0].observed == pytest.approx(0.25)


def test_operators_verdicts_are_labels_where_no_onset_followed() -> None:
    made = [stated(0, 0, 0.9), stated(1, 0, 0.8)]
    verdicts = [verdict(0, 0.5, approved=True), verdict(1, 0.5, approved=False)]
    (early,) = score_hazards(made, followed(statuses=verdicts, now_ms=T0 + DAY))
    assert (early.predictions, early.pending, early.precision) == (0, 2, None), "their windows are not over"
    (told,) = score_hazards(made, followed(statuses=verdicts))
    assert (told.approved, told.rejected, told.operator_precision) == (1, 1, 0.5)
    assert (told.predictions, told.pending, told.alarms, told.false_alarms) == (2, 0, 2, 1)
    assert (told.roc_auc, told.precision) == (1.0, 0.5)


def test_an_onset_outweighs_a_rejection() -> None:
    made = [stated(0, 0, 0.9)]
    (told,) = score_hazards(made, followed([xid(79, gpu(0), T0 + DAY)], [verdict(0, 0.5, approved=False)]))
    assert (told.rejected, told.false_alarms, told.precision) == (1, 0, 1.0)


def test_verdicts_on_other_matters_are_none() -> None:
    made = [stated(0, 0, 0.9), stated(1, 0, 0.1)]
    others = [
        verdict(0, 0.5, approved=True, category=Category.CAPACITY),
        verdict(0, 9, approved=True),
        verdict(1, 0.5, approved=True),
        dataclasses.replace(verdict(0, 0.5, approved=False), state=DecisionState.EXPIRED),
    ]
    (told,) = score_hazards(made, followed(statuses=others))
    assert (told.approved, told.rejected, told.operator_precision) == (0, 0, None)


def test_a_verdict_on_the_host_concerns_its_gpus() -> None:
    drained = verdict(0, 0.5, approved=True)
    host = dataclasses.replace(drained.decision, subject=Subject(SubjectKind.HOST, "node-1", "node-1"))
    made = [stated(n, 0, 0.9 if n == 2 else 0.01) for n in range(4)]
    (told,) = score_hazards(made, followed(statuses=[dataclasses.replace(drained, decision=host)]))
    assert (told.approved, told.false_alarms) == (1, 0)
    assert (told.onsets, told.onset_recall) == (1, 1.0), "the GPUs that were not warned of are bystanders"


def test_models_and_horizons_are_scored_apart_and_crossings_not_at_all() -> None:
    crossing = dataclasses.replace(stated(0, 0, 0.9), metric="gpu_temperature_celsius")
    pool = dataclasses.replace(stated(0, 0, 0.9), subject=Subject(SubjectKind.POOL, "default"))
    silent = dataclasses.replace(stated(0, 0, 0.9), status=PredictionStatus.NOT_ENOUGH_DATA, probability=None)
    assert not [one for one in (crossing, pool, silent) if is_hazard(one)]
    made = [stated(0, 0, 0.9), stated(0, 0, 0.9, horizon_h=24), crossing, pool, silent]
    made.append(dataclasses.replace(stated(0, 0, 0.9), model="lstm"))
    told = score_hazards(made, followed())
    assert [(one.model, one.horizon_s / 3600) for one in told] == [("hazard", 24), ("hazard", 48), ("lstm", 48)]


def test_the_command_prints_the_board() -> None:
    with serving(FakeService()) as url:
        told = CliRunner().invoke(cli, ["scoreboard", "--api-url", url], catch_exceptions=False).output
        as_json = CliRunner().invoke(cli, ["scoreboard", "--json", "--api-url", url], catch_exceptions=False).output
    assert "(simulated), mode propose\n" in told
    assert "predicted crossings: 63 made, 38 hit, 17 missed, 8 pending; 31 within their interval" in told
    assert "hazard, hardware_fault within 48 h: 5180 predictions over 1291.5 GPU-days, 96 pending\n" in told
    assert "  onsets: 9, warned 44 %, 24 h before 33 %, 48 h before -, median lead 31.0 h\n" in told
    assert "  warnings: 7, 3 false, 2.32 per 1,000 GPU-days; precision 57 %, recall 44 %\n" in told
    assert "  operators: 4 approved, 1 rejected\n" in told
    assert '"calibration_error": 0.004' in as_json
