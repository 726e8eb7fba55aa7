"""Endpoints that only look: the fleet, what needs attention, what was found and decided, and what lies ahead."""

from __future__ import annotations

import hashlib
import threading
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse

from tocsin.api.auth import Admin, Anyone, Viewer
from tocsin.api.dependencies import (
    DEFAULT_SPAN_MS,
    CardId,
    DecisionId,
    Sequence64,
    ServiceDep,
    Uuid,
    check_metrics,
    of_app,
    operation_id,
    require_json,
    span_of,
)
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.client import models
from tocsin.client.control import Whoami
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Card, Cards, CardState
from tocsin.client.models_cells import Whereabouts
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import ComponentKey, DriftOut
from tocsin.client.models_pager import PagerReport
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_what_if import WhatIfOut, WhatIfRequest
from tocsin.client.whole_places import whereabouts
from tocsin.client.wire import Wired
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import DecisionState
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, Verification
from tocsin.domain.errors import Conflict
from tocsin.domain.prediction import Prediction

read_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)


@read_router.get("/me", tags=["fleet"])
async def me(who: Anyone) -> Whoami:
    """Name, role and scopes of whoever sends the request."""
    return Whoami(
        name=who.name,
        role=who.role.value,
        scopes=who.scope_texts(),
        hosts=sorted(who.hosts),
        namespaces=sorted(who.namespaces),
    )


@read_router.get("/fleet", tags=["fleet"])
def fleet(service: ServiceDep, _who: Viewer) -> models.FleetSummary:
    """The fleet in one object: sizes, states, mode, pause, breaker, counts of findings and decisions."""
    return service.summary()


@read_router.get("/gpus", tags=["fleet"])
def gpus(service: ServiceDep, _who: Viewer) -> list[models.GpuSummary]:
    """Every GPU by host and index, each with the worst that is said of it."""
    return service.gpus()


@read_router.get("/gpus/{uuid}", tags=["fleet"], responses=documented(404))
def gpu(service: ServiceDep, _who: Viewer, uuid: Uuid) -> models.GpuDetail:
    """One GPU with its newest values, and its events, findings, predictions and decisions."""
    return service.gpu(uuid)


@read_router.get("/gpus/{uuid}/series", tags=["fleet"], responses=documented(400, 404))
def series(
    service: ServiceDep,
    _who: Viewer,
    uuid: Uuid,
    metric: Annotated[list[str], Query(min_length=1, max_length=32, description="Metric or variant; repeatable.")],
    start: Annotated[str | None, Query(description="RFC 3339. Default: six hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    max_points: Annotated[int, Query(ge=10, le=10_000)] = 600,
) -> models.SeriesResponse:
    """Values of some metrics of one GPU in [`start`, `end`), 35 days at most, thinned to `max_points`."""
    check_metrics(metric)
    start_ms, end_ms = span_of(start, end, service.now_ms() + 1, DEFAULT_SPAN_MS)
    return service.series(uuid, list(dict.fromkeys(metric)), start_ms, end_ms, max_points)


@read_router.get(
    "/gpus/{uuid}/evidence",
    tags=["fleet"],
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
            "description": "A tar archive.",
        },
        **documented(400, 404),
    },
)
def evidence(
    service: ServiceDep,
    _who: Viewer,
    uuid: Uuid,
    start: Annotated[str | None, Query(description="RFC 3339. Default: seven days before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    owners: Annotated[bool, Query(description="Also name owners, processes and people.")] = False,
) -> StreamingResponse:
    """The evidence of one GPU for its vendor over [`start`, `end`), 35 days at most: a sealed tar archive."""
    start_ms, end_ms = span_of(start, end, service.now_ms() + 1, 7 * DAY)
    pieces = service.evidence(uuid, start_ms, end_ms, owners)
    headers = {"Content-Disposition": 'attachment; filename="tocsin-evidence.tar"'}
    return StreamingResponse(pieces, media_type="application/x-tar", headers=headers)


@read_router.get("/findings", tags=["findings"])
def findings(service: ServiceDep, _who: Viewer) -> list[Wired[models.FindingOut]]:
    """Active findings, worst first."""
    return service.findings()


@read_router.get("/incidents", tags=["findings"])
def incidents(service: ServiceDep, _who: Viewer) -> list[Wired[models.IncidentOut]]:
    """Open incidents, worst first: findings under their root cause."""
    return service.incidents()


@read_router.get("/predictions", tags=["findings"])
def predictions(service: ServiceDep, _who: Viewer) -> list[Wired[Prediction]]:
    """The newest prediction for each subject and target, most urgent first."""
    return service.predictions()


@read_router.get("/decisions", tags=["decisions"])
def decisions(
    service: ServiceDep,
    _who: Viewer,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    state: Annotated[DecisionState | None, Query(description="Only decisions in this state.")] = None,
) -> list[Wired[models.DecisionOut]]:
    """Decisions, those that wait for a person first, then newest first, each with what every guard said."""
    return service.decisions(limit, state)


@read_router.get("/decisions/{decision_id}", tags=["decisions"], responses=documented(404))
def decision(service: ServiceDep, _who: Viewer, decision_id: DecisionId) -> Wired[models.DecisionOut]:
    """One decision."""
    return service.decision(decision_id)


@read_router.get("/scoreboard", tags=["decisions"])
def scoreboard(service: ServiceDep, _who: Viewer) -> models.Scoreboard:
    """What would have been done, and how often it would have been right."""
    return service.scoreboard()


@read_router.get("/scoreboard/report", tags=["decisions"])
def pager_report(service: ServiceDep, _who: Viewer) -> PagerReport:
    """What was paged, warned and noted over the last fortnight, against what is known to have come."""
    return service.pager_report()


@read_router.get("/report", tags=["decisions"])
def morning_report(
    service: ServiceDep,
    _who: Viewer,
    hours: Annotated[int, Query(ge=1, le=168, description="How far back it looks.")] = 24,
) -> MorningReport:
    """The morning report: what happened, what Tocsin did, what it got wrong, what waits, what to expect."""
    return service.morning_report(hours)


@read_router.get("/drift", tags=["fleet"], responses=documented(400))
def drift(
    service: ServiceDep,
    _who: Viewer,
    pool: Annotated[str, Query(max_length=200, description="One pool alone.")] = "",
    component: Annotated[
        list[ComponentKey] | None, Query(max_length=32, description="Components; all if none.")
    ] = None,
) -> DriftOut:
    """Versions of hosts that are meant to be equal: pool, GPU model and label `role`; which differ, and how each of
    them stands. Nothing is changed on any host."""
    return service.drift(pool, component or [])


@read_router.get("/changes", tags=["decisions"])
def changes(
    service: ServiceDep,
    _who: Viewer,
    hours: Annotated[int, Query(ge=1, le=24, description="How far back it looks.")] = 1,
    limit: Annotated[int, Query(ge=1, le=200, description="Most changes; the newest come first.")] = 12,
) -> Changes:
    """What changed lately, newest first: cards, actions with their ends, controls, silences, new hosts, versions."""
    return service.changes(hours, limit)


@read_router.post(
    "/what-if",
    tags=["decisions"],
    dependencies=[Depends(require_json)],
    responses=documented(400, 415),
)
def what_if(service: ServiceDep, _who: Viewer, request: WhatIfRequest) -> WhatIfOut:
    """Which held decisions of the last 30 days a guard's limit or a rule's mode would have let run, and what came of
    their GPUs. It only looks: nothing is changed."""
    return service.what_if(request)


@read_router.get("/rules", tags=["decisions"])
def rules(service: ServiceDep, _who: Viewer) -> list[RuleRecord]:
    """Every rule with its mode, the mode in force, and the settled cases by which it earns to act alone."""
    return service.rule_records()


@read_router.get("/diagnoses", tags=["fleet"])
def diagnoses(
    service: ServiceDep,
    _who: Viewer,
    host: Annotated[str, Query(max_length=253, description="Only the GPUs of this node.")] = "",
) -> list[Wired[Diagnosis]]:
    """What limits each job now, and what is wrong with memory, idle GPUs and requests."""
    return service.diagnoses(host)


@read_router.get("/plan/state", tags=["fleet"])
def planning_state(service: ServiceDep, _who: Viewer) -> dict[str, Any]:
    """The fleet as the planners see it, in the form of a state file for `tocsin plan`."""
    return service.planning_state()


@read_router.get("/journal", tags=["journal"])
def journal(
    service: ServiceDep,
    _who: Viewer,
    after: Sequence64 = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    kind: Annotated[list[str] | None, Query(max_length=50, description="Only these kinds; repeatable.")] = None,
) -> list[Wired[Entry]]:
    """Entries of the journal with `seq` above `after`, in order."""
    return service.journal(after, limit, kind)


@read_router.get("/journal/verify", tags=["journal"], responses=documented(409))
def verify_journal(
    service: ServiceDep,
    _who: Admin,
    after: Annotated[
        int | None, Query(ge=0, lt=2**63, description="`events` of the slice before; 0 for the first.")
    ] = None,
    previous: Annotated[str, Query(max_length=64, description="`hash` of the slice before.")] = "",
) -> Wired[Verification]:
    """Whether a slice of the journal's hash chain holds, out of its archive too; go on with `after` until `done`.

    Without `after` a journal of more than one slice is refused with 409: an answer about a part is none about all.
    """
    found = service.verify_journal(after or 0, previous)
    if after is None and not found.done:
        raise Conflict(f"the journal has {found.head} entries: check it in slices, with after=0 and on until done")
    return found


class EncodedMap:
    """The map's body and tag, made once for each map: the service gives the same object until something changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: models.FleetMap | None = None
        self._body = b""
        self._tag = ""

    def of(self, made: models.FleetMap) -> tuple[bytes, str]:
        """Body and ETag of `made`."""
        with self._lock:
            if made is not self._of:
                self._of, self._body = made, made.model_dump_json().encode()
                self._tag = f'"{hashlib.blake2b(self._body, digest_size=12).hexdigest()}"'
            return self._body, self._tag


Encoded = Annotated[EncodedMap, of_app("encoded_map")]
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The map is the one whose ETag was sent as If-None-Match."}
}


@read_router.get("/map", tags=["fleet"], response_model=models.FleetMap, responses=_NOT_MODIFIED)
def fleet_map(
    service: ServiceDep,
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


@read_router.get("/where", tags=["fleet"])
def where(
    service: ServiceDep,
    _who: Viewer,
    gpu: Annotated[str, Query(max_length=200, description="UUID of a GPU or MIG instance.")] = "",
    host: Annotated[str, Query(max_length=200, description="Name of a host.")] = "",
) -> Whereabouts:
    """Whether a GPU or a host is known here, and which GPU is in the worst state."""
    return whereabouts(service.fleet_map(), gpu, host)


@read_router.get("/attention", tags=["fleet"], deprecated=True)
def attention(service: ServiceDep, _who: Viewer, limit: Annotated[int, Query(ge=1, le=1_000)] = 20) -> models.Attention:
    """Deprecated, cards say it: incidents, silent GPUs and what is expected, worst first, with the cost of waiting."""
    return service.attention(limit)


@read_router.get("/cards", tags=["cards"])
def cards(
    service: ServiceDep,
    _who: Viewer,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
    state: Annotated[
        CardState | None, Query(description="Only cards in this state. Default: all but resolved.")
    ] = None,
    hidden: Annotated[
        bool, Query(description="Those that snoozes and planned maintenance hide, and no others.")
    ] = False,
) -> Cards:
    """Cards, the most urgent first: one cause each, with what happens next and the one action that can run."""
    return service.cards(limit, state, hidden=hidden)


@read_router.get("/cards/{card_id}", tags=["cards"], responses=documented(404))
def card(service: ServiceDep, _who: Viewer, card_id: CardId) -> Card:
    """One card, by its id or by that of an incident that it stands for; resolved ones for 24 hours."""
    return service.card(card_id)


@read_router.get("/gpus/{uuid}/peers", tags=["fleet"], responses=documented(400, 404))
def peers(
    service: ServiceDep,
    _who: Viewer,
    uuid: Uuid,
    metric: Annotated[list[str], Query(min_length=1, max_length=32, description="Metric or variant; repeatable.")],
    by: Annotated[models.PeerGroup, Query(description="Whom the GPU is compared with.")] = models.PeerGroup.NODE,
    start: Annotated[str | None, Query(description="RFC 3339. Default: six hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    points: Annotated[int, Query(ge=10, le=1_000)] = 120,
) -> models.PeerBand:
    """The 10th, 50th and 90th percentile of some metrics over a GPU's peers in [`start`, `end`), 35 days at most."""
    check_metrics(metric)
    start_ms, end_ms = span_of(start, end, service.now_ms() + 1, DEFAULT_SPAN_MS)
    return service.peers(uuid, by, list(dict.fromkeys(metric)), start_ms, end_ms, points)


Limit = Annotated[int, Query(ge=1, le=500, description="Most entries of each list.")]


@read_router.get("/forecast", tags=["ahead"])
def forecast(service: ServiceDep, _who: Viewer, limit: Limit = 20) -> ForecastOut:
    """Risks of hardware faults, memory that runs full and fragmentation that grows, the most urgent first."""
    return service.forecast(limit)


@read_router.get("/forecast/capacity", tags=["ahead"])
def capacity(service: ServiceDep, _who: Viewer) -> CapacityOut:
    """Pools and the fleet's fragmentation a week ahead, with intervals; 503 while it is worked out."""
    return service.capacity()


@read_router.get("/fragmentation", tags=["ahead"])
def fragmentation(service: ServiceDep, _who: Viewer, limit: Limit = 20) -> FragmentationOut:
    """Free, fragmented, unusable and stranded GPUs, by pool and host, and MIG layouts, the worst first."""
    return service.fragmentation(limit)


@read_router.get("/plan/{planner}", tags=["ahead"])
def plan(
    service: ServiceDep, _who: Viewer, planner: Annotated[Planner, PathParameter(description="Which planner.")]
) -> PlansOut:
    """What a planner would do with the fleet as it is now, without doing it; 503 while it is worked out."""
    return service.plan(planner)


@read_router.get("/cost", tags=["ahead"], responses=documented(400))
def cost(
    service: ServiceDep,
    _who: Viewer,
    start: Annotated[str | None, Query(description="RFC 3339. Default: 24 hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
) -> CostOut:
    """What GPUs were used for, energy and faults, in the whole hours that `start` and `end` touch, at most 35 days."""
    start_ms, end_ms = span_of(start, end, service.now_ms(), DAY - HOUR)
    return service.cost(start_ms, end_ms)
