"""Endpoints over all cells of a fleet: any brain answers for all, and says which cells did not answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query

from tocsin.api.auth import OPERATORS, Admin, Operator, Viewer, require_scope
from tocsin.api.dependencies import (
    Credential,
    End,
    Kinds,
    ServiceDep,
    Start,
    Words,
    bound_of,
    operation_id,
    require_json,
    span_of,
    whole_hours,
)
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.service import Asked, Gathered
from tocsin.api.usage_days import LONGEST_JOB_DAYS, By, Day, as_asked, days_of, usage_span
from tocsin.client import models_cells as cells
from tocsin.client.control import ControlRequest, ControlState
from tocsin.client.models import (
    DecisionOut,
    FleetSummary,
    GpuSummary,
    IncidentOut,
    JournalPage,
    JournalQuery,
    Scoreboard,
    Timeline,
    TimelineQuery,
)
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Cards, CardState
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import ComponentKey, DriftOut
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_usage import RightSizeOut, UsageOut
from tocsin.client.whole_places import whereabouts
from tocsin.config.access import Role
from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import InputError
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


@cells_router.get("/rules")
def cells_rules(service: ServiceDep, _who: Viewer, credential: Credential, cell: Chosen = None) -> cells.WholeRecords:
    """Every rule of each cell, with the record by which it earns to act alone there."""
    asked = Asked("/v1/rules", credential, cells=cell or ())
    return cells.WholeRecords(**_whole(service.cells.gather(asked, list[RuleRecord], service.rule_records)))


@cells_router.get("/usage")
def cells_usage(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    start: Day = None,
    end: Day = None,
    by: By = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most groups of each cell; the rest is one row.")] = 50,
    cell: Chosen = None,
) -> cells.WholeUsage:
    """GPU-hours, energy and cost of each cell; of a tenant its own work alone, as each cell's `/v1/usage` shows it."""
    first, last, wanted = usage_span(start, end, by, service.now_ms())
    # Near midnight clocks differ: the days are those of the cell that is asked.
    params: dict[str, str | list[str]] = {**as_asked(first, last), "limit": str(limit), "by": list[str](wanted)}
    asked = Asked("/v1/usage", credential, params, cell or ())
    found = service.cells.gather(asked, UsageOut, lambda: service.usage(first, last, wanted, limit))
    return cells.WholeUsage(**_whole(found))


@cells_router.get("/usage/right-size")
def cells_right_size(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    start: Day = None,
    end: Day = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most jobs of each cell.")] = 50,
    cell: Chosen = None,
) -> cells.WholeRightSize:
    """Jobs of each cell that less would have done for; of a tenant its own."""
    first, last = days_of(start, end, service.now_ms(), LONGEST_JOB_DAYS)
    asked = Asked("/v1/usage/right-size", credential, {**as_asked(first, last), "limit": str(limit)}, cell or ())
    found = service.cells.gather(asked, RightSizeOut, lambda: service.right_size(first, last, limit))
    return cells.WholeRightSize(**_whole(found))


@cells_router.get("/cost")
def cells_cost(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    start: Annotated[str | None, Query(description="RFC 3339. Default: 24 whole hours up to `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    cell: Chosen = None,
) -> cells.WholeCost:
    """What GPUs of each cell were used for, energy and faults, in the same whole hours."""
    # As whole hours the question is the same for a while, so that the last answer to it may stand in.
    start_ms, end_ms = whole_hours(*span_of(start, end, service.now_ms(), DAY - HOUR))
    asked = Asked("/v1/cost", credential, {"start": to_iso(start_ms), "end": to_iso(end_ms)}, cell or ())
    found = service.cells.gather(asked, CostOut, lambda: service.cost(start_ms, end_ms))
    return cells.WholeCost(**_whole(found))


@cells_router.get("/fragmentation")
def cells_fragmentation(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most entries of each list of each cell.")] = 20,
    cell: Chosen = None,
) -> cells.WholeFragmentation:
    """Free, fragmented, unusable and stranded GPUs of each cell, and MIG layouts, the worst first."""
    asked = Asked("/v1/fragmentation", credential, {"limit": str(limit)}, cell or ())
    found = service.cells.gather(asked, FragmentationOut, lambda: service.fragmentation(limit))
    return cells.WholeFragmentation(**_whole(found))


@cells_router.get("/plan/{planner}")
def cells_plan(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    planner: Annotated[Planner, Path(description="Which planner.")],
    cell: Chosen = None,
) -> cells.WholePlans:
    """What a planner would do with each cell as it is now; one that is still working it out has not answered."""
    asked = Asked(f"/v1/plan/{planner}", credential, cells=cell or ())
    return cells.WholePlans(**_whole(service.cells.gather(asked, PlansOut, lambda: service.plan(planner))))


_NUMBER = re.compile(r"([a-z][a-z0-9_]{0,39}):([1-9][0-9]{0,17})")


def _below(before: Sequence[str]) -> dict[str, int]:
    """The number below which each cell is asked; a cell that is not named, from its newest."""
    found = {}
    for one in before:
        match = _NUMBER.fullmatch(one)
        if match is None:
            raise InputError("before", one[:60], "is no cell and number of an entry", "write it as west:1200")
        found[match[1]] = int(match[2])
    return found


@cells_router.get("/journal/page")
def cells_journal_page(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    before: Annotated[
        list[str] | None, Query(max_length=100, description="`CELL:NUMBER` of each. Default: from the newest.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most entries of each cell.")] = 50,
    kind: Kinds = None,
    actor: Annotated[str, Query(max_length=200, description="Only what this person, or `tocsin`, did.")] = "",
    people: Annotated[bool, Query(description="Only what people did.")] = False,
    text: Words = "",
    start: Start = None,
    end: End = None,
    cell: Chosen = None,
) -> cells.WholeJournal:
    """Entries of the journal of each cell below its number in `before`, newest first."""
    below = _below(before or ())
    query = JournalQuery(tuple(kind or ()), actor, people, text, bound_of("start", start), bound_of("end", end))
    params: dict[str, str | list[str]] = {
        "limit": str(limit),
        "kind": list(query.kinds),
        "actor": actor,
        "people": str(people).lower(),
        "text": text,
        **{name: to_iso(at) for name, at in (("start", query.start_ms), ("end", query.end_ms)) if at is not None},
    }
    each = {name: {"before": str(number)} for name, number in below.items()}
    asked = Asked("/v1/journal/page", credential, params, cell or (), each=each)

    def own() -> JournalPage:
        return service.journal_page(query, below.get(service.cells.name), limit)

    return cells.WholeJournal(**_whole(service.cells.gather(asked, JournalPage, own)))


@cells_router.get("/drift")
def cells_drift(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    pool: Annotated[str, Query(max_length=200, description="One pool alone.")] = "",
    component: Annotated[
        list[ComponentKey] | None, Query(max_length=32, description="Components; all if none.")
    ] = None,
    cell: Chosen = None,
) -> cells.WholeDrift:
    """Versions of hosts of each cell that are meant to be equal, and which differ there."""
    chosen = list[str](component or [])
    asked = Asked("/v1/drift", credential, {"pool": pool, "component": chosen}, cell or ())
    found = service.cells.gather(asked, DriftOut, lambda: service.drift(pool, chosen))
    return cells.WholeDrift(**_whole(found))


@cells_router.get("/where")
def cells_where(
    service: ServiceDep,
    _who: Viewer,
    credential: Credential,
    gpu: Annotated[str, Query(max_length=200, description="UUID of a GPU or MIG instance.")] = "",
    host: Annotated[str, Query(max_length=200, description="Name of a host.")] = "",
    cell: Chosen = None,
) -> cells.WholeWhere:
    """Which cells know a GPU or a host, and the GPU in the worst state of each."""
    asked = Asked("/v1/where", credential, {"gpu": gpu, "host": host}, cell or ())
    found = service.cells.gather(asked, cells.Whereabouts, lambda: whereabouts(service.fleet_map(), gpu, host))
    return cells.WholeWhere(**_whole(found))


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
