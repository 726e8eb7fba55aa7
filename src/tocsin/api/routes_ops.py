"""Endpoints for machines: health, own metrics, telemetry as InfluxDB takes it, and the orders of agents."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from tocsin import __version__
from tocsin.api.auth import Viewer, Writer
from tocsin.api.dependencies import ServiceDep, require_json
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.principal import Principal
from tocsin.api.service import Service
from tocsin.client.control import IngestResult, OrderTaken, Readiness, RejectedLine
from tocsin.client.wire import Wire, Wired
from tocsin.domain.order import Order, OrderReport
from tocsin.store.line_protocol.decode import LineError, cut_head, parse_head

MAX_MEMBERS = 4096
"""Members that a gzip body may have: each costs a decoder, empty ones too. Files of bgzip have one for 64 KiB."""
_STEP = 8192
"""Bytes that a decoder is given at once: what is left behind the end of a member is copied."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` without its ``Content-Encoding``.

    Raises ApiError 413 where the result would exceed `limit` bytes (a small body can unpack to gigabytes), 400 for
    gzip that is broken, cut short or of more than `MAX_MEMBERS` members, 415 for an encoding other than gzip and
    identity.
    """
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise ApiError(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:50]} is not read; use gzip or identity"
        )
    unpacked = bytearray()
    place = members = 0
    while place < len(body):
        members += 1
        if members > MAX_MEMBERS:
            raise ApiError(400, "broken_gzip", f"the gzip body has more than {MAX_MEMBERS} members; send it as one")
        place = _unpack_member(body, place, unpacked, limit)
    return bytes(unpacked)


def _unpack_member(body: bytes, place: int, unpacked: bytearray, limit: int) -> int:
    """Add the member that begins at `place` to `unpacked`; where the next one begins."""
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while not decoder.eof:
        part = body[place : place + _STEP]
        if not part:
            raise ApiError(400, "broken_gzip", "the gzip body is cut short; send it again whole")
        try:
            unpacked += decoder.decompress(part, limit - len(unpacked) + 1)
        except zlib.error as error:
            raise ApiError(400, "broken_gzip", f"the body is not gzip: {error}") from error
        if len(unpacked) > limit:
            raise ApiError(413, "content_too_large", f"the body unpacks to more than {limit} bytes; send less at once")
        place += len(part)
    return place - len(decoder.unused_data)


def decode(body: bytes) -> tuple[str, list[RejectedLine]]:
    """`body` as text, and the lines that are no UTF-8: these are left empty, so that the others keep their numbers."""
    try:
        return body.decode(), []
    except UnicodeDecodeError:
        pass
    lines: list[str] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(body.split(b"\n"), start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            lines.append("")
            rejected.append(RejectedLine(number=number, problem=f"not UTF-8 at byte {error.start}"))
    return "\n".join(lines), rejected


_TELEMETRY = frozenset({"gpu", "gpu_missing", "gpu_info", "gpu_owner", "gpu_event"})


def own_lines(text: str, who: Principal, host_of: Callable[[str], str]) -> tuple[str, list[RejectedLine]]:
    """`text` with the lines that `who` may not send left empty, so that the others keep their numbers, and those lines.

    `host_of` tells which node has just reported a GPU, empty where none: its UUID cannot be taken over by another's
    certificate. Every record of line protocol starts on a line of its own, with its tags, so each line is looked at.
    """
    if not who.hosts:
        return text, []
    lines: list[str] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(text.split("\n"), start=1):
        problem = _problem(line.strip(" \r"), who, host_of)
        lines.append("" if problem else line)
        if problem:
            rejected.append(RejectedLine(number=number, problem=problem))
    return "\n".join(lines), rejected


def _problem(line: str, who: Principal, host_of: Callable[[str], str]) -> str:
    if not line or line.isspace() or line.lstrip().startswith("#"):
        return ""
    try:
        measurement, tags = parse_head(cut_head(line)[0])
    except LineError:
        # No record can start here; whether it belongs to one that started earlier is for the decoder to say.
        return ""
    host = tags.get("host", "")
    if measurement not in _TELEMETRY:
        return f"{who.name} may write readings and events alone"
    if not who.speaks_for(host):
        return f"{who.name} may not write for host {host[:100]!r}"
    reported = host_of(tags.get("mig_uuid") or tags.get("gpu_uuid", ""))
    if reported and not who.speaks_for(reported):
        return f"{who.name} may not write for a GPU that host {reported[:100]!r} reports"
    return ""


MAX_REJECTED = 1_000
"""Bad lines that one answer lists; it counts all of them."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ops_router = APIRouter()


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


def _ingest(service: Service, who: Principal, body: bytes, encoding: str, precision: str, limit: int) -> IngestResult:
    text, undecodable = decode(unpack(body, encoding, limit))
    text, foreign = own_lines(text, who, service.host_of)
    result = service.ingest(text, precision)
    rejected = sorted([*undecodable, *foreign, *result.rejected], key=lambda line: line.number)
    return result.model_copy(update={"rejected": rejected})


def _partial(result: IngestResult) -> ApiError:
    kept = result.readings + result.events + result.findings + result.predictions
    first = result.rejected[0]
    total = len(result.rejected) + result.rejected_more
    message = (
        f"{total} lines are refused, the first is line {first.number}: {first.problem}; "
        f"the others are kept ({kept} records) and need not be sent again"
    )
    details: dict[str, Any] = {
        "rejected": [line.model_dump() for line in result.rejected[:MAX_REJECTED]],
        "rejected_total": total,
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


@ops_router.post(
    "/api/v2/write",
    tags=["telemetry"],
    status_code=204,
    dependencies=[Depends(refuse_unknown_parameters)],
    openapi_extra=_WRITE_BODY,
    responses=documented(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
)
async def write(
    request: Request,
    service: ServiceDep,
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


orders_router = APIRouter(
    prefix="/v1/orders",
    tags=["orders"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 422, 429, 500, 503),
)

Host = Annotated[str, Query(min_length=1, max_length=253, description="Node that the agent speaks for.")]
OrderId = Annotated[str, Path(min_length=1, max_length=64, description="Id of an order.")]


def _own(who: Principal, host: str) -> None:
    if not who.speaks_for(host):
        raise ApiError(403, "other_host", f"{who.name} may not speak for node {host}")


@orders_router.get("")
def orders(service: ServiceDep, who: Writer, host: Host) -> list[Wired[Order]]:
    """What the agent of a node is asked for now, what gives back first; asking renews the leases of what stands."""
    _own(who, host)
    return service.orders(host)


@orders_router.post("/{order_id}/report", dependencies=[Depends(require_json)], responses=documented(409, 413, 415))
def report(service: ServiceDep, who: Writer, order_id: OrderId, sent: Wired[OrderReport]) -> OrderTaken:
    """How an order stands at its node."""
    _own(who, sent.order.host)
    return service.report_order(order_id, sent)
