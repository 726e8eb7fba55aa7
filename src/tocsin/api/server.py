"""Runs the API in a thread of this process, over TLS where a certificate is set.

TLS is 1.2 at least, 1.3 where the client can; a renewed certificate is taken up without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from asyncio import sslproto
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tocsin.api.connections import Listener, OpenConnections, room_for
from tocsin.api.http_protocol import HttpProtocol
from tocsin.config.access import ApiSettings
from tocsin.domain.errors import InputError, Unavailable
from tocsin.http_client import load_pair, stamp
from tocsin.telemetry.log import logger

_log = logger("tls")
_connections_log = logger("connections")
# It warns of each request that is no HTTP or asks for another protocol: anybody may send millions of them.
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2 only suites with forward secrecy and authenticated encryption (RFC 9325, section 4.2)."""


class ServerTls:
    """The server's certificate and the CAs of its clients. Raises InputError for files that cannot be used."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._stamp = stamp(certificate, key, client_ca)
        self.context = self._fresh()

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS_1_2)
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load(context)
        if self._client_ca is not None:
            # People come without a certificate; one that is shown must be good.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        load_pair(context, self._certificate, self._key)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                remedy = "name a PEM file of CA certificates"
                raise InputError("api.client_ca", str(self._client_ca), f"cannot be used: {error}", remedy) from None

    def refresh(self) -> bool:
        """Use files that changed for connections from now on; whether any did. Those that cannot be used are logged.

        A CA that is new in the file counts at once; one that was taken out counts until the next start.
        """
        now = stamp(self._certificate, self._key, self._client_ca)
        if now == self._stamp:
            return False
        self._stamp = now
        try:
            # Tried on the side first: half a pair, as a renewal leaves it for a moment, must not get into service.
            self._fresh()
            self._load(self.context)
        except InputError as error:
            _log.warning("the renewed certificate cannot be used, the old one stays", error=str(error))
            return False
        _log.info("certificate renewed", file=str(self._certificate))
        return True


def server_tls(settings: ApiSettings) -> ServerTls | None:
    """What `settings` ask for; None for plain HTTP."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return ServerTls(settings.tls_certificate, settings.tls_key, settings.client_ca)


_START_SECONDS = 30.0
_DRAIN_SECONDS = 5
sslproto.SSLProtocol.max_size = 32 * 1024
# What asyncio keeps for each TLS connection, in place of 256 KiB: a record has 16 KiB at most, and connections are kept
# by the thousand.
KEPT_SECONDS = 75
"""How long a connection may be idle (own choice): longer than clients keep theirs, and than agents wait between two
pushes, which each would else begin with a handshake."""
_TICKS_PER_LOOK = 50
"""Uvicorn ticks ten times a second: the certificate's files are looked at every five seconds."""


class _Server(uvicorn.Server):
    """A server that says when it listens, and takes up a renewed certificate."""

    def __init__(self, config: uvicorn.Config, tls: ServerTls | None, handshake_seconds: float) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        self._tls = tls
        self._handshake_seconds = handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is not None:
            # Uvicorn has no setting for them, and asyncio waits for a minute before anything here sees a connection.
            loop, seconds = asyncio.get_running_loop(), self._handshake_seconds
            timed = partial(loop.create_server, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds)
            loop.create_server = timed  # type: ignore[method-assign]
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

    async def on_tick(self, counter: int) -> bool:
        if self._tls is not None and counter % _TICKS_PER_LOOK == 0:
            self._tls.refresh()
        return await super().on_tick(counter)


def _places(wanted: int) -> OpenConnections:
    """As many of the `wanted` connections as there are file descriptors for."""
    most = room_for(wanted)
    if most < wanted:
        _connections_log.warning(
            "there are file descriptors for fewer connections than api.limits.connections: raise their limit",
            connections=most,
            wanted=wanted,
        )
    return OpenConnections(most)


class ApiServer:
    """An ASGI application on a TCP port, with TLS where `settings` have a certificate.

    Port 0 takes a free one; `start` returns the real one. `refused` gets the code of what is turned away before it
    reaches the application. Raises InputError for TLS files that cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: ApiSettings | None = None,
        refused: Callable[[str], None] = lambda _code: None,
    ) -> None:
        settings = settings or ApiSettings()
        limits = settings.limits
        self._tls = server_tls(settings)
        self._connections = _places(limits.connections)
        own = {
            "header_seconds": limits.header_seconds,
            "unread_seconds": limits.body_seconds,
            "open_ones": self._connections,
        }
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # What counts connections is a socket of Python's own.
            loop="asyncio",
            http=type("Protocol", (HttpProtocol,), {**own, "refused": staticmethod(refused)}),
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            timeout_keep_alive=KEPT_SECONDS,
            ssl_context_factory=self._context if self._tls is not None else None,
        )
        self._server = _Server(config, self._tls, limits.header_seconds)
        self._host = host
        self._port = port
        self._thread: threading.Thread | None = None

    def _context(self, _config: uvicorn.Config, _default: object) -> Any:
        assert self._tls is not None
        return self._tls.context

    def start(self) -> int:
        """Listen and serve until `stop`. Returns the port; raises Unavailable where the address cannot be taken."""
        listener = self._bind()
        self._port = int(listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="api", daemon=True)
        self._thread.start()
        self._server.settled.wait(_START_SECONDS)
        if not self._server.started:
            self.stop()
            raise Unavailable(f"the API did not start on {self._host} port {self._port}")
        return self._port

    @property
    def url(self) -> str:
        """Base URL, valid once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._port}"

    def stop(self) -> None:
        """End running requests, close all connections and wait for the thread; safe to repeat."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_DRAIN_SECONDS * 2)
            self._thread = None

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            self._server.run(sockets=[listener])

    def _bind(self) -> socket.socket:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except socket.gaierror as error:
            raise Unavailable(f"listen address {self._host}: {error.strerror}; name an address of this host") from error
        listener = Listener(family, kind, protocol)
        listener.connections = self._connections
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            listener.close()
            message = f"cannot listen on {self._host} port {self._port}: {error.strerror}; choose another address"
            raise Unavailable(message) from error
        return listener
