"""Page: decisions over time, why each was made, and a person's yes, no or undo."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import NotFound
from tocsin.client.models import FleetSummary, GpuState
from tocsin.client.models_decisions import DecisionStory, Timeline, TimelineItem, TimelineMark, TimelineQuery
from tocsin.dashboard import charts, link, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.decision_control import Hand, fleet_buttons, forget_news, show_news
from tocsin.dashboard.decision_story import show
from tocsin.dashboard.format import markdown_safe, plain_sentence, seconds_between
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import SEVERITY_STATES, SYMBOLS, Palette
from tocsin.dashboard.text import Text
from tocsin.domain.decision import DecisionState
from tocsin.domain.finding import ActionKind

PAGE = 10
"""Decisions on one page of the list: what fits a screen of 900 pixels."""
_SHOWN = "decision_shown"
_LABEL = 100
"""Most characters of a sentence in the list."""
VIEWS: dict[str, tuple[DecisionState, ...]] = {
    "waiting": (),
    "held": (DecisionState.HELD,),
    "running": (DecisionState.APPROVED, DecisionState.EXECUTING, DecisionState.VERIFYING),
    "ended": (DecisionState.DONE, DecisionState.FAILED, DecisionState.REJECTED, DecisionState.EXPIRED),
    "all": (),
}
"""Choices of the list, with the states that each shows; none is any."""
SIGNS: dict[DecisionState, tuple[str, str]] = {
    DecisionState.HELD: ("Ⅱ", "square"),
    DecisionState.APPROVED: ("▷", "triangle-right-open"),
    DecisionState.EXECUTING: ("▶", "triangle-right"),
    DecisionState.VERIFYING: ("▶", "diamond"),
    DecisionState.DONE: ("✓", "circle"),
    DecisionState.FAILED: ("✕", "x"),
    DecisionState.REJECTED: ("⊘", "circle-x-open"),
    DecisionState.EXPIRED: ("○", "circle-open"),
}
"""A state as a sign in text and on the axis of time."""


def _query(view: str, timeline: Timeline | None, text: Text) -> TimelineQuery:
    """What the filters ask for; `timeline` offers what there is to choose from."""
    known = timeline or Timeline(total=0, offset=0, items=[], marks=[])
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        words = _search(text)
        actions = link.pick_many(
            "action",
            text("decisions.action"),
            [one.value for one in known.actions],
            lambda name: text.name("action", name),
        )
        rule = _one_of("rule", text("decisions.rule"), known.rules, text)
        pool = _one_of("pool", text("decisions.pool"), known.pools, text)
    kinds = tuple(ActionKind(name) for name in actions)
    waiting = {"waiting": True, "held": False}.get(view)
    return TimelineQuery(VIEWS[view], kinds, rule, pool, words, waiting)


def _search(text: Text) -> str:
    st.session_state["q"] = link.read("q")
    return st.text_input(
        text("decisions.search"),
        key="q",
        placeholder=text("decisions.search"),
        label_visibility="collapsed",
        max_chars=200,
        on_change=lambda: _first_page("q"),
    )


def _one_of(name: str, label: str, options: list[str], text: Text) -> str:
    """A choice of one or none that is kept in the URL."""
    st.session_state[name] = link.read(name, "", ["", *options])
    return st.selectbox(
        label,
        ["", *options],
        key=name,
        format_func=lambda value: value or f"{label}: {text('decisions.any')}",
        label_visibility="collapsed",
        on_change=lambda: _first_page(name),
    )


def _first_page(name: str) -> None:
    link.write(name, st.session_state[name])
    link.write("from", "")


def _view(timeline: Timeline, text: Text) -> str:
    counts = {"waiting": timeline.waiting, "all": sum(timeline.states.values())}
    for name in ("held", "running", "ended"):
        counts[name] = sum(timeline.states.get(state, 0) for state in VIEWS[name])
    counts["held"] -= timeline.waiting
    default = "waiting" if timeline.waiting else "all"
    return link.pick(
        "show",
        text("page.decisions"),
        list(VIEWS),
        default,
        lambda name: f"{text(f'decisions.{name}')} ({counts[name]})",
    )


def _colour(state: DecisionState, palette: Palette) -> str:
    if state is DecisionState.HELD:
        return palette.words[GpuState.WARNING]
    if state is DecisionState.FAILED:
        return palette.words[GpuState.CRITICAL]
    if state in (DecisionState.REJECTED, DecisionState.EXPIRED):
        return palette.muted
    return palette.line


def _short(sentence: str) -> str:
    plain = plain_sentence(sentence)
    return plain if len(plain) <= _LABEL else f"{plain[:_LABEL].rstrip()}…"


def _over_time(marks: list[TimelineMark], chosen: str, text: Text, palette: Palette) -> go.Figure:
    """One row an action, one mark a decision; the chosen one has a ring."""
    chart = go.Figure()
    for state in DecisionState:
        mine = [mark for mark in marks if mark.state is state]
        if not mine:
            continue
        chart.add_scatter(
            x=[mark.at for mark in mine],
            y=[text.name("action", mark.action.value) for mark in mine],
            customdata=[mark.id for mark in mine],
            text=[escape(_short(mark.sentence)) for mark in mine],
            mode="markers",
            name=f"{text.name('decision_state', state.value)}",
            hovertemplate="%{text}<extra>%{x|%H:%M}</extra>",
            marker={
                "opacity": 1,
                "symbol": SIGNS[state][1],
                "color": _colour(state, palette),
                "size": [13 if mark.id == chosen else 9 for mark in mine],
                "line": {"width": [2 if mark.id == chosen else 1 for mark in mine], "color": palette.text},
            },
        )
    rows = len({mark.action for mark in marks})
    charts.plain(chart, 74 + 16 * rows, palette, margin={"l": 0, "r": 12, "t": 4, "b": 0})
    chart.update_xaxes(tickformat="%H:%M\n%d %b", automargin=True)
    return chart.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})


def _draw_marks(timeline: Timeline, chosen: str, text: Text, palette: Palette) -> None:
    if not timeline.marks:
        return
    picked = st.plotly_chart(
        _over_time(timeline.marks, chosen, text, palette),
        key=f"marks-{st.session_state.get('marks_drawn', 0)}",
        config=charts.CONFIG,
        on_select="rerun",
        selection_mode="points",
        alt=text("decisions.marks"),
    )
    points = picked["selection"]["points"]
    if points:
        # A fresh chart has nothing selected, so that the same mark can be clicked again.
        st.session_state["marks_drawn"] = st.session_state.get("marks_drawn", 0) + 1
        _choose(str(points[0]["customdata"]))
        st.rerun(scope="fragment")


def _choose(identity: str) -> None:
    forget_news()
    link.write("decision", identity)


def _row(item: TimelineItem, now: str, chosen: str, text: Text) -> None:
    sign = SIGNS[item.state][0]
    state = text("decisions.waiting") if item.approvable else text.name("decision_state", item.state.value)
    age = text("decision.made", age=text.duration(max(0.0, seconds_between(item.at, now))))
    mark = SYMBOLS[SEVERITY_STATES[item.severity]]
    st.button(
        f"{mark} {markdown_safe(_short(item.sentence))} :gray[{sign} {markdown_safe(state)} · {age}]",
        key=f"row-{item.id}",
        type="secondary" if item.id == chosen else "tertiary",
        width="stretch",
        on_click=_choose,
        args=(item.id,),
    )


def _pages(timeline: Timeline, text: Text) -> None:
    if timeline.total <= PAGE:
        return
    last = min(timeline.total, timeline.offset + PAGE)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for key, to, closed in (
            ("newer", timeline.offset - PAGE, timeline.offset == 0),
            ("older", timeline.offset + PAGE, last >= timeline.total),
        ):
            st.button(text(f"decisions.{key}"), key=key, disabled=closed, on_click=_turn, args=(max(0, to),))
        words = text("decisions.page", first=timeline.offset + 1, last=last, total=timeline.total)
        st.html(style.note(words))


def _turn(offset: int) -> None:
    link.write("from", str(offset) if offset else "")


def _offset() -> int:
    asked = link.read("from")
    return int(asked) // PAGE * PAGE if asked.isdecimal() and len(asked) < 7 else 0


def _story(client: Client, timeline: Timeline, query: TimelineQuery, text: Text) -> DecisionStory | None:
    """The decision of the URL, else the first of the list; None where there is none.

    A decision that is shown stays until a person chooses another or other filters: what is new in the list, or has
    left it, must not put another decision under the button that somebody is about to press.
    """
    asked, before = link.read("decision"), st.session_state.get(_SHOWN)
    if not asked and before is not None and before[0] == query:
        asked = before[1]
    elif not asked and timeline.items:
        asked = timeline.items[0].id
    st.session_state[_SHOWN] = (query, asked) if asked else None
    if not asked:
        return None
    try:
        return client.story(asked)
    except NotFound:
        st.warning(text("decisions.gone", id=markdown_safe(asked)))
        link.write("decision", "")
        st.session_state[_SHOWN] = None
        return None


def _head(summary: FleetSummary, everything: Timeline, hand: Hand) -> str:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view = _view(everything, hand.text)
        st.space("stretch")
        fleet_buttons(summary, hand)
    return view


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        summary, hand, everything = client.summary(), Hand(client.me(), text), client.timeline(limit=1)
        show_news(text)
        view = _head(summary, everything, hand)
        if not everything.states:
            st.info(text("decisions.none"))
        query = _query(view, everything, text)
        timeline = client.timeline(query, _offset(), PAGE)
        story = _story(client, timeline, query, text)
    chosen = story.decision.id if story else ""
    left, right = st.columns([5, 6], gap="medium")
    with left:
        _draw_marks(timeline, chosen, text, palette)
    with left, st.container(key="decision_rows", gap=None):
        if not timeline.items:
            st.html(style.note(text("decisions.waiting.none" if view == "waiting" else "decisions.unfitting")))
        for item in timeline.items:
            _row(item, summary.now, chosen, text)
        _pages(timeline, text)
    with right:
        if story is None:
            st.html(style.note(text("decisions.choose")))
        else:
            show(story, summary.now, hand, palette)
