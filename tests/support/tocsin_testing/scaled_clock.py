"""Simulated time."""

from __future__ import annotations

from tocsin.domain.clock import SECOND, Clock


class ScaledClock:
    """A clock that runs `speed` times as fast as `base` from `start_ms` on: simulated time."""

    def __init__(self, base: Clock, speed: float, start_ms: int) -> None:
        self._base = base
        self._speed = speed
        self._start_ms = start_ms
        self._origin = base.monotonic()

    def now_ms(self) -> int:
        return self._start_ms + int((self._base.monotonic() - self._origin) * self._speed * SECOND)

    def monotonic(self) -> float:
        return (self._base.monotonic() - self._origin) * self._speed
