"""Page: what is to be done, what every guard says of it, and a person's yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import DecisionOut, VerdictOut
from tocsin.dashboard import style
from tocsin.dashboard.access import REFRESH_SECONDS, api, connect, show_problem
from tocsin.dashboard.format import clock, readable, seconds_between, short_clock
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.overview import GPU_PAGE
from tocsin.dashboard.palette import RULING_SYMBOLS, SEVERITY_STATES
from tocsin.dashboard.text import Text
from tocsin.domain.decision import DecisionState, Ruling
from tocsin.domain.errors import TocsinError
from tocsin.domain.subject import SubjectKind

_LIMIT = 200
_CARDS = 20
_MAY_DECIDE = {"operator", "admin"}


def _settle(decision: DecisionOut, yes: bool, text: Text) -> None:
    """Send a person's answer and say how it went."""
    try:
        with connect() as client:
            if yes:
                client.approve(decision.id)
            else:
                client.reject(decision.id, st.session_state.get(f"reason-{decision.id}", ""))
    except TocsinError as error:
        st.session_state["decision_problem"] = error
        return
    key = "decision.approved" if yes else "decision.rejected"
    st.session_state["decision_news"] = text(key, sentence=readable(decision.sentence))


def _news(text: Text) -> None:
    problem = st.session_state.pop("decision_problem", None)
    if problem is not None:
        show_problem(problem, text)
    news = st.session_state.get("decision_news")
    if news:
        st.success(news, icon=":material/task_alt:")


def _chips(decision: DecisionOut, now: str, text: Text) -> str:
    age = text("decision.made", age=text.duration(max(0.0, seconds_between(decision.at, now))))
    left = text("decision.expires", time=text.duration(max(0.0, seconds_between(now, decision.expires))))
    parts = [
        style.chip(text.name("action", decision.action.value)),
        f'<span class="tc-muted">{escape(decision.rule)} · {escape(age)} · {escape(left)}</span>',
    ]
    return style.bar(parts)


def _reasons(decision: DecisionOut, now: str, text: Text) -> str:
    """One line for each guard that does not allow it."""
    colours = current_palette()
    lines = []
    for verdict in decision.verdicts:
        if verdict.ruling is Ruling.ALLOW:
            continue
        colour = colours.ruling(verdict.ruling)
        mark = f'<span class="tc-sign" style="color:{colour}">{RULING_SYMBOLS[verdict.ruling]}</span>'
        what = f"<b>{escape(text.name('guard', verdict.guard))}</b> {escape(readable(verdict.reason))}"
        until = text("decision.until", time=f"{short_clock(verdict.until, now)} UTC") if verdict.until else ""
        lines.append(style.row(mark, what, until))
    return "".join(lines)


def _guard_rows(verdicts: Sequence[VerdictOut], text: Text) -> list[list[str]]:
    colours = current_palette()
    return [
        [
            escape(text.name("guard", verdict.guard)),
            f'<span class="tc-nowrap" style="color:{colours.ruling(verdict.ruling)}">{RULING_SYMBOLS[verdict.ruling]} '
            f"{escape(text.name('ruling', verdict.ruling.value))}</span>",
            escape(readable(verdict.reason)),
            f"{clock(verdict.until)}" if verdict.until else "",
        ]
        for verdict in verdicts
    ]


def _guards(decision: DecisionOut, text: Text) -> None:
    counts = {ruling: sum(v.ruling is ruling for v in decision.verdicts) for ruling in Ruling}
    label = text("decision.guards", allow=counts[Ruling.ALLOW], hold=counts[Ruling.HOLD], deny=counts[Ruling.DENY])
    with st.expander(label):
        head = [text(f"column.{name}") for name in ("guard", "says", "why", "until")]
        st.html(style.table(head, _guard_rows(decision.verdicts, text)))


def _buttons(decision: DecisionOut, role: str, text: Text) -> None:
    allowed = role in _MAY_DECIDE
    note = None if allowed else text("decision.role", role=role)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for yes, word, kind in ((True, "approve", "primary"), (False, "reject", "secondary")):
            st.button(
                text(f"decision.{word}"),
                key=f"{word}-{decision.id}",
                type="primary" if kind == "primary" else "secondary",
                disabled=not allowed,
                help=note,
                on_click=_settle,
                args=(decision, yes, text),
            )
        st.text_input(
            text("decision.reason"),
            key=f"reason-{decision.id}",
            placeholder=text("decision.reason"),
            label_visibility="collapsed",
            max_chars=500,
            disabled=not allowed,
        )


def _card(decision: DecisionOut, now: str, role: str, text: Text) -> None:
    with st.container(border=True, gap="small"):
        mark = style.sign(SEVERITY_STATES[decision.severity])
        with st.container(horizontal=True, wrap=False, vertical_alignment="top"):
            st.html(style.row(mark, f"<b>{escape(readable(decision.sentence))}</b>") + _chips(decision, now, text))
            if decision.subject.kind is SubjectKind.GPU:
                st.page_link(
                    GPU_PAGE,
                    label=text("decision.show_gpu"),
                    icon=":material/arrow_forward:",
                    query_params={"gpu": decision.subject.name, "lang": text.language},
                )
        st.html(_reasons(decision, now, text))
        if decision.approvable:
            _buttons(decision, role, text)
        _guards(decision, text)


def _people(decision: DecisionOut, text: Text) -> str:
    if decision.rejected_by:
        return text("decision.rejected_by", who=decision.rejected_by)
    return text("decision.approved_by", who=decision.approved_by) if decision.approved_by else ""


def _state(decision: DecisionOut, text: Text) -> str:
    state = text.name("decision_state", decision.state.value)
    if decision.outcome is None:
        return state
    return f"{state}: {text.name('outcome', decision.outcome.status.value)}"


def _settled(decisions: Sequence[DecisionOut], text: Text) -> None:
    st.html(style.title(text("decisions.other")))
    if not decisions:
        st.caption(text("decisions.other.none"))
        return
    rows = [
        [
            clock(decision.at),
            style.sign(SEVERITY_STATES[decision.severity]) + " " + escape(readable(decision.sentence)),
            escape(_state(decision, text)),
            escape(_people(decision, text)),
            escape("; ".join(readable(v.reason) for v in decision.verdicts if v.ruling is not Ruling.ALLOW)),
        ]
        for decision in decisions
    ]
    head = [text(f"column.{name}") for name in ("when", "decision", "state", "by", "why")]
    st.html(style.table(head, rows))


def _cards(heading: str, empty: str, decisions: Sequence[DecisionOut], now: str, role: str, text: Text) -> None:
    st.html(style.title(f"{heading} ({len(decisions)})"))
    if not decisions:
        st.caption(empty)
    for decision in decisions[:_CARDS]:
        _card(decision, now, role, text)
    if len(decisions) > _CARDS:
        st.caption(text("attention.more", n=len(decisions) - _CARDS))


@st.fragment(run_every=REFRESH_SECONDS)
def render() -> None:
    """Draw the page."""
    text = current_text()
    with api(text) as client:
        now, role, decisions = client.summary().now, client.me().role, client.decisions(_LIMIT)
    if not decisions:
        st.info(text("decisions.none"))
        return
    _news(text)
    waiting = sorted((d for d in decisions if d.approvable), key=lambda d: (len(d.held_by), -d.severity.rank))
    held = [d for d in decisions if d.state is DecisionState.HELD and not d.approvable]
    left, right = st.columns(2, gap="medium")
    with left:
        _cards(text("decisions.waiting"), text("decisions.waiting.none"), waiting, now, role, text)
    with right:
        _cards(text("decisions.held"), text("decisions.held.none"), held, now, role, text)
    _settled([d for d in decisions if not d.approvable and d.state is not DecisionState.HELD], text)
