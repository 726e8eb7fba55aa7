"""Two models that speak of one metric of one GPU tell of one trouble."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus, soonest_each
from tocsin_testing.builders import T0

MEMORY = Prediction(
    subject=Subject(SubjectKind.GPU, "GPU-1", "node-a"),
    target="out_of_memory",
    at_ms=T0,
    horizon_ms=1_000_000,
    status=PredictionStatus.CROSSING,
    model="filling",
    model_version="1",
    sentence="it fills",
    metric="gpu_memory_used_ratio",
    eta_ms=T0 + 500,
)


def test_of_one_metric_of_one_gpu_the_soonest_counts() -> None:
    sooner = replace(MEMORY, target="time_to_threshold:gpu_memory_used_ratio", model="threshold", eta_ms=T0 + 200)
    process = replace(MEMORY, metric='gpu_memory_used_ratio{pid="7"}', eta_ms=T0 + 900)
    hot = replace(MEMORY, target="time_to_threshold:gpu_temperature_celsius", metric="gpu_temperature_celsius")
    other = replace(MEMORY, subject=Subject(SubjectKind.GPU, "GPU-2", "node-a"), eta_ms=T0 + 100)
    risk = replace(MEMORY, target="hardware_fault", metric="", eta_ms=None, status=PredictionStatus.LIKELY)
    assert soonest_each([MEMORY, process, risk, hot, sooner, other]) == [other, sooner, hot, risk]
    assert soonest_each([risk, replace(risk, target="another")]) == [risk, replace(risk, target="another")]
    assert soonest_each([]) == []
