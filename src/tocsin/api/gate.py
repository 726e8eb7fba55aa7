"""What is checked before a request reaches an endpoint, and before its body is read."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.api.auth import Authenticator
from tocsin.api.errors import ApiError

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/ping", "/api/v2/ping", "/openapi.json"})
"""Served to anyone: they tell whether the brain runs, and nothing of the fleet."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def _refuse_foreign_pages(headers: Headers) -> None:
    """Browsers mark what a page of another origin sends; nothing of that may change anything."""
    origin = headers.get("origin")
    foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    if foreign or (origin is not None and urlsplit(origin).netloc != headers.get("host", "")):
        raise ApiError(403, "cross_origin", "requests of web pages from another origin are refused")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, "content_too_large", f"the body is larger than api.max_body_bytes = {limit}; send less at once"
    )


class Gate:
    """ASGI middleware: origin, principal and size of each request."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, max_body_bytes: int) -> None:
        self._app = app
        self._authenticator = authenticator
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        if scope["method"] not in _SAFE:
            _refuse_foreign_pages(headers)
        if path not in OPEN_PATHS:
            client = (scope.get("client") or ("", 0))[0]
            scope.setdefault("state", {})["principal"] = self._authenticator.principal(headers, client)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit:
            raise _too_large(self._limit)

    def _limited(self, receive: Receive) -> Receive:
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._limit:
                    raise _too_large(self._limit)
            return message

        return limited
