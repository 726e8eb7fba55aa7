"""Page: decisions over time, why each was made, and a person's yes, no or undo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import Busy, NotFound
from tocsin.client.models import (
    DecisionStory,
    FleetSummary,
    GpuState,
    Timeline,
    TimelineItem,
    TimelineMark,
    TimelineQuery,
)
from tocsin.client.models_cells import WholeSummary
from tocsin.client.whole_views import whole_timeline
from tocsin.dashboard import cells, charts, link, style, what_if
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.decision_control import Hand, decide_buttons, fleet_buttons, forget_news, show_news
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.kept_answers import PageClient
from tocsin.dashboard.palette import RULING_SYMBOLS, SEVERITY_STATES, SYMBOLS, Palette
from tocsin.dashboard.text import (
    Text,
    clock,
    decided,
    decided_words,
    effect_words,
    markdown_safe,
    readable,
    recorded,
    seconds_between,
    short_clock,
)
from tocsin.domain.clock import SECOND, from_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode, OutcomeStatus, Ruling, Verdict
from tocsin.domain.entry import Entry
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import in_chinese

# One decision in full: where it stands, what stands in its way, what was weighed, what happened, what came of it.

_STEPS = frozenset(
    {
        "decision",
        "verdict",
        "approval",
        "rejection",
        "execution_started",
        "execution_goes_on",
        "outcome",
        "notification",
    }
)
"""Kinds of entries that the table of words has a line for."""


def show(story: DecisionStory, now: str, hand: Hand, palette: Palette) -> None:
    """Draw all of it, the most important first."""
    text, item = hand.text, story.decision
    with st.container(border=True, gap="small"):
        mark = style.sign(SEVERITY_STATES[item.severity])
        st.html(style.row(mark, f"<b>{escape(decided(item, text))}</b>") + _facts(item, now, text))
        st.html(style.row("", f'<span class="tc-stand">{escape(standing(story, now, text))}</span>'))
        decide_buttons(item, hand)
        _links(item, text)
        steps = style.title(text("steps.title")) + _steps(story.entries, now, text)
        parts = (_obstacles(story, now, text, palette), _effect(story, text), _weighed(item, text), steps)
        st.html('<div class="tc-gap"></div>'.join(part for part in parts if part))
        _guards(story, text, palette)


def _facts(item: TimelineItem, now: str, text: Text) -> str:
    age = text("decision.made", age=text.duration(max(0.0, seconds_between(to_iso(item.at_ms), now))))
    pairs = [
        (text("decisions.action"), text.name("action", item.action.value)),
        (text("decisions.rule"), item.rule),
        (text("decisions.pool"), item.subject.pool),
        ("", text("mode", mode=text.name("mode", item.mode.value))),
        ("", age),
    ]
    left = seconds_between(now, to_iso(item.expires_ms))
    if item.state in (DecisionState.HELD, DecisionState.APPROVED) and left > 0:
        pairs.append(("", text("decision.expires", time=text.duration(left))))
    return style.facts(pairs)


def standing(story: DecisionStory, now: str, text: Text) -> str:
    """Where the decision stands, as one line."""
    item, state = story.decision, story.decision.state
    if state is DecisionState.HELD:
        return _standing_held(item, text)
    if state is DecisionState.APPROVED:
        return text("stand.approved", who=item.approved_by)
    if state is DecisionState.EXECUTING:
        return text(
            "stand.executing",
            executor=next((e.payload for e in story.entries if e.kind == "execution_started"), {}).get("executor", ""),
        )
    if state is DecisionState.VERIFYING:
        left = _until_checked(story, now)
        when = text("stand.soon") if left <= 0 else text("stand.in", time=text.duration(left))
        return text("stand.verifying", when=when)
    if state is DecisionState.REJECTED:
        head = text("stand.rejected", who=item.rejected_by) if item.rejected_by else text("stand.denied")
        return _with(head, text.said(item.reason, item.reason_zh))
    if state is DecisionState.EXPIRED:
        return _with(text("stand.expired"), text.said(item.reason, item.reason_zh))
    head = text(f"stand.{state.value}")
    if item.outcome is None:
        return head
    # The state says how it ended, and the detail whether its goal was reached.
    if item.outcome.status is OutcomeStatus.UNVERIFIED:
        head = _with(head, text.name("outcome", item.outcome.status.value))
    return _with(head, text.said(item.outcome.detail, item.outcome.detail_zh))


def _standing_held(item: TimelineItem, text: Text) -> str:
    if item.mode is Mode.OBSERVE:
        return text("stand.observed")
    if not item.approvable:
        return text("stand.held")
    return text("stand.waiting")


def _with(head: str, detail: str) -> str:
    return f"{head}: {readable(detail)}" if detail else head


def _until_checked(story: DecisionStory, now: str) -> float:
    """Seconds until the effect is looked at; 0 where that is due, or the execution has not ended."""
    due = next((e for e in story.entries if e.kind == "verification" and e.payload.get("phase") == "due"), None)
    if due is None:
        return 0.0
    return max(0.0, seconds_between(now, to_iso(due.at_ms + int(story.settle_s * SECOND))))


def _links(item: TimelineItem, text: Text) -> None:
    with st.container(horizontal=True, gap="small"):
        if item.subject.kind is SubjectKind.GPU:
            parameters = link.target(gpu=item.subject.name)
            st.page_link(
                link.GPU_PAGE, label=text("decision.show_gpu"), icon=":material/arrow_forward:", query_params=parameters
            )
        if item.undone_by:
            parameters = link.target(decision=item.undone_by)
            st.page_link(
                link.DECISIONS_PAGE, label=text("decision.other"), icon=":material/undo:", query_params=parameters
            )


def _runbook(base: str, kind: str, name: str, text: Text) -> str:
    """A link to a page of the runbooks, or its place in them where nobody said where they are."""
    path = f"{kind}/{name}.md"
    if not base.startswith(("http://", "https://")):
        return f'<span class="tc-muted">runbooks/{escape(path)}</span>'
    address = escape(f"{base.rstrip('/')}/{path}", quote=True)
    label = escape(f"{text('why.runbook')}: {name}")
    return f'<a href="{address}" target="_blank" rel="noopener" aria-label="{label}">{escape(text("why.runbook"))}</a>'


def _ruling(ruling: Ruling, palette: Palette) -> str:
    return f'<span class="tc-sign" style="color:{palette.ruling(ruling)}">{RULING_SYMBOLS[ruling]}</span>'


def _obstacles(story: DecisionStory, now: str, text: Text, palette: Palette) -> str:
    """One line for each guard that does not allow it; nothing for what has ended."""
    item = story.decision
    if item.outcome or item.state not in (DecisionState.HELD, DecisionState.APPROVED):
        return ""
    if not item.verdicts:
        return style.note(text("why.none"))
    lines = []
    for verdict in item.verdicts:
        if verdict.ruling is Ruling.ALLOW:
            continue
        what = f"<b>{escape(text.name('guard', verdict.guard))}</b> {escape(_reason(verdict, text))} "
        what += _runbook(story.runbooks_url, "guards", verdict.guard, text)
        until = (
            text("decision.until", time=f"{short_clock(to_iso(verdict.until_ms), now)} UTC") if verdict.until_ms else ""
        )
        lines.append(style.row(_ruling(verdict.ruling, palette), what, until))
    body = "".join(lines) or style.note(text("why.nothing"))
    return style.title(text("why.title")) + body


def _weighed(item: TimelineItem, text: Text) -> str:
    """What each choice was expected to lose, as bars; where nothing was compared, why not."""
    if item.action is ActionKind.NOTIFY or item.asked_by:
        return ""
    if not item.alternatives:
        return style.title(text("weighed.title")) + style.note(text("weighed.none", rule=item.rule))
    most = max(one.gpu_hours for one in item.alternatives) or 1.0
    rows = []
    for one in item.alternatives:
        name = text("weighed.wait") if one.action is ActionKind.NOTIFY else text.name("action", one.action.value)
        chosen = f" ({text('weighed.chosen')})" if one.chosen else ""
        kind = "tc-loss tc-chosen" if one.chosen else "tc-loss"
        rows.append(
            f'<div class="{kind}"><span>{escape(name + chosen)}</span>'
            f'<i style="width:{60 * one.gpu_hours / most:.0f}%"></i><b>{one.gpu_hours:.3g}</b></div>'
        )
    return style.title(text("weighed.title")) + "".join(rows) + style.note(_saving(item, text))


def _saving(item: TimelineItem, text: Text) -> str:
    wait = next((one.gpu_hours for one in item.alternatives if one.action is ActionKind.NOTIFY), None)
    chosen = next((one.gpu_hours for one in item.alternatives if one.chosen), None)
    if wait is None or chosen is None:
        return ""
    key = "weighed.saves" if chosen < wait else "weighed.costs"
    return text(key, hours=f"{wait - chosen if chosen < wait else wait:.3g}")


def _effect(story: DecisionStory, text: Text) -> str:
    """What was measured of it: degrees, watts, and one against the other."""
    item = story.decision
    if item.outcome is None:
        pending = item.state is DecisionState.VERIFYING
        words = text("effect.pending", time=text.duration(story.settle_s))
        return style.title(text("effect.title")) + style.note(words) if pending else ""
    cards = [style.kpi(*effect_words(name, value, text)) for name, value in item.outcome.effect.items()]
    body = style.kpis(cards) if cards else style.note(text("effect.none"))
    return style.title(text("effect.title")) + body


def _steps(entries: Sequence[Entry], now: str, text: Text) -> str:
    """What the journal says of it, verdicts that follow each other as one line."""
    lines: list[str] = []
    last = ""
    for entry in entries:
        if entry.kind == "verdict" and last == "verdict":
            continue
        last = entry.kind
        words = _step(entry, text)
        detail = recorded(entry.payload, "detail", text) or recorded(entry.payload, "reason", text)
        what = escape(words) + (f' <span class="tc-muted">{escape(readable(detail))}</span>' if detail else "")
        lines.append(style.row("", what, f"{short_clock(to_iso(entry.at_ms), now)} · #{entry.seq}"))
    return "".join(lines)


def _step(entry: Entry, text: Text) -> str:
    payload = entry.payload
    if entry.kind == "verification":
        if payload.get("phase") == "due":
            return text("steps.due")
        seen = payload.get("seen")
        return text("steps.blind" if seen is None else "steps.seen" if seen else "steps.unseen")
    if entry.kind == "decision" and entry.actor != "tocsin":
        return text("steps.decision.asked", who=entry.actor)
    outcome = payload.get("outcome")
    status = str(outcome.get("status", "")) if isinstance(outcome, dict) else ""
    executor = str(payload.get("executor", ""))
    values = {"who": entry.actor, "executor": executor, "status": text.name("outcome", status)}
    return text(f"steps.{entry.kind}", **values) if entry.kind in _STEPS else entry.kind


def _reason(verdict: Verdict, text: Text) -> str:
    """What a guard says; of one that allows, that it was not asked."""
    if verdict.ruling is Ruling.ALLOW and verdict.reason:
        return text("why.not_asked")
    return readable(text.said(verdict.reason, in_chinese(verdict.said)))


def _guard_rows(story: DecisionStory, verdicts: Sequence[Verdict], text: Text, palette: Palette) -> list[list[str]]:
    return [
        [
            f"{_ruling(one.ruling, palette)} {escape(text.name('ruling', one.ruling.value))}",
            escape(text.name("guard", one.guard)),
            escape(_reason(one, text)),
            clock(to_iso(one.until_ms)) if one.until_ms else "",
            _runbook(story.runbooks_url, "guards", one.guard, text),
        ]
        for one in verdicts
    ]


def _guards(story: DecisionStory, text: Text, palette: Palette) -> None:
    item = story.decision
    counts = {ruling: sum(v.ruling is ruling for v in item.verdicts) for ruling in Ruling}
    label = text("decision.guards", allow=counts[Ruling.ALLOW], hold=counts[Ruling.HOLD], deny=counts[Ruling.DENY])
    with st.expander(label):
        head = [text(f"column.{name}") for name in ("says", "guard", "why", "until")] + [""]
        st.html(style.table(head, _guard_rows(story, item.verdicts, text, palette)))
        action = text.name("action", item.action.value)
        st.html(style.row("", f"{escape(action)} {_runbook(story.runbooks_url, 'actions', item.action.value, text)}"))


PAGE = 10
"""Decisions on one page of the list: what fits a screen of 900 pixels."""
_MOST = 200
"""Decisions of all cells that can be paged through: each cell is asked for so many at once."""
_SHOWN = "decision_shown"
_LABEL = 100
"""Most characters of a sentence in the list."""
VIEWS: dict[str, tuple[DecisionState, ...]] = {
    "waiting": (),
    "held": (DecisionState.HELD,),
    "running": (DecisionState.APPROVED, DecisionState.EXECUTING, DecisionState.VERIFYING),
    "ended": (
        DecisionState.DONE,
        DecisionState.GOAL_NOT_REACHED,
        DecisionState.FAILED,
        DecisionState.REJECTED,
        DecisionState.EXPIRED,
    ),
    "all": (),
}
"""Choices of the list, with the states that each shows; none is any."""
SIGNS: dict[DecisionState, tuple[str, str]] = {
    DecisionState.HELD: ("Ⅱ", "square"),
    DecisionState.APPROVED: ("▷", "triangle-right-open"),
    DecisionState.EXECUTING: ("▶", "triangle-right"),
    DecisionState.VERIFYING: ("▶", "diamond"),
    DecisionState.DONE: ("✓", "circle"),
    DecisionState.GOAL_NOT_REACHED: ("◐", "circle-dot"),
    DecisionState.FAILED: ("✕", "x"),
    DecisionState.REJECTED: ("⊘", "circle-x-open"),
    DecisionState.EXPIRED: ("○", "circle-open"),
}
"""A state as a sign in text and on the axis of time."""


def _query(view: str, timeline: Timeline | None, text: Text) -> TimelineQuery:
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
    return TimelineQuery(VIEWS[view], kinds, rule, pool, words, {"waiting": True, "held": False}.get(view))


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
    counts = {name: sum(timeline.states.get(state, 0) for state in VIEWS[name]) for name in ("running", "ended")}
    held = timeline.states.get(DecisionState.HELD, 0) - timeline.waiting
    counts |= {"waiting": timeline.waiting, "held": held, "all": sum(timeline.states.values())}
    default = "waiting" if timeline.waiting else "all"
    return link.pick(
        "show",
        text("page.decisions"),
        list(VIEWS),
        default,
        lambda name: f"{text(f'decisions.{name}')} ({counts[name]})",
    )


def _colour(state: DecisionState, palette: Palette) -> str:
    return {
        DecisionState.HELD: palette.words[GpuState.WARNING],
        DecisionState.GOAL_NOT_REACHED: palette.words[GpuState.WARNING],
        DecisionState.FAILED: palette.words[GpuState.CRITICAL],
        DecisionState.REJECTED: palette.muted,
        DecisionState.EXPIRED: palette.muted,
    }.get(state, palette.line)


def _over_time(marks: list[TimelineMark], chosen: str, text: Text, palette: Palette) -> go.Figure:
    """One row an action, one mark a decision; the chosen one has a ring."""
    chart = go.Figure()
    for state in DecisionState:
        if not (mine := [mark for mark in marks if mark.state is state]):
            continue
        chart.add_scatter(
            x=[mark.at for mark in mine],
            y=[text.name("action", mark.action.value) for mark in mine],
            customdata=[mark.id for mark in mine],
            text=[escape(decided_words(mark.action, mark.sentence, mark.cause_zh, text, _LABEL)) for mark in mine],
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
    charts.time_axis(chart, [from_iso(mark.at) for mark in marks], automargin=True)
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
    if points := picked["selection"]["points"]:
        # A fresh chart has nothing selected, so that the same mark can be clicked again.
        st.session_state["marks_drawn"] = st.session_state.get("marks_drawn", 0) + 1
        _choose(str(points[0]["customdata"]))
        st.rerun(scope="fragment")


def _choose(identity: str) -> None:
    forget_news()
    link.write("decision", identity)


def _row(item: TimelineItem, now: str, chosen: str, text: Text, cell: str = "") -> None:
    sign = SIGNS[item.state][0]
    state = text("decisions.waiting") if item.approvable else text.name("decision_state", item.state.value)
    age = text("decision.made", age=text.duration(max(0.0, seconds_between(to_iso(item.at_ms), now))))
    mark = SYMBOLS[SEVERITY_STATES[item.severity]]
    where = f"**{markdown_safe(cell)}** " if cell else ""
    st.button(
        f"{mark} {where}{markdown_safe(decided(item, text, _LABEL))} :gray[{sign} {markdown_safe(state)} · {age}]",
        key=f"row-{item.id}",
        type="secondary" if item.id == chosen else "tertiary",
        width="stretch",
        on_click=_choose,
        args=(item.id,),
    )


def _pages(timeline: Timeline, text: Text, most: int | None = None) -> None:
    """Ways to newer and older ones; `most` are shown of all cells together."""
    if timeline.total <= PAGE:
        return
    reached = min(timeline.total, most or timeline.total)
    last = min(reached, timeline.offset + PAGE)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for key, to, closed in (
            ("newer", timeline.offset - PAGE, timeline.offset == 0),
            ("older", timeline.offset + PAGE, last >= reached),
        ):
            at = ("from", str(to) if to > 0 else "")
            st.button(text(f"decisions.{key}"), key=key, disabled=closed, on_click=link.write, args=at)
        st.html(style.note(text("decisions.page", first=timeline.offset + 1, last=last, total=timeline.total)))
    if reached < timeline.total and last >= reached:
        st.caption(text("cells.older"))


def _offset() -> int:
    asked = link.read("from")
    return int(asked) // PAGE * PAGE if asked.isdecimal() and len(asked) < 7 else 0


def _told(client: Client, identity: str, cell_of: dict[str, str]) -> DecisionStory:
    """The story, of whichever cell has it where all of them are shown; `cell_of` gets that. Raises NotFound."""
    if not cells.spans():
        return client.story(identity)
    known = cell_of.get(identity)
    for name in [known] if known else cells.listed().names:
        try:
            found = client.at(name).story(identity)
        except (NotFound, Busy):
            if name == known:
                raise
            continue
        cell_of[identity] = name
        return found
    raise NotFound(f"no cell that answers has decision {identity}")


def _story(
    client: Client, timeline: Timeline, query: TimelineQuery, text: Text, cell_of: dict[str, str]
) -> DecisionStory | None:
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
        return _told(client, asked, cell_of)
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


def _timeline(client: PageClient, query: TimelineQuery, offset: int, limit: int) -> tuple[Timeline, dict[str, str]]:
    """A page of decisions, and the cell of each where all are shown."""
    if not cells.spans():
        return client.timeline(query, offset, limit), {}
    offset = min(offset, _MOST - limit)
    answers = client.cells_timeline(query, offset + limit).answers
    return whole_timeline(answers, offset, limit)


def _hand(client: PageClient, told: WholeSummary | None, text: Text) -> Hand:
    tripped = [] if told is None else [name for name, one in told.answers.items() if one.breaker.tripped]
    return Hand(client.me(), text, whole=told is not None, tripped=tripped)


@live()
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        summary, told = cells.summary_of(client)
        hand, (everything, _) = _hand(client, told, text), _timeline(client, TimelineQuery(), 0, 1)
        show_news(text)
        view = _head(summary, everything, hand)
        if not everything.states:
            st.info(text("decisions.none"))
        query = _query(view, everything, text)
        timeline, cell_of = _timeline(client, query, _offset(), PAGE)
        story = _story(client, timeline, query, text, cell_of)
    chosen = story.decision.id if story else ""
    left, right = st.columns([5, 6], gap="medium")
    with left:
        _draw_marks(timeline, chosen, text, palette)
    with left, st.container(key="decision_rows", gap=None):
        if not timeline.items:
            st.html(style.note(text("decisions.waiting.none" if view == "waiting" else "decisions.unfitting")))
        for item in timeline.items:
            _row(item, summary.now, chosen, text, cell_of.get(item.id, ""))
        _pages(timeline, text, _MOST if told is not None else None)
    with right:
        if story is None:
            st.html(style.note(text("decisions.choose")))
        else:
            show(story, summary.now, replace(hand, cell_of=cell_of), palette)
    # What another limit would have let run is worked out of one journal.
    if told is None:
        with api(text) as client:
            what_if.ask(client, everything.rules, text)


if __name__ == "__main__":
    render()
