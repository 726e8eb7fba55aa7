"""One management controller over Redfish: a session, and resources within bounds of bytes, time and number."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tocsin.domain.clock import Clock

MAX_BYTES = 1 << 20
"""Bytes of one answer."""
MOST_REQUESTS = 300
"""Requests of one look (own choice): a chassis has dozens of fans, each a resource of its own."""
LOOK_SECONDS = 45.0
"""Time of one look at most: controllers are slow, and answer one request at a time."""
SESSIONS = "/redfish/v1/SessionService/Sessions"
_PREFIX = "/redfish/"
_UNAUTHORIZED = 401

Resource = dict[str, Any]
Get = Callable[[str], Resource]
"""The resource at a path. Raises `RedfishFailed`."""


class RedfishFailed(Exception):
    """The controller gave no usable answer; the text says why, in a few words."""


class RedfishClient:
    """Asks the controller at `client`'s base URL. `begin` starts a look; `close` ends the session.

    With a `username` it logs in once, and again where the session has ended: controllers have few sessions.
    """

    def __init__(self, client: httpx2.Client, clock: Clock, seconds: float, username: str, password: str) -> None:
        self._client = client
        self._clock = clock
        self._seconds = seconds
        self._username = username
        self._password = password
        self._token = ""
        self._session = ""
        self._left = 0
        self._renewed = False
        self._until = 0.0

    def begin(self) -> None:
        """Start a look: its requests and its time are counted from here."""
        self._left = MOST_REQUESTS
        self._renewed = False
        self._until = self._clock.monotonic() + LOOK_SECONDS
        if self._username and not self._token:
            self._log_in()

    def get(self, path: str) -> Resource:
        """The resource at `path`, which must be one of Redfish's. Raises RedfishFailed."""
        if not path.startswith(_PREFIX) or ".." in path:
            raise RedfishFailed(f"{path[:80]!r} is no path of Redfish")
        self._spend()
        status, body, _ = self._send("GET", path)
        if status == _UNAUTHORIZED and self._username and not self._renewed:
            # Once in a look: what this user may not see must not use up the sessions.
            self._log_in()
            status, body, _ = self._send("GET", path)
        if status != 200:
            raise RedfishFailed(f"HTTP status {status} at {path[:80]}")
        return _document(body)

    def close(self) -> None:
        """End the session, so that it holds no place among the few; what fails is left to the controller's time-out."""
        session, self._session = self._session, ""
        if session:
            with suppress(RedfishFailed):
                self._send("DELETE", session)
        self._token = ""
        self._client.close()

    def _spend(self) -> None:
        if self._left <= 0:
            raise RedfishFailed(f"more than {MOST_REQUESTS} resources in one look")
        if self._clock.monotonic() > self._until:
            raise RedfishFailed(f"one look takes longer than {LOOK_SECONDS:g} s")
        self._left -= 1

    def _log_in(self) -> None:
        self._spend()
        self._renewed = True
        self._token = ""
        body = json.dumps({"UserName": self._username, "Password": self._password}).encode()
        status, answer, headers = self._send("POST", SESSIONS, body)
        token = headers.get("X-Auth-Token", "")
        if status not in (200, 201) or not token:
            raise RedfishFailed(f"log-in refused, HTTP status {status}")
        location = urlsplit(headers.get("Location", "") or str(_document(answer).get("@odata.id", ""))).path
        self._token, self._session = token, location if location.startswith(_PREFIX) else ""

    def _send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, httpx2.Headers]:
        until = self._clock.monotonic() + self._seconds
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"}
        if self._token:
            headers["X-Auth-Token"] = self._token
        if body:
            headers["Content-Type"] = "application/json"
        taken = bytearray()
        try:
            with self._client.stream(method, path, headers=headers, content=body or None) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise RedfishFailed("the answer is compressed, which was not asked for")
                for piece in response.iter_bytes():
                    taken += piece
                    if len(taken) > MAX_BYTES:
                        raise RedfishFailed(f"the answer is larger than {MAX_BYTES} bytes")
                    if self._clock.monotonic() > until:
                        raise RedfishFailed(f"the answer did not come within {self._seconds:g} s")
                return response.status_code, bytes(taken), response.headers
        except httpx2.TimeoutException:
            raise RedfishFailed(f"no answer within {self._seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            # Paths and token are the controller's word, and may be no text that a request can carry.
            raise RedfishFailed(str(error) or type(error).__name__) from None


def _document(body: bytes) -> Resource:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RedfishFailed("the answer is no JSON") from None
    if not isinstance(found, dict):
        raise RedfishFailed("the answer is no resource")
    return found
