"""When readings are dated: no instant twice, whatever the wall clock does."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from tocsin.domain.clock import SECOND, Clock
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("instants")

STEP_SECONDS = 1.0
"""Difference between wall and monotonic clock, from one reading to the next, that counts as a step."""
KEPT = 86_400
"""Instants remembered: a day at one reading a second, ten days at one in ten seconds; 8 bytes each."""
SLACK = 4_096
"""How many beyond that are removed at once: each removal moves all the others."""


class Instants:
    """Gives the instant of each reading by the wall clock, and never one that it gave before.

    A store keeps one reading for each GPU and instant. After a step back the clock shows past time again, and a
    reading that met an instant used before would overwrite what was read then: it is dated to the next free
    millisecond instead. A step is not smoothed over: it may well be the correction of a wrong time. It is counted and
    said.
    """

    def __init__(self, clock: Clock, own: OwnMetrics) -> None:
        self._clock = clock
        self._own = own
        self._used = array("q")
        self._wall_ms: int | None = None
        self._monotonic = 0.0

    def next(self) -> int:
        """The instant of a reading that begins now, in milliseconds since the epoch, UTC."""
        wall_ms, monotonic = self._clock.now_ms(), self._clock.monotonic()
        if self._wall_ms is not None:
            self._note_step((wall_ms - self._wall_ms) / SECOND - (monotonic - self._monotonic))
        self._wall_ms, self._monotonic = wall_ms, monotonic
        return self._free(wall_ms)

    def _free(self, at_ms: int) -> int:
        place = bisect_left(self._used, at_ms)
        while place < len(self._used) and self._used[place] == at_ms:
            at_ms += 1
            place += 1
        self._used.insert(place, at_ms)
        if len(self._used) > KEPT + SLACK:
            del self._used[:SLACK]
        return at_ms

    def _note_step(self, seconds: float) -> None:
        if abs(seconds) < STEP_SECONDS:
            return
        self._own.count("tocsin_clock_steps_total", direction="forward" if seconds > 0 else "back")
        _log.warning("the wall clock was set; readings are dated by its new time", seconds=round(seconds, 3))
