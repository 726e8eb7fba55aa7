"""Spans in which clocks were held, and the lanes that show them."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.client.models import PeerBand, PeerGroup, SeriesResponse
from tocsin.dashboard import page_gpu as throttle
from tocsin.dashboard import timeline
from tocsin.dashboard.palette import LIGHT
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, MINUTE, from_iso, to_iso
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 0, 0], []),
        ([1, 1, 0, 0], [(0, 20)]),
        ([0, 1, 0, 1], [(10, 20), (30, 40)]),
        ([1, None, 1, 1], [(0, 10), (20, 40)]),
    ],
)
def test_samples_hold_until_the_next(values: list[float | None], expected: list[tuple[int, int]]) -> None:
    assert throttle.spans([0, 10, 20, 30], values) == expected


def test_nothing_is_claimed_of_a_gap() -> None:
    assert throttle.spans([0, 10, 20, 1_000, 1_010], [0, 0, 1, 0, 0]) == [(20, 50)]


def test_too_few_samples_show_nothing() -> None:
    assert throttle.spans([5], [1.0]) == []
    assert throttle.bands(None) == {}


def test_only_what_held_the_clocks_has_a_lane() -> None:
    service, uuid = FakeService(), fleet.uuid(*fleet.HOT)
    series = service.series(uuid, list(throttle.REASONS), fleet.NOW_MS - 6 * HOUR, fleet.NOW_MS, 400)
    found = throttle.bands(series)
    assert list(found) == ["gpu_clocks_hw_thermal_slowdown", "gpu_clocks_sw_power_cap"]
    assert found["gpu_clocks_hw_thermal_slowdown"][-1][1] >= fleet.NOW_MS - 2 * MINUTE


def areas(trace: go.Scatter) -> list[list[tuple[str, float]]]:
    """The shapes of a trace that is filled: points up to each None."""
    shapes: list[list[tuple[str, float]]] = [[]]
    for at, value in zip(trace.x, trace.y, strict=True):
        if value is None:
            shapes.append([])
        else:
            shapes[-1].append((at, value))
    return [shape for shape in shapes if shape]


@settings(max_examples=25)
@given(st.lists(st.sampled_from("..x"), min_size=1, max_size=60).map("".join), st.integers(1, 5))
def test_the_band_keeps_between_its_edges_whatever_is_missing(known: str, every: int) -> None:
    """`x` is a bucket without a value; of the others, some alone have one: a metric that is read slowly."""
    step, name = 30_000, "gpu_power_watts"
    at = [to_iso(fleet.NOW_MS + n * step) for n in range(len(known))]
    there = [mark == "." and n % every == 0 for n, mark in enumerate(known)]
    low, middle, high = (
        {name: [base + n if is_there else None for n, is_there in enumerate(there)]} for base in (100.0, 200.0, 300.0)
    )
    band = PeerBand(gpu="g", by=PeerGroup.NODE, peers=7, group=7, at=at, low=low, middle=middle, high=high)
    span = {"start": at[0], "end": to_iso(fleet.NOW_MS + len(known) * step)}
    series = SeriesResponse(gpu="g", at=at, metrics={name: middle[name]}, points=len(at), **span)
    course = timeline.Course(series, band)
    chart = timeline.figure(course, FakeService().gpu(fleet.uuid(*fleet.HOT)), span["end"], Text("en"), LIGHT)
    drawn = [point for shape in areas(chart.data[0]) for point in shape]
    assert sorted(drawn) == sorted(
        (at[n], edge[name][n]) for n, is_there in enumerate(there) if is_there for edge in (low, high)
    )
    for shape in areas(chart.data[0]):
        half = len(shape) // 2
        assert all(bottom[0] == top[0] for bottom, top in zip(shape[:half], shape[: half - 1 : -1], strict=True))
        instants = [from_iso(point[0]) for point in shape[:half]]
        assert instants == sorted(instants)
    own = [value for value in chart.data[2].y if value is not None]
    assert own == [value for value in middle[name] if value is not None]


def test_a_metric_that_is_read_slowly_is_one_line_and_a_gap_breaks_it() -> None:
    minutes = [n for n in range(120) if n % 6 == 0 and not 40 < n < 80]
    at_ms = list(range(0, 120 * 10_000, 10_000))
    found = timeline.runs(at_ms, [n in minutes for n in range(120)])
    assert [(run[0], run[-1]) for run in found] == [(0, 36), (84, 114)]
    assert timeline.runs([0], [True]) == [[0]]
    assert timeline.runs([0, 1], [False, False]) == []


def test_lanes_and_the_band_of_the_peers_are_drawn() -> None:
    service, uuid = FakeService(), fleet.uuid(*fleet.HOT)
    start, end, metrics = fleet.NOW_MS - 6 * HOUR, fleet.NOW_MS, ["gpu_power_watts"]
    held = {"gpu_clocks_sw_power_cap": [(start, start + HOUR), (end - HOUR, end)]}
    band = service.peers(uuid, PeerGroup.NODE, metrics, start, end, 50)
    course = timeline.Course(service.series(uuid, metrics, start, end, 200), band, held)
    chart = timeline.figure(course, service.gpu(uuid), to_iso(end), Text("zh"), LIGHT)
    lane = next(trace for trace in chart.data if trace.type == "bar")
    assert list(lane.base) == [to_iso(start), to_iso(end - HOUR)]
    assert list(lane.x) == [HOUR, HOUR]
    fills = [trace.fill for trace in chart.data if trace.type == "scatter"]
    assert fills.count("toself") == 1
    [area] = areas(chart.data[0])
    low, high = area[: len(area) // 2], area[: len(area) // 2 - 1 : -1]
    assert [at for at, _ in low] == [at for at, _ in high] == band.at
    assert all(one <= other for (_, one), (_, other) in zip(low, high, strict=True))
    assert "时钟受限" in {annotation.text for annotation in chart.layout.annotations}


def test_the_past_shows_no_prediction() -> None:
    service, uuid = FakeService(), fleet.uuid(*fleet.HOT)
    end = fleet.NOW_MS - 12 * HOUR
    series = service.series(uuid, ["gpu_temperature_celsius"], end - HOUR, end, 100)
    chart = timeline.figure(timeline.Course(series), service.gpu(uuid), to_iso(fleet.NOW_MS), Text("en"), LIGHT)
    assert all(trace.name != "forecast" for trace in chart.data)
    assert chart.layout.xaxis.range[1] <= to_iso(end + 5 * MINUTE)
