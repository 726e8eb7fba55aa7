"""How a message is delivered over HTTP: its signature, one POST, what an answer or an error means, and the retries."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx2

from tocsin.actions.notifications.channel import ChannelDependencies, Delivery, Message, MessageText, text_of
from tocsin.domain.clock import SECOND, Clock, SystemClock
from tocsin.domain.words import clean, clip
from tocsin.http_client import http_client

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_REST_SECONDS = 900.0
"""However long a receiver asks to be left alone, it is tried again after this; own choice."""
LONGEST_ANSWER_SECONDS = 30.0
"""How long the body of an answer may come, byte by byte; own choice."""
SIGNATURE_HEADER = "Tocsin-Signature"
"""``t=<seconds since the epoch>,v1=<hexadecimal HMAC-SHA256 of "<t>." followed by the body>``"""
_TRY_AGAIN = frozenset({408, 425, 429})
_MOST_READ = 64 * 1024
_SHORTEST_SECRET = 6
"""Characters below which a part of a URL is no secret: blanking `/` or `1` would spoil every answer (own choice)."""
_SHORTEST_TOKEN = 16
"""Characters from which a part of a path alone is taken for a token (own choice)."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is posted; `query` is added to that of the URL, `path` to its path."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json; charset=utf-8"})
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    path: str = ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back; `text` is at most 64 KiB of the body."""

    status: int
    text: str
    retry_after: str = ""

    def json(self) -> object:
        """The JSON of the body; None where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def field(self, name: str) -> object:
        """A field of the JSON object in the body; None where there is none."""
        value = self.json()
        return value.get(name) if isinstance(value, dict) else None


Judge = Callable[[HttpAnswer], Delivery]


def to_json(value: Any) -> bytes:
    """`value` as JSON in UTF-8, keys sorted: the same value gives the same bytes; half a surrogate pair becomes `?`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(errors="replace")


def sign(secret: str, body: bytes, now_ms: int) -> str:
    """Value of `SIGNATURE_HEADER` for `body`, posted at `now_ms`."""
    seconds = now_ms // SECOND
    mac = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256)
    return f"t={seconds},v1={mac.hexdigest()}"


def pause_seconds(failures: int) -> float:
    """Rest after `failures` failed tries: doubles from half a second, at most half a minute."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS))


class Receiver:
    """One URL that messages are posted to. The URL may be a secret: no text that comes back holds it, nor one of
    `secrets`. No redirect is followed: what is sent along is for this server alone.

    `name` is what error texts call the URL. `rest` waits for some seconds between two tries of `deliver`; without it,
    `close` from another thread ends the wait, which is why no library of retries does the waiting.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        ca_file: Path | None = None,
        *,
        name: str = "the url",
        rest: Callable[[float], object] | None = None,
        secrets: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._name = name
        self._secrets = sorted({*_secrets_of(url), *secrets}, key=len, reverse=True)
        self._closed = threading.Event()
        self._rest = rest or self._closed.wait
        self._client = http_client(timeout_seconds, ca=ca_file, proxies=True, most_bytes=None)

    def deliver(self, make: Callable[[], HttpRequest], attempts: int, judge: Judge | None = None) -> Delivery:
        """At most `attempts` tries, with growing rests between them; `make` signs the request of each try anew.

        A failure is certain only where every try was: one try that timed out may have been taken.
        """
        delivery = Delivery(False, "closed before the first try", 0)
        certain = True
        for count in range(1, attempts + 1):
            if self._closed.is_set():
                break
            delivery = replace(self.post(make(), judge or by_status), attempts=count)
            certain = certain and delivery.certain
            if delivery.ok or not delivery.again:
                break
            if count < attempts:
                self._rest(pause_seconds(count))
        return replace(delivery, certain=certain or delivery.ok)

    def post(self, request: HttpRequest, judge: Judge) -> Delivery:
        """One try."""
        answer = self.ask(request)
        return answer if isinstance(answer, Delivery) else judge(answer)

    def ask(self, request: HttpRequest) -> HttpAnswer | Delivery:
        """What is answered, whatever the status; a delivery that failed where there is no answer."""
        try:
            url, headers = self._address(request), dict(request.headers)
            with self._client.stream(request.method, url, content=request.body, headers=headers) as response:
                said = self._blanked(_read(response, self._clock))
                return HttpAnswer(response.status_code, said, response.headers.get("retry-after", ""))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {self._words(error)}", 1)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return self._unusable(error)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {self._words(error)}", 1, certain=False)
        except RuntimeError:
            # What the client raises when another thread closes it.
            if not self._closed.is_set():
                raise
            return Delivery(False, "closed while sending", 1, certain=False)

    def rehearse(self, request: HttpRequest) -> Delivery:
        """Address the request as `post` does, and keep it here."""
        try:
            url = self._address(request)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return self._unusable(error)
        signed = "signed" if SIGNATURE_HEADER in request.headers else "unsigned"
        return Delivery(True, f"dry run: would post {len(request.body)} bytes, {signed}, to {url}", 1)

    def close(self) -> None:
        """End a wait that is going on and let go of connections; safe to repeat."""
        self._closed.set()
        self._client.close()

    def _address(self, request: HttpRequest) -> httpx2.URL:
        """Raises InvalidURL or UnsupportedProtocol where the receiver's address is none."""
        url = httpx2.URL(self._url)
        if url.scheme not in ("http", "https") or not url.host:
            raise httpx2.UnsupportedProtocol("no address of a web server")
        if request.path:
            url = url.copy_with(path=url.path.rstrip("/") + request.path)
        return url.copy_merge_params(dict(request.query)) if request.query else url

    def _unusable(self, error: Exception) -> Delivery:
        return Delivery(False, f"{self._name} cannot be used: {self._words(error)}", 1, again=False)

    def _words(self, error: Exception) -> str:
        text = type(error).__name__ + (f": {error}" if str(error) else "")
        return clip(clean(self._blanked(text)), 200)

    def _blanked(self, text: str) -> str:
        """Some receivers answer with the path that they were asked for."""
        for secret in self._secrets:
            text = text.replace(secret, "(url)")
        return text


def _secrets_of(url: str) -> list[str]:
    """`url`, its path and its query, and what in them may be a token; the longest first.

    Each is also there as JSON may spell it, and without escapes.
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    held = {url, path, parts.query, f"{parts.path}?{parts.query}", *(value for _, value in parse_qsl(parts.query))}
    held |= {part for part in path.split("/") if len(part) >= _SHORTEST_TOKEN}
    held |= {unquote(each) for each in held}
    held |= {each.replace("/", "\\/") for each in held}
    return sorted((each for each in held if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)


def _read(response: httpx2.Response, clock: Clock) -> str:
    """The text of the answer. Raises ReadTimeout where it comes so slowly that no time-out of a single read ends it."""
    held, until = b"", clock.monotonic() + LONGEST_ANSWER_SECONDS
    for chunk in response.iter_bytes():
        held += chunk
        if len(held) >= _MOST_READ:
            break
        if clock.monotonic() > until:
            raise httpx2.ReadTimeout(f"the answer took longer than {LONGEST_ANSWER_SECONDS:.0f} s")
    return held[:_MOST_READ].decode(errors="replace")


def by_status(answer: HttpAnswer) -> Delivery:
    """2xx is delivered; 408, 425, 429 and 5xx may be tried again; the rest is final."""
    said = clip(clean(answer.text), 200)
    detail = f"answered {answer.status}" + (f": {said}" if said and answer.status >= 300 else "")
    if 200 <= answer.status < 300:
        return Delivery(True, detail, 1)
    if answer.status >= 500:
        return Delivery(False, detail, 1, certain=False, rest_seconds=_rest(answer))
    return Delivery(False, detail, 1, again=answer.status in _TRY_AGAIN, rest_seconds=_rest(answer))


def by_code(answer: HttpAnswer, name: str, busy: Mapping[int, float]) -> Delivery:
    """For receivers that answer 200 also to what they refuse: field `name` of the body must be 0.

    `busy` maps the codes that ask for patience to seconds of rest.
    """
    judged = by_status(answer)
    code = answer.field(name)
    if not isinstance(code, int) or code == 0:
        if judged.ok and code is None:
            return Delivery(False, f"{judged.detail} without {name}", 1, certain=False)
        return judged
    detail = f"answered {answer.status}, {name} {code}: {clip(clean(answer.text), 200)}"
    again = code in busy or (not judged.ok and judged.again)
    return Delivery(False, detail, 1, again=again, rest_seconds=max(busy.get(code, 0.0), judged.rest_seconds))


def _rest(answer: HttpAnswer) -> float:
    """Retry-After in seconds; a date in it is not read, the growing rests serve as well."""
    text = answer.retry_after.strip()
    return min(float(text), LONGEST_REST_SECONDS) if text.isascii() and text.isdigit() else 0.0


class HttpChannel:
    """A channel that posts over HTTP: `encode` makes a request of messages, `judge` a delivery of the answer."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, dependencies: ChannelDependencies, url: str | None = None) -> None:
        settings = dependencies.settings
        self.settings = settings
        self.name = settings.name
        self.links = dependencies.links
        self.clock = dependencies.clock
        self._receiver = Receiver(
            url or settings.endpoint, settings.timeout_seconds, settings.ca_file, clock=self.clock
        )

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        raise NotImplementedError

    def judge(self, answer: HttpAnswer) -> Delivery:
        return by_status(answer)

    def text(self, message: Message) -> MessageText:
        """`message` in the channel's language."""
        return text_of(message, self.links, self.settings.language)

    def send(self, messages: Sequence[Message]) -> Delivery:
        return self._receiver.post(self.encode(messages), self.judge)

    def close(self) -> None:
        self._receiver.close()
