"""What people do about decisions: yes, no, undo, pause, resume, reset of the breaker; and why a control is closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.control import Whoami
from tocsin.client.models import FleetSummary, TimelineItem
from tocsin.dashboard import style
from tocsin.dashboard.access import DECIDERS, connect, lacking, show_problem
from tocsin.dashboard.text import Text, decided, markdown_safe
from tocsin.domain.errors import TocsinError
from tocsin.domain.phrase import word_in_chinese

_PROBLEM, _NEWS = "decision_problem", "decision_news"


@dataclass(frozen=True, slots=True)
class Hand:
    """What whoever looks may do, by `GET /v1/me`."""

    who: Whoami
    text: Text

    def closed(self, needed: str) -> str | None:
        """Why a control that needs role `needed` is closed; None where it is open."""
        return lacking(self.who, self.text, *(DECIDERS if needed == "operator" else ("admin",))) or None

    def limits(self) -> str:
        """What the role is limited to, in words; empty where it is not."""
        return self.text("decision.scopes", scopes="; ".join(self.who.scopes)) if self.who.scopes else ""


def send(call: Callable[[Client], object], news: str) -> None:
    """Do it, and keep what is to be said about it for the next run of the page."""
    st.session_state.pop(_NEWS, None)
    try:
        with connect() as client:
            call(client)
    except TocsinError as error:
        st.session_state[_PROBLEM] = error
        return
    st.session_state[_NEWS] = news


def show_news(text: Text) -> None:
    """Say how the last thing went."""
    if (problem := st.session_state.pop(_PROBLEM, None)) is not None:
        show_problem(problem, text)
    if news := st.session_state.get(_NEWS):
        st.success(markdown_safe(news), icon=":material/task_alt:")


def forget_news() -> None:
    """Say no more about the last thing: something else is looked at now."""
    st.session_state.pop(_NEWS, None)


def _reason(name: str) -> str:
    return str(st.session_state.get(name, ""))


def _approve(item: TimelineItem, text: Text) -> None:
    send(lambda client: client.approve(item.id), text("decision.approved", sentence=decided(item, text)))


def _reject(item: TimelineItem, text: Text) -> None:
    why = _reason(f"reason-{item.id}")
    send(lambda client: client.reject(item.id, why), text("decision.rejected", sentence=decided(item, text)))


def _undo(item: TimelineItem, text: Text) -> None:
    why = _reason(f"reason-{item.id}")
    send(lambda client: client.undo(item.id, why), text("decision.undone", sentence=decided(item, text)))


def decide_buttons(item: TimelineItem, hand: Hand) -> None:
    """Approve and reject for what waits for a person, undo for what is in effect; nothing for the rest."""
    text, closed = hand.text, hand.closed("operator")
    undoable = item.inverse is not None and not item.undo_problem and not item.undone_by
    if not item.approvable and not undoable:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if item.approvable:
            _button("approve", text("decision.approve"), closed, _approve, item, text, primary=True)
            _button("reject", text("decision.reject"), closed, _reject, item, text)
        elif item.inverse is not None:
            label = text("decision.undo", action=text.name("action", item.inverse.value))
            _button("undo", label, closed, _undo, item, text)
        st.text_input(
            text("decision.reason"),
            key=f"reason-{item.id}",
            placeholder=text("decision.reason"),
            label_visibility="collapsed",
            max_chars=500,
            disabled=closed is not None,
        )
    if note := closed or hand.limits():
        st.html(style.note(note))


def _button(
    name: str,
    label: str,
    closed: str | None,
    act: Callable[[TimelineItem, Text], None],
    item: TimelineItem,
    text: Text,
    *,
    primary: bool = False,
) -> None:
    st.button(
        label,
        key=f"{name}-{item.id}",
        type="primary" if primary else "secondary",
        disabled=closed is not None,
        help=closed,
        on_click=act,
        args=(item, text),
    )


def fleet_buttons(summary: FleetSummary, hand: Hand) -> None:
    """Pause or resume with a reason, and the breaker's reset where it has tripped."""
    text, closed = hand.text, hand.closed("operator")
    if summary.paused:
        # Where a journal is new Tocsin pauses by itself; what a person wrote is no word of the catalogue.
        reason = text.said(summary.paused_reason, word_in_chinese(summary.paused_reason))
        who, why = summary.paused_by, reason or text("control.no_reason")
        st.button(
            text("control.resume"),
            key="resume",
            icon=":material/play_arrow:",
            disabled=closed is not None,
            help=closed or markdown_safe(text("control.paused", who=who, reason=why)),
            on_click=send,
            args=(lambda client: client.resume(), text("control.done")),
        )
    else:
        with st.popover(text("control.pause"), icon=":material/pause:", disabled=closed is not None, help=closed):
            st.markdown(text("control.pause.ask"))
            st.text_input(text("decision.reason"), key="pause-reason", max_chars=500)
            st.button(text("control.pause"), key="pause", type="primary", on_click=_pause, args=(text,))
    if summary.breaker.tripped:
        _breaker(summary, hand)


def _pause(text: Text) -> None:
    why = _reason("pause-reason")
    send(lambda client: client.pause(why), text("control.done"))


def _breaker(summary: FleetSummary, hand: Hand) -> None:
    text, closed, breaker = hand.text, hand.closed("admin"), summary.breaker
    with st.popover(text("control.breaker"), icon=":material/electric_bolt:", disabled=closed is not None, help=closed):
        st.markdown(
            markdown_safe(text("control.breaker.ask", reason=text.said(breaker.reason, summary.breaker_reason_zh)))
        )
        sure = st.checkbox(text("control.breaker.sure"), key="breaker-sure")
        st.button(
            text("control.breaker"),
            key="breaker-reset",
            type="primary",
            disabled=not sure,
            on_click=send,
            args=(lambda client: client.reset_breaker(), text("control.done")),
        )
