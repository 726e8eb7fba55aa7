"""Page: what would have been done, how often it would have been right, and whether probabilities mean what they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models import (
    ActionScore,
    GpuState,
    HazardScore,
    PredictionScore,
    ReliabilityBin,
    RuleScore,
    Scoreboard,
)
from tocsin.client.models_report import MorningReport, ReportTopic
from tocsin.client.models_rules import RuleRecord
from tocsin.dashboard import cells, charts, link, style, whole_answers
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.charts import count_step, plain
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette, ink
from tocsin.dashboard.text import NOTHING, Text, clock, effect_words, percent, share
from tocsin.domain.decision import Mode

# Charts of the scoreboard.

_BAR = 26
"""Height of one bar with its gap, pixels."""
_RULES_SHOWN = 9
"""Bars of the chart by rule; the table has all rules."""
_BINS = 16
"""Bins of the leads at most."""
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
    most = max((sum(column) for column in zip(*(counts for *_, counts in parts), strict=True)), default=0)
    drawn.update_xaxes(dtick=count_step(most), tickformat=",d")
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
    plain(chart, _BAR * len(order) + 40, palette, bargap=0.35)
    chart.update_xaxes(dtick=count_step(max((count for _, count in order), default=0)), tickformat=",d")
    return chart.update_yaxes(showgrid=False)


def lead_chart(lead_s: Sequence[float], text: Text, palette: Palette, height: int = 240) -> go.Figure:
    """How long before, as counts in bins of whole hours."""
    hours = [max(0.0, lead / 3600) for lead in lead_s]
    width = max(1, math.ceil(max(hours, default=0.0) / _BINS))
    counts = Counter(int(lead // width) for lead in hours)
    places = sorted(counts)
    chart = go.Figure(
        go.Bar(
            x=[(place + 0.5) * width for place in places],
            y=[counts[place] for place in places],
            width=0.95 * width,
            marker={"color": palette.forecast},
            customdata=[[place * width, (place + 1) * width] for place in places],
            hovertemplate="%{y} (%{customdata[0]:d} – %{customdata[1]:d} h)<extra></extra>",
        )
    )
    plain(chart, height, palette)
    ahead = [0, (places[-1] + 1) * width] if places else [0, 1]
    chart.update_xaxes(title={"text": text("score.leads.axis")}, range=ahead)
    step = count_step(max(counts.values(), default=0))
    return chart.update_yaxes(title={"text": text("score.leads.count")}, tickformat=",d", dtick=step)


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


# The scoreboard's part about stated probabilities of faults: one model, version, target and horizon at a time.

FEW_ONSETS = 30
"""With fewer faults than this the figures come with a warning (own choice: the intervals are wider than 30 points)."""


def named(one: HazardScore, text: Text) -> str:
    """Model, version, target and horizon in one line."""
    model = f"{one.model} {one.model_version}".strip()
    return f"{model} · {text.name('target', one.target)} · {text.duration(one.horizon_s)}"


def hazards(scores: Sequence[HazardScore], text: Text, palette: Palette) -> None:
    """Draw one score, chosen by a list that is kept in the URL."""
    if not scores:
        st.info(text("score.hazard.none"))
        return
    names = [f"{one.model}/{one.model_version}/{one.target}/{one.horizon_s:g}" for one in scores]
    most = max(range(len(scores)), key=lambda n: (scores[n].predictions, scores[n].pending))
    st.session_state["model"] = link.read("model", names[most], names)
    chosen = st.selectbox(
        text("score.hazard"),
        names,
        key="model",
        label_visibility="collapsed",
        format_func=lambda name: named(scores[names.index(name)], text),
        on_change=lambda: link.write("model", st.session_state["model"], names[most]),
    )
    _one(scores[names.index(chosen)], text, palette)


def _one(score: HazardScore, text: Text, palette: Palette) -> None:
    if not score.predictions or not score.onsets:
        words = text("score.hazard.early", known=score.predictions, pending=score.pending, onsets=score.onsets)
        st.info(words, icon=":material/hourglass_empty:")
    elif score.onsets < FEW_ONSETS:
        st.html(style.note(text("score.hazard.few", onsets=score.onsets)))
    if not score.predictions:
        return
    left, right = st.columns([5, 6], gap="medium")
    with left:
        st.html(style.title(text("score.reliability")))
        if score.reliability:
            charts.show(reliability(score.reliability, text, palette), "reliability", text("score.reliability"))
            st.html(style.note(text("score.reliability.note")))
        else:
            st.html(style.note(text("score.reliability.none")))
    with right:
        st.html(_hazard_figures(score, text))
        st.html(style.title(text("score.leads")))
        if score.lead_s:
            charts.show(lead_chart(score.lead_s, text, palette, 170), "hazard-leads", text("score.leads"))
            st.html(style.note(text("score.first")))
        else:
            st.html(style.note(text("score.no_hits")))


def _hazard_figures(score: HazardScore, text: Text) -> str:
    warned = round((score.onset_recall or 0.0) * score.onsets)
    onsets_note = text(
        "score.onsets.note",
        n=warned,
        of=score.onsets,
        low=percent(score.onset_recall_low),
        high=percent(score.onset_recall_high),
    )
    false = score.false_alarms_per_1000_gpu_days
    false_note = text("score.false.note", n=score.false_alarms, of=score.alarms)
    days_note = text("score.days.note", known=f"{score.predictions:,}", pending=f"{score.pending:,}")
    rows = [
        ("precision", percent(score.precision), text("score.precision.note")),
        ("recall", percent(score.recall), text("score.recall.note")),
        ("onsets", percent(score.onset_recall), onsets_note),
        (
            "onsets.day",
            percent(score.onset_recall_24h),
            text("score.onsets.days", share=percent(score.onset_recall_48h)),
        ),
        ("false", NOTHING if false is None else f"{false:.3g}", false_note),
        ("auprc", _decimal(score.auprc), text("score.auprc.note", base=share(score.base_rate))),
        ("auc", _decimal(score.roc_auc), text("score.auc.note")),
        ("calibration", share(score.calibration_error), text("score.calibration.note", brier=_decimal(score.brier))),
        (
            "operators",
            percent(score.operator_precision),
            text("score.operators.note", yes=score.approved, no=score.rejected),
        ),
        ("days", text("score.days.value", n=f"{score.gpu_days:,.0f}"), days_note),
    ]
    return style.kpis([style.kpi(text(f"score.{key}"), value, note) for key, value, note in rows])


def _decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


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
    for rule in sorted(rules, key=followed, reverse=True):
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
            escape(", ".join(" ".join(effect_words(name, value, text)).strip() for name, value in one.effects.items())),
        ]
        for one in actions
    ]
    return style.table([text("column.action"), text("score.worked"), text("score.effects")], rows, numbers=[1])


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
        _chart(text("score.by_rule"), by_rule(score.rules, text, palette), "", "rules")
    with right_side:
        guards = by_guard(score.held_by, text, palette) if score.held_by else None
        _chart(text("score.by_guard"), guards, text("score.nothing_held"), "guards")
    st.html(style.title(text("score.table")) + _rules_table(score.rules, text))
    done = [one for one in score.actions if one.tried]
    body = _actions_table(done, text) if done else style.note(text("score.done.none"))
    st.html(style.title(text("score.done")) + body)


def _lacking(one: RuleRecord, text: Text) -> str:
    """What the record of a rule lacks, in the reader's language."""
    if not one.lacking:
        return text("record.enough")
    if one.settled < one.settled_needed:
        return text("record.cases", n=one.settled, of=one.settled_needed)
    if one.right_proven < one.right_needed:
        return text("record.wrong", proven=_floor(one.right_proven), needed=_floor(one.right_needed))
    return text("record.missed", proven=_floor(one.reached_proven), needed=_floor(one.reached_needed))


def _floor(share_: float) -> int:
    """Whole percent, rounded down: what is just too little must not read as enough."""
    return math.floor(share_ * 100 + 1e-9)


def records_table(records: Sequence[RuleRecord], text: Text) -> str:
    """Rules that are set to act or have cases: the mode in force, the record, and what is missing."""
    rows = []
    for one in records:
        if one.mode_set is not Mode.ACT and not one.settled and not one.measured:
            continue
        mode = text(f"mode.{one.mode.value}")
        set_to = "" if one.mode is one.mode_set else text("record.set", mode=text(f"mode.{one.mode_set.value}"))
        rows.append(
            [
                escape(one.rule),
                escape(f"{mode} {set_to}".strip()),
                f"{one.right} / {one.settled}",
                f"{one.reached} / {one.measured}",
                escape(text("record.waived") if one.waived else _lacking(one, text)),
                escape(f"{clock(one.since)} UTC" if one.since else NOTHING),
            ]
        )
    if not rows:
        return style.note(text("record.none"))
    keys = ("column.rule", "record.mode", "record.right", "record.reached", "record.lacking", "record.since")
    return style.table([text(key) for key in keys], rows, numbers=[2, 3]) + style.note(text("record.note"))


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
        leads = lead_chart(told.lead_s, text, palette) if told.lead_s else None
        _chart(text("score.leads"), leads, text("score.no_hits"), "leads")
        if told.hits:
            st.html(style.note(text("score.interval", n=told.within_interval, hits=told.hits)))
    with right_side:
        st.html(style.title(text("score.models")))
        if score.crossings:
            st.html(_models_table(score.crossings, text))
        else:
            st.html(style.note(text("score.models.none")))


def _report(reports: Mapping[str, MorningReport], text: Text) -> str:
    """The morning report, a line each sentence; of several cells each with those that say it, topic by topic."""
    lines = []
    for topic in ReportTopic:
        said = {
            name: [text.said(one.text, one.text_zh) for one in report.sentences if one.topic is topic]
            for name, report in reports.items()
        }
        lines += said[""] if "" in said else cells.each(said, text)
    return style.title(text("report.title")) + "".join(map(style.note, lines))


@live(REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        score, told = whole_answers.scoreboard_of(client)
        records, records_by = whole_answers.records_of(client)
        reports, reports_by = whole_answers.reports_of(client)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view = link.pick("board", text("score.view"), VIEWS, "rules", lambda one: text(f"score.view.{one}"))
        if score.simulated:
            st.html(style.bar([style.chip(text("simulated"), "tc-sim"), style.note(text("score.simulated"))]))
    partly = cells.partly_all((told, records_by, reports_by), text)
    if told is not None and view == "hazards":
        partly.append(text("score.cells"))
    if partly:
        st.html("".join(map(style.note, partly)))
    if view == "rules":
        st.html(_report(reports, text))
    if view != "hazards":
        st.html(_figures(score, text) + style.note(text("score.intro", since=f"{clock(score.since)} UTC")))
    if view == "rules":
        _rules(score, text, palette)
        st.html(style.title(text("record.title")) + records_table(records, text))
    elif view == "crossings":
        _crossings(score, text, palette)
    else:
        hazards(score.hazards, text, palette)


if __name__ == "__main__":
    render()
