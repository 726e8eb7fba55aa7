"""What is checked before a request reaches an endpoint, and before its body is read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.api.auth import Authenticator
from tocsin.api.buckets import TokenBuckets
from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal
from tocsin.config.access import ApiSettings, Role
from tocsin.domain.clock import Clock

OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/ping", "/api/v2/ping", "/openapi.json", "/v1/login", "/v1/login/methods"}
)
"""Served to anyone: they tell whether the brain runs and how to log in, and nothing of the fleet."""
ALWAYS = "/healthz"
"""Answered also where too much is asked at once: a probe must not take a busy process for a dead one."""
PEER_NAMES = "peer_names"
"""Key of a request's state under which the server puts the names of a verified client certificate."""

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


def too_many(seconds: float, code: str = "rate_limited", what: str = "too many requests") -> ApiError:
    """A 429 that says when to come back."""
    after = max(1, math.ceil(seconds))
    return ApiError(429, code, f"{what}; try again in {after} s", headers={"Retry-After": str(after)})


class Gate:
    """ASGI middleware: origin, principal, rate, number and size of requests.

    `refused` is told the code of whatever is turned away here.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        settings: ApiSettings,
        clock: Clock,
        refused: Callable[[str], None],
    ) -> None:
        limits = settings.limits
        self._app = app
        self._authenticator = authenticator
        self._max_body = settings.max_body_bytes
        self._body_seconds = limits.body_seconds
        self._most = limits.concurrent_requests
        self._running = 0
        self._refused = refused
        self._people = TokenBuckets(clock, limits.requests_per_second, limits.request_burst)
        self._agents = TokenBuckets(clock, limits.agent_requests_per_second, limits.agent_request_burst)
        self._strangers = TokenBuckets(clock, limits.refused_per_second, limits.refused_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._check(scope)
        except ApiError as error:
            self._refused(error.code)
            await error.response()(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, self._limited(receive), send)
        finally:
            self._running -= 1

    async def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        client = str((scope.get("client") or ("", 0))[0])
        if path == ALWAYS:
            return
        if self._running >= self._most:
            raise ApiError(503, "busy", "too many requests are in work; try again", headers={"Retry-After": "1"})
        if scope["method"] not in _SAFE:
            _refuse_foreign_pages(headers)
        if path in OPEN_PATHS:
            self._pace(self._people, f"|{client}")
        else:
            await self._identify(scope, headers, client)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body:
            raise _too_large(self._max_body)

    async def _identify(self, scope: Scope, headers: Headers, client: str) -> None:
        state = scope.setdefault("state", {})
        names = state.get(PEER_NAMES, ())
        try:
            if self._authenticator.may_block(headers):
                principal = await run_in_threadpool(self._authenticator.principal, headers, client, names)
            else:
                principal = self._authenticator.principal(headers, client, names)
        except ApiError as error:
            # Only what fails is counted: others behind the same address are not locked out by it.
            if error.status_code == 401 and (wait := self._strangers.take(client)):
                raise too_many(wait, what="too many requests without a good token") from error
            raise
        self._pace(self._bucket(principal), f"{principal.name}|{client}")
        state["principal"] = principal

    def _bucket(self, principal: Principal) -> TokenBuckets:
        return self._agents if principal.role is Role.AGENT else self._people

    @staticmethod
    def _pace(buckets: TokenBuckets, key: str) -> None:
        if wait := buckets.take(key):
            raise too_many(wait)

    def _limited(self, receive: Receive) -> Receive:
        seen = 0
        whole = False
        until: float | None = None

        async def limited() -> Message:
            nonlocal seen, whole, until
            if whole:
                # What comes now is the end of the connection, for which there is no hurry.
                return await receive()
            if until is None:
                until = asyncio.get_running_loop().time() + self._body_seconds
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError as error:
                whole = True
                problem = f"the body took longer than api.limits.body_seconds = {self._body_seconds:g}"
                raise ApiError(408, "body_too_slow", problem, headers={"Connection": "close"}) from error
            if message["type"] == "http.request":
                whole = not message.get("more_body", False)
                seen += len(message.get("body", b""))
                if seen > self._max_body:
                    raise _too_large(self._max_body)
            return message

        return limited
