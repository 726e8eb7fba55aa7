"""Which probabilities of an onset go into the store: enough to be scored later."""

from __future__ import annotations

import pytest

from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.evaluation.reliability import EDGES, bin_of
from tocsin.forecaster.live.news import moved as _moved
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
