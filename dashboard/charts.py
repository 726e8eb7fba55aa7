"""The look that all charts share: transparent ground, quiet grid, no tool bar."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

from tocsin.dashboard.palette import Palette

CONFIG = {"displayModeBar": False}


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


def show(chart: go.Figure, key: str, alt: str) -> None:
    """Draw `chart`; `alt` says in words what it shows."""
    st.plotly_chart(chart, key=key, config=CONFIG, alt=alt)
