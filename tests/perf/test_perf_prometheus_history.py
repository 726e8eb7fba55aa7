"""The history import: answers of `query_range` against json.loads of the same bytes."""

from __future__ import annotations

import json

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.prometheus_history.batches import Batches
from tocsin.collector.prometheus_history.history import AT_LABEL, PrometheusHistory, QueryWindow
from tocsin.collector.prometheus_history.http import HistoryClient, parse_matrix
from tocsin.domain.clock import HOUR
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_site import INTERVAL, Point, labels_of
from tocsin_testing.fake_prometheus import FakePrometheus

GPUS, POINTS = 8, 720
FIELDS = ("GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "FB_USED", "FB_FREE", "SM_CLOCK", "XID_ERRORS", "MEM_COPY_UTIL")
SAMPLES = GPUS * POINTS
GROUP = f"one answer: {GPUS} series, {POINTS} samples each, a value and an instant every half interval"


def answer() -> bytes:
    """Six hours of one field of eight GPUs, as the server gives them for the query of the import."""
    steps = [(T0 + k * INTERVAL // 2) / 1000 for k in range(2 * POINTS)]
    result = []
    for gpu in range(GPUS):
        labels = labels_of(1, gpu)
        values = [[at, f"{95.123 + k // 2 % 7}"] for k, at in enumerate(steps)]
        taken = [[at, f"{steps[k // 2 * 2] - 0.123:.3f}"] for k, at in enumerate(steps)]
        result.append({"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", **labels}, "values": values})
        result.append({"metric": {**labels, AT_LABEL: "1"}, "values": taken})
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, separators=(",", ":")).encode()


BODY = answer()


@pytest.mark.benchmark(group=GROUP)
def test_read_an_answer(benchmark: BenchmarkFixture) -> None:
    benchmark.extra_info["samples"] = SAMPLES
    assert len(benchmark(parse_matrix, BODY).lines) == 2 * GPUS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_json_loads(benchmark: BenchmarkFixture) -> None:
    assert benchmark(json.loads, BODY)["status"] == "success"


@pytest.fixture(scope="module")
def window() -> QueryWindow:
    """Six hours of eight GPUs and eight fields."""
    points = [
        Point(f"DCGM_FI_DEV_{field}", labels_of(1, gpu), float(40 + k % 9), T0 + k * INTERVAL + 123)
        for field in FIELDS
        for gpu in range(GPUS)
        for k in range(POINTS)
    ]
    client: HistoryClient = FakePrometheus(points).client()
    made = PrometheusHistory(client).window(
        [f"DCGM_FI_DEV_{field}" for field in FIELDS], T0, T0 + 6 * HOUR, INTERVAL // 2
    )
    client.close()
    return made


@pytest.mark.benchmark(group=f"readings of a window of {SAMPLES * len(FIELDS)} samples")
def test_readings_of_a_window(benchmark: BenchmarkFixture, window: QueryWindow) -> None:
    assert window.samples == SAMPLES * len(FIELDS)
    benchmark.extra_info["samples"] = window.samples
    batches = benchmark(lambda: list(Batches().batches(window)))
    assert sum(len(batch.readings) for batch in batches) == SAMPLES


@pytest.mark.benchmark(group=f"readings of a window of {SAMPLES * len(FIELDS)} samples")
def test_baseline_json_loads_of_its_answers(benchmark: BenchmarkFixture) -> None:
    assert benchmark(lambda: [json.loads(BODY) for _ in FIELDS])
