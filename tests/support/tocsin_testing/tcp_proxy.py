"""A way to a server that can be cut: then nothing passes and nothing is told, as where a cable is pulled."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class TcpProxy:
    """Passes connections to `port` on; `url_port` is where to connect. While `is_cut`, bytes wait and nobody hears."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url_port = int(self._listener.getsockname()[1])
        self.is_cut = False
        self._ended = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes."""
        self.is_cut = True

    def mend(self) -> None:
        """Pass again; connections from before are gone."""
        self._drop()
        self.is_cut = False

    def close(self) -> None:
        """Stop passing; safe to repeat."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            gone, self._open = self._open, []
        for sock in gone:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self._target)) as far:
            with self._lock:
                self._open += [near, far]
            while not self._ended:
                ready, _, _ = select.select([near, far], [], [], 0.05)
                if self.is_cut:
                    threading.Event().wait(0.02)
                    continue
                for sock in ready:
                    data = sock.recv(65_536)
                    if not data:
                        return
                    (far if sock is near else near).sendall(data)
