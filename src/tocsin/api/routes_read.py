"""Endpoints that only look."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query

from tocsin.api.auth import Anyone, Viewer
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.routes_ops import Brain
from tocsin.client.models import (
    DecisionOut,
    DiagnosisOut,
    FindingOut,
    FleetSummary,
    GpuDetail,
    GpuSummary,
    IncidentOut,
    JournalEntryOut,
    PredictionOut,
    Scoreboard,
    SeriesResponse,
    VerificationOut,
    Whoami,
)
from tocsin.domain.clock import DAY, HOUR, from_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import nearest, spec_of

DEFAULT_SPAN_MS = 6 * HOUR
LONGEST_DAYS = 35
"""Longest period of one request about the past: the days of a month and some more (own choice)."""
END_OF_TIME_MS = 253_402_300_800_000
"""Year 10,000: RFC 3339 has four digits for the year."""

router = APIRouter(
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)

Uuid = Annotated[str, Path(min_length=1, max_length=200, description="UUID of a GPU or MIG instance.")]
DecisionId = Annotated[str, Path(min_length=1, max_length=64, description="Id of a decision.")]
Sequence64 = Annotated[int, Query(ge=0, lt=2**63)]


@router.get("/me", tags=["fleet"])
async def me(who: Anyone) -> Whoami:
    """Name, role and scopes of whoever sends the request."""
    return Whoami(name=who.name, role=who.role.value, scopes=who.scope_texts(), hosts=sorted(who.hosts))


@router.get("/fleet", tags=["fleet"])
def fleet(service: Brain, _who: Viewer) -> FleetSummary:
    """The fleet in one object: sizes, states, mode, pause, breaker, counts of findings and decisions."""
    return service.summary()


@router.get("/gpus", tags=["fleet"])
def gpus(service: Brain, _who: Viewer) -> list[GpuSummary]:
    """Every GPU by host and index, each with the worst that is said of it."""
    return service.gpus()


@router.get("/gpus/{uuid}", tags=["fleet"], responses=documented(404))
def gpu(service: Brain, _who: Viewer, uuid: Uuid) -> GpuDetail:
    """One GPU with its newest values, and its events, findings, predictions and decisions."""
    return service.gpu(uuid)


def instant_of(field: str, text: str | None, default: int) -> int:
    """Milliseconds of parameter `field`; `default` where it is not given. Raises InputError."""
    if text is None:
        return default
    remedy = "use RFC 3339 in UTC, such as 2026-11-21T03:54:16Z"
    try:
        at_ms = from_iso(text)
    except (ValueError, OverflowError) as error:
        raise InputError(field, text, "is no instant", remedy) from error
    if not 0 <= at_ms < END_OF_TIME_MS:
        raise InputError(field, text, "lies outside the years 1970 to 9999", remedy)
    return at_ms


def span_of(start: str | None, end: str | None, now_ms: int, default_ms: int) -> tuple[int, int]:
    """First and last instant of [`start`, `end`) in milliseconds; `default_ms` up to `now_ms` where they are not given.

    Raises InputError for a span that is empty, or longer than `LONGEST_DAYS`.
    """
    end_ms = instant_of("end", end, now_ms)
    start_ms = instant_of("start", start, max(0, end_ms - default_ms))
    if start_ms >= end_ms:
        raise InputError("start", start, f"not before end = {end or 'now'}", "give an earlier start")
    if end_ms - start_ms > LONGEST_DAYS * DAY:
        problem = f"more than {LONGEST_DAYS} days before end = {end or 'now'}"
        raise InputError("start", start, problem, "give a later start, or ask for one part after the other")
    return start_ms, end_ms


def check_metrics(metrics: list[str]) -> None:
    """Raise InputError for a name that the metric table lacks."""
    for name in metrics:
        if spec_of(name) is None:
            raise InputError("metric", name, "not in the metric table", f"did you mean {nearest(name)}?")


@router.get("/gpus/{uuid}/series", tags=["fleet"], responses=documented(400, 404))
def series(
    service: Brain,
    _who: Viewer,
    uuid: Uuid,
    metric: Annotated[list[str], Query(min_length=1, max_length=32, description="Metric or variant; repeatable.")],
    start: Annotated[str | None, Query(description="RFC 3339. Default: six hours before `end`.")] = None,
    end: Annotated[str | None, Query(description="RFC 3339. Default: the brain's clock.")] = None,
    max_points: Annotated[int, Query(ge=10, le=10_000)] = 600,
) -> SeriesResponse:
    """Values of some metrics of one GPU in [`start`, `end`), 35 days at most, thinned to `max_points`."""
    check_metrics(metric)
    start_ms, end_ms = span_of(start, end, service.now_ms() + 1, DEFAULT_SPAN_MS)
    return service.series(uuid, list(dict.fromkeys(metric)), start_ms, end_ms, max_points)


@router.get("/findings", tags=["findings"])
def findings(service: Brain, _who: Viewer) -> list[FindingOut]:
    """Active findings, worst first."""
    return service.findings()


@router.get("/incidents", tags=["findings"])
def incidents(service: Brain, _who: Viewer) -> list[IncidentOut]:
    """Open incidents, worst first: findings under their root cause."""
    return service.incidents()


@router.get("/predictions", tags=["findings"])
def predictions(service: Brain, _who: Viewer) -> list[PredictionOut]:
    """The newest prediction for each subject and target, most urgent first."""
    return service.predictions()


@router.get("/decisions", tags=["decisions"])
def decisions(
    service: Brain,
    _who: Viewer,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    state: Annotated[DecisionState | None, Query(description="Only decisions in this state.")] = None,
) -> list[DecisionOut]:
    """Decisions, newest first, each with what every guard said."""
    return service.decisions(limit, state)


@router.get("/decisions/{decision_id}", tags=["decisions"], responses=documented(404))
def decision(service: Brain, _who: Viewer, decision_id: DecisionId) -> DecisionOut:
    """One decision."""
    return service.decision(decision_id)


@router.get("/scoreboard", tags=["decisions"])
def scoreboard(service: Brain, _who: Viewer) -> Scoreboard:
    """What would have been done, and how often it would have been right."""
    return service.scoreboard()


@router.get("/diagnoses", tags=["fleet"])
def diagnoses(
    service: Brain,
    _who: Viewer,
    host: Annotated[str, Query(max_length=253, description="Only the GPUs of this node.")] = "",
) -> list[DiagnosisOut]:
    """What limits each job now, and what is wrong with memory, idle GPUs and requests."""
    return service.diagnoses(host)


@router.get("/plan/state", tags=["fleet"])
def planning_state(service: Brain, _who: Viewer) -> dict[str, Any]:
    """The fleet as the planners see it, in the form of a state file for `tocsin plan`."""
    return service.planning_state()


@router.get("/journal", tags=["journal"])
def journal(
    service: Brain,
    _who: Viewer,
    after: Sequence64 = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    kind: Annotated[list[str] | None, Query(max_length=50, description="Only these kinds; repeatable.")] = None,
) -> list[JournalEntryOut]:
    """Entries of the journal with `seq` above `after`, in order."""
    return service.journal(after, limit, kind)


@router.get("/journal/verify", tags=["journal"])
def verify_journal(service: Brain, _who: Viewer) -> VerificationOut:
    """Whether the journal's hash chain holds from the first entry to the last."""
    return service.verify_journal()
