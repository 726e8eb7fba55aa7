"""What people do about a card: take it on, give it back, put it off; and why a control is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models_cards import Card, CardState
from tocsin.client.whole_cards import FleetCard
from tocsin.dashboard.decision_control import Hand, send
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.silence import MatcherKind

ACKNOWLEDGE_HOURS = 1
SNOOZE_HOURS = (1, 8, 24)
"""Spans that are offered: an hour, a shift, a day; `tocsin snooze` takes any."""
_HOUR_SECONDS = HOUR / SECOND


def _acknowledge(one: FleetCard, text: Text) -> None:
    free = [member for member in one.members if not member[1].acknowledged_by]
    seconds = ACKNOWLEDGE_HOURS * _HOUR_SECONDS
    _send(free, lambda client, card: client.acknowledge(card.id, seconds), _news("card.taken", one.card, text))


def _give_back(one: FleetCard, text: Text) -> None:
    said = _news("card.given_back", one.card, text)
    _send(one.members, lambda client, card: client.end_acknowledgement(card.id), said)


def _snooze(one: FleetCard, hours: int, text: Text) -> None:
    seconds, said = hours * _HOUR_SECONDS, _news("card.snoozed", one.card, text)
    _send(one.members, lambda client, card: client.snooze(MatcherKind.CARD, card.id, seconds), said)


def _send(members: Sequence[tuple[str, Card]], call: Callable[[Client, Card], object], news: str) -> None:
    """Each cell is told about its own card."""
    cards = dict(members)
    send(lambda client: call(client, cards[client.cell]), news, list(cards))


def _news(name: str, card: Card, text: Text) -> str:
    return text(name, headline=text.said(card.headline, card.headline_zh))


def key_of(one: FleetCard) -> str:
    """What tells the widgets of a card from those of others: two cells may have one id."""
    return "-".join(part for part in (one.members[0][0], one.card.id) if part)


def card_buttons(one: FleetCard, hand: Hand) -> None:
    """Acknowledge or give back, and snooze; nothing on a card that is over."""
    card, key = one.card, key_of(one)
    if card.state is CardState.RESOLVED:
        return
    text, closed = hand.text, hand.closed("operator")
    with st.container(horizontal=True, gap="small", key=f"control-{key}"):
        given_back = bool(card.acknowledged_by)
        st.button(
            text("card.give_back") if given_back else text("card.acknowledge", n=ACKNOWLEDGE_HOURS),
            key=f"acknowledge-{key}",
            icon=":material/undo:" if given_back else ":material/pan_tool:",
            disabled=closed is not None,
            help=closed,
            on_click=_give_back if given_back else _acknowledge,
            args=(one, text),
        )
        with st.popover(text("card.snooze"), icon=":material/snooze:", disabled=closed is not None, help=closed):
            st.caption(text("card.snooze.help"))
            for hours in SNOOZE_HOURS:
                st.button(
                    text("card.snooze.for", n=hours),
                    key=f"snooze-{hours}-{key}",
                    on_click=_snooze,
                    args=(one, hours, text),
                )
