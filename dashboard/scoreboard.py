"""Page: what would have been done, how often it would have been right, and whether probabilities mean what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models import ActionScore, PredictionScore, RuleScore, Scoreboard
from tocsin.dashboard import charts, link, score_charts, style
from tocsin.dashboard.access import api
from tocsin.dashboard.format import NOTHING, clock, effect_words, percent
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.score_hazards import hazards
from tocsin.dashboard.text import Text

REFRESH_SECONDS = 60.0
"""Scores change slowly, and the brain looks at weeks of readings for them."""
LEAST = 10
"""Fewer settled decisions than this are too few for a share (own choice)."""
VIEWS = ("rules", "crossings", "hazards")


def _rate(score: PredictionScore) -> str:
    settled = score.hits + score.misses
    return percent(score.hits / settled) if settled else NOTHING


def _lead(score: PredictionScore, text: Text) -> str:
    return text.duration(median(score.lead_s)) if score.lead_s else NOTHING


def _figures(score: Scoreboard, text: Text) -> str:
    told = score.predictions
    rate_note = text("score.rate.note", hits=told.hits, settled=told.hits + told.misses, pending=told.pending)
    return style.kpis(
        [
            style.kpi(text("score.decisions"), str(score.decisions), ""),
            style.kpi(text("score.acted"), str(score.would_have_acted), text("score.acted.note", n=score.executed)),
            style.kpi(text("score.held"), str(score.held), ""),
            style.kpi(text("score.confirmed"), str(score.confirmed), text("score.confirmed.note")),
            style.kpi(text("score.rate"), _rate(told), rate_note),
            style.kpi(text("score.lead"), _lead(told, text), text("score.lead.note")),
        ]
    )


def right(rule: RuleScore, text: Text) -> str:
    """How often decisions of a rule and action were followed by a hardware event; too few say so."""
    settled = rule.confirmed + rule.unconfirmed
    if settled == 0:
        return text("score.open_only")
    if settled < LEAST:
        return text("score.few", n=rule.confirmed, of=settled)
    return text("score.right.value", n=rule.confirmed, of=settled, share=percent(rule.confirmed / settled))


def _rules_table(rules: Sequence[RuleScore], text: Text) -> str:
    rows = []
    for rule in sorted(rules, key=score_charts.followed, reverse=True):
        held = ", ".join(f"{text.name('guard', guard)} {count}" for guard, count in rule.held_by.items())
        counts = (rule.decisions, rule.would_have_acted, rule.executed)
        words = [escape(rule.rule), escape(text.name("action", rule.action.value))]
        rows.append([*words, *map(str, counts), escape(right(rule, text)), str(rule.pending), escape(held)])
    keys = ("column.rule", "column.action", "score.decisions", "score.acted", "score.executed", "score.right")
    head = [*(text(key) for key in keys), text("score.pending"), text("column.held_by")]
    return style.table(head, rows, numbers=[2, 3, 4, 6])


def _actions_table(actions: Sequence[ActionScore], text: Text) -> str:
    rows = [
        [
            escape(text.name("action", one.action.value)),
            f"{one.worked} / {one.tried}",
            escape(_effects(one.effects, text)),
        ]
        for one in actions
    ]
    return style.table([text("column.action"), text("score.worked"), text("score.effects")], rows, numbers=[1])


def _effects(effects: Mapping[str, float], text: Text) -> str:
    return ", ".join(" ".join(effect_words(name, value, text)).strip() for name, value in effects.items())


def _chart(heading: str, chart: go.Figure | None, empty: str, key: str) -> None:
    st.html(style.title(heading))
    if chart is None:
        st.html(style.note(empty))
    else:
        charts.show(chart, key, heading)


def _rules(score: Scoreboard, text: Text, palette: Palette) -> None:
    if not score.rules:
        st.info(text("score.none"))
        return
    left, right_side = st.columns([5, 4], gap="medium")
    with left:
        _chart(text("score.by_rule"), score_charts.by_rule(score.rules, text, palette), "", "rules")
    with right_side:
        guards = score_charts.by_guard(score.held_by, text, palette) if score.held_by else None
        _chart(text("score.by_guard"), guards, text("score.nothing_held"), "guards")
    st.html(style.title(text("score.table")) + _rules_table(score.rules, text))
    done = [one for one in score.actions if one.tried]
    body = _actions_table(done, text) if done else style.note(text("score.done.none"))
    st.html(style.title(text("score.done")) + body)


def _models_table(parts: Sequence[PredictionScore], text: Text) -> str:
    rows = [
        [
            escape(f"{one.model} {one.model_version}".strip()),
            *map(str, (one.made, one.hits, one.misses, one.pending, one.not_enough_data)),
            _rate(one) if one.hits + one.misses >= LEAST else escape(text("score.open_only")),
            f"{one.within_interval} / {one.hits}",
            escape(_lead(one, text)),
        ]
        for one in parts
    ]
    keys = ("model", "made", "hits", "misses", "pending", "silent", "rate", "inside", "lead")
    return style.table([text(f"score.{key}") for key in keys], rows, numbers=list(range(1, 9)))


def _crossings(score: Scoreboard, text: Text, palette: Palette) -> None:
    told = score.predictions
    left, right_side = st.columns([4, 5], gap="medium")
    with left:
        leads = score_charts.leads(told.lead_s, text, palette) if told.lead_s else None
        _chart(text("score.leads"), leads, text("score.no_hits"), "leads")
        if told.hits:
            st.html(style.note(text("score.interval", n=told.within_interval, hits=told.hits)))
    with right_side:
        st.html(style.title(text("score.models")))
        if score.crossings:
            st.html(_models_table(score.crossings, text))
        else:
            st.html(style.note(text("score.models.none")))


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        score = client.scoreboard()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view = link.pick("board", text("score.view"), VIEWS, "rules", lambda one: text(f"score.view.{one}"))
        if score.simulated:
            st.html(style.bar([style.chip(text("simulated"), "tc-sim"), style.note(text("score.simulated"))]))
    if view != "hazards":
        st.html(_figures(score, text) + style.note(text("score.intro", since=f"{clock(score.since)} UTC")))
    if view == "rules":
        _rules(score, text, palette)
    elif view == "crossings":
        _crossings(score, text, palette)
    else:
        hazards(score.hazards, text, palette)
