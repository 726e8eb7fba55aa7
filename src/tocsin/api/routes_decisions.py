"""Endpoints of the timeline of decisions and of the journal in pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from tocsin.api.auth import OPERATORS, Operator, Viewer, require_scope
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.principal import Principal
from tocsin.api.reached import pools_of
from tocsin.api.routes_control import require_json
from tocsin.api.routes_ops import Brain
from tocsin.api.routes_read import DecisionId, Sequence64, instant_of
from tocsin.api.service import Service
from tocsin.client.models import ControlRequest
from tocsin.client.models_decisions import DecisionStory, Timeline, TimelineQuery, UndoOut
from tocsin.client.models_journal import ExportForm, JournalPage, JournalQuery
from tocsin.domain.decision import DecisionState
from tocsin.domain.finding import ActionKind

router = APIRouter(
    prefix="/v1",
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(401, 403, 422, 429, 500, 503),
)

MEDIA_TYPES = {"jsonl": "application/x-ndjson", "cef": "text/plain"}
"""What an export is sent as, by its form."""

Name = Annotated[str, Query(max_length=200)]
Words = Annotated[str, Query(max_length=200, description="Only what has these letters in its texts.")]
Kinds = Annotated[list[str] | None, Query(max_length=50, description="Only these kinds; repeatable.")]
Start = Annotated[str | None, Query(description="RFC 3339: nothing before it.")]
End = Annotated[str | None, Query(description="RFC 3339: nothing from it on.")]


@router.get("/timeline", tags=["decisions"])
def timeline(
    service: Brain,
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


@router.get("/decisions/{decision_id}/story", tags=["decisions"], responses=documented(404))
def story(service: Brain, _who: Viewer, decision_id: DecisionId) -> DecisionStory:
    """One decision with its alternatives, and every entry of the journal about it."""
    return service.story(decision_id)


@router.post(
    "/decisions/{decision_id}/undo",
    tags=["decisions"],
    dependencies=[Depends(require_json)],
    responses=documented(400, 404, 408, 409, 413, 415),
)
def undo(service: Brain, who: Operator, decision_id: DecisionId, request: ControlRequest) -> UndoOut:
    """Undo what was done: its inverse goes through the guards. 409 where nothing undoes it, or it was not done."""
    if who.limited:
        _require_inverse(service, who, decision_id)
    return service.undo(decision_id, who.name, request.reason)


def _require_inverse(service: Service, who: Principal, decision_id: str) -> None:
    decision = service.story(decision_id).decision
    action = decision.inverse or decision.action
    require_scope(who, OPERATORS, action.value, pools_of(service, decision.subject, action, decision.parameters))


def _bound(field: str, text: str | None) -> int | None:
    return None if text is None else instant_of(field, text, 0)


@router.get("/journal/page", tags=["journal"], responses=documented(400))
def journal_page(
    service: Brain,
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
    query = JournalQuery(tuple(kind or ()), actor, people, text, _bound("start", start), _bound("end", end))
    return service.journal_page(query, before, limit)


@router.get(
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
    service: Brain,
    _who: Viewer,
    form: ExportForm = "jsonl",
    after: Sequence64 = 0,
    kind: Kinds = None,
    start: Start = None,
    end: End = None,
) -> StreamingResponse:
    """The journal as JSON lines or CEF, in order, as `tocsin journal export` writes it."""
    query = JournalQuery(tuple(kind or ()), start_ms=_bound("start", start), end_ms=_bound("end", end))
    lines = service.export_journal(form, query, after)
    name = f'attachment; filename="tocsin-journal.{form}"'
    return StreamingResponse(_ended(lines), media_type=MEDIA_TYPES[form], headers={"Content-Disposition": name})


def _ended(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"{line}\n"
