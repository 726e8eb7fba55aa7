"""Runs the API in a thread of this process."""

from __future__ import annotations

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from tocsin.domain.errors import Unavailable

_START_SECONDS = 30.0
_DRAIN_SECONDS = 5


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()


class ApiServer:
    """An ASGI application on a TCP port. Port 0 takes a free one; `start` returns the real one."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
        self._server = _Server(config)
        self._host = host
        self._port = port
        self._thread: threading.Thread | None = None

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
        return f"http://{host}:{self._port}"

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
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            listener.close()
            message = f"cannot listen on {self._host} port {self._port}: {error.strerror}; choose another address"
            raise Unavailable(message) from error
        return listener
