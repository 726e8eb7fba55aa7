"""Cards, as a list: what is wrong, where it stands, what happens next, one button, and the rest behind a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import streamlit as st

from tocsin.client.models_cards import Card, CardAction, CardEvidence, Cards, CardState
from tocsin.client.whole_cards import FleetCard, fleet_cards
from tocsin.dashboard import link, style
from tocsin.dashboard.access import chosen_cell
from tocsin.dashboard.card_control import card_buttons, key_of
from tocsin.dashboard.decision_control import Hand
from tocsin.dashboard.text import Text, chance, markdown_safe, money, number, short_clock
from tocsin.domain.finding import SubjectKind

SHOWN = 20
"""Cards that are asked for: about two screens of the list."""


def cost_text(card: Card, text: Text) -> str:
    """What waiting costs: money where a price is set, else GPU-hours; empty where nobody knows."""
    if card.waiting_money is not None:
        return money(card.waiting_money, card.currency)
    if card.waiting_gpu_hours is None:
        return ""
    hours = card.waiting_gpu_hours
    return text("attention.hours", n="< 0.1" if hours < 0.1 else number(hours))


def head(card: Card, now: str, text: Text, cells: str = "") -> str:
    """The card in three lines of HTML: headline, where it stands, and what happens next or why nothing can be done;
    `cells` are those that have it, where they are several."""
    since = text("card.since", at=short_clock(card.since, now)) if card.since else ""
    stands = [
        f'<span class="tc-chip tc-small">{escape(text("cells.one", cell=cells))}</span>' if cells else "",
        f"<b>{escape(_state(card, now, text))}</b>",
        escape(text.name("level", card.level.value)),
        escape(since),
        escape(_again(card, now, text)),
    ]
    if cost := cost_text(card, text):
        stands.append(f"{escape(text('attention.cost'))} <b>{escape(cost)}</b>")
    then = _then(card, text)
    sure = "" if card.probability is None else chance(card.probability)
    ahead = f'<span class="tc-forecast">↗ {escape(sure)}</span> ' if sure else ""
    return (
        f'<div class="tc-item"><div class="tc-headline">{escape(text.said(card.headline, card.headline_zh))}</div>'
        f'<div class="tc-meta">{" · ".join(part for part in stands if part)}</div>'
        f'<div class="tc-clamp" title="{escape(then, quote=True)}">{ahead}{escape(then)}</div></div>'
    )


def _then(card: Card, text: Text) -> str:
    """What happens next, else why nothing can be done; in Chinese a guard that speaks English alone is named."""
    if card.action is not None or not card.obstacle:
        return text.said(card.next, card.next_zh)
    unsaid = card.obstacle_guard and not card.obstacle_zh.endswith("。")
    guard = f"（{text.name('guard', card.obstacle_guard)}）。" if unsaid else ""
    return text.said(card.obstacle, card.obstacle_zh and f"{card.obstacle_zh}{guard}")


def _state(card: Card, now: str, text: Text) -> str:
    """Where it stands, and who has taken it on until when."""
    if card.state is not CardState.ACKNOWLEDGED or card.acknowledged_until is None:
        return text.name("card_state", card.state.value)
    return text("card.acknowledged", who=card.acknowledged_by, at=short_clock(card.acknowledged_until, now))


def _again(card: Card, now: str, text: Text) -> str:
    """When it had ended before."""
    return text("card.again", at=short_clock(card.reopened_from, now)) if card.reopened_from else ""


def details(card: Card, text: Text) -> str:
    """The rest in HTML: what it touches, how sure it is, what the action is and costs, and what it all rests on."""
    touched, action = card.touches, card.action
    sure = text.said(card.confidence, card.confidence_zh)
    counts = text("card.counts", gpus=touched.gpus, hosts=touched.hosts, jobs=touched.jobs)
    names = ", ".join([*touched.gpu_names, *touched.job_names, *touched.owner_names])
    lines = [style.facts([(text("card.touches"), counts), (text("card.confidence"), sure)])]
    if names:
        lines.append(style.note(names))
    if action is not None:
        lines.append(f'<p class="tc-note">{escape(text.said(action.sentence, action.cause_zh))}</p>')
        if action.cost_gpu_hours is not None:
            saves = action.benefit_gpu_hours or 0.0
            lines.append(style.note(text("card.worth", cost=number(action.cost_gpu_hours), benefit=number(saves))))
    return "".join([*lines, *(_evidence(one, text) for one in card.evidence)])


def _evidence(one: CardEvidence, text: Text) -> str:
    name = f"XID {one.xid}" if one.xid is not None else one.name
    label = f'<b class="tc-small tc-chip">{escape(name)}</b> ' if name else ""
    return f'<div class="tc-row"><span class="tc-what">{label}{escape(text.said(one.text, one.text_zh))}</span></div>'


def approve_label(action: CardAction, text: Text) -> str:
    """What the button of a card leads to: one yes, or that for all that wait alike."""
    name = text.name("action", action.kind.value)
    if not action.alike:
        return text("card.approve", action=name)
    return text("card.approve.alike", action=name, n=action.alike + 1)


def _card(one: FleetCard, now: str, hand: Hand, cells: str) -> None:
    text, card, key = hand.text, one.card, key_of(one)
    with st.container(key=f"card-{key}", gap="xsmall"):
        with st.container(horizontal=True, wrap=False, vertical_alignment="top", gap="xsmall"):
            st.html(style.sign(card.health), width="content")
            st.html(head(card, now, text, cells))
        if card.action is not None and card.action.can_approve:
            label = approve_label(card.action, text)
            # The page of the decision says all of it, and has the yes: nothing is started from a list.
            if st.button(label, key=f"approve-card-{key}", type="primary", icon=":material/gavel:"):
                st.switch_page(link.DECISIONS_PAGE, query_params=link.target(decision=card.action.decision))
        card_buttons(one, hand)
        with st.expander(text("card.more")):
            st.html(details(card, text))
            for cell, other in one.members[1:]:
                st.html(
                    style.note(text("cells.also", cell=cell, headline=text.said(other.headline, other.headline_zh)))
                )
            _links(card, text)


def _links(card: Card, text: Text) -> None:
    subject, action = card.subject, card.action
    host = subject.host if subject.kind is SubjectKind.HOST else ""
    uuid = subject.name if subject.kind is SubjectKind.GPU else ""
    if host or uuid:
        where = card.touches.gpu_names[0] if uuid and card.touches.gpu_names else subject.host
        st.page_link(
            link.GPU_PAGE,
            label=markdown_safe(where),
            icon=":material/arrow_forward:",
            query_params=link.target(gpu=uuid, host=host),
        )
    if action is not None and not action.can_approve:
        parameters = link.target(decision=action.decision)
        st.page_link(link.DECISIONS_PAGE, label=text("card.decision"), query_params=parameters)


def show(found: Cards, now: str, hand: Hand) -> None:
    """Draw the list in a frame of its own, which scrolls, so that the page does not; `hand` is whoever looks."""
    _show([FleetCard(card, ((chosen_cell(), card),)) for card in found.items], found.total, [found], now, hand)


def show_whole(answers: Mapping[str, Cards], now: str, hand: Hand) -> None:
    """The same of all cells: a cause that several share is one card, and each says of which cell it is."""
    items, total = fleet_cards(answers, SHOWN)
    _show(items, total, list(answers.values()), now, hand, named=True)


def _show(
    items: Sequence[FleetCard], total: int, every: Sequence[Cards], now: str, hand: Hand, *, named: bool = False
) -> None:
    text = hand.text
    counts = {
        "n": sum(one.hidden for one in every),
        "snoozes": sum(one.snoozes for one in every),
        "maintenances": sum(one.maintenances for one in every),
    }
    if counts["n"]:
        st.caption(text("attention.hidden", **counts))
    if not items:
        if not counts["n"]:
            st.success(text("attention.none"), icon=":material/check_circle:")
        return
    with st.container(key="attention", border=False):
        for one in items:
            _card(one, now, hand, one.cells if named else "")
        if total > len(items):
            st.caption(text("attention.more", n=total - len(items)))
