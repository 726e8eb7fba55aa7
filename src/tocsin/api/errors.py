"""Every failure as one shape: ``{"error": {"code", "message", "details"}}``."""

from __future__ import annotations

import http
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import JsonValue, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tocsin.client.control import ErrorBody, ErrorOut
from tocsin.client.errors import NotFound
from tocsin.domain.errors import Conflict, InputError, TocsinError, Unavailable
from tocsin.journal.port import NotLeading
from tocsin.store.port import StoreMisconfigured, StoreRejected

RETRY_AFTER_SECONDS = 5
"""Told to clients with each 503; a restart of the brain takes about as long."""

_LOG = logging.getLogger("tocsin.api")

_STATUS: list[tuple[type[TocsinError], int, str]] = [
    (InputError, 400, "invalid_input"),
    # The writer's lines are good, the brain's own setting is not: they must be sent again once it is mended.
    (StoreMisconfigured, 503, "unavailable"),
    (StoreRejected, 400, "rejected"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (Unavailable, 503, "unavailable"),
]


class ApiError(HTTPException):
    """An answer that is an error. FastAPI lets this class alone pass unchanged from the reading of a body."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, JsonValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.message = message
        self.details = dict(details or {})

    def response(self) -> JSONResponse:
        body = ErrorOut(error=ErrorBody(code=self.code, message=self.message, details=self.details))
        return JSONResponse(body.model_dump(mode="json"), self.status_code, self.headers)


def _of_tocsin(error: TocsinError) -> ApiError:
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            details: dict[str, JsonValue] = {}
            if isinstance(error, InputError):
                details = {
                    "field": error.field,
                    "value": str(error.value)[:200],
                    "problem": error.problem,
                    "remedy": error.remedy,
                }
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
            if isinstance(error, NotLeading):
                # Behind a load balancer the next connection leads to the brain that is active by then.
                headers["Connection"] = "close"
            return ApiError(status, code, str(error), details, headers)
    return ApiError(500, "failed", str(error))


def _of_validation(error: RequestValidationError) -> ApiError:
    problems: list[JsonValue] = [
        {"at": ".".join(str(part) for part in problem["loc"]), "problem": str(problem["msg"])}
        for problem in error.errors()
    ]
    first = problems[0] if problems else None
    message = f"{first['at']}: {first['problem']}" if isinstance(first, dict) else "the request is not valid"
    return ApiError(422, "invalid_request", message, {"problems": problems})


def unfit(error: ValidationError, place: str) -> RequestValidationError:
    """`error` of what an endpoint reads by itself, as that of a body that FastAPI reads."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return RequestValidationError([{**one, "loc": (place, *one["loc"])} for one in problems])


def _of_http(error: HTTPException, request: Request) -> ApiError:
    status, headers = error.status_code, error.headers
    code = http.HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
    message = str(error.detail)
    if status == 404:
        message = f"there is no endpoint {request.url.path}; /openapi.json lists all"
    elif status == 405:
        message = f"{request.url.path} does not take {request.method}"
        allowed = _allowed(request)
        headers = {"Allow": ", ".join(allowed)} if allowed else headers
    return ApiError(status, code, message, headers=headers)


def _allowed(request: Request) -> list[str]:
    """What the path takes: each method is a route of its own, and the first to match knows nothing of the others."""
    routes = (route for route in request.app.routes if isinstance(route, APIRoute))
    return sorted(
        {verb for route in routes if route.path_regex.match(request.url.path) for verb in route.methods or ()}
    )


TURNED_AWAY = frozenset({401, 403, 408, 413, 429})
"""Answers that say more of who asks than of what was asked; they are counted by their code."""


async def _answer(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ApiError):
        if error.status_code in TURNED_AWAY:
            request.app.state.service.refused(error.code)
        return error.response()
    if isinstance(error, TocsinError):
        return _of_tocsin(error).response()
    if isinstance(error, RequestValidationError):
        return _of_validation(error).response()
    if isinstance(error, HTTPException):
        return _of_http(error, request).response()
    if isinstance(error, ClientDisconnect):
        # Nobody is there to be told.
        return ApiError(408, "disconnected", "the client went away before its body was there").response()
    _LOG.error("%s %s failed: %r", request.method, request.url.path, error)
    # The server closes the connection after it, which a client with a pool must know.
    closing = {"Connection": "close"}
    message = "the brain failed on this request; its log has the details"
    return ApiError(500, "internal_error", message, headers=closing).response()


async def refuse_unknown_parameters(request: Request) -> None:
    """A misspelt query parameter would otherwise be ignored without a word."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        message = f"query.{unknown[0]}: there is no such parameter; known here: {', '.join(sorted(known)) or 'none'}"
        problems: list[JsonValue] = [{"at": f"query.{name}", "problem": "no such parameter"} for name in unknown]
        raise ApiError(422, "invalid_request", message, {"problems": problems})


def install(app: FastAPI) -> None:
    """Make `app` answer every failure in the one shape."""
    for kind in (ApiError, TocsinError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer)


_MEANINGS = {
    400: "Bad input; `details` has field, value, problem and remedy, or the `rejected` lines of a write.",
    401: "No token, or a wrong or expired one.",
    403: "Role or scope do not reach, or a web page of another origin sent the request.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "The present state forbids it.",
    413: "The body is too large.",
    415: "The body is of a type or an encoding that is not read here.",
    421: "The host belongs to another cell; `details` has its `url`.",
    422: "A parameter or the body is not valid; `details.problems` says where.",
    429: "Too many requests, or too many wrong passwords; retry after the time that `Retry-After` names.",
    500: "The brain failed; its log has the details.",
    503: "Something that the brain needs does not answer; retry after the time that `Retry-After` names.",
}


_OF_ANY_BODY = (408, 413)
"""Whoever sends a body, to whatever operation, may get these."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of error `statuses`, and of those that any body may bring."""
    every = sorted({*statuses, *_OF_ANY_BODY})
    return {status: {"model": ErrorOut, "description": _MEANINGS[status]} for status in every}
