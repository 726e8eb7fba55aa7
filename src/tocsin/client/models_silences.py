"""Wire models of silences: acknowledgements, snoozes and planned maintenance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tocsin.client.wire import Instant, RequestBody, Wire
from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.silence import MatcherKind, SilenceKind

Reason = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86_400)]


def _instant(text: str) -> str:
    """An instant in any form of RFC 3339 as the wire has it; raises ValueError."""
    try:
        return to_iso(from_iso(text))
    except OverflowError as error:
        raise ValueError(str(error)) from error


Place = Literal[MatcherKind.HOST, MatcherKind.POOL, MatcherKind.RACK, MatcherKind.LABEL]


class SilenceOut(Wire):
    """One silence; it stands from `start` until `until`."""

    id: str
    silence: SilenceKind
    kind: MatcherKind
    name: str
    """Id of a card, name of a host, pool or rack, or a label as `key=value`."""
    by: str
    start: Instant
    until: Instant
    reason: str = ""
    breaker_until: Instant | None = None
    """Until when an acknowledgement keeps its cause out of the breaker; null where it does not."""


class AcknowledgeRequest(RequestBody):
    """For how long a card is taken on, and why."""

    for_seconds: Seconds = 3600.0
    reason: Reason = ""


class SnoozeRequest(RequestBody):
    """What is hidden, for how long, and why."""

    kind: MatcherKind
    name: Name
    for_seconds: Seconds
    reason: Reason = ""


class MaintenanceRequest(RequestBody):
    """Where maintenance is planned, when, for how long, and why."""

    kind: Place
    name: Name
    start: Annotated[str, Field(max_length=40), AfterValidator(_instant)] | None = None
    """RFC 3339; null: now."""
    for_seconds: Seconds
    reason: Reason = ""
