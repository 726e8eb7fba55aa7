"""The silences of an Alertmanager (API v2): one question, and what of the answer can be used.

What the server says is a stranger's word: an answer is bounded in bytes, count and time, a bad silence costs no good
one, and its author and comment are cleaned and clipped.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tocsin.actions.model.alert_silences import AlertMatcher, AlertSilence, matcher_of
from tocsin.domain.clock import Clock, from_iso
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.json_size import values_in
from tocsin.domain.words import clean, clip
from tocsin.http_client import http_client

PATH = "/api/v2/silences"
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of one answer: some 20,000 silences. Alertmanager keeps those that ended for five days, and tells of them."""
MAX_VALUES = 500_000
"""Values in one answer, counted before it is read: a silence has some twenty."""
MAX_STANDING = 500
"""Silences that stand at one time; as many as people may set in Tocsin itself."""
MAX_MATCHERS = 16
"""Matchers of one silence (own choice)."""
MOST_BY = 60
MOST_COMMENT = 200
"""Characters of an author and of a comment that are kept; own choice."""
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, beyond which no instant is written."""
_ASKED = {"active": "true", "pending": "false", "expired": "false"}
"""A server that does not know these tells of all."""


class TooLong(Unavailable):
    """The answer has more bytes than are read."""


class NotAlertmanager(InputError):
    """What answers there is no Alertmanager, or asks for something else first."""


class Refused(NotAlertmanager):
    """The server wants another token, or none of ours."""


class _Told(BaseModel):
    """Another program's model: what it adds in later versions is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Status(_Told):
    state: Literal["active", "pending", "expired"]


class _Matcher(_Told):
    name: Annotated[str, Field(min_length=1, max_length=1_024)]
    value: str
    is_regex: Annotated[bool, Field(alias="isRegex")] = False
    is_equal: Annotated[bool, Field(alias="isEqual")] = True


class _Silence(_Told):
    id: Annotated[str, Field(min_length=1, max_length=64)]
    status: _Status
    starts_at: Annotated[str, Field(alias="startsAt", max_length=64)]
    ends_at: Annotated[str, Field(alias="endsAt", max_length=64)]
    matchers: Annotated[list[_Matcher], Field(min_length=1, max_length=MAX_MATCHERS)]
    created_by: Annotated[str, Field(alias="createdBy")] = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The silences that stand, why others cannot be used, and how many are beyond `MAX_STANDING`."""

    standing: tuple[AlertSilence, ...] = ()
    problems: tuple[str, ...] = ()
    beyond: int = 0


class AlertmanagerClient:
    """One Alertmanager. A whole answer must come within `timeout_seconds`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        clock: Clock,
        *,
        timeout_seconds: float,
        tls: ssl.SSLContext | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._clock = clock
        self._seconds = timeout_seconds
        self._http = http_client(
            timeout_seconds, headers=headers, tls=tls, proxies=True, transport=transport, most_bytes=None
        )

    def silences(self, now_ms: int) -> Answer:
        """Those that stand. Raises Unavailable where it does not answer, TooLong, NotAlertmanager and Refused."""
        try:
            with self._http.stream("GET", f"{self.url}{PATH}", params=_ASKED) as response:
                body = self._bounded(response)
        except httpx2.HTTPError as error:
            raise Unavailable(f"{self.url} does not answer: {str(error) or type(error).__name__}") from None
        self._check(response.status_code, body)
        return answer_of(body, now_ms, self.url)

    def close(self) -> None:
        """Let go of the connection; safe to repeat."""
        self._http.close()

    def _check(self, status: int, body: bytes) -> None:
        said = clip(clean(body[:1_000].decode("utf-8", "replace")), 200)
        if status in (401, 403):
            remedy = "set alertmanager.token_file or alertmanager.headers"
            raise Refused("alertmanager.url", self.url, f"refuses access (HTTP {status}): {said}", remedy)
        if status == 429 or status >= 500:
            raise Unavailable(f"{self.url} answers HTTP {status}: {said}")
        if status != 200:
            raise _no_alertmanager(self.url, f"answers HTTP {status}: {said}")

    def _bounded(self, response: httpx2.Response) -> bytes:
        until = self._clock.monotonic() + self._seconds
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MAX_BYTES:
                raise TooLong(f"{self.url} has more than {MAX_BYTES} bytes of silences")
            if self._clock.monotonic() > until:
                raise Unavailable(f"{self.url} did not answer in full within {self._seconds:g} s")
        return bytes(body)


def answer_of(body: bytes, now_ms: int, url: str = "") -> Answer:
    """What of a list of silences can be used at `now_ms`. Raises NotAlertmanager for what is no such list, TooLong for
    more than is read, and Unavailable where expressions cannot be evaluated here."""
    if values_in(body) > MAX_VALUES:
        raise TooLong(f"{url} has more than {MAX_VALUES} values in its silences")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _no_alertmanager(url, "answers with no JSON") from None
    if not isinstance(found, list):
        raise _no_alertmanager(url, "answers with no list of silences")
    standing: list[AlertSilence] = []
    problems: list[str] = []
    beyond = 0
    for one in found:
        if not _is_active(one):
            continue
        if len(standing) + len(problems) >= MAX_STANDING:
            beyond += 1
            continue
        try:
            made = _silence(one)
        except InputError as error:
            problems.append(str(error))
            continue
        if made.stands(now_ms):
            standing.append(made)
    return Answer(tuple(standing), tuple(problems), beyond)


def _is_active(one: object) -> bool:
    """Whether it says that it is over or to come; what says neither is looked at."""
    status = one.get("status") if isinstance(one, dict) else None
    return not isinstance(status, dict) or status.get("state") not in ("expired", "pending")


def _silence(one: Any) -> AlertSilence:
    """Raises InputError where it cannot be used."""
    name = clip(clean(str(one.get("id", "")) if isinstance(one, dict) else ""), 64)
    try:
        told = _Silence.model_validate(one)
        starts_ms, until_ms = (min(from_iso(at), _LATEST_MS) for at in (told.starts_at, told.ends_at))
        matchers = [_matcher(each) for each in told.matchers]
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InputError("silence", name, f"{where} is not as Alertmanager has it", "end it there") from None
    except (ValueError, OverflowError):
        raise InputError("silence", name, "has an instant that cannot be read", "end it there") from None
    except InputError as error:
        raise InputError("silence", name, f"{clean(str(error))}", "set it anew; until then it covers nothing") from None
    # What costs least is looked at first: most silences are told apart by a plain value.
    matchers.sort(key=lambda each: each.expression is not None)
    by, comment = clip(clean(told.created_by), MOST_BY), clip(clean(told.comment), MOST_COMMENT)
    return AlertSilence(told.id, tuple(matchers), starts_ms, until_ms, by, comment)


def _matcher(one: _Matcher) -> AlertMatcher:
    return matcher_of(one.name, one.value, is_regex=one.is_regex, is_equal=one.is_equal)


def _no_alertmanager(url: str, problem: str) -> NotAlertmanager:
    return NotAlertmanager("alertmanager.url", url, problem, "name the base URL, as http://alertmanager:9093")
