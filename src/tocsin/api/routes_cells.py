"""Endpoints over all cells of a fleet: any brain answers for all, and says which cells did not answer."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query

from tocsin.api.auth import OPERATORS, Admin, Operator, Viewer, require_scope
from tocsin.api.dependencies import Credential, ServiceDep, operation_id, require_json
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.service import Asked, Gathered
from tocsin.client import models_cells as cells
from tocsin.client.control import ControlRequest, ControlState
from tocsin.client.models import DecisionOut, FleetSummary, GpuSummary, IncidentOut, Scoreboard, Timeline, TimelineQuery
from tocsin.client.models_capacity import CapacityOut, ForecastOut
from tocsin.client.models_cards import Cards, CardState
from tocsin.client.models_changes import Changes
from tocsin.client.models_report import MorningReport
from tocsin.config.access import Role
from tocsin.domain.decision import DecisionState
from tocsin.domain.finding import ActionKind
from tocsin.domain.prediction import Prediction

T = TypeVar("T")

cells_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1/cells",
    tags=["cells"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 422, 429, 500, 503),
)

Chosen = Annotated[
    list[str] | None, Query(max_length=100, alias="cell", description="Only these cells; repeatable. Default: all.")
]


def _whole(found: Gathered[T]) -> dict[str, Any]:
    return {"partial": found.partial, "cells": found.cells, "answers": found.answers}


@cells_router.get("")
def list_cells(service: ServiceDep, _who: Viewer) -> list[cells.CellOut]:
    """The cells of the fleet, as each last told of itself."""
    return service.cells.known()


@cells_router.get("/fleet")
def cells_fleet(service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None) -> cells.WholeSummary:
    """The fleet in one object for each cell."""
    asked = Asked("/v1/fleet", credential, cells=cell or ())
    return cells.WholeSummary(**_whole(service.cells.gather(asked, FleetSummary, service.summary)))


@cells_router.get("/gpus")
def cells_gpus(service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None) -> cells.WholeGpus:
    """Every GPU of each cell."""
    asked = Asked("/v1/gpus", credential, cells=cell or ())
    return cells.WholeGpus(**_whole(service.cells.gather(asked, list[GpuSummary], service.gpus)))


@cells_router.get("/cards")
def cells_cards(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most cards of each cell.")] = 50,
    state: Annotated[CardState | None, Query(description="Only cards in this state.")] = None,
    cell: Chosen = None,
) -> cells.WholeCards:
    """The open cards of each cell, the most urgent first."""
    params = {"limit": str(limit)} | ({"state": state.value} if state else {})
    asked = Asked("/v1/cards", credential, params, cell or ())
    return cells.WholeCards(**_whole(service.cells.gather(asked, Cards, lambda: service.cards(limit, state))))


@cells_router.get("/incidents")
def cells_incidents(
    service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None
) -> cells.WholeIncidents:
    """The open incidents of each cell."""
    asked = Asked("/v1/incidents", credential, cells=cell or ())
    return cells.WholeIncidents(**_whole(service.cells.gather(asked, list[IncidentOut], service.incidents)))


@cells_router.get("/predictions")
def cells_predictions(
    service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None
) -> cells.WholePredictions:
    """The newest predictions of each cell."""
    asked = Asked("/v1/predictions", credential, cells=cell or ())
    return cells.WholePredictions(**_whole(service.cells.gather(asked, list[Prediction], service.predictions)))


@cells_router.get("/decisions")
def cells_decisions(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most decisions of each cell.")] = 100,
    state: Annotated[DecisionState | None, Query(description="Only decisions in this state.")] = None,
    cell: Chosen = None,
) -> cells.WholeDecisions:
    """The decisions of each cell, those that wait for a person first, then newest first."""
    params = {"limit": str(limit)} | ({"state": state.value} if state else {})
    asked = Asked("/v1/decisions", credential, params, cell or ())
    found = service.cells.gather(asked, list[DecisionOut], lambda: service.decisions(limit, state))
    return cells.WholeDecisions(**_whole(found))


@cells_router.get("/timeline")
def cells_timeline(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    limit: Annotated[int, Query(ge=1, le=200, description="Most decisions of each cell.")] = 50,
    state: Annotated[list[DecisionState] | None, Query(max_length=20, description="Only these; repeatable.")] = None,
    action: Annotated[list[ActionKind] | None, Query(max_length=20, description="Only these; repeatable.")] = None,
    rule: Annotated[str, Query(max_length=200)] = "",
    pool: Annotated[str, Query(max_length=200)] = "",
    text: Annotated[str, Query(max_length=200, description="Only what has these letters in its texts.")] = "",
    waiting: Annotated[bool | None, Query(description="Only what waits for a person, or does not.")] = None,
    cell: Chosen = None,
) -> cells.WholeTimeline:
    """The newest decisions of each cell that fit, with what is needed to understand them."""
    query = TimelineQuery(tuple(state or ()), tuple(action or ()), rule, pool, text, waiting)
    params: dict[str, str | list[str]] = {"limit": str(limit), "rule": rule, "pool": pool, "text": text}
    params |= {"state": [one.value for one in query.states], "action": [one.value for one in query.actions]}
    params |= {} if waiting is None else {"waiting": str(waiting).lower()}
    asked = Asked("/v1/timeline", credential, params, cell or ())
    found = service.cells.gather(asked, Timeline, lambda: service.timeline(query, 0, limit))
    return cells.WholeTimeline(**_whole(found))


@cells_router.get("/changes")
def cells_changes(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    hours: Annotated[int, Query(ge=1, le=24, description="How far back it looks.")] = 1,
    limit: Annotated[int, Query(ge=1, le=200, description="Most changes of each cell.")] = 12,
    cell: Chosen = None,
) -> cells.WholeChanges:
    """What changed in each cell, newest first."""
    asked = Asked("/v1/changes", credential, {"hours": str(hours), "limit": str(limit)}, cell or ())
    found = service.cells.gather(asked, Changes, lambda: service.changes(hours, limit))
    return cells.WholeChanges(**_whole(found))


@cells_router.get("/forecast")
def cells_forecast(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most of each list of each cell.")] = 20,
    cell: Chosen = None,
) -> cells.WholeForecast:
    """What lies ahead in each cell: risks, memory that runs full, fragmentation that grows."""
    asked = Asked("/v1/forecast", credential, {"limit": str(limit)}, cell or ())
    found = service.cells.gather(asked, ForecastOut, lambda: service.forecast(limit))
    return cells.WholeForecast(**_whole(found))


@cells_router.get("/forecast/capacity")
def cells_capacity(
    service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None
) -> cells.WholeCapacity:
    """The pools of each cell a week ahead; a cell that is still working it out has not answered."""
    asked = Asked("/v1/forecast/capacity", credential, cells=cell or ())
    return cells.WholeCapacity(**_whole(service.cells.gather(asked, CapacityOut, service.capacity)))


@cells_router.get("/scoreboard")
def cells_scoreboard(
    service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None
) -> cells.WholeScoreboard:
    """What would have been done in each cell, and how often it would have been right."""
    asked = Asked("/v1/scoreboard", credential, cells=cell or ())
    return cells.WholeScoreboard(**_whole(service.cells.gather(asked, Scoreboard, service.scoreboard)))


@cells_router.get("/report")
def cells_report(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    hours: Annotated[int, Query(ge=1, le=168, description="How far back it looks.")] = 24,
    cell: Chosen = None,
) -> cells.WholeReport:
    """The morning report of each cell."""
    asked = Asked("/v1/report", credential, {"hours": str(hours)}, cell or ())
    found = service.cells.gather(asked, MorningReport, lambda: service.morning_report(hours))
    return cells.WholeReport(**_whole(found))


cells_control_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1/cells",
    tags=["cells"],
    dependencies=[Depends(require_json), Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 409, 415, 422, 429, 500, 503),
)


@cells_control_router.post("/pause")
def pause_cells(
    service: ServiceDep, who: Operator, credential: Credential, request: ControlRequest, cell: Chosen = None
) -> cells.WholeControl:
    """Hold every action of the fleet; the answer says which cells were not reached."""
    require_scope(who, OPERATORS, "pause")
    asked = Asked("/v1/pause", credential, cells=cell or (), body={"reason": request.reason})
    found = service.cells.gather(asked, ControlState, lambda: service.pause(who.name, request.reason))
    return cells.WholeControl(**_whole(found))


@cells_control_router.post("/resume")
def resume_cells(
    service: ServiceDep, who: Operator, credential: Credential, _request: ControlRequest, cell: Chosen = None
) -> cells.WholeControl:
    """Allow actions again after a pause, in every cell."""
    require_scope(who, OPERATORS, "resume")
    asked = Asked("/v1/resume", credential, cells=cell or (), body={})
    return cells.WholeControl(**_whole(service.cells.gather(asked, ControlState, lambda: service.resume(who.name))))


@cells_control_router.post("/breaker/reset")
def reset_breakers(
    service: ServiceDep, who: Admin, credential: Credential, _request: ControlRequest, cell: Chosen = None
) -> cells.WholeControl:
    """Reset the tripped breaker of every cell; one whose breaker is not tripped refuses."""
    require_scope(who, (Role.ADMIN,), "reset_breaker")
    asked = Asked("/v1/breaker/reset", credential, cells=cell or (), body={})
    found = service.cells.gather(asked, ControlState, lambda: service.reset_breaker(who.name))
    return cells.WholeControl(**_whole(found))
