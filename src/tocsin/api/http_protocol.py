"""One HTTP/1.1 connection: uvicorn's, parsed by httptools (llhttp), with bounds on what a stranger may send before an
endpoint is asked: bytes and time of headers, requests behind one that runs, and time for whoever does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tocsin.api.connections import OpenConnections
from tocsin.api.errors import ApiError
from tocsin.api.gate import ALWAYS, PEER_NAMES

FULL = "too_many_connections"
"""Code of the answer where no more connections are taken."""
SHORT_ANSWER = 8_192
"""Bytes of an answer that a socket takes at once, whatever its reader does: its connection may be closed after it."""
MOST_AHEAD = 8
"""Requests that may stand behind one that runs, on its connection (own choice: hardly any client sends one)."""


class _RefusedError(Exception):
    """A request that is not taken: raised to the parser, which ends the connection with 400."""


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 with limits, and the names of a client certificate.

    Uvicorn limits only the silence between two requests: a client that sends a byte now and then would hold a
    connection for ever, and one that sends headers, or requests, without end all memory. Nor does it know of clients
    that do not read what they asked for: an answer that nobody takes on for `unread_seconds` ends with its connection.
    Where `open_ones` are too many and none is idle, a connection gets one answer, 503, which `refused` counts.
    """

    header_bytes = 32 * 1024
    """Of a request line and its headers, or of what stands between and behind the parts of a body."""
    header_seconds = 10.0
    unread_seconds = 60.0
    open_ones: OpenConnections
    refused: Callable[[str], None]
    answered = 0
    """Bytes of the body of the last answer."""
    _head_open = _body_open = False
    """Whether the head, or the body, of a request has begun and not ended."""
    _told = 0
    """Bytes of names and values in the head so far."""
    _fed = 0
    """Bytes that came since the last of a body, or the end of a head."""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        if certificate:
            self.app = _with_names(self.app, names_of(certificate))
        if not self.open_ones.has_room_for(self._address):
            self.app = _full(self.app, self.refused)
        self.app = _measured(self.app, self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.open_ones.busy(self)
        self._fed += len(data)
        super().data_received(data)
        if self._fed > self.header_bytes and not self.transport.is_closing():
            self.send_400_response("Headers are too long.")
        self._watch()

    # ------------------------------------------------------------------ what the parser tells

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open, self._told = True, 0

    def on_url(self, url: bytes) -> None:
        self._tell(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._tell(len(name) + len(value))
        # What is said behind a body is no header of its request, which was let in without it.
        if self._head_open:
            super().on_header(name, value)

    def _tell(self, size: int) -> None:
        self._told += size
        if self._told > self.header_bytes:
            raise _RefusedError("headers are too long")

    def on_headers_complete(self) -> None:
        self._fed, self._head_open, self._body_open = 0, False, True
        if self.parser.get_http_version() == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            raise _RefusedError("no host, or more than one (RFC 9112, section 3.2)")
        if len(self.pipeline) >= MOST_AHEAD:
            raise _RefusedError("too many requests ahead of an answer")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._fed, self._body_open = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A longer answer may be on its way still, for as long as its reader takes.
        awaits = self._answered and not (self._head_open or self._body_open or self.pipeline)
        if awaits and self.answered <= SHORT_ANSWER and not self.transport.is_closing():
            self.open_ones.idle(self, self._address)

    # ------------------------------------------------------------------ time

    def end_idle(self) -> None:
        self.transport.abort()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def _answered(self) -> bool:
        """Whether no request waits for its answer, or the rest of it."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_ones.closed(self)
        self._rest()
        self._read_on()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """A head, or what comes behind an answer, must be whole in time."""
        if not (self._head_open or self._answered):
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._too_slow)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._head_open or self._answered:
            self.transport.abort()


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """DNS names and URIs of a verified client certificate, else its common name.

    `certificate` is what `ssl.SSLSocket.getpeercert` returns. As for servers (RFC 9525), the common name counts only
    where there is no alternative name.
    """
    alternative = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in {"DNS", "URI"}]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(alternative or map(str, common))


def _measured(app: Any, protocol: HttpProtocol) -> Any:
    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        protocol.answered = 0

        async def counted(message: Message) -> None:
            protocol.answered += len(message.get("body", b""))
            await send(message)

        await app(scope, receive, counted)

    return measured


def _with_names(app: Any, names: tuple[str, ...]) -> Any:
    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][PEER_NAMES] = names
        await app(scope, receive, send)

    return named


def _full(app: Any, refused: Callable[[str], None]) -> Any:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == ALWAYS:
            await app(scope, receive, send)
            return
        refused(FULL)
        headers = {"Retry-After": "1", "Connection": "close"}
        await ApiError(503, FULL, "too many connections are open; try again", headers=headers).response()(
            scope, receive, send
        )

    return answer
