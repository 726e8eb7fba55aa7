"""Page: free GPUs and MIG slices, what of them is of use, and what a plan would change."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import get_args

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models_capacity import (
    FragmentationOut,
    HostChange,
    HostFragment,
    MigChange,
    MigGpuOut,
    MigInstanceOut,
    Planner,
    PlanOut,
    PlansOut,
    TaskOut,
)
from tocsin.client.models_cells import WholeFragmentation
from tocsin.dashboard import cells, link, style, whole_answers
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.charts import plain, show
from tocsin.dashboard.components import gpu_link, more, page_link, style_sheet
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette, ink, mix
from tocsin.dashboard.text import Text, gpu_at, number, percent, seconds_between
from tocsin.domain.errors import Unavailable
from tocsin.domain.fragmentation import FOUR_SLICE, SEVEN_SLICE

# MIG GPUs as rows of slices, by node: instances, free slices, and free ones that the layout keeps from instances.

_SIZES = 4
"""Memory slices from which on an instance has the strongest colour."""


def _colour(slices: int, palette: Palette) -> str:
    low, middle, high = palette.scale
    share = min(1.0, slices / _SIZES)
    return mix(middle, high, share) if share > 0.25 else mix(low, middle, 4 * share)


def _block(start: int, length: int, label: str, css: str, style: str = "") -> str:
    place = f"grid-column:{start + 1} / span {length};grid-row:1"
    short = label if length > 1 else label.partition(".")[0]  # one slice has no room for the memory's size
    return f'<span class="{css}" style="{place};{style}" title="{escape(label)}">{escape(short)}</span>'


def slice_strip(total: int, instances: Sequence[tuple[str, int, int]], free_css: str, palette: Palette) -> str:
    """A row of `total` slices; `instances` are name, start and length, the rest is free."""
    taken = {slot for _, start, length in instances for slot in range(start, start + length)}
    blocks = []
    for name, start, length in instances:
        ground = _colour(length, palette)
        blocks.append(_block(start, length, name, "", f"background:{ground};color:{ink(ground)}"))
    blocks += [_block(slot, 1, "", free_css) for slot in range(total) if slot not in taken]
    grid = f"grid-template-columns:repeat({total}, minmax(1.1rem, 1fr))"
    return f'<div class="tc-slices" style="{grid}">{"".join(blocks)}</div>'


def _placed(instances: Sequence[MigInstanceOut]) -> list[tuple[str, int, int]]:
    """Instances whose start is not known are drawn side by side from the left."""
    found, place = [], 0
    for one in instances:
        start = place if one.start is None else one.start
        found.append((one.name, start, one.slices))
        place = start + one.slices
    return found


def _why(one: MigGpuOut, text: Text) -> str:
    if one.free is None:
        return text("frag.mig.unknown")
    names = ", ".join(f"{count} x {name}" for name, count in sorted(one.ruled_out.items(), reverse=True)[:3])
    words = text("frag.mig.ruled_out", names=names) if names else text("frag.mig.whole")
    return f"{words}; {text('frag.mig.guess', n=one.layouts)}" if one.layouts > 1 else words


def mig_rows(gpus: Sequence[MigGpuOut], text: Text, palette: Palette) -> str:
    """The GPUs in the order given, those of one node together."""
    order = {host: place for place, host in enumerate(dict.fromkeys(one.host for one in gpus))}
    parts = []
    for host, members in groupby(sorted(gpus, key=lambda one: order[one.host]), key=lambda one: one.host):
        parts.append(f'<span class="tc-node">{escape(host)}</span>')
        for one in members:
            label = f"GPU {one.index}" if one.index is not None else one.gpu[-8:]
            css = "" if one.free is None else "blocked" if one.ruled_out else "open"
            parts.append(gpu_link(one.gpu, label))
            parts.append(slice_strip(one.slices, _placed(one.instances), css, palette))
            parts.append(f'<span class="tc-why">{escape(_why(one, text))}</span>')
    return f'<div class="tc-mig">{"".join(parts)}</div>'


def mig_legend(text: Text, palette: Palette) -> str:
    """What the blocks mean."""
    ground = _colour(2, palette)
    parts = [
        ("", f"background:{ground}", text("frag.mig.instance")),
        ("open", "", text("frag.mig.open")),
        ("blocked", "", text("frag.mig.blocked")),
    ]
    marks = "".join(
        f'<span><span class="tc-slices" style="display:inline-grid;width:1.2rem;height:.8rem;vertical-align:-.1rem">'
        f'<span class="{css}" style="{rest}"></span></span> {escape(words)}</span>'
        for css, rest, words in parts
    )
    return f'<div class="tc-legend">{marks}</div>'


def mig_change(one: MigChange, text: Text, palette: Palette) -> str:
    """A GPU before and after a plan, one above the other."""

    def row(layout: Sequence[tuple[str, int]]) -> str:
        return slice_strip(
            one.slices, [(name, start, _length(name, one.slices)) for name, start in layout], "open", palette
        )

    label = gpu_link(one.gpu, gpu_at(one.host, None, one.gpu))
    before, after = escape(text("frag.plan.before")), escape(text("frag.plan.after"))
    return (
        f'<span class="tc-node">{label}</span><span class="tc-muted">{before}</span>{row(one.before)}<span></span>'
        f'<span class="tc-muted">{after}</span>{row(one.after)}<span></span>'
    )


def _length(profile: str, total: int) -> int:
    """Memory slices of a template's profile on a GPU of `total`."""
    template = FOUR_SLICE if total == FOUR_SLICE.memory_slices else SEVEN_SLICE
    known = template.profiles.get(profile)
    return known.memory_slices if known else 1


# What a planner would do with the fleet as it is: before and after, moves with gain and cost, what stays and why.

PLANNERS: tuple[Planner, ...] = get_args(Planner)
ACTIONS: dict[str, str] = {
    "defragment": "defragment",
    "mig": "defragment",
    "place": "place_elsewhere",
    "scale": "scale_out,scale_in",
    "power": "throttle",
}
"""Actions that the decisions about each planner's steps are for."""
STEPS, HOSTS, REASONS, GPUS, CELLS = 8, 8, 5, 4, 4
"""Steps, hosts, reasons and MIG GPUs that are shown, and cells with their plans."""
_CREATABLE = "creatable_"


def _figure(name: str, text: Text) -> str:
    """The name of a figure in words; what stands behind its kind is a profile, a pool or a rack."""
    if name.startswith(_CREATABLE):
        return text("frag.figure.creatable", name=name.removeprefix(_CREATABLE))
    kind, _, rest = name.partition(" ")
    return f"{text.name('frag.figure', kind)} {rest}".strip().replace("_", " ")


def _plan_figures(plan: PlanOut, text: Text) -> str:
    """What changes; all of it where nothing does."""
    names = [name for name in plan.before if name in plan.after]
    changed = [name for name in names if abs(plan.after[name] - plan.before[name]) > 1e-9]
    if not names:
        return ""
    rows = [
        [
            escape(_figure(name, text)),
            number(round(plan.before[name], 2)),
            f"<b>{number(round(plan.after[name], 2))}</b>",
        ]
        for name in (changed or names)[:8]
    ]
    head = [text("column.figure"), text("frag.plan.before"), text("frag.plan.after")]
    same = "" if changed else style.note(text("frag.plan.same"))
    return style.table(head, rows, numbers=[1, 2]) + same


def _steps(plan: PlanOut, planner: Planner, text: Text) -> str:
    if not plan.steps:
        return ""
    rows = []
    for place, step in enumerate(plan.steps[:STEPS], start=1):
        extra = []
        if step.wait_s > 0:
            extra.append(text("frag.plan.waits", time=text.duration(step.wait_s)))
        if step.asks:
            extra.append(text("frag.plan.asks"))
        more = f' <span class="tc-sub">{escape("; ".join(extra))}</span>' if extra else ""
        figures = [f"{step.gain_gpu_hours:,.2f}", f"{step.cost_gpu_hours:,.2f}"]
        rows.append([str(place), escape(text.said(step.sentence, step.sentence_zh)) + more, *figures])
    head = ["", text("frag.plan.step"), text("frag.plan.gain"), text("frag.plan.cost")]
    hidden = plan.steps_total - len(rows)
    rest = style.note(text("frag.plan.more", n=hidden, planner=planner)) if hidden > 0 else ""
    return style.title(text("frag.plan.steps")) + style.table(head, rows, numbers=[0, 2, 3]) + rest


def _left(plan: PlanOut, text: Text) -> str:
    if not plan.refused:
        return ""
    rows = []
    for one in plan.refused[:REASONS]:
        who = text("frag.plan.left.more", first=one.first, n=one.count - 1) if one.count > 1 else one.first
        why = text.said(one.reason, one.reason_zh)
        rows.append(style.row('<span class="tc-sign tc-muted">○</span>', f"{escape(who)}: {escape(why)}"))
    return style.title(text("frag.plan.left")) + "".join(rows)


def _plan_hosts(plan: PlanOut, text: Text, palette: Palette) -> str:
    """Free GPUs of the hosts that work leaves or comes to, before and after."""
    if not plan.hosts:
        return ""

    def bar(one: HostChange, value: float, colour: str) -> str:
        return f'<i style="width:{100 * value / max(1, one.gpus):.0f}%;background:{colour}" title="{value:g}"></i>'

    parts = []
    for one in plan.hosts[:HOSTS]:
        words = f"{escape(one.host)} <b>{one.free_before:g} → {one.free_after:g}</b>"
        bars = bar(one, one.free_before, palette.muted) + bar(one, one.free_after, palette.line)
        parts.append(f"<span>{words}</span><div class='tc-bars'>{bars}</div>")
    legend = style.legend([(palette.muted, text("frag.plan.before")), (palette.line, text("frag.plan.after"))])
    return style.title(text("frag.plan.hosts")) + f'<div class="tc-change">{"".join(parts)}</div>' + legend


def _plan_mig(plan: PlanOut, text: Text, palette: Palette) -> str:
    parts = "".join(mig_change(one, text, palette) for one in plan.mig[:GPUS])
    return f'<div class="tc-mig">{parts}</div>' if parts else ""


def _draw(plan: PlanOut, planner: Planner, text: Text, palette: Palette) -> None:
    badge = style.chip(text("simulated"), "tc-sim") + " " if plan.simulated else ""
    st.html(f'<div class="tc-stand">{badge}{escape(text.said(plan.sentence, plan.sentence_zh))}</div>')
    steps = _steps(plan, planner, text) + _left(plan, text)
    change = _plan_mig(plan, text, palette) + _plan_figures(plan, text) + _plan_hosts(plan, text, palette)
    for column, part in zip(st.columns([7, 4], gap="medium"), (steps, change), strict=True):
        # A plan that leaves the fleet as it is has no steps, and Streamlit draws no empty element.
        if part:
            column.html(part)


def _made(found: PlansOut, text: Text) -> str:
    age = text.duration(max(0.0, seconds_between(found.at, found.now)))
    return style.note(text("frag.plan.made", age=age, took=text.duration(found.took_s)))


@live()
def plan() -> None:
    """Draw what the chosen planner would do."""
    text, palette = current_text(), current_palette()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("frag.plan")), width="content")
        names: list[str] = list(PLANNERS)
        chosen = link.pick(
            "planner", text("frag.planner"), names, "defragment", lambda name: text(f"frag.planner.{name}")
        )
        there = page_link("decisions", text("frag.plan.decisions"), show="all", action=ACTIONS[chosen])
        st.html(there, width="content")
    planner = next(name for name in PLANNERS if name == chosen)
    with api(text) as client:
        try:
            found, told = whole_answers.plans_of(client, planner)
        except Unavailable as error:
            st.html(style.note(cells.not_yet(error, text)))
            return
    if partly := cells.partly(told, text):
        st.html(style.note(partly))
    # What gains most comes first: each cell has plans of its own, which nobody can add up.
    shown = sorted(found, key=lambda name: (-sum(one.gain_gpu_hours for one in found[name].plans), name))[:CELLS]
    for name in shown:
        if name:
            st.html(style.chip(text("cells.one", cell=name)))
        for one in found[name].plans:
            _draw(one, planner, text, palette)
        st.html(_made(found[name], text))
    if len(found) > CELLS:
        st.html(more(len(found), CELLS, text))


MIG_ROWS, HOST_ROWS, TASKS = 8, 6, 4
"""MIG GPUs, hosts and kinds of jobs that are shown."""


def _figures(found: FragmentationOut, text: Text) -> str:
    fleet = found.fleet
    share = f"{percent(fleet.fragmented / fleet.free)} · " if fleet.free else ""

    def lost(key: str, value: float, note: str = "") -> str:
        words = note + text(f"frag.{key}.note")
        return style.kpi(text(f"frag.{key}"), number(value), words, edge="forecast" if value else "grid")

    free = text("frag.free.note", n=f"{fleet.gpus:,}", most=fleet.largest)
    cards = [
        style.kpi(text("frag.free"), number(fleet.free), free, edge="line"),
        lost("f", round(fleet.fragmented, 1), share),
        lost("stranded", fleet.stranded),
        lost("unusable", fleet.unusable),
    ]
    if found.mig_gpus:
        slices = text("frag.mig.free.note", n=f"{found.mig_slices:,}", gpus=f"{found.mig_gpus:,}")
        cards += [
            style.kpi(text("frag.mig.free"), f"{found.mig_free_slices:,}", slices, edge="line"),
            lost("mig.stranded", round(found.mig_stranded_slices, 1)),
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
            number(one.unusable),
        ]

    if not found.hosts:
        return f'<span class="tc-muted">{escape(text("frag.hosts.none"))}</span>'
    head = [
        text("column.host"),
        text("column.free"),
        text("column.f"),
        text("frag.stranded"),
        text("column.unusable"),
    ]
    table = style.table(head, [row(one) for one in found.hosts[:HOST_ROWS]], numbers=[1, 2, 3, 4])
    return table + more(found.hosts_total, min(HOST_ROWS, len(found.hosts)), text)


def _mig(found: FragmentationOut, text: Text, palette: Palette) -> str:
    heading = style.title(text("frag.mig"))
    if not found.mig:
        return heading + f'<span class="tc-muted">{escape(text("frag.mig.none"))}</span>'
    drawn = mig_rows(found.mig[:MIG_ROWS], text, palette)
    rest = more(found.mig_gpus, min(MIG_ROWS, len(found.mig)), text)
    return heading + drawn + rest + mig_legend(text, palette) + style.note(text("frag.mig.hint"))


def _mixes(found: FragmentationOut, told: WholeFragmentation | None, text: Text) -> str:
    """The jobs that free GPUs are measured by; `told` has what each cell said where all are shown."""
    if told is None:
        return style.note(_mix(found, text))
    return "".join(
        style.note(line) for line in cells.each({name: [_mix(one, text)] for name, one in told.answers.items()}, text)
    )


@live()
def _now() -> None:
    text, palette = current_text(), current_palette()
    with api(text) as client:
        found, told = whole_answers.fragmentation_of(client, max(MIG_ROWS, HOST_ROWS))
    partly = "".join(map(style.note, cells.partly_all((told,), text)))
    st.html(style_sheet() + _figures(found, text) + partly)
    left, middle, right = st.columns([7, 4, 3], gap="medium")
    with left:
        st.html(_mig(found, text, palette))
    with middle:
        st.html(style.title(text("frag.hosts")) + _hosts(found, text) + _mixes(found, told, text))
    with right:
        st.html(style.title(text("frag.holes")))
        show(_holes(found.holes, text, palette), "holes", text("frag.holes"))


def render() -> None:
    """Draw the page."""
    _now()
    plan()


if __name__ == "__main__":
    render()
