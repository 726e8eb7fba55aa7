"""The HTTP API that Prometheus, VictoriaMetrics, Thanos and Mimir share, as far as history needs it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import stamina

from tocsin.collector.dcgm.http import is_http
from tocsin.collector.prometheus_history.answers import (
    Matrix,
    Newest,
    NotAnAnswer,
    document,
    notes,
    parse_matrix,
    parse_newest,
)
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.http_client import http_client

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""Most bytes of one answer, expanded; a longer one is asked for in halves."""
ATTEMPTS = 6
"""Tries of one request: with growing pauses some two minutes, which outlasts a restart of the server."""
MAX_PAUSE_SECONDS = 60.0
TIMEOUT_SECONDS = 120.0
"""Prometheus' own limit of a query (``--query.timeout``)."""
_TOO_MUCH = re.compile(
    r"too many|maximum resolution|exceed|max[-_ ]?(samples|points|series|chunks|bytes|fetched|query)|limit|"
    r"timed out|timeout|deadline",
    re.IGNORECASE,
)
_NO_SUCH_PATH = re.compile(r"unsupported path|missing route|not found", re.IGNORECASE)
_BASE = re.compile(r"(/api/v1(/.*)?)?/*$")
_HINT = (
    "name the base URL: http://host:9090 (Prometheus, Thanos Query), http://host:8428 (VictoriaMetrics), "
    "http://host:8481/select/0/prometheus (its cluster), http://host/prometheus (Mimir)"
)
# Each server ignores what it does not know: VictoriaMetrics would otherwise round the span and miss what was filled in
# later, Thanos give half an answer or one of averages.
_ALWAYS = {"nocache": "1", "partial_response": "false", "max_source_resolution": "0s"}


class TooMuch(Exception):
    """The server, or this client, will not take so much at once; a shorter span may pass."""


class AccessRefused(InputError):
    """The server wants another token, or none of ours."""


class QueryRefused(InputError):
    """The server cannot make sense of the query."""


class _Transient(Exception):
    """Worth another try."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How errors name the settings or options that a person can change."""

    url: str = "URL"
    access: str = "give --bearer-token-file, or --header for what stands before the server"
    selector: str = "check --match"


class HistoryClient:
    """One server. Raises InputError where what was asked or named is wrong, Unavailable where it does not answer.

    A server that never answered is given up at once: its URL is more likely wrong than its restart just now. With a
    `clock` a whole answer must come within `timeout_seconds`, which otherwise hold for each read of it.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        transport: httpx2.BaseTransport | None = None,
        attempts: int = ATTEMPTS,
        max_bytes: int = MAX_ANSWER_BYTES,
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
        wording: Wording = Wording(),
    ) -> None:
        self._wording = wording
        if not is_http(url):
            raise InputError(wording.url, url, "is no http or https URL", _HINT)
        self.url = _BASE.sub("", url)
        self.requests = 0
        self.warnings: set[str] = set()
        self._answered = False
        self._attempts = attempts
        self._max_bytes = max_bytes
        self._seconds = timeout_seconds
        self._clock = clock
        self._http = http_client(
            timeout_seconds, headers=headers, transport=transport, proxies=True, tls=tls, most_bytes=None
        )

    def close(self) -> None:
        self._http.close()

    def names(self, selector: str, start_ms: int, end_ms: int) -> list[str]:
        """Metric names of the series that `selector` finds."""
        asked = {"match[]": selector, "start": _seconds(start_ms), "end": _seconds(end_ms)}
        body = self._get("/api/v1/label/__name__/values", asked)
        try:
            answer, _ = document(body)
        except NotAnAnswer as error:
            raise self._not_prometheus(error) from None
        self.warnings.update(notes(answer))
        return sorted(str(name) for name in answer.get("data") or ())

    def matrix(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> Matrix:
        """`query` at `start_ms`, every `step_ms`, until `end_ms`. Raises TooMuch."""
        span = {"start": _seconds(start_ms), "end": _seconds(end_ms), "step": _seconds(step_ms)}
        body = self._get("/api/v1/query_range", {"query": query, **span})
        try:
            matrix = parse_matrix(body)
        except NotAnAnswer as error:
            raise self._not_prometheus(error) from None
        self.warnings.update(matrix.warnings)
        return matrix

    def newest(self, selector: str, span_ms: int, at_ms: int) -> list[Newest]:
        """The newest sample, at its own instant, of each series that `selector` finds in the `span_ms` up to `at_ms`.
        Raises TooMuch."""
        asked = {"query": f"{selector}[{span_ms // SECOND}s]", "time": _seconds(at_ms)}
        body = self._get("/api/v1/query", asked, "POST")
        try:
            lines, warnings = parse_newest(body)
        except NotAnAnswer as error:
            raise self._not_prometheus(error) from None
        self.warnings.update(warnings)
        return lines

    def _not_prometheus(self, problem: Exception) -> InputError:
        return InputError(self._wording.url, self.url, f"does not answer as Prometheus does: {problem}", _HINT)

    def _get(self, path: str, asked: Mapping[str, str], method: str = "GET") -> bytes:
        attempts = stamina.retry_context(
            on=_Transient, attempts=self._attempts, timeout=None, wait_initial=1.0, wait_max=MAX_PAUSE_SECONDS
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._once(path, {**asked, **_ALWAYS}, method)
        except _Transient as error:
            tries = f"; {self._attempts} attempts" if self._attempts > 1 else ""
            raise Unavailable(f"{self.url} does not answer: {error}{tries}") from None
        raise AssertionError("a retry context ends by an answer or an error")

    def _once(self, path: str, asked: Mapping[str, str], method: str) -> bytes:
        self.requests += 1
        # A form may be longer than what proxies take for a URL.
        sent: dict[str, Any] = {"params": asked} if method == "GET" else {"data": dict(asked)}
        try:
            with self._http.stream(method, f"{self.url}{path}", **sent) as response:
                self._answered = True
                body = self._bounded(response)
        except httpx2.HTTPError as error:
            problem = str(error) or type(error).__name__
            if not self._answered:
                raise Unavailable(f"{self.url} does not answer: {problem}; check the URL") from None
            raise _Transient(problem) from None
        if response.status_code != 200:
            raise self._failure(response.status_code, _text(body))
        if not body.lstrip().startswith(b"{"):
            raise InputError(self._wording.url, self.url, "answers with a page, not with JSON", _HINT)
        return body

    def _failure(self, status: int, text: str) -> Exception:
        if status in (401, 403):
            problem = f"refuses access (HTTP {status}): {text}"
            return AccessRefused(self._wording.url, self.url, problem, self._wording.access)
        if 300 <= status < 400:
            return InputError(self._wording.url, self.url, f"answers with a redirect (HTTP {status})", _HINT)
        if status in (404, 405) or (status == 400 and _NO_SUCH_PATH.search(text)):
            return InputError(self._wording.url, self.url, f"has no Prometheus API here (HTTP {status})", _HINT)
        if status == 429:
            return _Transient(f"HTTP {status} {text}")
        if status == 413 or _TOO_MUCH.search(text):
            return TooMuch(f"HTTP {status} {text}")
        if status >= 500:
            return _Transient(f"HTTP {status} {text}")
        return QueryRefused("query", text, f"is refused (HTTP {status})", self._wording.selector)

    def _bounded(self, response: httpx2.Response) -> bytes:
        until = None if self._clock is None else self._clock.monotonic() + self._seconds
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > self._max_bytes:
                raise TooMuch(f"the answer is longer than {self._max_bytes} bytes")
            if until is not None and self._clock is not None and self._clock.monotonic() > until:
                raise _Transient(f"the answer did not come within {self._seconds:g} s")
        return bytes(body)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // SECOND}.{milliseconds % SECOND:03d}"


def _text(body: bytes) -> str:
    """What an error's body says, in one line."""
    try:
        found: Any = document(body)[0].get("error", "")
    except NotAnAnswer:
        found = body.decode("utf-8", "replace")
    return " ".join(str(found).split())[:300]
