"""What silences make of cards: which are acknowledged, which are hidden, and by what; and of which nobody is told,
because somebody silenced it at Alertmanager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tocsin.actions.model.alert_silences import AlertSilence, AlertSilences
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.silences import Cause, GpusOn, Silence, around, standing
from tocsin.client.models_cards import Card, CardEvidence, CardState
from tocsin.client.models_silences import SilenceOut
from tocsin.domain.clock import optional_iso, to_iso
from tocsin.domain.finding import ActionKind
from tocsin.domain.grouping import grouped
from tocsin.domain.phrase import in_chinese
from tocsin.domain.silence import SilenceKind

_OPEN = (CardState.OPEN, CardState.REOPENED)
MOST_SHOWN = 3
"""Silences of Alertmanager's on one card."""
_HIDING = (SilenceKind.SNOOZE, SilenceKind.MAINTENANCE)


def silence_out(one: Silence, now_ms: int) -> SilenceOut:
    """A silence as the API shows it."""
    exempt = one.breaker_until_ms > max(one.starts_ms, now_ms)
    return SilenceOut(
        id=one.id,
        silence=one.kind,
        kind=one.matcher.kind,
        name=one.matcher.name,
        by=one.actor,
        start=to_iso(one.starts_ms),
        until=to_iso(one.until_ms),
        reason=one.reason,
        breaker_until=optional_iso(one.breaker_until_ms if exempt else None),
    )


def marker(silences: Sequence[Silence], gpus_on: GpusOn, now_ms: int) -> Callable[[Card, Sequence[Cause]], Card]:
    """What marks a card that is not over, and the causes that it stands for, with what people said of them."""
    acks = standing(silences, now_ms, SilenceKind.ACKNOWLEDGEMENT)
    hiding = standing(silences, now_ms, *_HIDING)
    if not acks and not hiding:
        return lambda card, _causes: card

    def marked(card: Card, causes: Sequence[Cause]) -> Card:
        if not causes:
            return card
        update = _acknowledged(card, causes, acks)
        matchers = [around(cause.subjects, gpus_on) for cause in causes]
        pairs = list(zip(causes, matchers, strict=True))
        # One silence must hold all of it: what touches anything outside stays.
        holding = [one for one in hiding if all(one.contains(*pair) for pair in pairs)]
        if holding:
            update["hidden"] = silence_out(max(holding, key=lambda one: (one.until_ms, one.id)), now_ms)
        return card.model_copy(update=update) if update else card

    return marked


def sayer(
    silences: AlertSilences, statuses: Sequence[DecisionStatus], gpus_on: GpusOn, now_ms: int
) -> Callable[[Card, Sequence[Cause]], Card]:
    """What adds to a card that is not over who has silenced its notifications at Alertmanager, until when and why. They
    hide no card."""
    notices = [one.decision for one in statuses if one.decision.action is ActionKind.NOTIFY] if silences.known else []
    by_cause = grouped((name, one) for one in notices for name in {one.incident, *one.findings[:1]} if name)

    def said(card: Card, causes: Sequence[Cause]) -> Card:
        told: dict[str, CardEvidence] = {}
        for cause in causes:
            for decision in by_cause.get(cause.id, ()):
                found = silences.over(decision, cause.subjects, gpus_on, now_ms)
                if found is not None:
                    told[found.id] = _evidence(found, hard_fault=decision.hard_fault)
        shown = list(told.values())[:MOST_SHOWN]
        return card.model_copy(update={"evidence": [*card.evidence, *shown]}) if shown else card

    return said


def _evidence(one: AlertSilence, *, hard_fault: bool) -> CardEvidence:
    words = one.in_words(to_iso(one.until_ms), hard_fault=hard_fault)
    return CardEvidence(
        kind="silence", text=str(words), text_zh=in_chinese(words), name=one.by, at=to_iso(one.starts_ms)
    )


def _acknowledged(card: Card, causes: Sequence[Cause], acks: Sequence[Silence]) -> dict[str, Any]:
    """Who has taken the card on, and until when: of several whoever's ends first, for then it is open again."""
    of_each = [[one for one in acks if one.contains(cause, frozenset())] for cause in causes]
    if not all(of_each):
        return {}
    first = min((max(found, key=lambda one: one.until_ms) for found in of_each), key=lambda one: one.until_ms)
    state = CardState.ACKNOWLEDGED if card.state in _OPEN else card.state
    return {"state": state, "acknowledged_by": first.actor, "acknowledged_until": to_iso(first.until_ms)}
