"""What people do about a card: take it on, give it back, put it off; and why a control is closed."""

from __future__ import annotations

import streamlit as st

from tocsin.client.models_cards import Card, CardState
from tocsin.dashboard.decision_control import Hand, send
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.silence import MatcherKind

ACKNOWLEDGE_HOURS = 1
SNOOZE_HOURS = (1, 8, 24)
"""Spans that are offered: an hour, a shift, a day; `tocsin snooze` takes any."""
_HOUR_SECONDS = HOUR / SECOND


def _acknowledge(card: Card, text: Text) -> None:
    send(lambda client: client.acknowledge(card.id, ACKNOWLEDGE_HOURS * _HOUR_SECONDS), _news("card.taken", card, text))


def _give_back(card: Card, text: Text) -> None:
    send(lambda client: client.end_acknowledgement(card.id), _news("card.given_back", card, text))


def _snooze(card: Card, hours: int, text: Text) -> None:
    seconds = hours * _HOUR_SECONDS
    send(lambda client: client.snooze(MatcherKind.CARD, card.id, seconds), _news("card.snoozed", card, text))


def _news(name: str, card: Card, text: Text) -> str:
    return text(name, headline=text.said(card.headline, card.headline_zh))


def card_buttons(card: Card, hand: Hand) -> None:
    """Acknowledge or give back, and snooze; nothing on a card that is over."""
    if card.state is CardState.RESOLVED:
        return
    text, closed = hand.text, hand.closed("operator")
    with st.container(horizontal=True, gap="small", key=f"control-{card.id}"):
        given_back = bool(card.acknowledged_by)
        st.button(
            text("card.give_back") if given_back else text("card.acknowledge", n=ACKNOWLEDGE_HOURS),
            key=f"acknowledge-{card.id}",
            icon=":material/undo:" if given_back else ":material/pan_tool:",
            disabled=closed is not None,
            help=closed,
            on_click=_give_back if given_back else _acknowledge,
            args=(card, text),
        )
        with st.popover(text("card.snooze"), icon=":material/snooze:", disabled=closed is not None, help=closed):
            st.caption(text("card.snooze.help"))
            for hours in SNOOZE_HOURS:
                st.button(
                    text("card.snooze.for", n=hours),
                    key=f"snooze-{hours}-{card.id}",
                    on_click=_snooze,
                    args=(card, hours, text),
                )
