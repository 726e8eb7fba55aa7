"""Wire models of silences: acknowledgements, snoozes and planned maintenance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tocsin.client.wire import Instant, RequestBody, Wire
from tocsin.domain.clock import from_iso
from tocsin.domain.silence import MatcherKind, SilenceKind

Reason = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86_400)]


def _real(instant: str) -> str:
    """`instant`, which the pattern alone lets be the 31st of February; raises ValueError."""
    try:
        from_iso(instant)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return instant


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
    start: Annotated[Instant, AfterValidator(_real)] | None = None
    """Null: now."""
    for_seconds: Seconds
    reason: Reason = ""
