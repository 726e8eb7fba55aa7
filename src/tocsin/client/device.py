"""Log-in at an OpenID Connect provider from a terminal: the device authorization grant (RFC 8628)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from tocsin.client.models import OidcMethod
from tocsin.domain.clock import SECOND, Clock, to_iso
from tocsin.domain.errors import TocsinError, Unavailable

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_DISCOVERY = "/.well-known/openid-configuration"
_SLOW_DOWN_SECONDS = 5.0
"""RFC 8628, section 3.5."""
_INTERVAL_SECONDS = 5.0
"""The same, section 3.2: where the provider names none."""
_LIFETIME_SECONDS = 600.0


class LoginRefused(TocsinError):
    """The person or the provider said no, or nobody said anything in time."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class DeviceToken:
    """What the provider gave: its ID token, good until `expires` (RFC 3339)."""

    token: str
    expires: str


class DeviceLogin:
    """One log-in. `say` gets what the person has to do, `wait` waits some seconds between two questions."""

    def __init__(
        self,
        method: OidcMethod,
        clock: Clock,
        say: Callable[[str], None],
        wait: Callable[[float], object],
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._method = method
        self._clock = clock
        self._say = say
        self._wait = wait
        self._http = httpx2.Client(timeout=10.0, transport=transport)

    def run(self) -> DeviceToken:
        """Log in. Raises Unavailable where the provider does not answer or knows no such grant, and LoginRefused."""
        with self._http:
            found = self._json("GET", self._method.issuer.rstrip("/") + _DISCOVERY)
            if found.get("issuer") != self._method.issuer:
                raise Unavailable(f"{self._method.issuer} calls itself {found.get('issuer')}; correct api.oidc.issuer")
            start, ends = found.get("device_authorization_endpoint"), found.get("token_endpoint")
            if not start or not ends:
                raise Unavailable(f"{self._method.issuer} offers no device authorization; use --token")
            form = {"client_id": self._method.client_id, "scope": self._method.scope}
            asked = self._json("POST", str(start), form)
            return self._poll(str(ends), asked)

    def _poll(self, url: str, asked: dict[str, Any]) -> DeviceToken:
        complete = asked.get("verification_uri_complete")
        where = complete or f"{asked.get('verification_uri')} and enter {asked.get('user_code')}"
        self._say(f"open {where} in a browser (code {asked.get('user_code')})")
        interval = float(asked.get("interval") or _INTERVAL_SECONDS)
        until = self._clock.monotonic() + float(asked.get("expires_in") or _LIFETIME_SECONDS)
        form = {
            "grant_type": _GRANT,
            "device_code": str(asked.get("device_code", "")),
            "client_id": self._method.client_id,
        }
        while self._clock.monotonic() < until:
            self._wait(interval)
            answer = self._json("POST", url, form)
            error = answer.get("error")
            if error is None:
                return self._token(answer)
            if error == "slow_down":
                interval += _SLOW_DOWN_SECONDS
            elif error != "authorization_pending":
                raise LoginRefused(f"the provider refuses: {answer.get('error_description') or error}")
        raise LoginRefused("nobody confirmed the log-in in time; run tocsin login again")

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
