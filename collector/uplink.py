"""Pushes what the spool holds, as InfluxDB line protocol: to a brain, to InfluxDB 2.x or to VictoriaMetrics.

One body is out at a time, and every answer is one of three: taken, not now, never. Only "taken" and "never" remove
lines, and "never" is believed only of the lines themselves: an answer that may blame the token, the address or the
moment (`_TRY_AGAIN`, and every 5xx) parks nothing, since a wrong token must not empty an hour of readings into the
parked lines. Search for the bad lines of a refused body sends good lines twice, which is safe because writes of one
(GPU, instant) merge; a batch is settled whole, after the last of its lines has an answer.

Pauses live on the injected clock and not in a retry library: the agent's loop asks `push` at every reading and must
never be held up by it, so that a pause is an instant to wait for, not a sleep.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import httpx2

from tocsin.client.bearer import BearerToken
from tocsin.client.moved import ASSIGNED_ONLY, moved_to
from tocsin.collector.spool import Spooled
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError
from tocsin.http_client import ClientTls, http_client
from tocsin.store.line_protocol.packed import ACCEPTS_PACKED, in_plain_lines
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("uplink")

MAX_BODY_BYTES = 1024 * 1024
"""Text of one push before compression: an hour of one node in some 30 pushes. A brain reads 32 MiB and InfluxDB 25 MB
by default, but the agent would need as much memory."""
MIN_BODY_BYTES = 64 * 1024
"""Least text of a push to a receiver that does not answer in time: larger ones would never get through."""
GZIP_LEVEL = 3
"""Line protocol at level 6 is a tenth smaller, and takes more than twice the time."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 3600.0
"""What a receiver may ask for; more is taken for a mistake."""
MOST_MOVES = 3
"""Times that brains may send the agent on before one takes what it has; more is two that name each other."""
BACK_AFTER = 5
"""Failures in a row after which an agent at another cell's brain asks at its own address again, and one at its own
address asks the other cells whose its host is."""
MAX_REQUESTS_PER_BATCH = 64
"""Requests spent on finding the bad lines of one refused body; what is then still unclear is parked whole."""

_TRY_AGAIN = frozenset({401, 403, 404, 405, 407, 408, 415, 421, 425, 426, 429})
"""Answers that blame the token, the address, the encoding or the moment rather than the lines: nothing is parked."""


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Where to push. `url` is the base, below which ``/api/v2/write`` lies; `token_file` holds the token where others
    renew it; `tls` None trusts the system's CAs. `cell_urls` are the brains of other cells that a brain may send the
    agent to.
    """

    url: str
    org: str
    bucket: str
    token: str = ""
    timeout_seconds: float = 10.0
    tls: ClientTls | None = None
    cell_urls: tuple[str, ...] = ()
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Again:
    """Not now: nothing was acknowledged; `after` is what the receiver asked to wait, in seconds.

    `slow` is a receiver that took the whole time and gave no answer, `moved` one that named another to go on at.
    """

    reason: str
    after: float | None = None
    slow: bool = False
    moved: bool = False


@dataclass(frozen=True, slots=True)
class _RefusedLines:
    """Never: `bad` names the lines at fault by position, from 0, with the problem; empty where the answer does not.

    `total` is how many are at fault, which may be more than the answer names.
    """

    reason: str
    bad: Mapping[int, str]
    total: int = 0


_Answer = _Again | _RefusedLines | None


class Queue(Protocol):
    """What an uplink empties: `spool.Spool`, or `buffer.Buffer` around one."""

    @property
    def batches(self) -> int:
        """Batches that wait."""

    @property
    def size(self) -> int:
        """Their size in bytes, compressed."""

    def peek(self, max_bytes: int) -> list[Spooled]:
        """The next batches, together at most `max_bytes` of text, at least one where any waits; they stay."""

    def settle(self, batches: Iterable[Spooled], parked: Sequence[tuple[str, str]] = ()) -> int:
        """Remove `batches` and keep `parked` lines aside; how many parked lines made room."""

    def parked_lines(self) -> int:
        """How many lines are kept aside."""


class Uplink:
    """Empties a spool into a receiver.

    An acknowledged batch leaves the spool; one that fails stays and is tried again after a growing pause with jitter.
    Lines that the receiver refuses are parked in the spool with the reason, the others go on: a body refused without
    naming its bad lines is halved until they are found, which is safe because writes are idempotent. A receiver that
    does not answer in time gets smaller bodies until it does. Packed lines go as they are to a receiver that says that
    it reads them, and as text to every other.
    """

    def __init__(
        self,
        spool: Queue,
        target: PushTarget,
        clock: Clock,
        own: OwnMetrics,
        *,
        transport: httpx2.BaseTransport | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._spool = spool
        self._clock = clock
        self._own = own
        self._jitter = jitter if jitter is not None else random.Random()
        self._failures = 0
        self._body_bytes = MAX_BODY_BYTES
        self._not_before = clock.monotonic()
        self._last_success = clock.monotonic()
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        self._token = BearerToken(target.token, target.token_file)
        self._target, self._moves = target, 0
        self.packs = False
        """Whether the receiver reads packed lines, by its last answer."""
        self._others = cycle([one for one in target.cell_urls if one.rstrip("/") != target.url.rstrip("/")] or [""])
        self._write = self._home = _write_url(target)
        self._tls = target.tls
        context = self._tls.context if self._tls is not None else None
        self._client = http_client(
            target.timeout_seconds, headers=headers, tls=context, proxies=True, transport=transport
        )
        own.set_function("tocsin_push_age_seconds", lambda: clock.monotonic() - self._last_success)
        self._show()

    def push(self) -> int:
        """Send until the spool is empty or something stands in the way; returns how many batches left the spool.

        Does nothing while a pause lasts. Never raises for what a receiver or a network does.
        """
        settled = 0
        self._renew()
        while self._clock.monotonic() >= self._not_before:
            if not (batches := self._spool.peek(self._body_bytes)):
                break
            outcome = self._deliver("".join(_ended(batch.text) for batch in batches))
            if isinstance(outcome, _Again):
                self._pause(outcome)
                break
            damaged = sum(1 for batch in batches if not batch.text)
            self._count_lost(self._spool.settle(batches, outcome), damaged, outcome)
            settled += len(batches)
        self._show()
        return settled

    def _renew(self) -> None:
        """Take up a renewed token and client certificate; what cannot be used leaves the old one in service."""
        if token := self._token.now():
            self._client.headers["Authorization"] = f"Token {token}"
        if self._tls is not None:
            try:
                self._tls.refresh()
            except InputError as error:
                _log.warning("the renewed client certificate cannot be used", error=str(error))

    def close(self) -> None:
        self._client.close()

    def _deliver(self, text: str) -> list[tuple[str, str]] | _Again:
        """Send `text`; the refused lines with their problems, or why it has to be tried again."""
        text = text if self.packs else in_plain_lines(text)
        answer = self._post(text) if text else None
        if isinstance(answer, _Again):
            return answer
        parked = self._sort_out(text.split("\n")[:-1], answer) if answer is not None else []
        if isinstance(parked, list):
            self._succeeded()
        return parked

    def _sort_out(self, lines: Sequence[str], answer: _RefusedLines) -> list[tuple[str, str]] | _Again:
        """Find the bad ones of `lines`, which were refused by `answer`, and get the others through."""
        pending: list[tuple[Sequence[str], _Answer]] = [(lines, answer)]
        parked: list[tuple[str, str]] = []
        requests = 1
        while pending:
            part, known = pending.pop()
            if known is None:
                known = self._post("\n".join(part) + "\n")
                requests += 1
            if isinstance(known, _Again):
                return known
            if known is None:
                continue
            if known.bad:
                parked += [(part[number], problem) for number, problem in known.bad.items()]
                rest = [line for number, line in enumerate(part) if number not in known.bad]
                if rest and known.total > len(known.bad):
                    pending.append((rest, None))
            elif len(part) == 1 or requests >= MAX_REQUESTS_PER_BATCH:
                parked += [(line, known.reason) for line in part]
            else:
                half = len(part) // 2
                pending += [(part[half:], None), (part[:half], None)]
        return parked

    def _post(self, text: str) -> _Answer:
        body = gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)
        begun = self._clock.monotonic()
        answer: _Answer
        try:
            headers = {"Content-Encoding": "gzip"} | ({ASSIGNED_ONLY: "1"} if self._write != self._home else {})
            response = self._client.post(self._write, content=body, headers=headers)
        except httpx2.HTTPError as error:
            slow = isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout)
            answer = _Again(f"{type(error).__name__}: {error}", slow=slow)
        else:
            answer = self._judge(response, text.count("\n"))
            if not isinstance(answer, _Again):
                self.packs = ACCEPTS_PACKED in response.headers
                if not self.packs and in_plain_lines(text) != text:
                    # Whatever it made of them: another program answers there than the one that asked for them.
                    answer = _Again("the receiver reads no packed lines: the same goes to it as text", after=0.0)
        self._own.observe("tocsin_push_seconds", self._clock.monotonic() - begun)
        outcome = "acknowledged" if answer is None else "again" if isinstance(answer, _Again) else "refused"
        self._own.count("tocsin_push_requests_total", outcome=outcome)
        return answer

    def _judge(self, response: httpx2.Response, lines: int) -> _Answer:
        status = response.status_code
        if 200 <= status < 300:
            return None
        body = _json(response)
        reason = f"HTTP {status}: {_message(body) or response.text[:200]}"
        if (
            url := moved_to(status, response.content, (*self._target.cell_urls, self._target.url))
        ) and self._moves < MOST_MOVES:
            self._moves += 1
            self._write = _write_url(replace(self._target, url=url))
            return _Again(f"{reason}; it goes on there", after=0.0, moved=True)
        if status in _TRY_AGAIN or not 400 <= status < 500:
            return _Again(reason, self._retry_after(response.headers.get("Retry-After", "")))
        bad, total = _rejected(body, lines)
        return _RefusedLines(reason, bad, total)

    def _retry_after(self, text: str) -> float | None:
        """Seconds asked for by a ``Retry-After``, as a number or a date (RFC 9110, section 10.2.3)."""
        try:
            seconds = float(text) if text.isdecimal() else self._until(text)
        except (TypeError, ValueError):
            return None
        return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)

    def _until(self, date: str) -> float:
        return parsedate_to_datetime(date).timestamp() - self._clock.now_ms() / SECOND

    def _pause(self, why: _Again) -> None:
        growing = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16), MAX_PAUSE_SECONDS)
        seconds = why.after if why.after is not None else growing * self._jitter.uniform(0.5, 1.0)
        self._not_before = self._clock.monotonic() + seconds
        self._failures += 1
        if self._failures >= BACK_AFTER and not why.moved:
            self._turn()
        if why.slow:
            self._body_bytes = max(self._body_bytes // 2, MIN_BODY_BYTES)
        tell = _log.warning if self._failures == 1 else _log.debug
        tell("push failed, readings stay in the spool", reason=why.reason, retry_seconds=round(seconds, 1))

    def _turn(self) -> None:
        """From another cell's brain back to the own address; from there, where nobody answers, soon to the next other
        cell's, which knows whose the host is by now."""
        at_home, other = self._write == self._home, next(self._others) if self._write == self._home else ""
        self._write, self._moves = self._home, 0
        if at_home and other:
            self._write = _write_url(replace(self._target, url=other))
            self._not_before = self._clock.monotonic() + FIRST_PAUSE_SECONDS
            self._body_bytes = MIN_BODY_BYTES

    def _succeeded(self) -> None:
        if self._failures:
            _log.info("push works again", failures=self._failures)
        self._failures = self._moves = 0
        self._body_bytes = MAX_BODY_BYTES
        self._not_before = self._last_success = self._clock.monotonic()

    def _count_lost(self, evicted: int, damaged: int, parked: Sequence[tuple[str, str]]) -> None:
        if parked:
            self._own.count("tocsin_dropped_total", len(parked), what="line", reason="refused")
            _log.warning("lines were refused and are parked", lines=len(parked), first_problem=parked[0][1])
        if evicted:
            self._own.count("tocsin_dropped_total", evicted, what="line", reason="parked_overflow")
        if damaged:
            self._own.count("tocsin_dropped_total", damaged, what="batch", reason="damaged")
            _log.error("batches in the spool cannot be unpacked and are dropped", batches=damaged)

    def _show(self) -> None:
        self._own.set("tocsin_spool_batches", self._spool.batches)
        self._own.set("tocsin_spool_bytes", self._spool.size)
        self._own.set("tocsin_spool_parked_lines", self._spool.parked_lines())


def _ended(text: str) -> str:
    """`text` with a newline at its end, so that the next batch begins a line; empty where it is."""
    return text if not text or text.endswith("\n") else text + "\n"


def _write_url(target: PushTarget) -> httpx2.URL:
    try:
        base = httpx2.URL(target.url)
    except httpx2.InvalidURL as error:
        raise _bad_url(target.url, str(error)) from None
    if base.scheme not in ("http", "https") or not base.host:
        raise _bad_url(target.url, "is no http or https address")
    path = base.path.rstrip("/") + "/api/v2/write"
    return base.copy_with(path=path, params={"org": target.org, "bucket": target.bucket, "precision": "ms"})


def _bad_url(url: str, problem: str) -> InputError:
    return InputError("agent.push_url", url, problem, "write for example http://brain.example:8470")


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _message(body: Any) -> str:
    """The words of a refusal: Tocsin's ``error.message`` or InfluxDB's ``message``."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error")
    found = error.get("message") if isinstance(error, dict) else body.get("message", error)
    return str(found)[:500] if found else ""


def _rejected(body: Any, lines: int) -> tuple[dict[int, str], int]:
    """Bad lines named by a receiver that kept the others: position from 0 and problem; and how many there are.

    A brain names them in ``error.details.rejected``, InfluxDB 3 in ``data``.
    """
    try:
        named, total = _of_influx3(body["data"]) if "data" in body else _of_a_brain(body["error"]["details"])
    except (AttributeError, TypeError, KeyError, ValueError):
        return {}, 0
    return {number: problem for number, problem in named.items() if 0 <= number < lines}, total


def _of_a_brain(details: Any) -> tuple[dict[int, str], int]:
    named = {int(entry["number"]) - 1: str(entry["problem"]) for entry in details["rejected"]}
    return named, int(details.get("rejected_total", len(named)))


def _of_influx3(data: Any) -> tuple[dict[int, str], int]:
    entries = data if isinstance(data, list) else [data]
    named = {int(entry["line_number"]) - 1: str(entry["error_message"]) for entry in entries}
    return named, len(named)
