"""Log-in at an OpenID Connect provider from a terminal or the dashboard: the device authorization grant (RFC 8628)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from tocsin.client.control import OidcMethod
from tocsin.domain.clock import SECOND, Clock, to_iso
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.http_client import http_client

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_DISCOVERY = "/.well-known/openid-configuration"
_SLOW_DOWN_SECONDS = 5.0
"""RFC 8628, section 3.5."""
_INTERVAL_SECONDS = 5.0
"""The same, section 3.2: where the provider names none."""
_LIFETIME_SECONDS = 600.0
_LATE = "nobody confirmed the log-in in time; run tocsin login again"


class LoginRefused(TocsinError):
    """The person or the provider said no, or nobody said anything in time."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class DeviceToken:
    """What the provider gave: its ID token, good until `expires` (RFC 3339)."""

    token: str
    expires: str


@dataclass(slots=True)
class DeviceCode:
    """A log-in that waits for its person: to open `url`, and to enter `user_code` unless `complete` holds it already.

    `interval` is seconds between two questions, `until` the end on the monotonic clock.
    """

    url: str
    user_code: str
    complete: str
    device_code: str
    token_url: str
    interval: float
    until: float


class DeviceLogin:
    """One log-in: `run` blocks until it is done, `begin` and `ask` go step by step.

    For `run`, `say` gets what the person has to do, and `wait` waits some seconds between two questions.
    """

    def __init__(
        self,
        method: OidcMethod,
        clock: Clock,
        say: Callable[[str], None] = lambda _words: None,
        wait: Callable[[float], object] = lambda _seconds: None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._method = method
        self._clock = clock
        self._say = say
        self._wait = wait
        self._http = http_client(10.0, transport=transport, proxies=True)

    def begin(self) -> DeviceCode:
        """Ask the provider for a code. Raises Unavailable where it does not answer or knows no such grant."""
        found = self._json("GET", self._method.issuer.rstrip("/") + _DISCOVERY)
        if found.get("issuer") != self._method.issuer:
            raise Unavailable(f"{self._method.issuer} calls itself {found.get('issuer')}; correct api.oidc.issuer")
        start, ends = found.get("device_authorization_endpoint"), found.get("token_endpoint")
        if not start or not ends:
            raise Unavailable(f"{self._method.issuer} offers no device authorization; use --token")
        form = {"client_id": self._method.client_id, "scope": self._method.scope}
        asked = self._json("POST", str(start), form)
        return DeviceCode(
            url=str(asked.get("verification_uri", "")),
            user_code=str(asked.get("user_code", "")),
            complete=str(asked.get("verification_uri_complete") or ""),
            device_code=str(asked.get("device_code", "")),
            token_url=str(ends),
            interval=float(asked.get("interval") or _INTERVAL_SECONDS),
            until=self._clock.monotonic() + float(asked.get("expires_in") or _LIFETIME_SECONDS),
        )

    def ask(self, code: DeviceCode) -> DeviceToken | None:
        """The token, once the person has confirmed; None until then. Raises LoginRefused and Unavailable."""
        if self._clock.monotonic() >= code.until + code.interval:
            raise LoginRefused(_LATE)
        form = {"grant_type": _GRANT, "device_code": code.device_code, "client_id": self._method.client_id}
        answer = self._json("POST", code.token_url, form)
        error = answer.get("error")
        if error is None:
            return self._token(answer)
        if error == "slow_down":
            code.interval += _SLOW_DOWN_SECONDS
        elif error != "authorization_pending":
            raise LoginRefused(f"the provider refuses: {answer.get('error_description') or error}")
        return None

    def run(self) -> DeviceToken:
        """Log in. Raises as `begin` and `ask` do."""
        with self._http:
            code = self.begin()
            where = code.complete or f"{code.url} and enter {code.user_code}"
            self._say(f"open {where} in a browser (code {code.user_code})")
            while self._clock.monotonic() < code.until:
                self._wait(code.interval)
                if (token := self.ask(code)) is not None:
                    return token
            raise LoginRefused(_LATE)

    def close(self) -> None:
        """Close connections; safe to repeat."""
        self._http.close()

    def _token(self, answer: dict[str, Any]) -> DeviceToken:
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Unavailable("the provider gave no ID token; is scope openid among api.oidc.scope?")
        lasts = float(answer.get("expires_in") or _LIFETIME_SECONDS)
        return DeviceToken(token, to_iso(self._clock.now_ms() + round(lasts * SECOND)))

    def _json(self, method: str, url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, data=form)
            answer = response.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Unavailable(f"{url} does not answer as a provider does: {error}") from error
        # RFC 6749, section 5.2: what went wrong is a 400 with its name.
        if not isinstance(answer, dict) or (response.status_code >= 400 and "error" not in answer):
            raise Unavailable(f"{url} answers {response.status_code}")
        return answer
