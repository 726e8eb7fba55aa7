"""The scoreboard's part about stated probabilities of faults: one model, version, target and horizon at a time."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from tocsin.client.models import HazardScore
from tocsin.dashboard import charts, link, score_charts, style
from tocsin.dashboard.format import NOTHING, percent, share
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text

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
            drawn = score_charts.reliability(score.reliability, text, palette)
            charts.show(drawn, "reliability", text("score.reliability"))
            st.html(style.note(text("score.reliability.note")))
        else:
            st.html(style.note(text("score.reliability.none")))
    with right:
        st.html(_figures(score, text))
        st.html(style.title(text("score.leads")))
        if score.lead_s:
            drawn = score_charts.leads(score.lead_s, text, palette, 170)
            charts.show(drawn, "hazard-leads", text("score.leads"))
            st.html(style.note(text("score.first")))
        else:
            st.html(style.note(text("score.no_hits")))


def _figures(score: HazardScore, text: Text) -> str:
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
