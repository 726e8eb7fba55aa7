"""What the timeline and the scoreboard add to decisions and scores."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models import TimelineQuery
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import CordonParameters, DecisionState, encode, parameters_of
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Evidence, Subject, SubjectKind
from tocsin.domain.interval import wilson
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.scoreboard import Followed, score_crossings, score_hazards
from tocsin.store.port import Series
from tocsin_testing.action_world import World, settings
from tocsin_testing.builders import T0, gpu, xid

losses = st.dictionaries(st.sampled_from(ActionKind), st.floats(0, 1e6).map(lambda one: round(one, 6)), max_size=5)


@given(losses)
def test_losses_are_read_as_they_were_written(priced: dict[ActionKind, float]) -> None:
    texts = encode(CordonParameters(expected_losses=priced))
    assert parameters_of(ActionKind.CORDON, texts).expected_losses == priced
    assert parameters_of(ActionKind.CORDON, {}).expected_losses == {}


def test_a_decision_about_a_fault_to_come_carries_what_was_weighed() -> None:
    world = World(settings(mode="propose"))
    chance = Evidence(f"{PREDICTION_EVIDENCE}risk", "a fault is likely", T0, 0.6)
    world.break_gpu("GPU-0-0", category=Category.HARDWARE, action=ActionKind.MIGRATE, evidence=(chance,))
    world.step()
    decision = next(s.decision for s in world.loop.statuses() if s.decision.action is not ActionKind.NOTIFY)
    weighed = decision.parameters.expected_losses
    assert ActionKind.NOTIFY in weighed
    assert weighed[decision.action] == min(weighed[one] for one in weighed if one is not ActionKind.NOTIFY)
    assert "expected loss in GPU-hours" in decision.sentence


def test_a_decision_about_what_is_seen_now_carries_no_losses() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    world.step()
    assert all(not status.decision.parameters.expected_losses for status in world.loop.statuses())


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (TimelineQuery(), True),
        (TimelineQuery(states=(DecisionState.DONE,)), False),
        (TimelineQuery(states=(DecisionState.HELD,)), True),
        (TimelineQuery(actions=(ActionKind.DRAIN,)), True),
        (TimelineQuery(actions=(ActionKind.NOTIFY,)), False),
        (TimelineQuery(rule="hot", pool="a"), True),
        (TimelineQuery(rule="cold"), False),
        (TimelineQuery(pool="b"), False),
        (TimelineQuery(waiting=True), False),
        (TimelineQuery(waiting=False), True),
    ],
)
def test_a_query_names_what_it_wants(query: TimelineQuery, wanted: bool) -> None:
    assert query.wants(DecisionState.HELD, ActionKind.DRAIN, "hot", "a", False) is wanted


def test_notifications_are_listed_only_by_name() -> None:
    args = (DecisionState.DONE, ActionKind.NOTIFY, "hot", "a", False)
    assert not TimelineQuery().wants(*args)
    assert TimelineQuery(actions=(ActionKind.NOTIFY,)).wants(*args)


def test_words_are_found_without_regard_to_capitals() -> None:
    assert TimelineQuery(text=" Node-1 ").found_in(["Drain NODE-1"])
    assert not TimelineQuery(text="node-2").found_in(["Drain node-1"])


@pytest.mark.parametrize(
    ("share", "trials", "low", "high"),
    # By the worked examples of Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0 / 20, 20, 0.0, 0.1611),
        (1 / 29, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_wilson_s(share: float, trials: float, low: float, high: float) -> None:
    assert wilson(share, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.floats(0, 1), st.floats(0, 1e6))
def test_an_interval_holds_its_share(share: float, trials: float) -> None:
    low, high = wilson(share, trials)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1


def stated(n: int, day: float, version: str) -> Prediction:
    return Prediction(
        subject=Subject(SubjectKind.GPU, gpu(n).uuid, "node-1"),
        target="hardware_fault",
        at_ms=T0 + round(day * DAY),
        horizon_ms=48 * HOUR,
        status=PredictionStatus.LIKELY,
        model="hazard",
        model_version=version,
        sentence="",
        probability=0.6,
    )


def test_probabilities_are_scored_by_version_with_counts_and_intervals() -> None:
    made = [*(stated(1, day, "1") for day in range(5)), stated(2, 0, "2"), stated(3, 1, "2")]
    after = Followed([xid(79, gpu(1), T0 + 5 * DAY)], [], [gpu(n) for n in range(4)], {}, T0 + 30 * DAY)
    first, second = score_hazards(made, after)
    assert (first.model_version, second.model_version) == ("1", "2")
    (one,) = first.reliability
    assert one.predictions == first.predictions == 5
    assert one.observed_low is not None
    assert one.observed_high is not None
    assert one.observed_low < one.observed < one.observed_high
    assert first.onset_recall == 1.0
    assert first.onset_recall_low == pytest.approx(wilson(1.0, 1)[0])
    assert second.onset_recall_low is None


def test_crossings_are_scored_by_model_and_version_and_add_up() -> None:
    def crossing(n: int, version: str) -> Prediction:
        return dataclasses.replace(
            stated(n, 0, version),
            model="holt",
            target="t",
            status=PredictionStatus.CROSSING,
            metric="gpu_temperature_celsius",
            threshold=85.0,
            value=60.0,
            eta_ms=T0 + HOUR,
        )

    def series_of(uuid: str, metric: str, start_ms: int, end_ms: int) -> Series:
        import numpy as np

        at = np.arange(start_ms, end_ms, HOUR, dtype=np.int64)
        hot = uuid == gpu(1).uuid
        return Series(uuid, (metric,), at, np.where((at >= T0 + 2 * HOUR) & hot, 90.0, 60.0)[:, None])

    silent = dataclasses.replace(crossing(3, "2"), status=PredictionStatus.NOT_ENOUGH_DATA, eta_ms=None)
    total, parts = score_crossings([crossing(1, "1"), crossing(2, "2"), silent], series_of, T0 + 10 * DAY)
    assert [(one.model_version, one.hits, one.misses, one.not_enough_data) for one in parts] == [
        ("1", 1, 0, 0),
        ("2", 0, 1, 1),
    ]
    assert (total.made, total.hits, total.misses, total.not_enough_data) == (2, 1, 1, 1)
    assert total.lead_s == parts[0].lead_s == [2 * 3600.0]
