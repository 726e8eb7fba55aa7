"""Page: what would have been done, and how often it would have been right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models import GpuState, PredictionScore, RuleScore, Scoreboard
from tocsin.dashboard import style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.format import NOTHING, clock, percent
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text

_BAR = 30
"""Height of one bar with its gap, pixels."""
_RULES_SHOWN = 10
"""Bars of the chart by rule; the table below has all rules."""


def _rate(score: PredictionScore) -> str:
    settled = score.hits + score.misses
    return percent(score.hits / settled) if settled else NOTHING


def _figures(score: Scoreboard, text: Text) -> str:
    told = score.predictions
    lead = text.duration(median(told.lead_s)) if told.lead_s else NOTHING
    rate_note = text("score.rate.note", hits=told.hits, settled=told.hits + told.misses, pending=told.pending)
    return style.kpis(
        [
            style.kpi(text("score.decisions"), str(score.decisions), ""),
            style.kpi(text("score.acted"), str(score.would_have_acted), text("score.acted.note", n=score.executed)),
            style.kpi(text("score.held"), str(score.held), ""),
            style.kpi(text("score.confirmed"), str(score.confirmed), text("score.confirmed.note")),
            style.kpi(text("score.rate"), _rate(told), rate_note),
            style.kpi(text("score.lead"), lead, text("score.lead.note")),
        ]
    )


def _plain(chart: go.Figure, height: int, palette: Palette) -> go.Figure:
    chart.update_layout(
        height=height,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        barmode="stack",
        bargap=0.35,
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": -0.12, "x": 0, "font": {"color": palette.muted}, "traceorder": "normal"},
    )
    axis = {"gridcolor": palette.grid, "zeroline": False, "fixedrange": True, "tickfont": {"color": palette.muted}}
    chart.update_xaxes(**axis)
    chart.update_yaxes(**axis)
    return chart


def _followed(rule: RuleScore) -> int:
    return rule.confirmed + rule.unconfirmed + rule.pending


def _by_rule(rules: Sequence[RuleScore], text: Text, palette: Palette) -> go.Figure:
    order = sorted(rules, key=_followed)[-_RULES_SHOWN:]
    parts = [
        ("score.confirmed", palette.line, "", [rule.confirmed for rule in order]),
        ("score.unconfirmed", palette.states[GpuState.WARNING], "/", [rule.unconfirmed for rule in order]),
        ("score.pending", palette.states[GpuState.STALE], ".", [rule.pending for rule in order]),
    ]
    chart = go.Figure(
        [
            go.Bar(
                y=[rule.rule for rule in order],
                x=counts,
                orientation="h",
                name=text(key),
                marker={
                    "color": colour,
                    "pattern": {"shape": shape, "fillmode": "overlay", "fgopacity": 0.35, "size": 6},
                },
                text=[str(count) if count else "" for count in counts],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate="%{y}: %{x}<extra>%{fullData.name}</extra>",
            )
            for key, colour, shape, counts in parts
        ]
    )
    return _plain(chart, _BAR * len(order) + 90, palette).update_yaxes(showgrid=False)


def _by_guard(held_by: dict[str, int], text: Text, palette: Palette) -> go.Figure:
    order = sorted(held_by.items(), key=lambda item: item[1])
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
    return _plain(chart, _BAR * len(order) + 50, palette).update_yaxes(showgrid=False)


def _leads(lead_s: Sequence[float], text: Text, palette: Palette) -> go.Figure:
    chart = go.Figure(
        go.Histogram(x=[lead / 3600 for lead in lead_s], nbinsx=16, marker={"color": palette.forecast}, hoverinfo="y")
    )
    chart.update_xaxes(title={"text": text("score.leads.axis"), "font": {"color": palette.muted}})
    return _plain(chart, 220, palette)


def _rules_table(rules: Sequence[RuleScore], text: Text) -> str:
    rows = []
    for rule in rules:
        held = ", ".join(f"{text.name('guard', guard)} {count}" for guard, count in rule.held_by.items())
        counts = (rule.decisions, rule.would_have_acted, rule.confirmed, rule.unconfirmed, rule.pending)
        words = [escape(rule.rule), escape(text.name("action", rule.action.value))]
        rows.append([*words, *(str(count) for count in counts), escape(held)])
    keys = ("column.rule", "column.action", "score.decisions", "score.acted", "score.confirmed", "score.unconfirmed")
    head = [*(text(key) for key in keys), text("score.pending"), text("column.held_by")]
    return style.table(head, rows, numbers=[2, 3, 4, 5, 6])


def _predictions_table(told: PredictionScore, text: Text) -> str:
    counts = {
        "made": told.made,
        "hits": told.hits,
        "misses": told.misses,
        "pending": told.pending,
        "silent": told.not_enough_data,
    }
    return style.table(["", ""], [[escape(text(f"score.{key}")), str(n)] for key, n in counts.items()], numbers=[1])


def _chart(heading: str, chart: go.Figure | None, empty: str, key: str) -> None:
    st.html(style.title(heading))
    if chart is None:
        st.caption(empty)
    else:
        st.plotly_chart(chart, key=key, config={"displayModeBar": False}, alt=heading)


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        score = client.scoreboard()
    st.caption(text("score.intro", since=f"{clock(score.since)} UTC"))
    st.html(_figures(score, text))
    if not score.rules:
        st.info(text("score.none"))
        return
    told = score.predictions
    left, right = st.columns([5, 4], gap="medium")
    with left:
        _chart(text("score.by_rule"), _by_rule(score.rules, text, palette), "", "rules")
        leads = _leads(told.lead_s, text, palette) if told.lead_s else None
        _chart(text("score.leads"), leads, text("score.no_hits"), "leads")
    with right:
        guards = _by_guard(score.held_by, text, palette) if score.held_by else None
        _chart(text("score.by_guard"), guards, text("score.nothing_held"), "guards")
        st.html(style.title(text("score.predictions")) + _predictions_table(told, text))
        if told.hits:
            st.caption(text("score.interval", n=told.within_interval, hits=told.hits))
    st.html(style.title(text("score.table")) + _rules_table(score.rules, text))
