"""Time as an argument. No other module of Tocsin reads the wall clock.

Instants are integer milliseconds since the Unix epoch, UTC: the finest step that every store keeps (VictoriaMetrics
cuts nanoseconds to milliseconds), and exact as a key, which a float of seconds is not.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Clock(Protocol):
    """What time is it."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds on a scale that never steps back; only differences mean something."""


class SystemClock:
    """The host's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told; tests and replay use it."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._monotonic += milliseconds / SECOND

    def set(self, now_ms: int) -> None:
        """Step the wall clock to `now_ms`, in either direction; the monotonic scale does not move."""
        self._now_ms = now_ms


def to_iso(at_ms: int) -> str:
    """`at_ms` as RFC 3339 in UTC with milliseconds, for example ``2026-11-21T03:54:16.000Z``."""
    moment = datetime.fromtimestamp(at_ms / SECOND, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % SECOND:03d}Z"


def to_minute(at_ms: int) -> str:
    """`at_ms` for people, in UTC to the minute, for example ``2026-11-21 03:54 UTC``."""
    return _minute(at_ms // MINUTE)


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> str:
    return datetime.fromtimestamp(minutes * MINUTE / SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")


def optional_iso(at_ms: int | None) -> str | None:
    """`at_ms` as `to_iso` has it; None stays None."""
    return None if at_ms is None else to_iso(at_ms)


def from_iso(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 instant; one without an offset is UTC.

    Raises ValueError where `text` is no ISO 8601 instant.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * SECOND)
