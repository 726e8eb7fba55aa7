"""Log-ins by password: random tokens, kept as digests, in memory alone."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from tocsin.api.principal import Principal
from tocsin.domain.clock import SECOND, Clock

PREFIX = "tsn_"
"""What the tokens start with, so that scanners of leaked secrets can know them."""
MAX_SESSIONS = 1_000
"""Log-ins that live at once; the oldest ends first."""


@dataclass(frozen=True, slots=True)
class _Session:
    principal: Principal
    until_ms: int


class LoginSessions:
    """Log-ins that end by themselves after `seconds`, by log-out, or with the process."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._lasts_ms = round(seconds * SECOND)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, principal: Principal) -> tuple[str, int]:
        """A new token for `principal`, and the instant (ms) at which it ends."""
        token = PREFIX + secrets.token_urlsafe(32)
        digest = digest_of(token)
        until_ms = self._clock.now_ms() + self._lasts_ms
        with self._lock:
            self._sessions[digest] = _Session(replace(principal, session=digest), until_ms)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return token, until_ms

    def find(self, token: str) -> Principal | None:
        """Whose `token` is; None where it is none of ours, or has ended."""
        digest = digest_of(token)
        with self._lock:
            # A look-up by digest: how long it takes says nothing about tokens.
            found = self._sessions.get(digest)
            if found is not None and found.until_ms <= self._clock.now_ms():
                del self._sessions[digest]
                return None
            return found.principal if found is not None else None

    def close(self, digest: str) -> bool:
        """End the session that has `digest`; whether there was one."""
        with self._lock:
            return self._sessions.pop(digest, None) is not None


def digest_of(token: str) -> str:
    """What is kept of a token in its place."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
