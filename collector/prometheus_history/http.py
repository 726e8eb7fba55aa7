"""The HTTP API that Prometheus, VictoriaMetrics, Thanos and Mimir share, as far as history needs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx2
import stamina

from tocsin.collector.dcgm.http import is_http
from tocsin.collector.prometheus_history.matrix import Matrix, NotAnAnswer, document, notes, parse_matrix
from tocsin.domain.clock import SECOND
from tocsin.domain.errors import InputError, Unavailable

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


class _Transient(Exception):
    """Worth another try."""


class HistoryClient:
    """One server. Raises InputError where what was asked or named is wrong, Unavailable where it does not answer.

    A server that never answered is given up at once: its URL is more likely wrong than its restart just now.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        if not is_http(url):
            raise InputError("URL", url, "is no http or https URL", _HINT)
        self.url = _BASE.sub("", url)
        self.requests = 0
        self.warnings: set[str] = set()
        self._answered = False
        self._http = httpx2.Client(headers=dict(headers or {}), timeout=timeout_seconds, transport=transport)

    def close(self) -> None:
        """Let go of connections."""
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

    def _not_prometheus(self, problem: Exception) -> InputError:
        return InputError("URL", self.url, f"does not answer as Prometheus does: {problem}", _HINT)

    def _get(self, path: str, asked: Mapping[str, str]) -> bytes:
        attempts = stamina.retry_context(
            on=_Transient, attempts=ATTEMPTS, timeout=None, wait_initial=1.0, wait_max=MAX_PAUSE_SECONDS
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._once(path, {**asked, **_ALWAYS})
        except _Transient as error:
            raise Unavailable(f"{self.url} does not answer: {error}; {ATTEMPTS} attempts") from None
        raise AssertionError("a retry context ends by an answer or an error")

    def _once(self, path: str, asked: Mapping[str, str]) -> bytes:
        self.requests += 1
        try:
            with self._http.stream("GET", f"{self.url}{path}", params=asked) as response:
                self._answered = True
                body = _bounded(response)
        except httpx2.HTTPError as error:
            problem = str(error) or type(error).__name__
            if not self._answered:
                raise Unavailable(f"{self.url} does not answer: {problem}; check the URL") from None
            raise _Transient(problem) from None
        if response.status_code == 200:
            return self._checked(body)
        raise self._failure(response.status_code, _text(body))

    def _checked(self, body: bytes) -> bytes:
        if not body.lstrip().startswith(b"{"):
            raise InputError("URL", self.url, "answers with a page, not with JSON", _HINT)
        return body

    def _failure(self, status: int, text: str) -> Exception:
        if status in (401, 403):
            remedy = "give --bearer-token-file, or --header for what stands before the server"
            return InputError("URL", self.url, f"refuses access (HTTP {status}): {text}", remedy)
        if 300 <= status < 400:
            return InputError("URL", self.url, f"answers with a redirect (HTTP {status})", _HINT)
        if status in (404, 405) or (status == 400 and _NO_SUCH_PATH.search(text)):
            return InputError("URL", self.url, f"has no Prometheus API here (HTTP {status})", _HINT)
        if status == 429:
            return _Transient(f"HTTP {status} {text}")
        if status == 413 or _TOO_MUCH.search(text):
            return TooMuch(f"HTTP {status} {text}")
        if status >= 500:
            return _Transient(f"HTTP {status} {text}")
        return InputError("query", text, f"is refused (HTTP {status})", "check --match")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // SECOND}.{milliseconds % SECOND:03d}"


def _bounded(response: httpx2.Response) -> bytes:
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise TooMuch(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _text(body: bytes) -> str:
    """What an error's body says, in one line."""
    try:
        found: Any = document(body)[0].get("error", "")
    except NotAnAnswer:
        found = body.decode("utf-8", "replace")
    return " ".join(str(found).split())[:300]
