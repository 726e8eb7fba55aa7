"""Spans in which clocks were held, and the lanes that show them."""

from __future__ import annotations

import pytest

from tocsin.client.models import PeerGroup
from tocsin.dashboard import page_gpu as throttle
from tocsin.dashboard import timeline
from tocsin.dashboard.palette import LIGHT
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, MINUTE, to_iso
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
    assert fills.count("tonexty") == 1
    low, high = chart.data[0].y, chart.data[1].y
    assert all(one <= other for one, other in zip(low, high, strict=True))
    assert "时钟受限" in {annotation.text for annotation in chart.layout.annotations}


def test_the_past_shows_no_prediction() -> None:
    service, uuid = FakeService(), fleet.uuid(*fleet.HOT)
    end = fleet.NOW_MS - 12 * HOUR
    series = service.series(uuid, ["gpu_temperature_celsius"], end - HOUR, end, 100)
    chart = timeline.figure(timeline.Course(series), service.gpu(uuid), to_iso(fleet.NOW_MS), Text("en"), LIGHT)
    assert all(trace.name != "forecast" for trace in chart.data)
    assert chart.layout.xaxis.range[1] <= to_iso(end + 5 * MINUTE)
