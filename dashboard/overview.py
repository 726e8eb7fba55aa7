"""Page: the fleet at a glance, and what needs attention now."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import FleetSummary, GpuState, GpuSummary, IncidentOut
from tocsin.dashboard import heatmap, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.format import (
    chance,
    eta_text,
    gpu_label,
    markdown_safe,
    percent,
    seconds_between,
    subject_label,
    watts,
    without_label,
)
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import SEVERITY_STATES, SYMBOLS, Palette
from tocsin.dashboard.text import Text
from tocsin.domain.subject import SubjectKind

GPU_PAGE = "page_gpu.py"
DECISION_PAGE = "page_decisions.py"
_SHOWN = 9
"""Items of the attention list: as many as fit beside the map."""
_WIDE_SHOWN = 3
"""Of these, how many are kept for incidents of pools, hosts and the fleet."""


def needing_attention(gpus: Sequence[GpuSummary]) -> list[GpuSummary]:
    """GPUs that are not well or not expected to stay so: worst state first, then most probable, then soonest."""
    chosen = [gpu for gpu in gpus if gpu.state is not GpuState.OK or gpu.prediction]
    return sorted(chosen, key=lambda gpu: (-gpu.state.rank, -(gpu.probability or 0.0), gpu.eta or "~", gpu.uuid))


def _states(summary: FleetSummary, text: Text) -> list[str]:
    def count(which: GpuState) -> int:
        return summary.states.get(which, 0)

    critical, lost = count(GpuState.CRITICAL), count(GpuState.LOST)
    warning, stale = count(GpuState.WARNING), count(GpuState.STALE)
    bad = text("kpi.critical.note", critical=critical, lost=lost)
    old = text("kpi.warning.note", stale=stale)
    worst = GpuState.CRITICAL if critical + lost else GpuState.OK
    return [
        style.kpi(text("kpi.critical"), str(critical + lost), bad, worst),
        style.kpi(text("kpi.warning"), str(warning), old, GpuState.WARNING if warning else GpuState.OK),
    ]


def _figures(summary: FleetSummary, text: Text) -> str:
    predictions, waiting = summary.predictions, summary.decisions_approvable
    held = text("kpi.decisions.note", held=summary.decisions_held)
    size = text("kpi.gpus.note", hosts=summary.hosts, pools=summary.pools)
    load = text("kpi.load.note", memory=percent(summary.memory_used_ratio), power=watts(summary.power_watts))
    ahead, mine = "forecast" if predictions else "grid", "line" if waiting else "grid"
    return style.kpis(
        [
            *_states(summary, text),
            style.kpi(text("kpi.predictions"), str(predictions), text("kpi.predictions.note"), edge=ahead),
            style.kpi(text("kpi.decisions"), str(waiting), held, edge=mine),
            style.kpi(text("kpi.gpus"), f"{summary.gpus:,}", size),
            style.kpi(text("kpi.load"), percent(summary.utilization_ratio), load),
        ]
    )


def _sentences(gpu: GpuSummary, now: str, text: Text) -> str:
    label = gpu_label(gpu)
    lines = [escape(without_label(gpu.finding, label))] if gpu.finding else []
    if gpu.prediction:
        when = eta_text(text, now, gpu.eta, gpu.eta_low, gpu.eta_high)
        sure = "" if gpu.probability is None else f"{chance(gpu.probability)} · "
        told = escape(without_label(gpu.prediction, label))
        lines.append(f'<span class="tc-forecast">↗ {escape(sure + when)}</span> {told}')
    if not lines and gpu.last_reading_age_s is not None:
        lines.append(text("reading.age", age=text.duration(gpu.last_reading_age_s)))
    return "<br>".join(lines)


def _item(gpu: GpuSummary, now: str, text: Text) -> None:
    mark = style.sign(gpu.state) if gpu.state is not GpuState.OK else '<span class="tc-sign tc-forecast">↗</span>'
    with st.container(horizontal=True, wrap=False, vertical_alignment="top", gap="small"):
        st.html(mark, width="content")
        label = f":primary[{markdown_safe(gpu_label(gpu))}]"
        st.page_link(GPU_PAGE, label=label, query_params={"gpu": gpu.uuid, "lang": text.language}, width=150)
        st.html(style.row("", _sentences(gpu, now, text)))


def _incident(incident: IncidentOut, now: str, text: Text) -> None:
    """An incident of a host, a pool or the fleet: it has no cell on the map."""
    label = subject_label(incident.root.subject, {})
    mark = style.sign(SEVERITY_STATES[incident.root.severity])
    words = escape(without_label(incident.sentence, label))
    age = text("finding.since", age=text.duration(max(0.0, seconds_between(incident.opened, now))))
    with st.container(horizontal=True, wrap=False, vertical_alignment="top", gap="small"):
        st.html(mark, width="content")
        st.html(f'<span class="tc-name">{escape(label)}</span>', width=150)
        st.html(style.row("", f'{words} <span class="tc-muted">{escape(age)}</span>'))


def _attention(gpus: Sequence[GpuSummary], incidents: Sequence[IncidentOut], summary: FleetSummary, text: Text) -> None:
    now = summary.now
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("attention")))
        if summary.decisions_approvable:
            st.page_link(
                DECISION_PAGE,
                label=text("attention.decisions", n=summary.decisions_approvable),
                icon=":material/gavel:",
                query_params={"lang": text.language},
            )
    ranked = needing_attention(gpus)
    wide = [incident for incident in incidents if incident.root.subject.kind is not SubjectKind.GPU]
    if not ranked and not wide:
        st.success(text("attention.none"), icon=":material/check_circle:")
    for gpu in ranked[: _SHOWN - min(len(wide), _WIDE_SHOWN)]:
        _item(gpu, now, text)
    for incident in wide[:_WIDE_SHOWN]:
        _incident(incident, now, text)
    hidden = len(ranked) + len(wide) - _SHOWN
    if hidden > 0:
        st.caption(text("attention.more", n=hidden))


def _map(gpus: Sequence[GpuSummary], text: Text, palette: Palette) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("fleet")), width="content")
        choice = st.segmented_control(
            text("fleet"),
            list(heatmap.MEASURES),
            default="state",
            format_func=lambda name: text(f"colour.{name}"),
            required=True,
            key="colour",
            label_visibility="collapsed",
        )
    chart, uuids = heatmap.figure(gpus, choice, text, palette)
    event = st.plotly_chart(
        chart,
        key="map",
        on_select="rerun",
        selection_mode="points",
        config={"displayModeBar": False},
        alt=text("fleet"),
    )
    if choice == "state":
        pairs = [(palette.states[state], f"{SYMBOLS[state]} {text.name('state', state.value)}") for state in GpuState]
        st.html(style.legend(pairs))
    st.caption(text("fleet.hint"))
    points = event.selection.points
    if points:
        st.switch_page(GPU_PAGE, query_params={"gpu": uuids[points[0]["point_index"]], "lang": text.language})


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        summary, gpus, incidents = client.summary(), client.gpus(), client.incidents()
        st.html(_figures(summary, text))
        if not gpus:
            st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")
            return
        left, right = st.columns([5, 4], gap="medium")
        with left:
            _map(gpus, text, palette)
        with right:
            _attention(gpus, incidents, summary, text)
