"""Page: free GPUs and MIG slices, what of them is of use, and what a plan would change."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models_fragmentation import FragmentationOut, HostFragment, TaskOut
from tocsin.dashboard import mig_map, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.ahead_pieces import more, style_sheet
from tocsin.dashboard.charts import plain, show
from tocsin.dashboard.format import number, percent
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.plan_view import plan
from tocsin.dashboard.text import Text

MIG_ROWS, HOST_ROWS, TASKS = 8, 6, 4
"""MIG GPUs, hosts and kinds of jobs that are shown."""


def _figures(found: FragmentationOut, text: Text) -> str:
    fleet = found.fleet
    share = f"{percent(fleet.fragmented / fleet.free)} · " if fleet.free else ""
    cards = [
        style.kpi(
            text("frag.free"),
            number(fleet.free),
            text("frag.free.note", n=f"{fleet.gpus:,}", most=fleet.largest),
            edge="line",
        ),
        style.kpi(
            text("frag.f"),
            number(round(fleet.fragmented, 1)),
            share + text("frag.f.note"),
            edge="forecast" if fleet.fragmented else "grid",
        ),
        style.kpi(
            text("frag.stranded"),
            number(fleet.stranded),
            text("frag.stranded.note"),
            edge="forecast" if fleet.stranded else "grid",
        ),
    ]
    if found.mig_gpus:
        cards += [
            style.kpi(
                text("frag.mig.free"),
                f"{found.mig_free_slices:,}",
                text("frag.mig.free.note", n=f"{found.mig_slices:,}", gpus=f"{found.mig_gpus:,}"),
                edge="line",
            ),
            style.kpi(
                text("frag.mig.stranded"),
                number(round(found.mig_stranded_slices, 1)),
                text("frag.mig.stranded.note"),
                edge="forecast" if found.mig_stranded_slices else "grid",
            ),
        ]
    return style.kpis(cards)


def _mix(found: FragmentationOut, text: Text) -> str:
    def task(one: TaskOut) -> str:
        share = percent(one.share) if len(found.mix) > 1 else ""
        key = "frag.task.one" if one.gpus == 1 else "frag.task"
        return text(key, share=share, gpus=f"{one.gpus:g}").strip()

    largest = sorted(found.mix, key=lambda one: -one.share)[:TASKS]
    words = ", ".join(task(one) for one in largest)
    if len(found.mix) > TASKS:
        words += ", " + text("ahead.more", n=len(found.mix) - TASKS)
    return text(f"frag.mix.{found.mix_from}", mix=words)


def _holes(holes: Sequence[tuple[int, int]], text: Text, palette: Palette) -> go.Figure:
    free, hosts = [str(count) for count, _ in holes], [number for _, number in holes]
    chart = go.Figure(
        go.Bar(
            x=free,
            y=hosts,
            marker={"color": palette.line},
            text=hosts,
            textposition="auto",
            textangle=0,
            textfont={"size": 12},
            constraintext="none",
            hovertemplate="%{y}<extra></extra>",
        )
    )
    plain(chart, 220, palette, bargap=0.3)
    chart.update_xaxes(type="category", title_text=text("frag.holes.x"))
    chart.update_yaxes(showticklabels=False, showgrid=False)
    return chart


def _hosts(found: FragmentationOut, text: Text) -> str:
    def row(one: HostFragment) -> list[str]:
        return [
            f'{escape(one.host)} <span class="tc-sub">{escape(one.pool)}</span>',
            f"{one.free} / {one.gpus}",
            number(round(one.fragmented, 2)),
            number(one.stranded),
        ]

    if not found.hosts:
        return f'<span class="tc-muted">{escape(text("frag.hosts.none"))}</span>'
    head = [text("column.host"), text("column.free"), text("column.f"), text("column.stranded")]
    table = style.table(head, [row(one) for one in found.hosts[:HOST_ROWS]], numbers=[1, 2, 3])
    return table + more(found.hosts_total, min(HOST_ROWS, len(found.hosts)), text)


def _mig(found: FragmentationOut, text: Text, palette: Palette) -> str:
    heading = style.title(text("frag.mig"))
    if not found.mig:
        return heading + f'<span class="tc-muted">{escape(text("frag.mig.none"))}</span>'
    drawn = mig_map.draw(found.mig[:MIG_ROWS], text, palette)
    rest = more(found.mig_gpus, min(MIG_ROWS, len(found.mig)), text)
    return heading + drawn + rest + mig_map.legend(text, palette) + style.note(text("frag.mig.hint"))


@st.fragment(run_every=REFRESH_SECONDS)
def _now() -> None:
    text, palette = current_text(), current_palette()
    with api(text) as client:
        found = client.fragmentation(max(MIG_ROWS, HOST_ROWS))
    st.html(style_sheet() + _figures(found, text))
    left, middle, right = st.columns([7, 4, 3], gap="medium")
    with left:
        st.html(_mig(found, text, palette))
    with middle:
        st.html(style.title(text("frag.hosts")) + _hosts(found, text) + style.note(_mix(found, text)))
    with right:
        st.html(style.title(text("frag.holes")))
        show(_holes(found.holes, text, palette), "holes", text("frag.holes"))


def render() -> None:
    """Draw the page."""
    _now()
    plan()
