"""Endpoints on what lies ahead, on fragmentation, plans and cost."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParameter

from tocsin.api.auth import Viewer
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.routes_ops import Brain
from tocsin.api.routes_read import span_of
from tocsin.client.models_cost import CostOut
from tocsin.client.models_forecast import CapacityOut, ForecastOut
from tocsin.client.models_fragmentation import FragmentationOut, Planner, PlansOut
from tocsin.domain.clock import DAY, HOUR

router = APIRouter(
    prefix="/v1",
    tags=["ahead"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)

Limit = Annotated[int, Query(ge=1, le=500, description="Most entries of each list.")]


@router.get("/forecast")
def forecast(service: Brain, _who: Viewer, limit: Limit = 20) -> ForecastOut:
    """Risks of hardware faults, memory that runs full and fragmentation that grows, the most urgent first."""
    return service.forecast(limit)


@router.get("/forecast/capacity")
def capacity(service: Brain, _who: Viewer) -> CapacityOut:
    """Pools and the fleet's fragmentation a week ahead, with intervals; 503 while it is worked out."""
    return service.capacity()


@router.get("/fragmentation")
def fragmentation(service: Brain, _who: Viewer, limit: Limit = 20) -> FragmentationOut:
    """Free, fragmented and stranded GPUs, by pool and host, and MIG layouts, the worst first."""
    return service.fragmentation(limit)


@router.get("/plan/{planner}")
def plan(
    service: Brain, _who: Viewer, planner: Annotated[Planner, PathParameter(description="Which planner.")]
) -> PlansOut:
    """What a planner would do with the fleet as it is now, without doing it; 503 while it is worked out."""
    return service.plan(planner)


@router.get("/cost", responses=documented(400))
def cost(
    service: Brain,
    _who: Viewer,
    start: Annotated[str | None, Query(description="RFC 3339. Default: 24 hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
) -> CostOut:
    """What GPUs were used for, energy and faults, in the whole hours that `start` and `end` touch, at most 35 days."""
    start_ms, end_ms = span_of(start, end, service.now_ms(), DAY - HOUR)
    return service.cost(start_ms, end_ms)
