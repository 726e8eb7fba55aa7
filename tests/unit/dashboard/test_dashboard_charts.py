"""Axes that people can read, and colours that do not make a small risk look like one."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models_capacity import CourseOut
from tocsin.dashboard import charts, page_cost, page_forecast, page_scoreboard
from tocsin.dashboard.components import heat
from tocsin.dashboard.palette import DARK, LIGHT, Palette
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, from_iso, to_iso

TEXT = Text("en")
NOW_MS = from_iso("2026-03-01T11:00:00Z")


def width_ms(chart: go.Figure) -> int:
    start, end = chart.layout.xaxis.range
    return int(from_iso(end) - from_iso(start))


@pytest.mark.parametrize("span", [0, 1, 60_000, HOUR, 30 * HOUR])
def test_an_axis_of_time_spans_an_hour_at_least_and_writes_no_seconds(span: int) -> None:
    chart = charts.time_axis(go.Figure(go.Scatter(x=[to_iso(NOW_MS)], y=[1.0])), [NOW_MS + span, NOW_MS])
    assert width_ms(chart) >= max(HOUR - 1, span)
    start, end = map(from_iso, chart.layout.xaxis.range)
    assert start < NOW_MS, "a mark at the edge is seen whole"
    assert end > NOW_MS + span or 0 < HOUR - span < 2
    assert all("%S" not in stop.value for stop in chart.layout.xaxis.tickformatstops)


def test_a_young_store_gives_charts_with_an_hour_at_least() -> None:
    one = page_cost.Bar(to_iso(NOW_MS), dict.fromkeys(page_cost.USES, 1.0), 1.0, 1.0)
    course = CourseOut(at=[to_iso(NOW_MS)], known=[1.0], expected=[None], low=[None], high=[None])
    for chart in (
        page_cost.uses([one], TEXT, LIGHT),
        page_cost.power([one], LIGHT),
        page_forecast.figure(course, 1.0, None, TEXT, LIGHT),
    ):
        assert width_ms(chart) >= HOUR - 1


@given(st.integers(0, 10**7))
def test_counts_have_whole_steps_and_few_of_them(most: int) -> None:
    step = charts.count_step(most)
    assert step >= 1
    assert most / step <= 5
    assert str(step).rstrip("0") in {"1", "2", "5"}


def test_a_chart_of_counts_has_no_tick_between_whole_numbers() -> None:
    for chart, axis in (
        (page_scoreboard.lead_chart([600.0, 9_000.0, 90_000.0], TEXT, LIGHT), "yaxis"),
        (page_scoreboard.by_guard({"approval": 1}, TEXT, LIGHT), "xaxis"),
    ):
        assert chart.layout[axis].dtick == 1
        assert chart.layout[axis].tickformat == ",d"


def test_every_lead_is_in_a_bin_of_whole_hours() -> None:
    leads = [0.0, 1.0, 3_599.0, 3_600.0, 86_400.0, 200_000.0, -5.0]
    bars = page_scoreboard.lead_chart(leads, TEXT, LIGHT).data[0]
    assert sum(bars.y) == len(leads)
    assert len(bars.y) <= 17
    assert all(end - start == int(end - start) >= 1 for start, end in bars.customdata)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_a_risk_under_one_percent_has_no_colour(palette: Palette) -> None:
    assert heat(0.0002, palette) == heat(0.0099, palette) == palette.background
    shades = [heat(risk, palette) for risk in (0.011, 0.03, 0.1, 0.3, 0.5)]
    assert palette.background not in shades
    assert len(set(shades)) == len(shades)
