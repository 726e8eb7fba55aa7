"""Charts of an hourly figure: its past, what is expected, and the interval around that."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from tocsin.client.models_forecast import CourseOut
from tocsin.dashboard.charts import plain
from tocsin.dashboard.palette import Palette, mix
from tocsin.dashboard.text import Text

HEIGHT = 188
_ROOM = 1.2
"""Room above the highest value, for the word at the level line."""


def figure(
    course: CourseOut, scale: float, there: float | None, text: Text, palette: Palette, height: int = HEIGHT
) -> go.Figure:
    """`course` times `scale`; a level line at `there`, where that is given."""
    chart = go.Figure()
    band = mix(palette.background, palette.forecast, 0.25)
    high, low, known_course = (_scaled(values, scale) for values in (course.high, course.low, course.known))
    hidden = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    chart.add_trace(go.Scatter(x=course.at, y=high, **hidden))
    chart.add_trace(go.Scatter(x=course.at, y=low, fill="tonexty", fillcolor=band, **hidden))
    known = {"color": palette.line, "width": 1.8}
    expected = {"color": palette.forecast, "width": 1.8, "dash": "dash"}
    for name, values, line in (
        ("ahead.known", known_course, known),
        ("ahead.likely", _scaled(course.expected, scale), expected),
    ):
        label = text(name)
        chart.add_trace(
            go.Scatter(
                x=course.at,
                y=values,
                mode="lines",
                line=line,
                name=label,
                connectgaps=False,
                hovertemplate=f"{label} %{{y:.1f}}<extra></extra>",
                showlegend=False,
            )
        )
    if there is not None:
        words = {"text": text("ahead.there"), "font": {"size": 10, "color": palette.muted}}
        line = {"color": palette.muted, "width": 1.2}
        chart.add_hline(y=there, line=line, annotation=words, annotation_position="top left")
    plain(chart, height, palette, hovermode="x unified", margin={"l": 0, "r": 4, "t": 6, "b": 0})
    known_values = [value for values in (known_course, high) for value in values if value is not None]
    top = max([*known_values, there or 0.0], default=1.0) or 1.0
    chart.update_yaxes(range=[0, _ROOM * top], nticks=5)
    chart.update_xaxes(nticks=5, tickformat="%d %b")
    return chart


def _scaled(values: Sequence[float | None], scale: float) -> list[float | None]:
    return [None if value is None else value * scale for value in values]


def peak(course: CourseOut) -> int | None:
    """Place of the largest expected value; None without a forecast."""
    coming = [(value, place) for place, value in enumerate(course.expected) if value is not None]
    return max(coming, key=lambda one: (one[0], -one[1]))[1] if coming else None
