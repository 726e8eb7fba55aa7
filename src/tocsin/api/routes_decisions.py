"""Endpoints of decisions: their timeline, the journal in pages, and what changes something.

Who changed something goes into the journal. What changes takes JSON, also where it is `{}`. Who is limited to pools
needs a scope in each pool that a decision reaches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import JsonValue

from tocsin.api.auth import OPERATORS, Admin, Operator, Viewer, require_role, require_scope
from tocsin.api.dependencies import (
    Credential,
    DecisionId,
    End,
    Kinds,
    Sequence64,
    ServiceDep,
    Start,
    Words,
    bound_of,
    operation_id,
    require_json,
)
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.principal import Principal
from tocsin.api.service import Asked, Service
from tocsin.client.control import (
    ControlRequest,
    ControlState,
    InjectionOut,
    InjectionRequest,
    ManualAction,
    ManualActionOut,
    OverruleRequest,
    ReleaseOut,
    ReleaseRequest,
)
from tocsin.client.errors import NotFound
from tocsin.client.models import (
    DecisionOut,
    DecisionStory,
    ExportForm,
    GpuSummary,
    JournalPage,
    JournalQuery,
    Timeline,
    TimelineQuery,
    UndoOut,
)
from tocsin.client.wire import Wired
from tocsin.config.access import Role
from tocsin.domain.decision import (
    ActionParameters,
    DecisionState,
    DefragmentParameters,
    MigrateParameters,
    ScaleInParameters,
    parameters_of,
    ranks_in,
)
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.parameters import encode

T = TypeVar("T")

NODE_WIDE = frozenset(
    {
        ActionKind.CORDON_GPU,
        ActionKind.UNCORDON_GPU,
        ActionKind.CORDON,
        ActionKind.UNCORDON,
        ActionKind.DRAIN,
        ActionKind.REBOOT_NODE,
        ActionKind.MIGRATE,
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.DEFRAGMENT,
        ActionKind.CHECKPOINT,
        ActionKind.RESET_GPU,
    }
)
"""Actions that reach every GPU of the host also where one GPU is their subject: work is kept off the node, or the node
is partitioned anew, its pods are asked, its NVLink peers are reset as well; a single GPU that no rule can take out has
work steered off its node."""
_OF_ITS_JOB = frozenset(
    {
        ActionKind.THROTTLE,
        ActionKind.RESTORE,
        ActionKind.CHECKPOINT,
        ActionKind.MIGRATE,
        ActionKind.CORDON_GPU,
    }
)
"""Actions that slow or stop all of the job on their GPU, wherever its other GPUs are."""
_OF_ALL_JOBS = frozenset({ActionKind.DRAIN, ActionKind.REBOOT_NODE})
"""Actions that stop every job on the host."""


def pools_of(
    service: Service, subject: Subject, action: ActionKind | None = None, parameters: Mapping[str, str] | None = None
) -> Sequence[str]:
    """Pools that `action` on `subject` reaches, sorted; none where it is the fleet, "" where a pool is not known."""
    if subject.kind is SubjectKind.FLEET:
        return ()
    gpus = service.gpus()
    own, host = _own(subject, gpus)
    reached = set(own)
    on_host = {gpu.uuid for gpu in gpus if host and gpu.host == host}
    if action in NODE_WIDE:
        reached |= on_host
    if action in _OF_ITS_JOB:
        reached |= service.same_jobs(own)
    if action in _OF_ALL_JOBS:
        reached |= service.same_jobs(own | on_host)
    if action is not None:
        reached |= _named(parameters_of(action, parameters or {}), gpus)
    pools = {gpu.uuid: gpu.pool for gpu in gpus}
    found = {pools.get(uuid, "") for uuid in reached if uuid != subject.name or uuid in pools}
    if subject.kind is SubjectKind.POOL:
        found.add(subject.name)
    elif not own & pools.keys() or (subject.kind is SubjectKind.GPU and subject.pool):
        # What the GPUs say outranks what a decision says of its host.
        found.add(subject.pool)
    return sorted(found)


def _own(subject: Subject, gpus: Sequence[GpuSummary]) -> tuple[set[str], str]:
    """UUIDs of the subject itself, and its host."""
    if subject.kind is SubjectKind.GPU:
        itself = next((gpu for gpu in gpus if gpu.uuid == subject.name), None)
        return {subject.name}, subject.host or (itself.host if itself else "")
    if subject.kind is SubjectKind.HOST:
        return {gpu.uuid for gpu in gpus if gpu.host == subject.name}, subject.name
    return set(), ""


def _named(parameters: ActionParameters, gpus: Sequence[GpuSummary]) -> set[str]:
    """UUIDs of the GPUs that the parameters of a decision name, also such as are not known."""
    found = {rank.gpu for rank in ranks_in(parameters)}
    hosts = {parameters.context.host}
    if isinstance(parameters, MigrateParameters):
        found |= {place.gpu for place in (*parameters.source, *parameters.target)}
    if isinstance(parameters, MigrateParameters | DefragmentParameters):
        hosts |= {host for piece in parameters.to_host for host in piece}
    if isinstance(parameters, ScaleInParameters):
        hosts.add(parameters.node)
    return found | {gpu.uuid for gpu in gpus if gpu.host and gpu.host in hosts}


decisions_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)

MEDIA_TYPES = {"jsonl": "application/x-ndjson", "cef": "text/plain"}
"""What an export is sent as, by its form."""

Name = Annotated[str, Query(max_length=200)]


@decisions_router.get("/timeline", tags=["decisions"])
def timeline(
    service: ServiceDep,
    _who: Viewer,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    state: Annotated[list[DecisionState] | None, Query(max_length=20, description="Only these; repeatable.")] = None,
    action: Annotated[list[ActionKind] | None, Query(max_length=20, description="Only these; repeatable.")] = None,
    rule: Name = "",
    pool: Name = "",
    text: Words = "",
    waiting: Annotated[bool | None, Query(description="Only what waits for a person, or does not.")] = None,
) -> Timeline:
    """Decisions in pages, newest first; notifications are left out unless `action` names them."""
    query = TimelineQuery(tuple(state or ()), tuple(action or ()), rule, pool, text, waiting)
    return service.timeline(query, offset, limit)


@decisions_router.get("/decisions/{decision_id}/story", tags=["decisions"], responses=documented(404))
def story(service: ServiceDep, _who: Viewer, decision_id: DecisionId) -> DecisionStory:
    """One decision with its alternatives, and every entry of the journal about it."""
    return service.story(decision_id)


@decisions_router.post(
    "/decisions/{decision_id}/undo",
    tags=["decisions"],
    dependencies=[Depends(require_json)],
    responses=documented(400, 404, 409, 415),
)
def undo(service: ServiceDep, who: Operator, decision_id: DecisionId, request: OverruleRequest) -> UndoOut:
    """Undo what was done: its inverse goes through the guards. 409 where nothing undoes it, or it was not done."""
    if who.limited:
        decision = service.story(decision_id).decision
        _require_for(service, who, decision, decision.inverse or decision.action)
    return service.undo(decision_id, who.name, request.reason, right=request.right)


@decisions_router.get("/journal/page", tags=["journal"], responses=documented(400))
def journal_page(
    service: ServiceDep,
    _who: Viewer,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="Default: from the newest.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    kind: Kinds = None,
    actor: Annotated[str, Query(max_length=200, description="Only what this person, or `tocsin`, did.")] = "",
    people: Annotated[bool, Query(description="Only what people did.")] = False,
    text: Words = "",
    start: Start = None,
    end: End = None,
) -> JournalPage:
    """Entries of the journal with `seq` below `before`, newest first; `next_before` leads on."""
    query = JournalQuery(tuple(kind or ()), actor, people, text, bound_of("start", start), bound_of("end", end))
    return service.journal_page(query, before, limit)


PIECE = 64 * 1024
"""Letters of an export that are sent at a time: each piece costs a turn of a thread and one of the event loop."""


def _in_pieces(lines: Iterable[str]) -> Iterator[str]:
    piece, size = list[str](), 0
    for line in lines:
        piece.append(f"{line}\n")
        size += len(line)
        if size >= PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


EXPORTS_AT_ONCE = 2
"""Exports of which a piece is made at the same time: however many read, they take neither the threads nor the
processor that others wait for."""


async def _in_turn(pieces: Iterator[str], turns: CapacityLimiter) -> AsyncIterator[str]:
    """`pieces`, none of them empty, each made once there is a turn for it."""
    while piece := await to_thread.run_sync(next, pieces, "", limiter=turns):
        yield piece


@decisions_router.get(
    "/journal/export",
    tags=["journal"],
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()},
            "description": "One line an entry.",
        },
        **documented(400),
    },
)
def export_journal(
    request: Request,
    service: ServiceDep,
    _who: Viewer,
    form: ExportForm = "jsonl",
    after: Sequence64 = 0,
    kind: Kinds = None,
    start: Start = None,
    end: End = None,
) -> StreamingResponse:
    """The journal as JSON lines or CEF, in order, as `tocsin journal export` writes it."""
    query = JournalQuery(tuple(kind or ()), start_ms=bound_of("start", start), end_ms=bound_of("end", end))
    turns: CapacityLimiter = request.app.state.export_turns
    lines = _in_turn(_in_pieces(service.export_journal(form, query, after)), turns)
    name = f'attachment; filename="tocsin-journal.{form}"'
    return StreamingResponse(lines, media_type=MEDIA_TYPES[form], headers={"Content-Disposition": name})


def _require_for(service: Service, who: Principal, decision: DecisionOut, action: ActionKind) -> None:
    pools = pools_of(service, decision.subject, action, encode(decision.parameters))
    require_scope(who, OPERATORS, action.value, pools)


def _require_to_settle(service: Service, who: Principal, decision_id: str) -> None:
    require_role(who, OPERATORS)
    if who.limited:
        decision = service.decision(decision_id)
        _require_for(service, who, decision, decision.action)


def approve_by(service: Service, who: Principal, decision_id: str) -> DecisionOut:
    """Say yes to a held decision as `who`, wherever that person says it. Raises ApiError 403 where role or scope do not
    reach, NotFound and Conflict."""
    _require_to_settle(service, who, decision_id)
    return service.approve(decision_id, who.name)


def approve_alike_by(service: Service, who: Principal, decision_id: str) -> list[DecisionOut]:
    """The same for a decision and all that wait as it does, that one first. Of the others those are left out that the
    scope of `who` does not reach, and those that wait no more."""
    _require_to_settle(service, who, decision_id)
    others = service.alike(decision_id)
    said = [approve_by(service, who, decision_id)]
    for one in others:
        with suppress(ApiError, Conflict, NotFound):
            said.append(approve_by(service, who, one.id))
    return said


def reject_by(service: Service, who: Principal, decision_id: str, request: OverruleRequest) -> DecisionOut:
    """Say no in the same way."""
    _require_to_settle(service, who, decision_id)
    return service.reject(decision_id, who.name, request.reason, right=request.right)


control_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    dependencies=[Depends(require_json), Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 409, 415, 422, 429, 500, 503),
)


@control_router.post("/decisions/{decision_id}/approve", tags=["decisions"], responses=documented(404))
def approve(
    service: ServiceDep, who: Operator, credential: Credential, decision_id: DecisionId, _request: ControlRequest
) -> Wired[DecisionOut]:
    """Say yes to a held decision, also of another cell; guards are asked again before it runs."""
    try:
        return approve_by(service, who, decision_id)
    except NotFound as error:
        return _elsewhere(service, credential, decision_id, "approve", {}, error, DecisionOut)


@control_router.post("/decisions/{decision_id}/approve-alike", tags=["decisions"], responses=documented(404))
def approve_alike(
    service: ServiceDep, who: Operator, credential: Credential, decision_id: DecisionId, _request: ControlRequest
) -> list[Wired[DecisionOut]]:
    """Say yes to a held decision and to all for the same action about the same cause that wait for a yes too: those
    that were approved, that one first."""
    try:
        return approve_alike_by(service, who, decision_id)
    except NotFound as error:
        return _elsewhere(service, credential, decision_id, "approve-alike", {}, error, list[DecisionOut])


@control_router.post("/decisions/{decision_id}/reject", tags=["decisions"], responses=documented(404))
def reject(
    service: ServiceDep, who: Operator, credential: Credential, decision_id: DecisionId, request: OverruleRequest
) -> Wired[DecisionOut]:
    """Say no to a held decision, also of another cell; its subject is left alone for the hold-off."""
    try:
        return reject_by(service, who, decision_id, request)
    except NotFound as error:
        body = request.model_dump(mode="json", exclude_unset=True)
        return _elsewhere(service, credential, decision_id, "reject", body, error, DecisionOut)


def _elsewhere(
    service: Service,
    credential: str,
    decision_id: str,
    verb: str,
    body: Mapping[str, JsonValue],
    unknown: NotFound,
    kind: type[T],
) -> T:
    """What the cell answers that has the decision, to the person's own credential; `unknown` where none has it."""
    path = f"/v1/decisions/{quote(decision_id, safe='')}"
    found = service.cells.pass_on(Asked(f"{path}/{verb}", credential, body=body), path, kind)
    if found is None:
        raise unknown
    return found


@control_router.post("/pause", tags=["control"])
def pause(service: ServiceDep, who: Operator, request: ControlRequest) -> ControlState:
    """Hold every action until `resume`; notifications go on."""
    require_scope(who, OPERATORS, "pause")
    return service.pause(who.name, request.reason)


@control_router.post("/resume", tags=["control"])
def resume(service: ServiceDep, who: Operator, _request: ControlRequest) -> ControlState:
    """Allow actions again after a pause."""
    require_scope(who, OPERATORS, "resume")
    return service.resume(who.name)


@control_router.post("/breaker/reset", tags=["control"])
def reset_breaker(service: ServiceDep, who: Admin, _request: ControlRequest) -> ControlState:
    """Reset the tripped breaker."""
    require_scope(who, (Role.ADMIN,), "reset_breaker")
    return service.reset_breaker(who.name)


@control_router.post("/release", tags=["control"], responses=documented(404), response_model_exclude_unset=True)
def release(service: ServiceDep, who: Operator, request: ReleaseRequest, counts: bool = False) -> ReleaseOut:
    """Give a host or GPU back to service: its incidents are cancelled and it is left alone for the hold-off.

    The answer has `given_up` and `still_reported` where `counts` asks for them: clients of 0.1.0 refuse fields that
    they do not know.
    """
    if who.limited:
        subject = Subject(kind=SubjectKind(request.kind), name=request.name)
        require_scope(who, OPERATORS, "release", pools_of(service, subject))
    answer = service.release(request.kind, request.name, who.name, request.reason, right=request.right)
    return answer if counts else ReleaseOut(subject=answer.subject, held_off_until=answer.held_off_until)


@control_router.post("/manual", tags=["control"])
def manual(service: ServiceDep, who: Operator, deed: ManualAction) -> ManualActionOut:
    """Put on record what a person does by hand, past the guards (`tocsin act`); nothing is done here."""
    return service.record_manual(deed, who.name)


@control_router.post("/inject", tags=["control"], responses=documented(404))
def inject(service: ServiceDep, who: Operator, request: InjectionRequest) -> InjectionOut:
    """Start a failure on a simulated GPU, for rehearsal; a real GPU is refused with 409."""
    if who.limited:
        subject = Subject(kind=SubjectKind.GPU, name=request.gpu)
        require_scope(who, OPERATORS, "inject", pools_of(service, subject))
    return service.inject(request.kind, request.gpu, who.name)
