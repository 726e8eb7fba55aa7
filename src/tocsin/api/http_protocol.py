"""One HTTP/1.1 connection: uvicorn's, with bounds on what a stranger may keep it waiting for, and on who does not read.

It is parsed by h11. httptools takes a twentieth less of a brain's time, but it reads the body of a request that asks
for another protocol as a further request, and answers HTTP/1.0 in chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tocsin.api.connections import OpenConnections
from tocsin.api.errors import ApiError
from tocsin.api.gate import ALWAYS, PEER_NAMES

FULL = "too_many_connections"
"""Code of the answer where no more connections are taken."""
SHORT_ANSWER = 8_192
"""Bytes of an answer that a socket takes at once, whatever its reader does: its connection may be closed after it."""


class HttpProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with limits, and the names of a client certificate.

    Uvicorn limits only the silence between two requests: a client that sends a byte now and then, of headers or of a
    body that was answered already, would hold a connection for ever. Nor does it know of clients that do not read what
    they asked for: an answer that nobody takes on for `unread_seconds` ends with its connection. Where `open_ones` are
    too many and none is idle, a connection gets one answer, 503, which `refused` counts.
    """

    header_seconds = 10.0
    unread_seconds = 60.0
    open_ones: OpenConnections
    refused: Callable[[str], None]
    answered = 0
    """Bytes of the body of the last answer."""
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
        self.open_ones.busy(self)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A longer answer may be on its way still, for as long as its reader takes.
        if self.conn.their_state is h11.IDLE and self.answered <= SHORT_ANSWER and not self.transport.is_closing():
            self.open_ones.idle(self, self._address)

    def end_idle(self) -> None:
        self.transport.abort()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def _lags(self) -> bool:
        """Whether the head of a request is not whole, or the body of one that has its answer."""
        answered = self.cycle is not None and self.cycle.response_complete
        return self.conn.their_state is h11.IDLE or (answered and self.conn.their_state is h11.SEND_BODY)

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
        if not self._lags:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._too_slow)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._lags:
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
