"""A brain in step with a clock that is moved by hand: its periodic work one after another, each when it is due."""

from __future__ import annotations

from collections.abc import Collection

from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.runtime.brain.assembly import RunningBrain


class Lockstep:
    """The periodic work of `running` on `clock`, in the thread that asks, but for what is named in `without`.

    Forecasts, plans and upkeep thereby stay in step with the fleet's time, however fast that passes; two runs over the
    same readings do the same.
    """

    def __init__(self, running: RunningBrain, clock: ManualClock, without: Collection[str] = ()) -> None:
        self._clock = clock
        self._due_ms = {thread.name: clock.now_ms() for thread in running.threads if thread.name not in without}
        self._threads = [thread for thread in running.threads if thread.name not in without]

    def catch_up(self) -> None:
        """Do what is due by now, once each. Raises Unavailable where a piece of it fails: a brain would go on and count
        it, but what is judged must be whole."""
        now_ms = self._clock.now_ms()
        for thread in self._threads:
            if now_ms >= self._due_ms[thread.name]:
                self._due_ms[thread.name] = max(self._due_ms[thread.name], now_ms) + round(thread.seconds * SECOND)
                thread.once()
                if thread.failures:
                    raise Unavailable(f"the brain's work {thread.name!r} failed; its log says why")
