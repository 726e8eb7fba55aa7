"""What is checked before a request reaches an endpoint, and before its body is read."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum
from functools import partial
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.api.auth import Authenticator
from tocsin.api.buckets import TokenBuckets, same_network
from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal
from tocsin.api.tenancy import Names, StruckSend
from tocsin.config.access import ApiSettings, Role
from tocsin.domain.clock import Clock

MAX_CONTROL_BYTES = 256 * 1024
"""Largest body of every endpoint that takes no telemetry, where none is named here."""
SIGNED_PATHS: Mapping[str, int] = {"/v1/desk": 16 * 1024, "/v1/slack/interactive": MAX_CONTROL_BYTES}
"""Endpoints whose bodies carry their own proof, a signature, and the largest body of each. Slack sends the message back
whose button was pressed."""
OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/ping", "/api/v2/ping", "/openapi.json", "/v1/login", "/v1/login/methods", *SIGNED_PATHS}
)
"""Open to anyone: they tell whether the brain runs and how to log in, and nothing of the fleet, or ask for a proof of
their own."""
ALWAYS = "/healthz"
"""Answered also where too much is asked at once: a probe must not take a busy process for a dead one."""
READY = "/readyz"
"""Needs no place among requests: strangers who hold all of those must not have the brain taken out of service."""
PROBES = frozenset({ALWAYS, READY})
PROBES_PER_SECOND, PROBE_BURST = 10.0, 20
"""From whom more of these come they are answered all the same, each on a connection of its own."""
PEER_NAMES = "peer_names"
"""Key of a request's state under which the server puts the names of a verified client certificate."""

NODE_PART = 10
"""What a token bound to nodes may send at once in terms of ``api.limits.agent_request_burst``, which is for many."""
WRITE_PATHS = frozenset({"/api/v2/write", "/api/v1/write", "/v1/metrics"})
"""Endpoints of telemetry, whose bodies may be as large as ``api.max_body_bytes``."""
_GRACE_SECONDS = 5.0
"""A body may stand still for this long, beside the time that its bytes earn."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Share(Enum):
    """Kinds of requests that cannot take each other's place."""

    HEALTH = "health"
    """What is served to anyone."""
    OPEN = "open"
    """Log-ins: without a token, and with a body."""
    SIGNED = "signed"
    """What ticket systems and Slack send back: nobody knows who it is before all of it is there."""
    AGENTS = "agents"
    PEOPLE = "people"
    CONTROL = "control"
    """What a person changes: pause, approvals, acknowledgements."""


class Shares:
    """Places for requests in work: so many of each kind, and of those a quarter at most for one caller.

    Of `most` an eighth each belongs to what anyone may read, to log-ins, to what is signed and to what people change,
    half to agents and half to what people read: what one kind asks for at once, or holds on to, keeps no other from
    being answered.
    """

    def __init__(self, most: int) -> None:
        halves = {Share.AGENTS, Share.PEOPLE}
        self._most = {share: max(1, most // (2 if share in halves else 8)) for share in Share}
        self._running: Counter[Share] = Counter()
        self._callers: Counter[tuple[Share, str]] = Counter()

    @contextmanager
    def place(self, share: Share, caller: str) -> Iterator[None]:
        """A place of `share` for `caller` while the context lasts. Raises ApiError 503 where there is none."""
        most, key = self._most[share], (share, caller)
        if self._running[share] >= most or self._callers[key] >= max(1, most // 4):
            raise ApiError(503, "busy", "too many requests are in work; try again", headers={"Retry-After": "1"})
        self._running[share] += 1
        self._callers[key] += 1
        try:
            yield
        finally:
            self._running[share] -= 1
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key]


class BodyBudget:
    """Bytes of all bodies that are in memory, as they came: one sum for everybody, a quarter of it for one caller."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._callers: Counter[str] = Counter()

    def take(self, caller: str, size: int) -> None:
        """Count `size` bytes more of `caller`. Raises ApiError 429 where they do not fit."""
        if self._held + size > self._most or self._callers[caller] + size > max(self._most // 4, 1):
            raise too_many(1.0, "too_many_bytes", "the bodies in work fill api.limits.body_bytes_in_flight")
        self._held += size
        self._callers[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        """They are no longer in memory."""
        self._held -= size
        self._callers[caller] -= size
        if self._callers[caller] <= 0:
            del self._callers[caller]


def _refuse_foreign_pages(headers: Headers) -> None:
    """Browsers mark what a page of another origin sends; nothing of that may change anything."""
    origin = headers.get("origin")
    foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    if foreign or (origin is not None and urlsplit(origin).netloc != headers.get("host", "")):
        raise ApiError(403, "cross_origin", "requests of web pages from another origin are refused")


def _too_large(limit: int, path: str) -> ApiError:
    named = " (api.max_body_bytes)" if path in WRITE_PATHS else ""
    return ApiError(413, "content_too_large", f"the body is larger than {limit} bytes{named}; send less at once")


def too_many(seconds: float, code: str = "rate_limited", what: str = "too many requests") -> ApiError:
    """A 429 that says when to come back."""
    after = max(1, math.ceil(seconds))
    return ApiError(429, code, f"{what}; try again in {after} s", headers={"Retry-After": str(after)})


def _client(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("", 0))[0])


def _closing(send: Send) -> Send:
    """`send` that says of its answer that the connection is closed after it."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return closing


class Gate:
    """ASGI middleware: origin, principal, rate, number, size and pace of requests.

    `refused` gets the code of whatever is turned away here; `names` tells those that a tenant must not read.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        settings: ApiSettings,
        clock: Clock,
        refused: Callable[[str], None],
        names: Callable[[frozenset[str]], Names] = lambda _namespaces: Names(),
    ) -> None:
        limits = settings.limits
        self._app = app
        self._authenticator = authenticator
        self._max_body = settings.max_body_bytes
        self._body_seconds = limits.body_seconds
        self._bytes_per_second = limits.body_bytes_per_second
        self._shares = Shares(limits.concurrent_requests)
        # One caller's quarter must hold the largest body.
        self._budget = BodyBudget(max(limits.body_bytes_in_flight, 4 * settings.max_body_bytes))
        self._refused = refused
        self._names = names
        self._people = TokenBuckets(clock, limits.requests_per_second, limits.request_burst)
        self._agents = TokenBuckets(clock, limits.agent_requests_per_second, limits.agent_request_burst)
        self._nodes = TokenBuckets(
            clock, limits.agent_requests_per_second, max(1, limits.agent_request_burst // NODE_PART)
        )
        self._strangers = TokenBuckets(clock, limits.refused_per_second, limits.refused_burst)
        self._probes = TokenBuckets(clock, PROBES_PER_SECOND, PROBE_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in PROBES and self._probes.take(same_network(_client(scope))):
            send = _closing(send)
        if scope["path"] == ALWAYS:
            await self._app(scope, receive, send)
            return
        try:
            share, caller = await self._check(scope)
            with nullcontext() if scope["path"] == READY else self._shares.place(share, caller):
                await self._pass(scope, receive, send, caller)
        except ApiError as error:
            self._refused(error.code)
            # What waits behind it on the same connection must not cost one refusal after the other.
            await error.response()(scope, receive, _closing(send))

    async def _pass(self, scope: Scope, receive: Receive, send: Send, caller: str) -> None:
        """Let the application answer; the bytes of the body count against the budget until it has."""
        path = scope["path"]
        body = _Body(receive, self._limit(path), path, self._body_seconds, self._bytes_per_second, self._budget, caller)
        try:
            await self._app(scope, body.receive, self._way(scope, send))
        finally:
            self._budget.give_back(caller, body.seen)

    def _way(self, scope: Scope, send: Send) -> Send:
        principal: Principal | None = scope.get("state", {}).get("principal")
        if principal is None or not principal.namespaces:
            return send
        return StruckSend(send, partial(self._names, principal.namespaces))

    def _limit(self, path: str) -> int:
        most = SIGNED_PATHS.get(path, MAX_CONTROL_BYTES)
        return self._max_body if path in WRITE_PATHS else min(self._max_body, most)

    async def _check(self, scope: Scope) -> tuple[Share, str]:
        headers, path = Headers(scope=scope), scope["path"]
        client = _client(scope)
        network = same_network(client)
        reads = scope["method"] in _SAFE
        if not reads:
            _refuse_foreign_pages(headers)
        # What strangers send to a path that is open to the internet must cost nobody a log-in through the same proxy.
        caller = f"{path if path in SIGNED_PATHS else ''}|{network}"
        if path in OPEN_PATHS:
            self._pace(self._people, caller)
            share = Share.HEALTH if reads else Share.SIGNED if path in SIGNED_PATHS else Share.OPEN
        else:
            principal = await self._identify(scope, headers, client)
            # What speaks for one node is one caller wherever it comes from; a shared token is one at each address.
            caller = principal.name if principal.hosts else f"{principal.name}|{network}"
            people = Share.PEOPLE if reads else Share.CONTROL
            share = Share.AGENTS if principal.role is Role.AGENT else people
        length = headers.get("content-length", "0")
        limit = self._limit(path)
        if not length.isdecimal() or int(length[:20]) > limit:
            raise _too_large(limit, path)
        return share, caller

    async def _identify(self, scope: Scope, headers: Headers, client: str) -> Principal:
        state = scope.setdefault("state", {})
        names = state.get(PEER_NAMES, ())
        try:
            if self._authenticator.may_block(headers):
                principal = await run_in_threadpool(self._authenticator.principal, headers, client, names)
            else:
                principal = self._authenticator.principal(headers, client, names)
        except ApiError as error:
            # Only what fails is counted: others behind the same address are not locked out by it.
            if error.status_code == 401 and (wait := self._strangers.take(same_network(client))):
                raise too_many(wait, what="too many requests without a good token") from error
            raise
        # As for places: a node has one rate, from wherever its token is sent.
        caller = principal.name if principal.hosts else f"{principal.name}|{same_network(client)}"
        self._pace(self._bucket(principal), caller)
        state["principal"] = principal
        return principal

    def _bucket(self, principal: Principal) -> TokenBuckets:
        if principal.role is not Role.AGENT:
            return self._people
        return self._nodes if principal.hosts else self._agents

    @staticmethod
    def _pace(buckets: TokenBuckets, key: str) -> None:
        if wait := buckets.take(key):
            raise too_many(wait)


class _Body:
    """The body of one request as it comes in: its size, its pace, and its part of the budget.

    It may take `seconds`, and no longer than its bytes earn at `bytes_per_second`: who sends one now and then to hold a
    place loses it.
    """

    def __init__(
        self,
        receive: Receive,
        limit: int,
        path: str,
        seconds: float,
        bytes_per_second: float,
        budget: BodyBudget,
        caller: str,
    ) -> None:
        self._receive = receive
        self._limit = limit
        self._path = path
        self._seconds = seconds
        self._bytes_per_second = bytes_per_second
        self._begun: float | None = None
        self._whole = False
        self._budget = budget
        self._caller = caller
        self.seen = 0

    async def receive(self) -> Message:
        """The next part. Raises ApiError 408, 413 or 429."""
        if self._whole:
            # What comes now is the end of the connection, for which there is no hurry.
            return await self._receive()
        if self._begun is None:
            self._begun = asyncio.get_running_loop().time()
        earned = _GRACE_SECONDS + self.seen / self._bytes_per_second
        try:
            async with asyncio.timeout_at(self._begun + min(self._seconds, earned)):
                message = await self._receive()
        except TimeoutError as error:
            self._whole = True
            problem = (
                f"the body took longer than api.limits.body_seconds = {self._seconds:g}, or came slower than "
                f"api.limits.body_bytes_per_second = {self._bytes_per_second:g}"
            )
            raise ApiError(408, "body_too_slow", problem, headers={"Connection": "close"}) from error
        if message["type"] == "http.request":
            self._whole = not message.get("more_body", False)
            self._count(len(message.get("body", b"")))
        return message

    def _count(self, size: int) -> None:
        if self.seen + size > self._limit:
            raise _too_large(self._limit, self._path)
        self._budget.take(self._caller, size)
        self.seen += size
