"""The process's end of the socket: never waits, never raises, and comes back when the agent does."""

from __future__ import annotations

import socket
from typing import Any

from tocsin.hook.wire import MAX_MESSAGE, pack, unpack

FIRST_PAUSE = 1.0
LAST_PAUSE = 30.0
"""Seconds between two attempts to reach an agent that is not there: doubled from the first to the last."""
MOST_AT_ONCE = 32
"""Packets taken in one go; more wait for the next."""


class Link:
    """A connection to the agent at `path` that may or may not be there.

    Not safe for two threads at once. `lost` counts messages that could not be sent.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        self._socket: socket.socket | None = None
        self._pause = FIRST_PAUSE
        self._next = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    def fileno(self) -> int:
        """The descriptor to wait on, -1 where there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def ensure(self, now: float) -> bool:
        """Try to connect where that is due at `now` (seconds, monotonic); whether a new connection was made."""
        if self._socket is not None or now < self._next or not hasattr(socket, "AF_UNIX"):
            return False
        made: socket.socket | None = None
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.setblocking(False)
            made.connect(self.path)
        except OSError:
            if made is not None:
                made.close()
            self._next = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
            return False
        self._socket = made
        self._pause = FIRST_PAUSE
        return True

    def send(self, message: dict[str, Any]) -> bool:
        """Send without waiting; a message that the socket does not take at once is lost and counted."""
        if self._socket is None:
            self.lost += 1
            return False
        try:
            self._socket.send(pack(message))
        except BlockingIOError:
            self.lost += 1
            return False
        except OSError:
            self.lost += 1
            self.close()
            return False
        except ValueError:
            self.lost += 1
            return False
        return True

    def receive(self) -> list[dict[str, Any]]:
        """What has come in; what cannot be read is left out."""
        found: list[dict[str, Any]] = []
        for _ in range(MOST_AT_ONCE):
            if self._socket is None:
                break
            try:
                packet = self._socket.recv(MAX_MESSAGE + 1)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self.close()
                break
            try:
                found.append(unpack(packet))
            except ValueError:
                continue
        return found

    def close(self) -> None:
        """Give up the connection; the next attempt is due at once. Safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._next = float("-inf")
