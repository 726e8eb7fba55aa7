"""Endpoints for those who push metrics that they have already: Prometheus' remote write, and OTLP."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from tocsin.api.auth import Writer
from tocsin.api.dependencies import ServiceDep, operation_id, require_json
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.ingest import Form, Ingest, Upload, unpacked
from tocsin.api.write_access import foreign
from tocsin.client.control import IngestResult
from tocsin.client.models_alerts import AlertmanagerWebhook
from tocsin.collector.push import otlp, otlp_json, remote_write
from tocsin.collector.push.samples import Tally

PROTOBUF, JSON = "application/x-protobuf", "application/json"
VERSION_1, VERSION_2 = "prometheus.WriteRequest", "io.prometheus.write.v2.Request"

push_router = APIRouter(
    generate_unique_id_function=operation_id, tags=["telemetry"], dependencies=[Depends(refuse_unknown_parameters)]
)


def _gunzipped(body: bytes, limit: int) -> bytes:
    return b"".join(unpacked(body, "gzip", limit))


def _as_is(body: bytes, limit: int) -> bytes:
    return b"".join(unpacked(body, "identity", limit))


_FORMS_RW = {
    VERSION_1: Form(remote_write.unsnapped, remote_write.read_1),
    VERSION_2: Form(remote_write.unsnapped, remote_write.read_2),
}
_ENCODINGS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gunzipped, "identity": _as_is}


def _content_type(request: Request) -> tuple[str, str]:
    """The media type, and what its parameter `proto` says."""
    media, *parameters = request.headers.get("content-type", "").split(";")
    named = dict(one.strip().split("=", 1) for one in parameters if "=" in one)
    return media.strip().lower(), named.get("proto", "").strip('"')


def _unsupported(what: str) -> ApiError:
    return ApiError(415, "unsupported_media_type", what)


def _problem(tally: Tally, result: IngestResult) -> str:
    """The first thing that was refused; empty where all was taken."""
    lines = len(result.rejected) + result.rejected_more
    if lines:
        tally.reject(min(lines, tally.samples - tally.rejected), result.rejected[0].problem)
    return tally.problem


def _body(what: str, *more: str) -> dict[str, Any]:
    content: dict[str, Any] = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
    content |= {kind: {"schema": {"type": "object"}} for kind in more}
    return {"requestBody": {"description": what, "content": content}}


async def _push(request: Request, who: Writer, form: Form[Any], tally: Tally) -> IngestResult:
    body = await request.body()
    client = request.client.host if request.client is not None else ""
    ingest: Ingest = request.app.state.ingest
    return await ingest.push(Upload(who, client, "ms"), body, form, tally)


@push_router.post(
    "/api/v1/write",
    status_code=204,
    openapi_extra=_body("Remote write 1.0 or 2.0 of Prometheus, in Snappy's block format."),
    responses=documented(400, 401, 403, 415, 421, 422, 429, 500, 503),
)
async def write_series(request: Request, who: Writer) -> Response:
    """Keep what Prometheus and its like send: 204 once every sample of a GPU is durable; others are set aside.

    Samples that are refused do not cost the others: those are kept, and the answer is 400 with the first reason.
    """
    media, proto = _content_type(request)
    form = _FORMS_RW.get(proto or VERSION_1)
    if media != PROTOBUF or form is None:
        raise _unsupported(f"send Content-Type: {PROTOBUF}, with proto={VERSION_1} or proto={VERSION_2}")
    if request.headers.get("content-encoding", "").strip().lower() != "snappy":
        raise _unsupported("send Content-Encoding: snappy")
    tally = Tally()
    try:
        problem = _problem(tally, await _push(request, who, form, tally))
    except ApiError as error:
        error.headers = {**(error.headers or {}), **_written(Tally())}
        raise
    written = _written(tally)
    if problem:
        what = f"{tally.rejected} of {tally.samples} samples are refused, the first because {problem}; others are kept"
        raise ApiError(400, "samples_rejected", what, {"rejected_total": tally.rejected}, written)
    return Response(status_code=204, headers=written)


def _written(tally: Tally) -> dict[str, str]:
    """What version 2.0 asks to be told with every answer. What is set aside, being no GPU's, needs no second try."""
    return {
        "X-Prometheus-Remote-Write-Samples-Written": str(tally.samples - tally.rejected),
        "X-Prometheus-Remote-Write-Histograms-Written": str(tally.histograms),
        "X-Prometheus-Remote-Write-Exemplars-Written": str(tally.exemplars),
    }


@push_router.post(
    "/v1/metrics",
    response_class=Response,
    openapi_extra=_body("OTLP's ExportMetricsServiceRequest, plain or with `Content-Encoding: gzip`.", JSON),
    responses={
        200: {
            "content": {PROTOBUF: {"schema": {"type": "string"}}, JSON: {"schema": {"type": "object"}}},
            "description": "ExportMetricsServiceResponse, in the form of the request.",
        },
        **documented(400, 401, 403, 415, 421, 422, 429, 500, 503),
    },
)
async def otlp_metrics(request: Request, who: Writer) -> Response:
    """Keep metrics of OpenTelemetry's collectors and SDKs; `partial_success` says what was refused of them."""
    media = _content_type(request)[0]
    if media not in (PROTOBUF, JSON):
        raise _unsupported(f"send Content-Type: {PROTOBUF} or {JSON}")
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if (unpack := _ENCODINGS.get(encoding)) is None:
        raise ApiError(415, "unsupported_encoding", "use Content-Encoding gzip or identity")
    form: Form[Any] = Form(unpack, otlp.read)
    if media == JSON:
        form = Form(lambda body, limit: otlp_json.parsed(unpack(body, limit)), otlp_json.read)
    tally = Tally()
    _problem(tally, await _push(request, who, form, tally))
    return Response((otlp_json if media == JSON else otlp).answer(tally), media_type=media)


@push_router.post(
    "/v1/alertmanager",
    status_code=204,
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 415, 422, 429, 500, 503),
)
def alertmanager_webhook(sent: AlertmanagerWebhook, service: ServiceDep, who: Writer) -> Response:
    """Take what an Alertmanager posts to a webhook: alerts become evidence on cards, and nothing else."""

    def admits(host: str, gpus: Collection[str]) -> str:
        return foreign(who, host, gpus, service.owner_against)

    service.take_alerts(sent.alerts, admits)
    return Response(status_code=204)
