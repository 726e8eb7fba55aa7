"""Endpoints of silences: acknowledge a card, snooze a card or a place, plan maintenance; each has an end.

Who is limited to pools needs a scope in each pool that the silence covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from tocsin.api.auth import OPERATORS, Operator, Viewer, require_role, require_scope
from tocsin.api.dependencies import CardId, ServiceDep, operation_id, require_json
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.principal import Principal
from tocsin.api.service import Service
from tocsin.client.models_silences import AcknowledgeRequest, MaintenanceRequest, SilenceOut, SnoozeRequest
from tocsin.domain.silence import MatcherKind, SilenceKind

SilenceId = Annotated[str, Path(min_length=1, max_length=64, description="Id of a snooze or of planned maintenance.")]
_SCOPES = {
    SilenceKind.ACKNOWLEDGEMENT: "acknowledge",
    SilenceKind.SNOOZE: "snooze",
    SilenceKind.MAINTENANCE: "plan_maintenance",
}

silences_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)
_changes = documented(400, 404, 409, 415)
_ends = documented(404, 409)
_JSON = [Depends(require_json)]


def _require(who: Principal, kind: SilenceKind, pools: Sequence[str]) -> None:
    require_scope(who, OPERATORS, _SCOPES[kind], pools)


def require_for_card(service: Service, who: Principal, kind: SilenceKind, card_id: str) -> None:
    """Raise ApiError 403 where role or scope of `who` do not reach that kind of silence of a card."""
    require_role(who, OPERATORS)
    if who.limited:
        _require(who, kind, service.silences.pools(MatcherKind.CARD, card_id))


def acknowledge_by(
    service: Service, who: Principal, card_id: str, request: AcknowledgeRequest, request_id: str = ""
) -> SilenceOut:
    """Take a card on as `who`, wherever that person says it. Raises what `require_for_card` and the service raise."""
    require_for_card(service, who, SilenceKind.ACKNOWLEDGEMENT, card_id)
    return service.silences.acknowledge(card_id, request, who.name, personal=who.personal, request_id=request_id)


@silences_router.post("/cards/{card_id}/acknowledge", tags=["cards"], dependencies=_JSON, responses=_changes)
def acknowledge(service: ServiceDep, who: Operator, card_id: CardId, request: AcknowledgeRequest) -> SilenceOut:
    """Take a card on for up to 24 h: nobody is told of its cause again, and it stays on the list.

    By a person's own token its cause is kept out of the breaker as long, for 4 h at most.
    """
    return acknowledge_by(service, who, card_id, request)


@silences_router.delete("/cards/{card_id}/acknowledge", tags=["cards"], responses=_ends)
def end_acknowledgement(service: ServiceDep, who: Operator, card_id: CardId) -> list[SilenceOut]:
    """Let a card be open again."""
    require_for_card(service, who, SilenceKind.ACKNOWLEDGEMENT, card_id)
    return service.silences.end_acknowledgement(card_id, who.name)


@silences_router.get("/snoozes", tags=["cards"])
def snoozes(service: ServiceDep, _who: Viewer) -> list[SilenceOut]:
    """Snoozes that stand, the next to end first."""
    return service.silences.listed(SilenceKind.SNOOZE)


@silences_router.post("/snoozes", tags=["cards"], dependencies=_JSON, responses=_changes)
def snooze(service: ServiceDep, who: Operator, request: SnoozeRequest) -> SilenceOut:
    """Hide a card, or what lies wholly in a host, pool, rack or label, for up to 7 days or until it gets worse."""
    if who.limited:
        _require(who, SilenceKind.SNOOZE, service.silences.pools(request.kind, request.name))
    return service.silences.snooze(request, who.name)


@silences_router.delete("/snoozes/{silence_id}", tags=["cards"], responses=_ends)
def end_snooze(service: ServiceDep, who: Operator, silence_id: SilenceId) -> SilenceOut:
    """End a snooze before its time."""
    if who.limited:
        _require(who, SilenceKind.SNOOZE, service.silences.pools_of(SilenceKind.SNOOZE, silence_id))
    return service.silences.end(SilenceKind.SNOOZE, silence_id, who.name)


@silences_router.get("/maintenance", tags=["cards"])
def maintenance(service: ServiceDep, _who: Viewer) -> list[SilenceOut]:
    """Maintenance that goes on or is planned, the next to end first."""
    return service.silences.listed(SilenceKind.MAINTENANCE)


@silences_router.post("/maintenance", tags=["cards"], dependencies=_JSON, responses=_changes)
def plan_maintenance(service: ServiceDep, who: Operator, request: MaintenanceRequest) -> SilenceOut:
    """Plan maintenance, 14 days ahead and 7 days long at most: no card for what lies wholly in it, no action there."""
    if who.limited:
        _require(who, SilenceKind.MAINTENANCE, service.silences.pools(request.kind, request.name))
    return service.silences.plan(request, who.name)


@silences_router.delete("/maintenance/{silence_id}", tags=["cards"], responses=_ends)
def end_maintenance(service: ServiceDep, who: Operator, silence_id: SilenceId) -> SilenceOut:
    """End maintenance before its time, or take a plan back."""
    if who.limited:
        _require(who, SilenceKind.MAINTENANCE, service.silences.pools_of(SilenceKind.MAINTENANCE, silence_id))
    return service.silences.end(SilenceKind.MAINTENANCE, silence_id, who.name)
