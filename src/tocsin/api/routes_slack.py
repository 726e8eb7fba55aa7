"""The endpoint for presses of buttons in Slack: who pressed is a person of the settings, with the role set there.

Nothing is decided here: approve, decline and acknowledge go the way of the API's own endpoints, with their checks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.concurrency import run_in_threadpool

from tocsin.actions.notifications.slack_buttons import BLOCK, Button, Deed
from tocsin.api.dependencies import of_app, operation_id
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters, unfit
from tocsin.api.principal import Principal, simple
from tocsin.api.routes_decisions import approve_by, reject_by
from tocsin.api.routes_silences import acknowledge_by
from tocsin.api.service import Service
from tocsin.api.signatures import (
    SLACK_SIGNATURE,
    SLACK_TIMESTAMP,
    Replays,
    Signature,
    signer,
    slack_mac,
    slack_signature,
)
from tocsin.api.slack_replies import SlackReplies, settled, whispered, words
from tocsin.client.control import OverruleRequest
from tocsin.client.models_silences import AcknowledgeRequest
from tocsin.config.access import SlackSettings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import Conflict, TocsinError
from tocsin.telemetry.log import logger

FORM = "application/x-www-form-urlencoded"
ANSWER_SECONDS = 2.0
"""How long a press is waited for: Slack gives up after three. It goes on, and what became of it is told later."""
NAME = "slack"
"""What presses are counted as."""

_log = logger(NAME)

_Id = Annotated[str, Field(max_length=100)]


class _Part(BaseModel):
    """Of a press only what is used here; Slack adds fields as it likes."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _User(_Part):
    id: _Id
    team_id: _Id = ""


class _Team(_Part):
    id: _Id = ""


class _Action(_Part):
    action_id: Annotated[str, Field(max_length=255)]
    block_id: Annotated[str, Field(max_length=255)] = ""
    value: Annotated[str, Field(max_length=2_000)] = ""


class _Message(_Part):
    blocks: Annotated[list[dict[str, JsonValue]], Field(max_length=50)] = []


class _Interaction(_Part):
    """https://docs.slack.dev/reference/interaction-payloads/block_actions-payload"""

    type: _Id
    user: _User
    team: _Team | None = None
    actions: Annotated[list[_Action], Field(max_length=25)] = []
    message: _Message = _Message()
    response_url: Annotated[str, Field(max_length=500)] = ""


@dataclass(frozen=True, slots=True)
class _Press:
    """One press of a button of ours."""

    sent: _Interaction
    action: _Action
    request_id: str

    @property
    def language(self) -> str:
        """That of the message, as its block of buttons has it."""
        return self.action.block_id.removeprefix(f"{BLOCK}-")


class SlackPresses:
    """Who may press in Slack, and what a press does."""

    def __init__(self, settings: SlackSettings, clock: Clock, replays: Replays, service: Service) -> None:
        self._settings = settings
        self._clock = clock
        self._replays = replays
        self._service = service
        self._people = {
            # Slack lets nobody else act under a member's id, so it is a person's own.
            one.user: simple(f"slack:{one.name}", one.role, one.scopes, personal=True)
            for one in settings.people
        }
        self._acting: set[asyncio.Future[None]] = set()
        self.replies = SlackReplies(settings.timeout_seconds, lambda: service.came_back(NAME, "unanswered"))

    async def take(self, timestamp: str, signature: str, body: bytes) -> None:
        """Do what a signed `body` asks for, or go on with it after `ANSWER_SECONDS`. Raises ApiError 401, 429 or 503,
        RequestValidationError, and Conflict where no secret is set."""
        if not self._settings.key:
            raise Conflict("no api.slack.signing_secret is set: nobody decides in Slack here")
        given = slack_signature(timestamp, signature)
        signer(given, [slack_mac(self._settings.key, body, given)], self._clock.now_ms())
        press = _press_of(body, given)
        if press is None:
            self._service.came_back(NAME, "ignored")
            return
        with self._replays.once(NAME, given.mac) as new:
            if not new:
                self._service.came_back(NAME, "repeated")
                return
            acting = asyncio.ensure_future(run_in_threadpool(self._act, press))
            # The event loop itself holds on to no task that goes on after the answer.
            self._acting.add(acting)
            acting.add_done_callback(self._acting.discard)
            await asyncio.wait({acting}, timeout=ANSWER_SECONDS)

    def _act(self, press: _Press) -> None:
        outcome, answer = self._done(press)
        self._service.came_back(NAME, outcome)
        self.replies.post(press.sent.response_url, answer)

    def _done(self, press: _Press) -> tuple[str, dict[str, Any]]:
        """What became of it, and what Slack is told."""
        sent, language = press.sent, press.language
        who = self._people.get(sent.user.id) if self._of_team(sent) else None
        if who is None:
            return "refused", whispered(words("stranger", language, user=sent.user.id))
        button = Button.read(press.action.value, self._settings.key)
        if button is None:
            return "refused", whispered(words("refused", language, why="the button is none of this service"))
        try:
            until = self._carried_out(button, who, press.request_id)
        except (TocsinError, ApiError) as error:
            return "refused", whispered(words("refused", language, why=str(getattr(error, "message", error))))
        except Exception as error:  # noqa: BLE001 the person who pressed must hear that it failed
            _log.error("a press failed", error=repr(error))
            return "refused", whispered(words("refused", language, why="the brain failed; its log has the details"))
        said = words(button.deed, language, who=who.name.partition(":")[2], until=until)
        return "done", settled(sent.message.blocks, button.deed, said)

    def _of_team(self, sent: _Interaction) -> bool:
        team = sent.team.id if sent.team is not None else sent.user.team_id
        return not self._settings.team or team == self._settings.team

    def _carried_out(self, button: Button, who: Principal, request_id: str) -> str:
        """Do it as `who`; until when it holds, where it ends by itself."""
        if button.deed is Deed.APPROVE:
            approve_by(self._service, who, button.target)
            return ""
        if button.deed is Deed.DECLINE:
            reject_by(self._service, who, button.target, OverruleRequest(reason="declined in Slack"))
            return ""
        asked = AcknowledgeRequest(for_seconds=self._settings.acknowledge_seconds, reason="in Slack")
        return acknowledge_by(self._service, who, button.target, asked, request_id).until


def _press_of(body: bytes, signature: Signature) -> _Press | None:
    """The press in a form of one field `payload`; None where it is of nothing that Tocsin made."""
    try:
        fields = parse_qsl(body.decode(), max_num_fields=1, strict_parsing=True, errors="strict")
    except ValueError as error:
        raise _invalid("the body is no form of one field, payload") from error
    if [name for name, _ in fields] != ["payload"]:
        raise _invalid("the body is no form of one field, payload")
    try:
        sent = _Interaction.model_validate_json(fields[0][1])
    except ValidationError as error:
        raise unfit(error, "payload") from error
    ours = [one for one in sent.actions if one.action_id.startswith(f"{BLOCK}_")]
    return _Press(sent, ours[0], signature.mac) if sent.type == "block_actions" and ours else None


def _invalid(problem: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body",), "msg": problem, "type": "value_error"}])


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {"payload": {"type": "string", "description": "Slack's JSON."}},
                    "required": ["payload"],
                }
            }
        },
    }
}

PressesDep = Annotated[SlackPresses, of_app("slack")]

slack_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1/slack",
    tags=["desks"],
    dependencies=[Depends(refuse_unknown_parameters)],
)


@slack_router.post(
    "/interactive",
    response_class=Response,
    openapi_extra=_BODY,
    responses={
        200: {"description": "Taken; what became of it is told in Slack."},
        **documented(400, 401, 403, 409, 415, 422, 429, 500, 503),
    },
)
async def slack_interactive(
    request: Request,
    presses: PressesDep,
    timestamp: Annotated[str, Header(alias=SLACK_TIMESTAMP)] = "",
    signature: Annotated[str, Header(alias=SLACK_SIGNATURE)] = "",
) -> Response:
    """Take the press of a button, signed by Slack: approve, decline, acknowledge, by the person who pressed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ApiError(415, "unsupported_media_type", f"send Content-Type: {FORM}")
    await presses.take(timestamp, signature, await request.body())
    return Response(status_code=200)
