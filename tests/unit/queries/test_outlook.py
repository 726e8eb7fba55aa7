"""What the API says of the future, from predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models import HazardScore, ReliabilityBin
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import Unavailable
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.interval import wilson
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.capacity.capacity import HourlyFigure, HourlyForecastRequest, courses
from tocsin.queries.outlook import Z80, ForecastQueries, course_out, forecast_out, record_of
from tocsin_testing.builders import T0, gpu, reading

GPUS = [gpu(n, host=f"node-{n // 2}") for n in range(6)]
READINGS = [reading(one) for one in GPUS]


def risk(n: int, chance: float | None) -> Prediction:
    status = PredictionStatus.NOT_ENOUGH_DATA if chance is None else PredictionStatus.UNLIKELY
    curve = () if chance is None else ((HOUR, chance / 4), (2 * DAY, chance))
    return Prediction(
        Subject(SubjectKind.GPU, GPUS[n].uuid, GPUS[n].host),
        "hardware_fault",
        T0,
        2 * DAY,
        status,
        "hazard",
        "1",
        "s",
        probability=chance,
        curve=curve,
        reason="" if chance is not None else "2 h of history, 6 h needed",
    )


def filling(n: int, target: str, eta_ms: int | None) -> Prediction:
    status = PredictionStatus.NO_CROSSING if eta_ms is None else PredictionStatus.CROSSING
    subject = Subject(SubjectKind.GPU, GPUS[n].uuid, GPUS[n].host)
    return Prediction(subject, target, T0, HOUR, status, "m", "1", "s", eta_ms=eta_ms)


def test_hosts_combine_the_risks_of_their_gpus() -> None:
    found = forecast_out([risk(0, 0.1), risk(1, 0.2), risk(2, 0.25), risk(3, None)], READINGS, [], T0, 10).risk
    assert [one.gpu for one in found.gpus] == [GPUS[n].uuid for n in (2, 1, 0)]
    assert [(one.host, round(one.probability, 6)) for one in found.hosts] == [("node-0", 0.28), ("node-1", 0.25)]
    assert found.hosts[0].worst == GPUS[1].uuid
    assert found.expected == [(3600.0, pytest.approx(0.1375)), (172_800.0, pytest.approx(0.55))]
    assert found.statuses == {PredictionStatus.UNLIKELY: 3, PredictionStatus.NOT_ENOUGH_DATA: 1}
    assert found.reasons == {"2 h of history, 6 h needed": 1}


def test_of_several_statements_on_memory_the_soonest_of_a_gpu_counts() -> None:
    slow, soon = "time_to_threshold:gpu_memory_used_ratio", "out_of_memory"
    told = [
        filling(0, slow, T0 + HOUR),
        filling(0, soon, T0 + 600_000),
        filling(1, slow, None),
        filling(2, slow, T0 + 1),
    ]
    found = forecast_out(told, READINGS, [], T0, 10)
    assert [(one.prediction.subject.name, one.prediction.target) for one in found.memory] == [
        (GPUS[2].uuid, slow),
        (GPUS[0].uuid, soon),
    ]
    assert found.memory_statuses == {PredictionStatus.CROSSING: 2, PredictionStatus.NO_CROSSING: 1}


def test_without_a_word_of_the_model_the_calendar_is_empty() -> None:
    found = forecast_out([], READINGS, [], T0, 10)
    assert (found.risk.model, found.risk.gpus, found.risk.statuses) == ("", [], {})


@given(st.floats(0, 1), st.floats(0.1, 1e6))
def test_the_interval_holds_what_was_seen_and_narrows(share: float, trials: float) -> None:
    low, high = wilson(share, trials, Z80)
    assert 0 <= low <= share <= high <= 1
    narrower = wilson(share, 10 * trials, Z80)
    assert narrower[1] - narrower[0] <= high - low + 1e-9


def test_nothing_seen_says_nothing() -> None:
    assert wilson(0.0, 0.0, Z80) == (0.0, 1.0)
    # Wilson's own closed form at a share of 0: z^2 / (n + z^2).
    z = Z80
    assert wilson(0.0, 100.0, Z80) == (0.0, pytest.approx(z * z / (100 + z * z)))


def test_the_record_is_of_the_farthest_horizon() -> None:
    bins = [ReliabilityBin(low=0.0, high=0.1, gpu_days=200.0, stated=0.05, observed=0.04)]
    scores = [
        HazardScore(model="hazard", target="hardware_fault", horizon_s=3600.0),
        HazardScore(model="hazard", target="hardware_fault", horizon_s=172_800.0, reliability=bins),
    ]
    (one,) = record_of(scores)
    assert (one.observed_low, one.observed_high) == wilson(0.04, 100.0, Z80)
    assert record_of([]) == []


def test_the_record_is_looked_up_now_and_then_and_a_store_that_is_down_hides_nothing_else() -> None:
    now, asked = [0.0], []

    def look() -> list[HazardScore]:
        asked.append(now[0])
        if len(asked) == 1:
            raise Unavailable("the store does not answer")
        return []

    nothing: Any = None
    outlook = ForecastQueries(nothing, nothing, nothing, look, lambda: now[0])
    assert outlook.record(60.0) == outlook.record(60.0) == []
    now[0] = 601.0
    assert outlook.record(60.0) == []
    assert asked == [0.0, 601.0]


def test_a_course_has_its_past_then_its_future_with_an_interval() -> None:
    hours = np.arange(96)
    values = 0.5 + 0.2 * np.sin(2 * np.pi * hours / 24) + 0.01 * np.random.default_rng(1).standard_normal(96)
    start = T0 // HOUR * HOUR
    (made,) = courses(HourlyForecastRequest([HourlyFigure("pool", start, values, most=1.0)], start + 96 * HOUR))
    out = course_out(made)
    assert len(out.at) == len(out.known) == len(out.expected) == len(out.low) == len(out.high) == 72 + 168
    assert out.known[71] == pytest.approx(values[-1])
    assert out.known[72:] == [None] * 168
    coming = list(zip(out.low[72:], out.expected[72:], out.high[72:], strict=True))
    assert all(0 <= low <= middle <= high <= 1 for low, middle, high in coming)  # type: ignore[operator]
    assert coming[17][1] < coming[5][1]  # type: ignore[operator]  # the night after the day
    assert out.reason == ""


def test_a_course_without_enough_past_says_how_much_it_needs() -> None:
    start = T0 // HOUR * HOUR
    short, none = courses(
        HourlyForecastRequest(
            [HourlyFigure("a", start, np.full(10, 0.5)), HourlyFigure("b", start, np.full(10, np.nan))],
            start + 10 * HOUR,
        )
    )
    assert course_out(short).reason == "10 hours of history, 72 needed"
    assert course_out(short).expected == [None] * 10
    assert course_out(none).reason == "no hour of history"
