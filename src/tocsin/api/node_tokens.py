"""Tokens that a kubelet projects into an agent's pod: whose node they are of says the API server, by TokenReview.

What a token says of itself is read before anybody has checked it, and only to turn away what cannot be one: whoever
makes up a thousand of them costs the API server a few questions. Digests of tokens are kept, never tokens.
"""

from __future__ import annotations

import base64
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tocsin.api.buckets import TokenBuckets, same_network
from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal, simple
from tocsin.api.sessions import digest_of
from tocsin.config.access import ApiSettings, Role
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import Unavailable

MOST_CHARACTERS = 8 * 1024
"""Longest token that is looked at: with the longest names that Kubernetes takes and an RSA key of 4,096 bits one has
some 3,500."""
MOST_SECONDS = 86_400 + 3_600
"""Longest time that one may still live: a kubelet renews its tokens after a day at the latest."""
MOST_AT_ONCE = 8
"""Questions under way at once: each holds one of the server's threads until the API server answers."""
ASKED_PER_SECOND, ASKED_BURST = 50.0, 100
"""Questions about tokens that were never good before, of all addresses together: an honest site of 1,000 nodes is known
18 s after a start of the brain."""
WRONG_PER_SECOND, WRONG_BURST = 0.2, 10
"""Questions that one address may cost with tokens that turn out to be none."""
WRONG_SECONDS = 10.0
"""How long a token that the API server refused is refused without asking: it may come to know it."""
AWAY_SECONDS = 2.0
"""How long nobody asks an API server that did not answer."""
MOST_KNOWN, MOST_WRONG = 20_000, 4_096
"""Tokens that are remembered, good ones and others; the one that was asked longest ago is forgotten first."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PodToken:
    """What the API server says of a token: its service account, and the node of its pod, empty where it names none."""

    account: str
    node: str


class NotReviewed(Unavailable):
    """The API server gave no answer; it may be asked again in `seconds`, as it says itself, or soon."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class ReviewsTokens(Protocol):
    """Who knows the tokens of pods. Called from several threads."""

    def review(self, token: str) -> PodToken | None:
        """Whose `token` is; None where it is nobody's. Raises NotReviewed where that cannot be said now."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A good token: believed until `fresh`, to be asked about again until `ends` (own monotonic seconds)."""

    principal: Principal
    fresh: float
    ends: float


@dataclass(frozen=True, slots=True)
class _Wrong:
    code: str
    message: str
    until: float


class _Newest(Generic[V]):
    """The newest `most` values by digest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> V | None:
        with self._lock:
            return self._values.get(digest)

    def put(self, digest: str, value: V) -> None:
        with self._lock:
            self._values[digest] = value
            self._values.move_to_end(digest)
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def drop(self, digest: str) -> None:
        with self._lock:
            self._values.pop(digest, None)


class NodeTokens:
    """Finds the node that a projected token is bound to. For several threads; may take a request to the API server."""

    def __init__(self, settings: ApiSettings, clock: Clock, reviews: ReviewsTokens) -> None:
        self._accounts = frozenset(settings.node_service_accounts)
        self._audience = settings.node_audience
        self._seconds = settings.node_token_seconds
        self._clock = clock
        self._reviews = reviews
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._strangers = TokenBuckets(clock, ASKED_PER_SECOND, ASKED_BURST)
        self._addresses = TokenBuckets(clock, WRONG_PER_SECOND, WRONG_BURST)
        self._known: _Newest[_Known] = _Newest(MOST_KNOWN)
        self._wrong: _Newest[_Wrong] = _Newest(MOST_WRONG)
        self._away_until = -math.inf

    def principal(self, token: str, client: str) -> Principal | None:
        """The agent that shows `token` from the address `client`; None where it does not claim to be such a token.

        Raises ApiError 401, 429 or 503.
        """
        claims = _claims(token)
        if claims is None or not self._for_us(claims):
            return None
        left = _seconds_left(claims, self._clock.now_ms())
        digest, now = digest_of(token), self._clock.monotonic()
        known, wrong = self._known.get(digest), self._wrong.get(digest)
        if known is not None and now < known.fresh:
            return known.principal
        if wrong is not None and now < wrong.until:
            raise _refused(wrong.code, wrong.message)
        return self._ask(token, digest, left, "" if known is not None and now < known.ends else same_network(client))

    def _for_us(self, claims: Mapping[str, Any]) -> bool:
        named = claims.get("aud")
        audiences = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        account = claims.get("sub")
        return isinstance(account, str) and account in self._accounts and self._audience in audiences

    def _ask(self, token: str, digest: str, left: float, stranger: str) -> Principal:
        """Ask the API server; `stranger` is the address of a token that was never good, else empty."""
        now = self._clock.monotonic()
        if now < self._away_until:
            raise _later(self._away_until - now)
        if not self._places.acquire(blocking=False):
            raise _later(1.0)
        try:
            self._pace(stranger)
            found = self._reviews.review(token)
        except NotReviewed as error:
            seconds = min(max(error.seconds, AWAY_SECONDS), 60.0)
            self._away_until = self._clock.monotonic() + seconds
            self._addresses.give_back(stranger)
            raise _later(seconds) from error
        finally:
            self._places.release()
        return self._judge(found, digest, now, left, stranger)

    def _pace(self, stranger: str) -> None:
        if not stranger:
            return
        wait = self._addresses.take(stranger)
        if not wait and (wait := self._strangers.take("")):
            # Others had their turn: that is no fault of this address.
            self._addresses.give_back(stranger)
        if wait:
            after = max(1, math.ceil(wait))
            message = f"too many unknown tokens of nodes; try again in {after} s"
            raise ApiError(429, "rate_limited", message, headers={"Retry-After": str(after)})

    def _judge(self, found: PodToken | None, digest: str, now: float, left: float, stranger: str) -> Principal:
        wrong = self._what_is_wrong(found)
        if found is None or wrong is not None:
            code, message = wrong or _UNKNOWN
            self._known.drop(digest)
            self._wrong.put(digest, _Wrong(code, message, now + WRONG_SECONDS))
            raise _refused(code, message)
        self._addresses.give_back(stranger)
        host = found.node.lower()
        made = simple(f"host:{host}", Role.AGENT, host=host)
        self._known.put(digest, _Known(made, now + min(self._seconds, left), now + left))
        return made

    def _what_is_wrong(self, found: PodToken | None) -> tuple[str, str] | None:
        if found is None:
            return _UNKNOWN
        if found.account not in self._accounts:
            return "token_unknown", "the token's service account is none of api.node_service_accounts"
        return None if found.node else _WITHOUT_NODE


_UNKNOWN = ("token_unknown", "the API server of Kubernetes does not accept the token")
_WITHOUT_NODE = (
    "token_without_node",
    "the API server names no node for the token, as before Kubernetes 1.30 or where no pod has it; give the agent a "
    "token of: tocsin token issue --host NODE",
)


def _refused(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, headers=_CHALLENGE)


def _later(seconds: float) -> ApiError:
    message = "the API server of Kubernetes cannot be asked about the token now; try again"
    return ApiError(503, "unavailable", message, headers={"Retry-After": str(max(1, math.ceil(seconds)))})


def _claims(token: str) -> Mapping[str, Any] | None:
    """What `token` says of itself, unchecked; None where it is no JSON web token of a sane length."""
    parts = token.split(".")
    if len(token) > MOST_CHARACTERS or len(parts) != 3 or not all(parts):
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _seconds_left(claims: Mapping[str, Any], now_ms: int) -> float:
    """How long a token still lives by its own word. Raises ApiError 401 where that is over, or beyond all reason."""
    ends = claims.get("exp")
    if isinstance(ends, bool) or not isinstance(ends, int | float) or not 0 < ends < 2**53:
        raise _refused("token_unknown", "the token has no instant exp at which it expires")
    left = float(ends) - now_ms / SECOND
    if left <= 0:
        raise _refused("token_expired", "the token has expired; the agent reads its file again when it is renewed")
    if left > MOST_SECONDS:
        raise _refused("token_unknown", "the token lives longer than a day; set its expirationSeconds to 3600")
    return left
