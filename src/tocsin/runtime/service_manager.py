"""What a process tells systemd: that it serves, that it ends, and that its loop still turns (man sd_notify)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from tocsin.domain.clock import Clock
from tocsin.telemetry.log import logger

_log = logger("service_manager")

BEATS = 4
"""Signs of life in the time after which systemd takes the process for hung; it asks for two at least."""
_SECOND_US = 1e6


class Stop(Protocol):
    """What `threading.Event` offers."""

    def is_set(self) -> bool:
        """Whether to stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until told to stop or `timeout` seconds have passed; whether to stop."""


class ServiceManager:
    """The socket that systemd waits at; everything is a no-op where there is none.

    `beat_seconds` is how often a sign of life is due; None where nobody waits for one.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.beat_seconds = self._beat(environ)

    def _beat(self, environ: Mapping[str, str]) -> float | None:
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        if not self._address or not mine or not usec.isdecimal() or int(usec) == 0:
            return None
        return int(usec) / _SECOND_US / BEATS

    def ready(self) -> None:
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def stand_by(self, stop: Stop, turns: Callable[[], int]) -> None:
        """Say that the process serves, then wait for `stop`; signs of life go out for as long as `turns` grows."""
        self.ready()
        before = -1
        while not stop.wait(self.beat_seconds):
            now = turns()
            if now != before:
                self.alive()
            before = now
        self.stopping()

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is of the abstract namespace, which the kernel spells with a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("systemd cannot be notified", state=state, problem=str(error))


class Watched:
    """A `Stop` whose every look is a sign of life: a loop that asks it whether to stop still turns."""

    def __init__(self, stop: Stop, manager: ServiceManager, clock: Clock) -> None:
        self._stop = stop
        self._manager = manager
        self._clock = clock
        self._due = clock.monotonic()

    def is_set(self) -> bool:
        beat, now = self._manager.beat_seconds, self._clock.monotonic()
        if beat is not None and now >= self._due:
            self._due = now + beat
            self._manager.alive()
        return self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        beat = self._manager.beat_seconds
        if beat is None:
            return self._stop.wait(timeout)
        until = float("inf") if timeout is None else self._clock.monotonic() + timeout
        while not self.is_set() and (left := until - self._clock.monotonic()) > 0:
            if self._stop.wait(min(beat, left)):
                return True
        return self._stop.is_set()
