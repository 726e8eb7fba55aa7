"""Posting one request, and what the answer means."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx2

from tocsin.actions.notifications.sender import Delivery
from tocsin.actions.notifications.text import clean, clip
from tocsin.domain.errors import InputError

LONGEST_REST_SECONDS = 900.0
"""However long a receiver asks to be left alone, it is tried again after this; own choice."""
_TRY_AGAIN = frozenset({408, 425, 429})
_MOST_READ = 64 * 1024
_SHORTEST_SECRET = 6
"""Characters below which a part of a URL is no secret: blanking `/` or `1` would spoil every answer (own choice)."""
_SHORTEST_TOKEN = 16
"""Characters from which a part of a path alone is taken for a token (own choice)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted; `query` is added to that of the URL."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json; charset=utf-8"})
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `text` is at most 64 KiB of the body."""

    status: int
    text: str
    retry_after: str = ""

    def field(self, name: str) -> object:
        """A field of the JSON object in the body; None where there is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return None
        return value.get(name) if isinstance(value, dict) else None


Judge = Callable[[Answer], Delivery]


def to_json(value: Any) -> bytes:
    """`value` as JSON in UTF-8, keys sorted: the same value gives the same bytes; half a surrogate pair becomes `?`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(errors="replace")


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """TLS that checks certificates, against `ca_file` where given; raises InputError where that cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InputError("ca_file", str(ca_file), f"cannot be read: {error}", "name a PEM file") from None


class Poster:
    """Posts to one URL. The URL may be a secret: no text that comes back holds it."""

    def __init__(self, url: str, timeout_seconds: float, ca_file: Path | None = None) -> None:
        self._url = url
        self._secrets = _secrets_of(url)
        self._closed = False
        verify = tls_context(ca_file) if ca_file is not None else True
        self._client = httpx2.Client(timeout=timeout_seconds, verify=verify)

    def post(self, request: Request, judge: Judge) -> Delivery:
        """One try."""
        try:
            url = httpx2.URL(self._url).copy_merge_params(dict(request.query))
            with self._client.stream("POST", url, content=request.body, headers=dict(request.headers)) as response:
                said = self._blanked(_read(response))
                answer = Answer(response.status_code, said, response.headers.get("retry-after", ""))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {self._words(error)}", 1)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return Delivery(False, f"the url cannot be used: {self._words(error)}", 1, again=False)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {self._words(error)}", 1, certain=False)
        except RuntimeError:
            # What the client raises when another thread closes it.
            if not self._closed:
                raise
            return Delivery(False, "closed while sending", 1, certain=False)
        return judge(answer)

    def close(self) -> None:
        """Let go of connections."""
        self._closed = True
        self._client.close()

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


def _read(response: httpx2.Response) -> str:
    held = b""
    for chunk in response.iter_bytes():
        held += chunk
        if len(held) >= _MOST_READ:
            break
    return held[:_MOST_READ].decode(errors="replace")


def by_status(answer: Answer) -> Delivery:
    """2xx is delivered; 408, 425, 429 and 5xx may be tried again; the rest is final."""
    said = clip(clean(answer.text), 200)
    detail = f"answered {answer.status}" + (f": {said}" if said and answer.status >= 300 else "")
    if 200 <= answer.status < 300:
        return Delivery(True, detail, 1)
    if answer.status >= 500:
        return Delivery(False, detail, 1, certain=False, rest_seconds=_rest(answer))
    return Delivery(False, detail, 1, again=answer.status in _TRY_AGAIN, rest_seconds=_rest(answer))


def by_code(answer: Answer, name: str, busy: Mapping[int, float]) -> Delivery:
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


def _rest(answer: Answer) -> float:
    """Retry-After in seconds; a date in it is not read, the growing rests serve as well."""
    text = answer.retry_after.strip()
    return min(float(text), LONGEST_REST_SECONDS) if text.isascii() and text.isdigit() else 0.0
