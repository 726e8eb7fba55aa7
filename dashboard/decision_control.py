"""What people do about decisions: yes, no, undo, pause, resume, reset of the breaker; and why a control is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.control import Whoami
from tocsin.client.models import FleetSummary, TimelineItem
from tocsin.client.models_cells import WholeControl
from tocsin.client.whole import missing
from tocsin.dashboard import style
from tocsin.dashboard.access import DECIDERS, connect, lacking, show_problem
from tocsin.dashboard.text import Text, decided, markdown_safe
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.domain.phrase import word_in_chinese

_PROBLEM, _NEWS = "decision_problem", "decision_news"


@dataclass(frozen=True, slots=True)
class Hand:
    """What whoever looks may do, by `GET /v1/me`. What is about a decision goes to the cell that `cell_of` has for its
    id; `whole`: what is about the fleet goes to every cell."""

    who: Whoami
    text: Text
    cell_of: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    tripped: Sequence[str] = ()
    """Cells whose breaker has tripped; one that has not refuses a reset."""

    def at(self, decision: str) -> str | None:
        """The cell of a decision; None: the one that is chosen."""
        return self.cell_of.get(decision)

    def closed(self, needed: str) -> str | None:
        """Why a control that needs role `needed` is closed; None where it is open."""
        return lacking(self.who, self.text, *(DECIDERS if needed == "operator" else ("admin",))) or None

    def limits(self) -> str:
        """What the role is limited to, in words; empty where it is not."""
        return self.text("decision.scopes", scopes="; ".join(self.who.scopes)) if self.who.scopes else ""


def send(call: Callable[[Client], object], news: str, cells: Sequence[str | None] = (None,)) -> None:
    """Do it, and keep what is to be said about it for the next run of the page. `cells` have what it is about; None:
    the one that is chosen."""
    st.session_state.pop(_NEWS, None)
    try:
        for cell in cells:
            with connect(cell) as client:
                done = call(client)
            if isinstance(done, WholeControl) and done.partial:
                # It holds in the others: who is not reached must be known at once.
                raise Unavailable("; ".join(f"cell {one.cell}: {one.detail}" for one in missing(done)))
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


def _approve(item: TimelineItem, hand: Hand) -> None:
    _settle(item, hand, "decision.approved", lambda client: client.approve(item.id))


def _approve_alike(item: TimelineItem, hand: Hand) -> None:
    _settle(item, hand, "decision.approved.alike", lambda client: client.approve_alike(item.id))


def _reject(item: TimelineItem, hand: Hand) -> None:
    why = _reason(f"reason-{item.id}")
    _settle(item, hand, "decision.rejected", lambda client: client.reject(item.id, why))


def _undo(item: TimelineItem, hand: Hand) -> None:
    why = _reason(f"reason-{item.id}")
    _settle(item, hand, "decision.undone", lambda client: client.undo(item.id, why))


def _settle(item: TimelineItem, hand: Hand, news: str, call: Callable[[Client], object]) -> None:
    send(call, hand.text(news, sentence=decided(item, hand.text)), [hand.at(item.id)])


def decide_buttons(item: TimelineItem, hand: Hand) -> None:
    """Approve and reject for what waits for a person, undo for what is in effect; nothing for the rest."""
    text, closed = hand.text, hand.closed("operator")
    undoable = item.inverse is not None and not item.undo_problem and not item.undone_by
    if not item.approvable and not undoable:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if item.approvable:
            _button("approve", text("decision.approve"), closed, _approve, item, hand, primary=True)
            if item.alike:
                label = text("decision.approve.alike", n=item.alike + 1)
                _button("approve-alike", label, closed, _approve_alike, item, hand)
            _button("reject", text("decision.reject"), closed, _reject, item, hand)
        elif item.inverse is not None:
            label = text("decision.undo", action=text.name("action", item.inverse.value))
            _button("undo", label, closed, _undo, item, hand)
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
    act: Callable[[TimelineItem, Hand], None],
    item: TimelineItem,
    hand: Hand,
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
        args=(item, hand),
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
            args=(lambda client: client.resume_cells() if hand.whole else client.resume(), text("control.done")),
        )
    else:
        with st.popover(text("control.pause"), icon=":material/pause:", disabled=closed is not None, help=closed):
            st.markdown(text("control.pause.ask"))
            st.text_input(text("decision.reason"), key="pause-reason", max_chars=500)
            st.button(text("control.pause"), key="pause", type="primary", on_click=_pause, args=(hand,))
    if summary.breaker.tripped:
        _breaker(summary, hand)


def _pause(hand: Hand) -> None:
    why = _reason("pause-reason")
    send(lambda client: client.pause_cells(why) if hand.whole else client.pause(why), hand.text("control.done"))


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
            args=(
                lambda client: client.reset_breakers(hand.tripped) if hand.whole else client.reset_breaker(),
                text("control.done"),
            ),
        )
