"""Open tickets on the cards of their incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tocsin.client.models_cards import CardEvidence
from tocsin.queries.cards import MadeCard

MOST_SHOWN = 5
"""Tickets on one card."""


def with_tickets(made: Sequence[MadeCard], tickets: Mapping[str, Mapping[str, str]]) -> list[MadeCard]:
    """`made` with the tickets of each card's incidents; `tickets` has their names by incident and by channel."""
    return [_with(one, tickets) for one in made] if tickets else list(made)


def _with(made: MadeCard, tickets: Mapping[str, Mapping[str, str]]) -> MadeCard:
    known = sorted({pair for name in made.ids for pair in tickets.get(name, {}).items()})
    told = [CardEvidence(kind="ticket", text=f"ticket {t}", text_zh=f"工单 {t}", name=name) for name, t in known]
    if not told:
        return made
    return replace(made, card=made.card.model_copy(update={"evidence": [*made.card.evidence, *told[:MOST_SHOWN]]}))
