"""Log-ins of people, kept by this process: the browser holds a random name for its own, and never a token."""

from __future__ import annotations

import hashlib
import secrets
import threading
from dataclasses import dataclass

from tocsin.domain.clock import MINUTE, Clock, SystemClock, from_iso

# Names that the pages and what serves them share.

TICKET_HEADER = "x-tocsin-ticket"
"""A header of our own: a page of another origin cannot send it without asking first, and is told no."""
SESSION_PATH = "/session"
"""Where a browser fetches the cookie of its log-in."""


COOKIE = "tocsin_session"
MOST = 10_000
"""Log-ins that are kept; beyond these the oldest ends."""
TICKET_MS = MINUTE
"""How long a browser may take to fetch its cookie."""
LEEWAY_MS = 5_000
"""So long before its end a token counts as ended: a page asks the API several times."""


@dataclass(frozen=True, slots=True)
class Login:
    """A person's log-in. `expires_ms` is when the API stops taking `token`."""

    token: str
    name: str
    role: str
    expires_ms: int
    by_password: bool = False
    """Whether the API can end it: what a provider has given ends by itself."""


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions:
    """Log-ins by the name that the browser's cookie holds. Names are kept as digests; nothing is written to disk."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: dict[str, Login] = {}
        self._tickets: dict[str, tuple[str, int]] = {}

    def open(self, login: Login) -> str:
        """Keep `login`; returns the name of the session, which only its browser may learn."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._logins[_digest(name)] = login
            while len(self._logins) > MOST:
                del self._logins[next(iter(self._logins))]
        return name

    def find(self, name: str) -> Login | None:
        """The log-in of a session; None where it has ended or never was."""
        with self._lock:
            found = self._logins.get(_digest(name)) if name else None
            if found is not None and self._clock.now_ms() >= found.expires_ms - LEEWAY_MS:
                del self._logins[_digest(name)]
                return None
            return found

    def close(self, name: str) -> None:
        """End a session; safe to repeat."""
        with self._lock:
            self._logins.pop(_digest(name), None)

    def ticket(self, name: str) -> str:
        """A word that is good once, and soon, for the cookie of the session `name`."""
        ticket, now = secrets.token_urlsafe(32), self._clock.now_ms()
        with self._lock:
            self._tickets = {key: kept for key, kept in self._tickets.items() if kept[1] > now}
            self._tickets[_digest(ticket)] = (name, now + TICKET_MS)
        return ticket

    def redeem(self, ticket: str) -> tuple[str, int] | None:
        """Name of the session that `ticket` was made for and the seconds that it still lasts; None otherwise."""
        with self._lock:
            name, until_ms = self._tickets.pop(_digest(ticket), ("", 0))
        now = self._clock.now_ms()
        login = self.find(name) if now < until_ms else None
        return None if login is None else (name, max(1, (login.expires_ms - now) // 1000))


SESSIONS = Sessions(SystemClock())
"""Those of this process."""


def login_of(token: str, name: str, role: str, expires: str, *, by_password: bool) -> Login:
    """A log-in whose end is an instant of the wire."""
    return Login(token, name, role, from_iso(expires), by_password)
