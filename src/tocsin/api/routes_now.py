"""Endpoints for the first look: the map of the fleet, what needs attention, and how a GPU's peers do."""

from __future__ import annotations

import hashlib
import threading
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from tocsin.api.auth import Viewer
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.routes_ops import Brain
from tocsin.api.routes_read import DEFAULT_SPAN_MS, Uuid, check_metrics, span_of
from tocsin.client.models_now import Attention, FleetMap, PeerBand, PeerGroup

router = APIRouter(
    prefix="/v1",
    tags=["fleet"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)


class EncodedMap:
    """The map's body and tag, made once for each map: the service gives the same object until something changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: FleetMap | None = None
        self._body = b""
        self._tag = ""

    def of(self, made: FleetMap) -> tuple[bytes, str]:
        """Body and ETag of `made`."""
        with self._lock:
            if made is not self._of:
                self._of, self._body = made, made.model_dump_json().encode()
                self._tag = f'"{hashlib.blake2b(self._body, digest_size=12).hexdigest()}"'
            return self._body, self._tag


def _encoded_of(request: Request) -> EncodedMap:
    found: EncodedMap = request.app.state.encoded_map
    return found


Encoded = Annotated[EncodedMap, Depends(_encoded_of)]
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The map is the one whose ETag was sent as If-None-Match."}
}


@router.get("/map", response_model=FleetMap, responses=_NOT_MODIFIED)
def fleet_map(
    service: Brain,
    encoded: Encoded,
    _who: Viewer,
    if_none_match: Annotated[str | None, Header(max_length=1_000)] = None,
) -> Response:
    """Every GPU in columns, by rack, host and index; 304 where it has not changed since the ETag that is sent."""
    body, tag = encoded.of(service.fleet_map())
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and tag in {part.strip() for part in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


@router.get("/attention")
def attention(service: Brain, _who: Viewer, limit: Annotated[int, Query(ge=1, le=1_000)] = 20) -> Attention:
    """What needs a person now: incidents, silent GPUs and what is expected, worst first, with the cost of waiting."""
    return service.attention(limit)


@router.get("/gpus/{uuid}/peers", responses=documented(400, 404))
def peers(
    service: Brain,
    _who: Viewer,
    uuid: Uuid,
    metric: Annotated[list[str], Query(min_length=1, max_length=32, description="Metric or variant; repeatable.")],
    by: Annotated[PeerGroup, Query(description="Whom the GPU is compared with.")] = PeerGroup.NODE,
    start: Annotated[str | None, Query(description="RFC 3339. Default: six hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    points: Annotated[int, Query(ge=10, le=1_000)] = 120,
) -> PeerBand:
    """The 10th, 50th and 90th percentile of some metrics over a GPU's peers in [`start`, `end`), 35 days at most."""
    check_metrics(metric)
    start_ms, end_ms = span_of(start, end, service.now_ms() + 1, DEFAULT_SPAN_MS)
    return service.peers(uuid, by, list(dict.fromkeys(metric)), start_ms, end_ms, points)
