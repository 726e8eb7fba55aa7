"""Which statements are current, and which probabilities of an onset go into the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.config.settings import ForecastSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.evaluation.reliability import EDGES, bin_of
from tocsin.forecaster.live.news import moved as _moved
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.runtime.brain.forecasts import QUIET_TURNS, FleetForecasts
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0


def stated(probability: float | None) -> Prediction:
    subject = Subject(SubjectKind.GPU, "GPU-1", "node-1")
    return Prediction(
        subject, "hardware_fault", T0, 1, PredictionStatus.UNLIKELY, "hazard", "1", "", probability=probability
    )


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [(0.00002, 0.00008, False), (0.0002, 0.002, True), (0.41, 0.49, False), (None, None, False), (None, 0.0, True)],
)
def test_a_probability_is_news_in_another_bin(before: float | None, after: float | None, moved: bool) -> None:
    assert _moved(stated(before), stated(after)) is moved


def test_bins_hold_their_lower_edge_and_the_last_its_upper_too() -> None:
    assert [bin_of(edge) for edge in EDGES] == [*range(len(EDGES) - 1), len(EDGES) - 2]


SETTINGS = ForecastSettings(worker=False, every_seconds=60)
_said = st.tuples(
    st.sampled_from(["GPU-1", "GPU-2", "GPU-3"]),
    st.integers(0, 12),
    st.sampled_from([PredictionStatus.CROSSING, PredictionStatus.NO_CROSSING]),
    st.booleans(),
)


def guess(name: str, minute: int, status: PredictionStatus, muted: bool, model: str) -> Prediction:
    subject = Subject(SubjectKind.GPU, name, "node-1")
    return Prediction(subject, "own", T0 + minute * MINUTE, 1, status, model, "1", "", muted=muted)


_looks = st.lists(st.builds(lambda minute, more: T0 + minute * MINUTE + more, st.integers(0, 16), st.integers(0, 1)))


@given(
    st.lists(st.tuples(st.sampled_from("mn"), st.lists(_said, max_size=3), _looks), min_size=1, max_size=6),
    st.lists(_said, max_size=3),
)
def test_what_is_current_is_what_would_be_looked_up_anew(
    steps: list[tuple[str, list[tuple[str, int, PredictionStatus, bool]], list[int]]],
    before: list[tuple[str, int, PredictionStatus, bool]],
) -> None:
    store = MemoryStore()
    store.write(Batch(predictions=[guess(*one, "m") for one in before]))
    forecasts = FleetForecasts(store, ForecastWorker(SETTINGS, only=[]), SETTINGS)
    held: dict[str, Prediction] = {}

    def rest_ms(one: Prediction) -> int:
        return (2 if one.status is PredictionStatus.CROSSING and not one.muted else QUIET_TURNS + 1) * MINUTE + MINUTE

    for model, said, looks in steps:
        made = [guess(*one, model) for one in said]
        forecasts.put(made, model)
        names = {one.subject.name for one in made}
        held = {name: one for name, one in held.items() if one.model != model or name in names}
        held |= {one.subject.name: one for one in made}
        for now_ms in sorted(looks):
            held = {name: one for name, one in held.items() if one.at_ms + rest_ms(one) >= now_ms}
            assert forecasts.current(now_ms) == list(held.values())
    held.pop("GPU-2", None)
    forecasts.forget({"GPU-2"})
    assert forecasts.current(T0) == [one for one in held.values() if one.at_ms + rest_ms(one) >= T0]
    forecasts.recall(T0)
    kept = store.predictions(T0 - 8 * MINUTE, T0 + 1)
    held |= {one.subject.name: one for one in sorted(kept, key=lambda one: (one.at_ms, one.id))}
    held = {name: one for name, one in held.items() if one.at_ms + rest_ms(one) >= T0}
    assert {one.subject.name: one for one in forecasts.current(T0)} == held


def test_when_a_statement_was_stored_is_forgotten_after_two_days_and_counts_until_then() -> None:
    store = MemoryStore()
    forecasts = FleetForecasts(store, ForecastWorker(SETTINGS, only=[]), SETTINGS)
    hours = [0, 23, 24, 47, 48, 72, 73]
    for hour in hours:
        forecasts.put([guess("GPU-1", 60 * hour, PredictionStatus.NO_CROSSING, False, "m")], "m")
        forecasts.put([guess(f"GPU-at-{hour}", 60 * hour, PredictionStatus.NO_CROSSING, False, "n")], "n")
    kept = [one.at_ms - T0 for one in store.predictions(T0, T0 + 4 * DAY) if one.subject.name == "GPU-1"]
    assert kept == [hour * HOUR for hour in (0, 24, 48, 72)]
    assert {name for name, _ in forecasts._stored_ms} == {"gpu:GPU-1", *(f"gpu:GPU-at-{hour}" for hour in hours[3:])}


def test_what_left_during_a_run_is_not_spoken_of_by_it() -> None:
    forecasts = FleetForecasts(MemoryStore(), ForecastWorker(SETTINGS, only=[]), SETTINGS)
    forecasts.run([], T0)
    forecasts.forget({"GPU-1"})
    said = [guess(name, 0, PredictionStatus.NO_CROSSING, False, "m") for name in ("GPU-1", "GPU-2")]
    forecasts.put(said, "m")
    assert [one.subject.name for one in forecasts.current(T0)] == ["GPU-2"]
    forecasts.run([], T0 + HOUR)
    forecasts.put(said, "m")
    assert {one.subject.name for one in forecasts.current(T0)} == {"GPU-1", "GPU-2"}, "it has come back"
