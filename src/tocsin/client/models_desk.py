"""Wire models of what ticket systems send back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tocsin.client.wire import Instant, RequestBody, Wire

_Word = Annotated[str, Field(max_length=100)]


class DeskCall(RequestBody):
    """What became of a ticket; the signature of the request says whose it is."""

    action: Literal["acknowledge", "resolve", "reopen"]
    """`acknowledge`: somebody works on it. `resolve`: it is taken for over. `reopen`: neither holds any more."""
    card: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")]
    """Id of the card, or of one of its incidents, as the notification had it."""
    ticket: _Word = ""
    """The ticket's own name, such as `OPS-123`; a part of the reason on record."""
    by: _Word = ""
    """Who did it there, as the ticket system says: a part of the reason, proof of nothing."""
    note: Annotated[str, Field(max_length=250)] = ""
    """With the two above no longer than a reason may be."""


class DeskOut(Wire):
    """What became of a call."""

    outcome: Literal["done", "over", "repeated"]
    """`over`: the card was resolved, nothing was left to do. `repeated`: the very same request was taken before."""
    card: str
    until: Instant | None = None
    """When the acknowledgement ends, or the card is shown again; null where neither holds."""
    sentence: str
