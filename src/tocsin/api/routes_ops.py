"""Endpoints for machines: health, own metrics, telemetry as InfluxDB takes it, and the orders of agents."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from tocsin import __version__
from tocsin.api.auth import WRITERS, Viewer, Writer
from tocsin.api.dependencies import ServiceDep, operation_id, require_json
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.ingest import Ingest, Upload
from tocsin.api.principal import Principal
from tocsin.api.service import Service
from tocsin.api.write_access import not_assigned, other_cell
from tocsin.client.control import IngestResult, OrderTaken, Readiness
from tocsin.client.moved import ASSIGNED_ONLY
from tocsin.client.wire import Wire, Wired
from tocsin.domain.order import Order, OrderReport
from tocsin.store.line_protocol.grammar import NANOSECONDS
from tocsin.store.line_protocol.packed import ACCEPTS_PACKED

MAX_REJECTED = 1_000
"""Bad lines that one answer lists; it counts all of them."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ops_router = APIRouter(generate_unique_id_function=operation_id)


class Health(Wire):
    """That the process runs."""

    status: Literal["ok"] = "ok"
    version: str = __version__


@ops_router.get("/healthz", tags=["health"], responses=documented(500))
async def healthz() -> Health:
    """Answers as long as the process runs."""
    return Health()


@ops_router.get(
    "/readyz",
    tags=["health"],
    responses={503: {"model": Readiness, "description": "Not ready, and why."}, **documented(429, 500)},
)
def readyz(service: ServiceDep) -> Readiness:
    """Whether the brain can do its work: 200, or 503 with the reasons."""
    readiness = service.ready()
    if readiness.ready:
        return readiness
    return JSONResponse(readiness.model_dump(mode="json"), 503)  # type: ignore[return-value]


@ops_router.get(
    "/metrics",
    tags=["health"],
    dependencies=[Depends(refuse_unknown_parameters)],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text format."},
        **documented(401, 403, 422, 429, 500, 503),
    },
)
def metrics(service: ServiceDep, _who: Viewer) -> Response:
    """The brain's own metrics, `tocsin_*`."""
    return Response(service.metrics(), media_type=METRICS_TYPE)


@ops_router.get("/ping", tags=["telemetry"], status_code=204, responses=documented(429, 500, 503))
@ops_router.get("/api/v2/ping", tags=["telemetry"], status_code=204, responses=documented(429, 500, 503))
async def ping() -> Response:
    """What InfluxDB clients ask first."""
    return Response(status_code=204, headers={"X-Tocsin-Version": __version__})


_READS_PACKED = {ACCEPTS_PACKED: "1"}


def _partial(result: IngestResult) -> ApiError:
    first = result.rejected[0]
    total = len(result.rejected) + result.rejected_more
    message = (
        f"{total} lines are refused, the first is line {first.number}: {first.problem}; "
        f"the others are kept ({result.records} records) and need not be sent again"
    )
    details: dict[str, Any] = {
        "rejected": [line.model_dump() for line in result.rejected[:MAX_REJECTED]],
        "rejected_total": total,
        "kept": result.records,
        "warnings": result.warnings[:MAX_REJECTED],
    }
    return ApiError(400, "lines_rejected", message, details, _READS_PACKED)


_WRITE_BODY = {
    "requestBody": {
        "description": "InfluxDB line protocol, plain or with `Content-Encoding: gzip`.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@ops_router.post(
    "/api/v2/write",
    tags=["telemetry"],
    status_code=204,
    dependencies=[Depends(refuse_unknown_parameters)],
    openapi_extra=_WRITE_BODY,
    responses=documented(400, 401, 403, 415, 421, 422, 429, 500, 503),
)
async def write(
    request: Request,
    who: Writer,
    precision: Annotated[Literal["ns", "us", "ms", "s"], Query(description="Unit of the timestamps.")] = "ns",
    org: Annotated[str, Query(description="Taken and ignored.")] = "",  # noqa: ARG001  # InfluxDB clients send it
    org_id: Annotated[str, Query(alias="orgID", description="Taken and ignored.")] = "",  # noqa: ARG001  # the same
    bucket: Annotated[str, Query(description="Taken and ignored.")] = "",  # noqa: ARG001  # InfluxDB clients send it
) -> Response:
    """Keep line protocol, as InfluxDB 2.x does: 204 once all of it is durable.

    Bad lines do not cost the good ones: those are kept, and the answer is 400 with the numbers of the bad.
    """
    return await _kept(request, who, precision)


async def _kept(request: Request, who: Principal, precision: str) -> Response:
    body = await request.body()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    client = request.client.host if request.client is not None else ""
    ingest: Ingest = request.app.state.ingest
    result = await ingest.take(Upload(who, client, precision, is_sure(request)), body, encoding)
    if result.rejected:
        raise _partial(result)
    return Response(status_code=204, headers=_READS_PACKED)


_PARAMETERS = frozenset({"precision", "org", "orgID", "bucket"})
_LONGEST_QUERY = 256


@lru_cache(maxsize=256)
def _precision_of(query: bytes) -> str:
    """The precision that a query string asks for; empty where there is anything to object to in it."""
    pairs = parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True)
    asked = [value for name, value in pairs if name == "precision"] or ["ns"]
    known = len(asked) == 1 and asked[0] in NANOSECONDS and {name for name, _ in pairs} <= _PARAMETERS
    return asked[0] if known else ""


class PlainWrite(BaseRoute):
    """`write` where there is nothing to object to: what a brain is asked most, without FastAPI's reading of it.

    It comes before all other routes. A request that it does not take, for its parameters or for who sends it, goes on
    to `write`, which says what is wrong.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["path"] != "/api/v2/write" or scope["method"] != "POST":
            return Match.NONE, {}
        who: Principal | None = scope.get("state", {}).get("principal")
        query: bytes = scope["query_string"]
        if who is None or who.namespaces or not who.has(WRITERS) or len(query) > _LONGEST_QUERY:
            return Match.NONE, {}
        return (Match.FULL if _precision_of(query) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = await _kept(request, request.state.principal, _precision_of(scope["query_string"]))
        await answer(scope, receive, send)


def is_sure(request: Request) -> bool:
    """Whether an agent asks that is not at its own address, and so for what is set alone."""
    return ASSIGNED_ONLY in request.headers


orders_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1/orders",
    tags=["orders"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 421, 422, 429, 500, 503),
)

Host = Annotated[str, Query(min_length=1, max_length=253, description="Node that the agent speaks for.")]
OrderId = Annotated[str, Path(min_length=1, max_length=64, description="Id of an order.")]


def _own(service: Service, who: Principal, host: str, request: Request) -> None:
    if not who.speaks_for(host):
        raise ApiError(403, "other_host", f"{who.name} may not speak for node {host}")
    if home := service.cells.elsewhere(host):
        raise other_cell(host, *home)
    if is_sure(request) and not service.cells.has(host):
        raise not_assigned(host)


@orders_router.get("")
def orders(request: Request, service: ServiceDep, who: Writer, host: Host) -> list[Wired[Order]]:
    """What the agent of a node is asked for now, what gives back first; asking renews the leases of what stands."""
    _own(service, who, host, request)
    return service.orders(host)


@orders_router.post("/{order_id}/report", dependencies=[Depends(require_json)], responses=documented(409, 415))
def report(
    request: Request, service: ServiceDep, who: Writer, order_id: OrderId, sent: Wired[OrderReport]
) -> OrderTaken:
    """How an order stands at its node."""
    _own(service, who, sent.order.host, request)
    return service.report_order(order_id, sent)
