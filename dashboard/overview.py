"""Page: the fleet at a glance, and what needs attention now."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import FleetSummary, GpuState, GpuSummary
from tocsin.dashboard import heatmap, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.format import eta_text, gpu_label, markdown_safe, percent, watts
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import SYMBOLS, Palette
from tocsin.dashboard.text import Text

GPU_PAGE = "page_gpu.py"
DECISION_PAGE = "page_decisions.py"
_SHOWN = 9
"""Items of the attention list: as many as fit beside the map."""


def needing_attention(gpus: Sequence[GpuSummary]) -> list[GpuSummary]:
    """GPUs that are not well or not expected to stay so: worst state first, then most probable, then soonest."""
    chosen = [gpu for gpu in gpus if gpu.state is not GpuState.OK or gpu.prediction]
    return sorted(chosen, key=lambda gpu: (-gpu.state.rank, -(gpu.probability or 0.0), gpu.eta or "~", gpu.uuid))


def _figures(summary: FleetSummary, text: Text) -> str:
    def state(which: GpuState) -> int:
        return summary.states.get(which, 0)

    critical, lost, stale = state(GpuState.CRITICAL), state(GpuState.LOST), state(GpuState.STALE)
    warning = state(GpuState.WARNING)
    load = text("kpi.load.note", memory=percent(summary.memory_used_ratio), power=watts(summary.power_watts))
    bad = GpuState.CRITICAL if critical + lost else GpuState.OK
    return style.kpis(
        [
            style.kpi(
                text("kpi.critical"),
                str(critical + lost),
                text("kpi.critical.note", critical=critical, lost=lost),
                bad,
            ),
            style.kpi(
                text("kpi.warning"),
                str(warning),
                text("kpi.warning.note", stale=stale),
                GpuState.WARNING if warning else GpuState.OK,
            ),
            style.kpi(
                text("kpi.predictions"),
                str(summary.predictions),
                text("kpi.predictions.note"),
                edge="forecast" if summary.predictions else "grid",
            ),
            style.kpi(
                text("kpi.decisions"),
                str(summary.decisions_approvable),
                text("kpi.decisions.note", held=summary.decisions_held),
                edge="line" if summary.decisions_approvable else "grid",
            ),
            style.kpi(
                text("kpi.gpus"),
                f"{summary.gpus:,}",
                text("kpi.gpus.note", hosts=summary.hosts, pools=summary.pools),
            ),
            style.kpi(text("kpi.load"), percent(summary.utilization_ratio), load),
        ]
    )


def _sentences(gpu: GpuSummary, now: str, text: Text) -> str:
    lines = [escape(gpu.finding)] if gpu.finding else []
    if gpu.prediction:
        when = eta_text(text, now, gpu.eta, gpu.eta_low, gpu.eta_high)
        chance = "" if gpu.probability is None else f"{percent(gpu.probability)} · "
        lines.append(f'<span class="tc-forecast">↗ {chance}{escape(when)}</span> {escape(gpu.prediction)}')
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


def _attention(gpus: Sequence[GpuSummary], summary: FleetSummary, text: Text) -> None:
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
    if not ranked:
        st.success(text("attention.none"), icon=":material/check_circle:")
    for gpu in ranked[:_SHOWN]:
        _item(gpu, now, text)
    if len(ranked) > _SHOWN:
        st.caption(text("attention.more", n=len(ranked) - _SHOWN))


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
        summary, gpus = client.summary(), client.gpus()
        st.html(_figures(summary, text))
        if not gpus:
            st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")
            return
        left, right = st.columns([5, 4], gap="medium")
        with left:
            _map(gpus, text, palette)
        with right:
            _attention(gpus, summary, text)
