"""Work that is done again and again, each in a thread of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import structlog

from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.errors import Unavailable

log = structlog.get_logger()

MAX_WAIT_SECONDS = 0.05
"""Longest pause before looking again at a clock that is scaled or stepped. One that runs as the machine's is slept
through: a dozen threads that look 20 times a second each are a tenth of what a brain costs."""


LONGEST_REST = 64
"""Looks that are left out at most after one that failed (own choice)."""


class Rests:
    """Looks at what may be away: the oftener one failed, the more are left out before the next."""

    def __init__(self) -> None:
        self._left = self._failed = 0

    def look(self, work: Callable[[], None]) -> None:
        """`work`, unless this look is left out. Raises what it raises."""
        if self._left > 0:
            self._left -= 1
            return
        try:
            work()
        except Unavailable:
            self._failed += 1
            self._left = min(2**self._failed, LONGEST_REST)
            raise
        self._failed = 0


class Periodic:
    """Calls `work` every `seconds` of `clock` in a thread of its own, and at once when `wake` is set, until stopped.

    Where it is woken before its time it calls `on_wake` instead, if that is given.
    Late calls are not made up for. A failure of `work` is logged, counted and told to `on_failure` with the name, and
    the next call is made on time.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        seconds: float,
        clock: Clock,
        on_failure: Callable[[str], None] = lambda _name: None,
        wake: threading.Event | None = None,
        on_wake: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self.seconds = seconds
        self._clock = clock
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._wake = wake or threading.Event()
        self._on_wake = on_wake or work
        self._most = math.inf if isinstance(clock, SystemClock) else MAX_WAIT_SECONDS
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.calls = 0
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def signal(self) -> None:
        """Make no further call."""
        self._stop.set()
        self._wake.set()

    def stop(self) -> None:
        """Stop and wait for a call under way to end."""
        self.signal()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due = self._clock.monotonic()
        while not self._stop.is_set():
            wait = due - self._clock.monotonic()
            if wait > 0 and not self._wake.wait(min(wait, self._most)):
                continue
            self._wake.clear()
            if wait <= 0:
                due = max(due + self.seconds, self._clock.monotonic())
            if not self._stop.is_set():
                self.once(self._work if wait <= 0 else self._on_wake)

    def once(self, work: Callable[[], None] | None = None) -> None:
        """Call `work`, by default what it calls when it is time."""
        self.calls += 1
        try:
            (work or self._work)()
        except Unavailable as error:
            # What is away says so in a sentence; where it was missed tells nothing.
            self._failed()
            log.error("periodic work failed", work=self.name, error=str(error))  # noqa: TRY400
        except Exception:
            self._failed()
            log.exception("periodic work failed", work=self.name)

    def _failed(self) -> None:
        self.failures += 1
        self._on_failure(self.name)
