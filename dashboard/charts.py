"""The look that all charts share: transparent ground, quiet grid, no tool bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from tocsin.dashboard.palette import Palette
from tocsin.domain.clock import HOUR, to_iso

CONFIG = {"displayModeBar": False}
_STOPS = [
    {"dtickrange": [None, 86_400_000 - 1], "value": "%H:%M\n%d %b"},
    {"dtickrange": [86_400_000, "M1"], "value": "%d %b"},
    {"dtickrange": ["M1", None], "value": "%b %Y"},
]
"""How instants are written, by the distance of the ticks."""


def plain(chart: go.Figure, height: int, palette: Palette, **layout: Any) -> go.Figure:
    """Give `chart` the common look at `height` pixels; `layout` goes on top of it. Axes cannot be dragged."""
    common: dict[str, Any] = {
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 8, "b": 0},
        "plot_bgcolor": "rgba(0,0,0,0)",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": palette.text, "size": 12},
        "legend": {"orientation": "h", "y": -0.12, "x": 0, "font": {"color": palette.muted}, "traceorder": "normal"},
        "hoverlabel": {"align": "left"},
    }
    chart.update_layout(**{**common, **layout})
    axis = {"gridcolor": palette.grid, "zeroline": False, "fixedrange": True, "tickfont": {"color": palette.muted}}
    title = {"font": {"color": palette.muted}}
    chart.update_xaxes(**axis, title=title)
    chart.update_yaxes(**axis, title=title)
    return chart


def time_axis(chart: go.Figure, at_ms: Sequence[int], **more: Any) -> go.Figure:
    """Ticks on whole minutes, hours or days, whatever the span of `at_ms` (UTC); one under an hour is widened to that.

    Left to itself, Plotly divides a span of no length into fractions of milliseconds.
    """
    if at_ms:
        start, end = min(at_ms), max(at_ms)
        # Beyond the ends too, since a mark that stands there is cut in half otherwise.
        lacking = max(HOUR - (end - start), (end - start) // 25) // 2
        more.setdefault("range", [to_iso(start - lacking), to_iso(end + lacking)])
    return chart.update_xaxes(type="date", tickformatstops=_STOPS, **more)


def count_step(most: float, ticks: int = 5) -> int:
    """The step of an axis of counts up to `most` with about `ticks` ticks: 1, 2 or 5 times a power of ten."""
    size = 1
    while True:
        for step in (size, 2 * size, 5 * size):
            if most <= step * ticks:
                return step
        size *= 10


def show(chart: go.Figure, key: str, alt: str) -> None:
    """Draw `chart`; `alt` says in words what it shows."""
    st.plotly_chart(chart, key=key, config=CONFIG, alt=alt)
