"""Charts of the scoreboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from tocsin.client.models import GpuState, ReliabilityBin, RuleScore
from tocsin.dashboard.charts import plain
from tocsin.dashboard.format import share
from tocsin.dashboard.palette import Palette, ink
from tocsin.dashboard.text import Text

_BAR = 26
"""Height of one bar with its gap, pixels."""
_RULES_SHOWN = 9
"""Bars of the chart by rule; the table has all rules."""
_FEW = 12
"""With no more leads than this the axis counts one by one."""
FLOOR = 1e-4
"""Lowest frequency on the axis of the reliability diagram; what is below is drawn at the edge."""


def followed(rule: RuleScore) -> int:
    """Decisions of a rule and action."""
    return rule.confirmed + rule.unconfirmed + rule.pending


def by_rule(rules: Sequence[RuleScore], text: Text, palette: Palette) -> go.Figure:
    """Decisions by rule and action: confirmed, not confirmed, still open."""
    order = sorted(rules, key=followed)[-_RULES_SHOWN:]
    parts = [
        ("score.confirmed", palette.line, "", [rule.confirmed for rule in order]),
        ("score.unconfirmed", palette.states[GpuState.WARNING], "/", [rule.unconfirmed for rule in order]),
        ("score.pending", palette.states[GpuState.STALE], ".", [rule.pending for rule in order]),
    ]
    chart = go.Figure(
        [
            go.Bar(
                y=[f"{rule.rule} · {text.name('action', rule.action.value)}" for rule in order],
                x=counts,
                orientation="h",
                name=text(key),
                marker={
                    "color": colour,
                    "pattern": {"shape": shape, "fillmode": "overlay", "fgopacity": 0.2, "size": 6},
                },
                insidetextfont={"size": 12, "color": ink(colour)},
                text=[str(count) if count else "" for count in counts],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate="%{y}: %{x}<extra>%{fullData.name}</extra>",
            )
            for key, colour, shape, counts in parts
        ]
    )
    drawn = plain(chart, _BAR * len(order) + 76, palette, barmode="stack", bargap=0.35)
    return drawn.update_yaxes(showgrid=False)


def by_guard(held_by: Mapping[str, int], text: Text, palette: Palette) -> go.Figure:
    """How often each guard held something."""
    order = sorted(held_by.items(), key=lambda item: item[1])[-_RULES_SHOWN:]
    chart = go.Figure(
        go.Bar(
            y=[text.name("guard", guard) for guard, _ in order],
            x=[count for _, count in order],
            orientation="h",
            marker={"color": palette.line},
            text=[str(count) for _, count in order],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
        )
    )
    return plain(chart, _BAR * len(order) + 40, palette, bargap=0.35).update_yaxes(showgrid=False)


def leads(lead_s: Sequence[float], text: Text, palette: Palette, height: int = 240) -> go.Figure:
    """How long before, as counts."""
    hours = [lead / 3600 for lead in lead_s]
    chart = go.Figure(go.Histogram(x=hours, nbinsx=16, marker={"color": palette.forecast}, hoverinfo="y"))
    plain(chart, height, palette, bargap=0.05)
    chart.update_xaxes(title={"text": text("score.leads.axis")})
    step = 1 if len(hours) <= _FEW else None
    return chart.update_yaxes(title={"text": text("score.leads.count")}, tickformat="d", dtick=step)


def reliability(bins: Sequence[ReliabilityBin], text: Text, palette: Palette, height: int = 380) -> go.Figure:
    """Stated against observed, both logarithmic, each with its interval and its count, beside the ideal line."""
    chart = go.Figure(
        go.Scatter(
            x=[FLOOR, 1],
            y=[FLOOR, 1],
            mode="lines",
            name=text("score.ideal"),
            line={"dash": "dash", "color": palette.muted, "width": 1},
            hoverinfo="skip",
        )
    )
    y = [max(FLOOR, one.observed) for one in bins]
    highs = [max(0.0, (one.observed_high or one.observed) - at) for one, at in zip(bins, y, strict=True)]
    lows = [max(0.0, at - max(FLOOR, one.observed_low or FLOOR)) for one, at in zip(bins, y, strict=True)]
    chart.add_scatter(
        x=[max(FLOOR, one.stated) for one in bins],
        y=y,
        mode="markers+text",
        name=text("score.observed"),
        text=[f"{one.predictions:,}" for one in bins],
        textposition="bottom right",
        textfont={"size": 11, "color": palette.muted},
        error_y={"array": highs, "arrayminus": lows, "color": palette.line, "thickness": 1.5, "width": 4},
        marker={
            "size": 10,
            "opacity": 1,
            "color": palette.line,
            "symbol": ["circle" if one.observed >= FLOOR else "circle-open" for one in bins],
        },
        customdata=[_told(one, text) for one in bins],
        hovertemplate="%{customdata}<extra></extra>",
    )
    plain(chart, height, palette, showlegend=False)
    axis = {"type": "log", "range": [math.log10(FLOOR) - 0.35, 0.1], "tickformat": "~%"}
    ticks = {"tickvals": [1e-4, 1e-3, 1e-2, 1e-1, 1], "ticktext": ["≤ 0.01 %", "0.1 %", "1 %", "10 %", "100 %"]}
    chart.update_xaxes(**axis, **ticks, title={"text": text("score.stated")})
    return chart.update_yaxes(**axis, **ticks, title={"text": text("score.observed")})


def _told(one: ReliabilityBin, text: Text) -> str:
    return text(
        "score.reliability.hover",
        stated=share(one.stated),
        observed=share(one.observed),
        low=share(one.observed_low),
        high=share(one.observed_high),
        n=one.predictions,
        days=f"{one.gpu_days:,.0f}",
    )
