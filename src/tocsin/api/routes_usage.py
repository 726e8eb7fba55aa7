"""Endpoints of who used which GPU time, as JSON and CSV, and of jobs that less would do for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tocsin.api.auth import Viewer
from tocsin.api.dependencies import ServiceDep, operation_id
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.usage_days import LONGEST_JOB_DAYS, By, Day, days_of, usage_span
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.usage_csv import csv_of

usage_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 422, 429, 500, 503),
)


def _asked(service: ServiceDep, start: str | None, end: str | None, by: list[UsageBy] | None, limit: int) -> UsageOut:
    first, last, wanted = usage_span(start, end, by, service.now_ms())
    return service.usage(first, last, wanted, limit)


@usage_router.get("/usage", tags=["usage"])
def usage(
    service: ServiceDep,
    _who: Viewer,
    start: Day = None,
    end: Day = None,
    by: By = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most groups; the rest is one row.")] = 50,
) -> UsageOut:
    """GPU-hours, energy and cost of whole UTC days in [`start`, `end`) by namespace, team, account, user, job and more.

    The rows add up to the total; 366 days at most, 31 by job."""
    return _asked(service, start, end, by, limit)


@usage_router.get(
    "/usage/csv",
    tags=["usage"],
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "A CSV file."}},
)
def usage_csv(
    service: ServiceDep,
    _who: Viewer,
    start: Day = None,
    end: Day = None,
    by: By = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most groups; the rest is one row.")] = 10_000,
) -> Response:
    """The same as CSV, a row a group."""
    found = _asked(service, start, end, by, limit)
    headers = {"Content-Disposition": f'attachment; filename="tocsin-usage-{found.start}.csv"'}
    return Response(csv_of(found), media_type="text/csv", headers=headers)


@usage_router.get("/usage/right-size", tags=["usage"])
def right_size(
    service: ServiceDep,
    _who: Viewer,
    start: Day = None,
    end: Day = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most jobs.")] = 50,
) -> RightSizeOut:
    """Jobs that a smaller card, a MIG slice or a share would have done for, with the evidence; 31 days at most."""
    first, last = days_of(start, end, service.now_ms(), LONGEST_JOB_DAYS)
    return service.right_size(first, last, limit)
