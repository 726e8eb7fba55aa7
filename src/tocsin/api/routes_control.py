"""Endpoints that change something; who did it goes into the journal. All take JSON, also where it is `{}`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request

from tocsin.api.auth import Admin, Operator
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.routes_ops import Brain
from tocsin.api.routes_read import DecisionId
from tocsin.client.models import ControlRequest, ControlState, DecisionOut, InjectionOut, InjectionRequest


async def require_json(request: Request) -> None:
    """A web page may send forms and plain text without being asked; JSON needs the leave that is never given here."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "unsupported_media_type", "send a JSON body with Content-Type: application/json")


router = APIRouter(
    prefix="/v1",
    dependencies=[Depends(require_json), Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 409, 413, 415, 422, 500, 503),
)


@router.post("/decisions/{decision_id}/approve", tags=["decisions"], responses=documented(404))
def approve(service: Brain, who: Operator, decision_id: DecisionId, _request: ControlRequest) -> DecisionOut:
    """Say yes to a held decision; guards are asked again before it runs."""
    return service.approve(decision_id, who.name)


@router.post("/decisions/{decision_id}/reject", tags=["decisions"], responses=documented(404))
def reject(service: Brain, who: Operator, decision_id: DecisionId, request: ControlRequest) -> DecisionOut:
    """Say no to a held decision; its subject is left alone for the hold-off."""
    return service.reject(decision_id, who.name, request.reason)


@router.post("/pause", tags=["control"])
def pause(service: Brain, who: Operator, request: ControlRequest) -> ControlState:
    """Hold every action until `resume`; notifications go on."""
    return service.pause(who.name, request.reason)


@router.post("/resume", tags=["control"])
def resume(service: Brain, who: Operator, _request: ControlRequest) -> ControlState:
    """Allow actions again after a pause."""
    return service.resume(who.name)


@router.post("/breaker/reset", tags=["control"])
def reset_breaker(service: Brain, who: Admin, _request: ControlRequest) -> ControlState:
    """Reset the tripped breaker."""
    return service.reset_breaker(who.name)


@router.post("/inject", tags=["control"], responses=documented(404))
def inject(service: Brain, who: Operator, request: InjectionRequest) -> InjectionOut:
    """Start a failure on a simulated GPU, for rehearsal; a real GPU is refused with 409."""
    return service.inject(request.kind, request.gpu, who.name)
