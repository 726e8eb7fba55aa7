"""Page: one GPU over time, and all that is known and said of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models import FindingOut, GpuDetail, GpuSummary, PredictionOut
from tocsin.dashboard import style, timeline
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.format import (
    chance,
    clock,
    degrees,
    eta_text,
    gpu_label,
    metric_label,
    percent,
    quantity,
    readable,
    seconds_between,
    watts,
    without_label,
)
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.overview import needing_attention
from tocsin.dashboard.palette import SEVERITY_STATES, SYMBOLS
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, from_iso
from tocsin.domain.metrics import METRICS
from tocsin.domain.prediction import PredictionStatus

DEFAULT_METRICS = (
    "gpu_temperature_celsius",
    "gpu_utilization_ratio",
    "gpu_memory_used_ratio",
    "gpu_power_watts",
)
SPANS = {"1 h": HOUR, "6 h": 6 * HOUR, "24 h": 24 * HOUR, "7 d": 168 * HOUR}
_POINTS = 500
_NOT_DRAWN = {"gpu_xid_last_code"}
"""Metrics that findings speak of and whose course tells nothing: the code is drawn as an event."""
_SHOWN = 8
"""Entries of each list beside the chart."""


def _remember() -> None:
    st.query_params["gpu"] = st.session_state["chosen_gpu"]


def _choose(gpus: Sequence[GpuSummary], text: Text) -> str:
    """The GPU of the URL, else the one that needs attention most."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    asked = st.query_params.get("gpu", "")
    if asked and asked not in by_uuid:
        st.warning(text("gpu.unknown", uuid=asked))
    if asked not in by_uuid:
        asked = next(iter(needing_attention(gpus)), gpus[0]).uuid
        st.query_params["gpu"] = asked
    st.session_state["chosen_gpu"] = asked
    chosen: str = st.selectbox(
        text("gpu.choose"),
        list(by_uuid),
        key="chosen_gpu",
        format_func=lambda uuid: (
            f"{SYMBOLS[by_uuid[uuid].state]} {gpu_label(by_uuid[uuid])}" if uuid in by_uuid else uuid
        ),
        on_change=_remember,
        label_visibility="collapsed",
    )
    return chosen


def _span(text: Text) -> int:
    choice = st.segmented_control(
        text("gpu.span"),
        list(SPANS),
        default="6 h",
        required=True,
        key="span",
        format_func=lambda name: text(f"unit.{name.split()[1]}", n=name.split()[0]),
        label_visibility="collapsed",
    )
    return SPANS[choice]


def _facts(detail: GpuDetail) -> str:
    gpu = detail.summary
    known = [
        ("", gpu.model),
        ("", gpu.pool),
        ("", gpu.rack),
        ("PCI", detail.pci_bus_id),
        ("SN", detail.serial),
        ("MIG", gpu.mig_profile),
        ("", gpu.uuid),
    ]
    return style.facts(known)


def _figures(gpu: GpuSummary, text: Text) -> str:
    age = "" if gpu.last_reading_age_s is None else text("reading.age", age=text.duration(gpu.last_reading_age_s))
    return style.kpis(
        [
            style.kpi(text("gpu.state"), text.name("state", gpu.state.value), age, gpu.state),
            style.kpi(text("gpu.temperature"), degrees(gpu.temperature_celsius), ""),
            style.kpi(text("gpu.utilization"), percent(gpu.utilization_ratio), ""),
            style.kpi(text("gpu.memory"), percent(gpu.memory_used_ratio), ""),
            style.kpi(text("gpu.power"), watts(gpu.power_watts), ""),
        ]
    )


def _wanted(detail: GpuDetail, text: Text) -> list[str]:
    """The usual metrics and those that findings and predictions speak of; a person may choose others."""
    spoken = [f.metric for f in detail.findings] + [p.metric for p in detail.predictions]
    wanted = list(dict.fromkeys([*DEFAULT_METRICS, *(name for name in spoken if name and name not in _NOT_DRAWN)]))
    moving = [name for name in detail.values if name not in METRICS or not METRICS[name].static]
    options = list(dict.fromkeys([*wanted, *moving]))
    return st.multiselect(
        text("gpu.metrics"),
        options,
        default=wanted[:5],
        format_func=metric_label,
        key=f"metrics-{detail.summary.uuid}",
        max_selections=8,
        label_visibility="collapsed",
    )


def _series(client: Client, detail: GpuDetail, now: str, text: Text) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        span = _span(text)
        with st.popover(text("gpu.metrics"), icon=":material/tune:"):
            metrics = _wanted(detail, text)
    now_ms = from_iso(now)
    series = client.series(detail.summary.uuid, metrics, now_ms - span, now_ms + 1, _POINTS) if metrics else None
    if series is None or not any(value is not None for values in series.metrics.values() for value in values):
        st.info(text("gpu.no_series"))
        return
    chart = timeline.figure(series, detail, now, text, current_palette())
    st.plotly_chart(chart, key="timeline", config={"displayModeBar": False}, alt=gpu_label(detail.summary))


def _finding(finding: FindingOut, label: str, now: str, text: Text) -> str:
    what = f"<b>{escape(finding.rule)}</b> {escape(without_label(finding.sentence, label))}"
    if finding.active:
        when = text("finding.since", age=text.duration(max(0.0, seconds_between(finding.started, now))))
        return style.row(style.sign(SEVERITY_STATES[finding.severity]), what, when)
    when = text("finding.ended", age=text.duration(max(0.0, seconds_between(finding.last, now))))
    return style.row('<span class="tc-sign tc-muted">○</span>', f'<span class="tc-muted">{what}</span>', when)


def _more(count: int, text: Text) -> list[str]:
    if count <= _SHOWN:
        return []
    return [f'<span class="tc-muted">{escape(text("attention.more", n=count - _SHOWN))}</span>']


def _prediction(prediction: PredictionOut, label: str, now: str, text: Text) -> str:
    said = prediction.sentence_zh if text.language == "zh" and prediction.sentence_zh else prediction.sentence
    sentence = escape(without_label(said, label))
    sure = "" if prediction.probability is None else f"{chance(prediction.probability)} · "
    when = eta_text(text, now, prediction.eta, prediction.eta_low, prediction.eta_high)
    model = f"{prediction.model} {prediction.model_version}"
    what = (
        f'<span class="tc-forecast">{escape(sure + when)}</span><br>{sentence} '
        f'<span class="tc-muted">({escape(model)})</span>'
    )
    return style.row('<span class="tc-sign tc-forecast">↗</span>', what)


def _quiet(predictions: Sequence[PredictionOut], text: Text) -> list[str]:
    """One line for all predictions of a status that warns of nothing; the reason why, where data are lacking."""
    lines = []
    for status in (PredictionStatus.NO_CROSSING, PredictionStatus.UNLIKELY, PredictionStatus.NOT_ENOUGH_DATA):
        found = [prediction for prediction in predictions if prediction.status is status]
        if found:
            about = ", ".join(dict.fromkeys(metric_label(p.metric) if p.metric else p.target for p in found))
            reason = f" ({found[0].reason})" if found[0].reason else ""
            what = f"{text.name('prediction', status.value)}: {about}{reason}"
            lines.append(
                style.row('<span class="tc-sign tc-muted">○</span>', f'<span class="tc-muted">{escape(what)}</span>')
            )
    return lines


def _section(heading: str, rows: Sequence[str], empty: str) -> None:
    body = "".join(rows) or f'<span class="tc-muted">{escape(empty)}</span>'
    st.html(style.title(heading) + body)


def _said(detail: GpuDetail, now: str, text: Text) -> None:
    label = gpu_label(detail.summary)
    shown = sorted(detail.findings, key=lambda f: (f.active, f.severity.rank, f.last), reverse=True)
    findings = [_finding(finding, label, now, text) for finding in shown[:_SHOWN]]
    findings += _more(len(shown), text)
    _section(text("gpu.findings"), findings, text("gpu.findings.none"))
    warned = [p for p in detail.predictions if p.status in (PredictionStatus.CROSSING, PredictionStatus.LIKELY)]
    predictions = [_prediction(prediction, label, now, text) for prediction in warned]
    predictions += _quiet(detail.predictions, text)
    _section(text("gpu.predictions"), predictions, text("gpu.predictions.none"))
    events = [
        style.row(
            '<span class="tc-sign">│</span>',
            f"<b>{escape(text.name('event', event.kind.value))} {event.code or ''}</b> {escape(event.message)}",
            clock(event.at),
        )
        for event in sorted(detail.events, key=lambda event: event.at, reverse=True)[:_SHOWN]
    ]
    events += _more(len(detail.events), text)
    _section(text("gpu.events"), events, text("gpu.events.none"))
    decisions = [
        style.row(
            '<span class="tc-sign">›</span>',
            escape(readable(decision.sentence)),
            text.name("decision_state", decision.state.value),
        )
        for decision in detail.decisions[:_SHOWN]
    ]
    decisions += _more(len(detail.decisions), text)
    _section(text("gpu.decisions"), decisions, text("gpu.decisions.none"))


def _values(detail: GpuDetail, text: Text) -> None:
    with st.expander(text("gpu.values", n=len(detail.values))):
        rows = [
            [escape(metric_label(name)), *map(escape, quantity(name, value)), f"<code>{escape(name)}</code>"]
            for name, value in sorted(detail.values.items())
        ]
        head = [text("column.metric"), text("column.value"), text("column.unit"), ""]
        st.html(style.table(head, rows, numbers=[1]))
    if detail.missing:
        with st.expander(text("gpu.missing", n=len(detail.missing))):
            lines = [
                [escape(metric_label(name)), escape(text.name("missing", reason)), f"<code>{escape(name)}</code>"]
                for name, reason in sorted(detail.missing.items())
            ]
            st.html(style.table([text("column.metric"), text("column.reason"), ""], lines))


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text = current_text()
    with api(text) as client:
        gpus = client.gpus()
        if not gpus:
            st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")
            return
        chooser, facts = st.columns([2, 5], vertical_alignment="center")
        with chooser:
            uuid = _choose(gpus, text)
        now, detail = client.summary().now, client.gpu(uuid)
        facts.html(_facts(detail))
        st.html(_figures(detail.summary, text))
        left, right = st.columns([5, 3], gap="medium")
        with left:
            _series(client, detail, now, text)
        with right:
            _said(detail, now, text)
        _values(detail, text)
