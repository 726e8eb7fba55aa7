"""Health, own metrics, and the InfluxDB-compatible write."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from tocsin import __version__
from tocsin.api.auth import Viewer, Writer
from tocsin.api.body import decode, unpack
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.lines import own_lines
from tocsin.api.principal import Principal
from tocsin.api.service import Service
from tocsin.client.models import IngestResult, Readiness, Wire

MAX_REJECTED = 1_000
"""Bad lines that one answer lists; it counts all of them."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter()


def service_of(request: Request) -> Service:
    """The service that `create_app` was given."""
    service: Service = request.app.state.service
    return service


Brain = Annotated[Service, Depends(service_of)]


class Health(Wire):
    """That the process runs."""

    status: Literal["ok"] = "ok"
    version: str = __version__


@router.get("/healthz", tags=["health"], responses=documented(500))
async def healthz() -> Health:
    """Answers as long as the process runs."""
    return Health()


@router.get(
    "/readyz",
    tags=["health"],
    responses={503: {"model": Readiness, "description": "Not ready, and why."}, **documented(429, 500)},
)
def readyz(service: Brain) -> Readiness:
    """Whether the brain can do its work: 200, or 503 with the reasons."""
    readiness = service.ready()
    if readiness.ready:
        return readiness
    return JSONResponse(readiness.model_dump(mode="json"), 503)  # type: ignore[return-value]


@router.get(
    "/metrics",
    tags=["health"],
    dependencies=[Depends(refuse_unknown_parameters)],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text format."},
        **documented(401, 403, 422, 429, 500, 503),
    },
)
def metrics(service: Brain, _who: Viewer) -> Response:
    """The brain's own metrics, `tocsin_*`."""
    return Response(service.metrics(), media_type=METRICS_TYPE)


@router.get("/ping", tags=["telemetry"], status_code=204, responses=documented(429, 500, 503))
@router.get("/api/v2/ping", tags=["telemetry"], status_code=204, responses=documented(429, 500, 503))
async def ping() -> Response:
    """What InfluxDB clients ask first."""
    return Response(status_code=204, headers={"X-Tocsin-Version": __version__})


def _ingest(service: Service, who: Principal, body: bytes, encoding: str, precision: str, limit: int) -> IngestResult:
    text, undecodable = decode(unpack(body, encoding, limit))
    text, foreign = own_lines(text, who, service.host_of)
    result = service.ingest(text, precision)
    rejected = sorted([*undecodable, *foreign, *result.rejected], key=lambda line: line.number)
    return result.model_copy(update={"rejected": rejected})


def _partial(result: IngestResult) -> ApiError:
    kept = result.readings + result.events + result.findings + result.predictions
    first = result.rejected[0]
    message = (
        f"{len(result.rejected)} lines are refused, the first is line {first.number}: {first.problem}; "
        f"the others are kept ({kept} records) and need not be sent again"
    )
    details: dict[str, Any] = {
        "rejected": [line.model_dump() for line in result.rejected[:MAX_REJECTED]],
        "rejected_total": len(result.rejected),
        "kept": kept,
        "warnings": result.warnings[:MAX_REJECTED],
    }
    return ApiError(400, "lines_rejected", message, details)


_WRITE_BODY = {
    "requestBody": {
        "description": "InfluxDB line protocol, plain or with `Content-Encoding: gzip`.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@router.post(
    "/api/v2/write",
    tags=["telemetry"],
    status_code=204,
    dependencies=[Depends(refuse_unknown_parameters)],
    openapi_extra=_WRITE_BODY,
    responses=documented(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
)
async def write(
    request: Request,
    service: Brain,
    who: Writer,
    precision: Annotated[Literal["ns", "us", "ms", "s"], Query(description="Unit of the timestamps.")] = "ns",
    org: Annotated[str, Query(description="Taken and ignored.")] = "",  # noqa: ARG001  # InfluxDB clients send it
    org_id: Annotated[str, Query(alias="orgID", description="Taken and ignored.")] = "",  # noqa: ARG001  # the same
    bucket: Annotated[str, Query(description="Taken and ignored.")] = "",  # noqa: ARG001  # InfluxDB clients send it
) -> Response:
    """Keep line protocol, as InfluxDB 2.x does: 204 once all of it is durable.

    Bad lines do not cost the good ones: those are kept, and the answer is 400 with the numbers of the bad.
    """
    body = await request.body()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    limit: int = request.app.state.max_body_bytes
    result = await run_in_threadpool(_ingest, service, who, body, encoding, precision, limit)
    if result.rejected:
        raise _partial(result)
    return Response(status_code=204)
