"""What a planner would do with the fleet as it is: before and after, moves with gain and cost, what stays and why."""

from __future__ import annotations

from html import escape
from typing import get_args

import streamlit as st

from tocsin.client.models_fragmentation import HostChange, Planner, PlanOut, PlansOut
from tocsin.dashboard import link, mig_map, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.ahead_pieces import page_link
from tocsin.dashboard.format import number, seconds_between
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text
from tocsin.domain.errors import Unavailable

PLANNERS: tuple[Planner, ...] = get_args(Planner)
ACTIONS: dict[str, str] = {
    "defragment": "defragment",
    "mig": "defragment",
    "place": "place_elsewhere",
    "scale": "scale_out,scale_in",
    "power": "throttle",
}
"""Actions that the decisions about each planner's steps are for."""
STEPS, HOSTS, REASONS, GPUS = 8, 8, 5, 4
"""Steps, hosts, reasons and MIG GPUs that are shown."""
_CREATABLE = "creatable_"


def _figure(name: str, text: Text) -> str:
    """The name of a figure in words; what stands behind its kind is a profile, a pool or a rack."""
    if name.startswith(_CREATABLE):
        return text("frag.figure.creatable", name=name.removeprefix(_CREATABLE))
    kind, _, rest = name.partition(" ")
    return f"{text.name('frag.figure', kind)} {rest}".strip().replace("_", " ")


def _figures(plan: PlanOut, text: Text) -> str:
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
        rows.append([str(place), escape(step.sentence) + more, *figures])
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
        rows.append(style.row('<span class="tc-sign tc-muted">○</span>', f"{escape(who)}: {escape(one.reason)}"))
    return style.title(text("frag.plan.left")) + "".join(rows)


def _hosts(plan: PlanOut, text: Text, palette: Palette) -> str:
    """Free GPUs of the hosts that work leaves or comes to, before and after."""
    if not plan.hosts:
        return ""

    def bar(one: HostChange, value: float, colour: str) -> str:
        return f'<i style="width:{100 * value / max(1, one.gpus):.0f}%;background:{colour}" title="{value:g}"></i>'

    cells = []
    for one in plan.hosts[:HOSTS]:
        words = f"{escape(one.host)} <b>{one.free_before:g} → {one.free_after:g}</b>"
        bars = bar(one, one.free_before, palette.muted) + bar(one, one.free_after, palette.line)
        cells.append(f"<span>{words}</span><div class='tc-bars'>{bars}</div>")
    legend = style.legend([(palette.muted, text("frag.plan.before")), (palette.line, text("frag.plan.after"))])
    return style.title(text("frag.plan.hosts")) + f'<div class="tc-change">{"".join(cells)}</div>' + legend


def _mig(plan: PlanOut, text: Text, palette: Palette) -> str:
    cells = "".join(mig_map.change(one, text, palette) for one in plan.mig[:GPUS])
    return f'<div class="tc-mig">{cells}</div>' if cells else ""


def _draw(plan: PlanOut, planner: Planner, text: Text, palette: Palette) -> None:
    badge = style.chip(text("simulated"), "tc-sim") + " " if plan.simulated else ""
    st.html(f'<div class="tc-stand">{badge}{escape(plan.sentence)}</div>')
    left, right = st.columns([7, 4], gap="medium")
    with left:
        st.html(_steps(plan, planner, text) + _left(plan, text))
    with right:
        st.html(_mig(plan, text, palette) + _figures(plan, text) + _hosts(plan, text, palette))


def _made(found: PlansOut, text: Text) -> str:
    age = text.duration(max(0.0, seconds_between(found.at, found.now)))
    return style.note(text("frag.plan.made", age=age, took=text.duration(found.took_s)))


@st.fragment(run_every=REFRESH_SECONDS)
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
    found = None
    with api(text) as client:
        try:
            found = client.plan(planner)
        except Unavailable as error:
            if not client.healthy():
                raise
            st.html(style.note(f"{text('ahead.working')} ({error})"))
    if found is None:
        return
    for one in found.plans:
        _draw(one, planner, text, palette)
    st.html(_made(found, text))
