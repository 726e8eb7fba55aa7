"""What endpoints depend on: the service, and parameters that several of them take.

Functions of dependencies are coroutines: FastAPI hands others to a thread, which costs more than what they do.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from fastapi.routing import APIRoute

from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal
from tocsin.api.service import Service
from tocsin.domain.clock import DAY, HOUR, from_iso
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import nearest, spec_of

DEFAULT_SPAN_MS = 6 * HOUR
LONGEST_DAYS = 35
"""Longest period of one request about the past: the days of a month and some more (own choice)."""
END_OF_TIME_MS = 253_402_300_800_000
"""Year 10,000: RFC 3339 has four digits for the year."""


def of_app(name: str) -> Any:
    """For endpoints: what `create_app` has put into the application's state under `name`."""

    async def found(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(found)


def operation_id(route: APIRoute) -> str:
    """The name of an endpoint in the OpenAPI document."""
    suffix = "_influxdb" if route.path == "/api/v2/ping" else ""
    return route.name + suffix


async def credential_of(request: Request) -> str:
    """What whoever asks proves it with; other cells of the fleet are asked with the same."""
    return str(request.headers.get("authorization", ""))


Credential = Annotated[str, Depends(credential_of)]


async def service_for(request: Request) -> Service:
    """The service as whoever asks may see it: a tenant's has that tenant's own alone."""
    service: Service = request.app.state.service
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None or not principal.namespaces:
        return service
    return service.for_tenant(principal.name, principal.namespaces)


ServiceDep = Annotated[Service, Depends(service_for)]
Uuid = Annotated[str, Path(min_length=1, max_length=200, description="UUID of a GPU or MIG instance.")]
DecisionId = Annotated[str, Path(min_length=1, max_length=64, description="Id of a decision.")]
CardId = Annotated[str, Path(min_length=1, max_length=64, description="Id of a card, or of one of its incidents.")]
Sequence64 = Annotated[int, Query(ge=0, lt=2**63)]
Words = Annotated[str, Query(max_length=200, description="Only what has these letters in its texts.")]
Kinds = Annotated[list[str] | None, Query(max_length=50, description="Only these kinds; repeatable.")]
Start = Annotated[str | None, Query(description="RFC 3339: nothing before it.")]
End = Annotated[str | None, Query(description="RFC 3339: nothing from it on.")]


async def require_json(request: Request) -> None:
    """A web page may send forms and plain text without being asked; JSON needs the leave that is never given here."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "send a JSON body with Content-Type: application/json")


def instant_of(field: str, text: str | None, default: int) -> int:
    """Milliseconds of parameter `field`; `default` where it is not given. Raises InputError."""
    if text is None:
        return default
    remedy = "use RFC 3339 in UTC, such as 2026-11-21T03:54:16Z"
    try:
        at_ms = from_iso(text)
    except (ValueError, OverflowError) as error:
        raise InputError(field, text, "is no instant", remedy) from error
    if not 0 <= at_ms < END_OF_TIME_MS:
        raise InputError(field, text, "lies outside the years 1970 to 9999", remedy)
    return at_ms


def bound_of(field: str, text: str | None) -> int | None:
    """An end of a span in UTC milliseconds; None where it is open."""
    return None if text is None else instant_of(field, text, 0)


def span_of(start: str | None, end: str | None, now_ms: int, default_ms: int) -> tuple[int, int]:
    """First and last instant of [`start`, `end`) in milliseconds; `default_ms` up to `now_ms` where they are not given.

    Raises InputError for a span that is empty, or longer than `LONGEST_DAYS`.
    """
    end_ms = instant_of("end", end, now_ms)
    start_ms = instant_of("start", start, max(0, end_ms - default_ms))
    if start_ms >= end_ms:
        raise InputError("start", start, f"not before end = {end or 'now'}", "give an earlier start")
    if end_ms - start_ms > LONGEST_DAYS * DAY:
        problem = f"more than {LONGEST_DAYS} days before end = {end or 'now'}"
        raise InputError("start", start, problem, "give a later start, or ask for one part after the other")
    return start_ms, end_ms


def whole_hours(start_ms: int, end_ms: int) -> tuple[int, int]:
    """The whole hours that [`start_ms`, `end_ms`) touches; the same again where they are more than one may ask for."""
    first, last = start_ms // HOUR * HOUR, -(-end_ms // HOUR) * HOUR
    if last - first > LONGEST_DAYS * DAY or last >= END_OF_TIME_MS:
        return start_ms, end_ms
    return first, last


def check_metrics(metrics: list[str]) -> None:
    """Raise InputError for a name that the metric table lacks."""
    for name in metrics:
        if spec_of(name) is None:
            raise InputError("metric", name, "not in the metric table", f"did you mean {nearest(name)}?")
