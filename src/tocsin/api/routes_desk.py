"""The endpoint for ticket systems: what becomes of a ticket comes back signed, and changes its card for a while.

A ticket system is no person: what it acknowledges stays in the breaker's count, and what it takes for over is shown
again while its fault is there. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from tocsin.actions.notifications.delivery import SIGNATURE_HEADER
from tocsin.api.dependencies import ServiceDep, of_app, operation_id, require_json
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters, unfit
from tocsin.api.principal import Principal, simple
from tocsin.api.routes_silences import acknowledge_by, require_for_card
from tocsin.api.service import Service
from tocsin.api.signatures import Replays, own_mac, own_signature, signer
from tocsin.client.models_cards import CardState
from tocsin.client.models_desk import DeskCall, DeskOut
from tocsin.client.models_silences import AcknowledgeRequest, SilenceOut
from tocsin.config.access import DeskSettings, Role
from tocsin.domain.clock import Clock, from_iso
from tocsin.domain.errors import Conflict, TocsinError
from tocsin.domain.silence import SilenceKind
from tocsin.domain.words import clean


@dataclass(frozen=True, slots=True)
class _Desk:
    settings: DeskSettings
    principal: Principal
    key: str = field(repr=False)


class Desks:
    """The ticket systems of the settings, and the calls that were taken."""

    def __init__(self, settings: list[DeskSettings], clock: Clock, replays: Replays) -> None:
        self._clock = clock
        self._replays = replays
        self._desks = [
            _Desk(one, simple(f"ticket:{one.name}", Role.OPERATOR, one.scopes), key)
            for one in settings
            for key in one.keys
        ]

    def take(self, service: Service, header: str, body: bytes) -> DeskOut:
        """Do what the signed `body` asks for. Raises ApiError 401, RequestValidationError, NotFound and Conflict."""
        if not self._desks:
            raise Conflict("no api.desks are set: no ticket system may send anything back")
        signature = own_signature(header)
        made = [own_mac(desk.key, body, signature) for desk in self._desks]
        desk = self._desks[signer(signature, made, self._clock.now_ms())]
        name = desk.settings.name
        try:
            call = _call_of(body)
            with self._replays.once(name, signature.mac) as new:
                answer = _done(service, desk, call, signature.mac) if new else _repeated(call)
        except (TocsinError, ApiError, RequestValidationError):
            service.came_back(name, "refused")
            raise
        service.came_back(name, answer.outcome)
        return answer


def _call_of(body: bytes) -> DeskCall:
    try:
        return DeskCall.model_validate_json(body)
    except ValidationError as error:
        raise unfit(error, "body") from error


def _done(service: Service, desk: _Desk, call: DeskCall, request_id: str) -> DeskOut:
    card = service.card(call.card)
    if card.state is CardState.RESOLVED:
        return DeskOut(outcome="over", card=card.id, sentence=f"card {card.id} is resolved: nothing was left to do")
    who, settings = desk.principal, desk.settings
    if call.action == "acknowledge":
        asked = AcknowledgeRequest(for_seconds=settings.acknowledge_seconds, reason=_reason(call))
        taken = acknowledge_by(service, who, call.card, asked, request_id)
        return _stands(service, call, taken, f"card {taken.name} is acknowledged until {taken.until}")
    for kind in (SilenceKind.ACKNOWLEDGEMENT, SilenceKind.SNOOZE):
        require_for_card(service, who, kind, call.card)
    if call.action == "reopen":
        service.silences.withdraw(call.card, who.name)
        return DeskOut(outcome="done", card=card.id, sentence=f"nothing that {who.name} said of card {card.id} holds")
    hidden = service.silences.resolve(call.card, settings.resolve_seconds, _reason(call), who.name, request_id)
    sentence = f"the fault of card {hidden.name} is still there: it is hidden until {hidden.until}, then shown again"
    return _stands(service, call, hidden, sentence)


def _stands(service: Service, call: DeskCall, made: SilenceOut, sentence: str) -> DeskOut:
    """The answer about a silence; one that has ended was begun by the same request before a restart."""
    if from_iso(made.until) <= service.now_ms():
        return _repeated(call)
    return DeskOut(outcome="done", card=made.name, until=made.until, sentence=sentence)


def _repeated(call: DeskCall) -> DeskOut:
    return DeskOut(outcome="repeated", card=call.card, sentence="this very request was taken before: nothing was done")


def _reason(call: DeskCall) -> str:
    who = f" by {clean(call.by)}" if call.by.strip() else ""
    verb = {"acknowledge": "taken on", "resolve": "resolved"}.get(call.action, call.action)
    note = f": {clean(call.note)}" if call.note.strip() else ""
    return f"{clean(call.ticket) or 'ticket'} {verb}{who}{note}"


def _as_json() -> dict[str, Any]:
    content = {"application/json": {"schema": DeskCall.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


DesksDep = Annotated[Desks, of_app("desks")]
Signed = Annotated[
    str, Header(alias=SIGNATURE_HEADER, description='`t=SECONDS,v1=HEX`, HMAC-SHA256 of "SECONDS." and the body.')
]

desk_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    tags=["desks"],
    dependencies=[Depends(refuse_unknown_parameters)],
)


@desk_router.post(
    "/desk",
    dependencies=[Depends(require_json)],
    openapi_extra=_as_json(),
    responses=documented(400, 401, 403, 404, 409, 415, 422, 429, 500, 503),
)
async def desk_call(request: Request, service: ServiceDep, desks: DesksDep, signature: Signed = "") -> DeskOut:
    """Take what became of a ticket, signed by its desk: acknowledge its card, hide it a while, or take that back."""
    body = await request.body()
    return await run_in_threadpool(desks.take, service, signature, body)
