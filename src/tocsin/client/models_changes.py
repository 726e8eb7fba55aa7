"""Wire models of what changed lately: one line each, newest first."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tocsin.client.wire import Count, Instant, Wire


class ChangeKind(StrEnum):
    """What a change is about."""

    CARD = "card"
    """Something broke or is expected, or is over."""
    ACTION = "action"
    """An action that runs or ended, by Tocsin or by a person's hand, and a person's no."""
    CONTROL = "control"
    """The service, its mode, a pause, the breaker, what rules and models may do."""
    SILENCE = "silence"
    """What people acknowledged, snoozed, planned or gave back."""
    NODE = "node"
    """A host that is new, or versions of hosts that changed."""


class Change(Wire):
    """One line."""

    at: Instant
    kind: ChangeKind
    text: str
    text_zh: str = ""


class Changes(Wire):
    """What changed in [`start`, `end`]; a host that went silent is a card."""

    start: Instant
    end: Instant
    total: Count = 0
    """Changes of the span, those that `items` leaves out among them."""
    at_least: bool = False
    """Whether the journal has more entries of the span than were looked at: the oldest are left out of `total`."""
    items: list[Change] = Field(default_factory=list)
    """Newest first."""
