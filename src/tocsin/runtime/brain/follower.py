"""What every follower offers: it brings the brain what stands at a server that others write to.

Laws: ``tests/laws/test_follower_laws.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import structlog

from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.plugins import OWN_PACKAGE, Kind, Plugin, plugins
from tocsin.runtime.brain.brain import Brain

log = structlog.get_logger()

MAX_REST_SECONDS = 60.0
"""Longest pause after failures; the first is the usual interval, each further one twice as long."""


class Follower(Protocol):
    """Asks its server again and again and hands the brain what is new, as if it had been pushed.

    What is met at the server, or not met, is counted and said once, until it changes; `look` raises nothing for it.
    What was handed over once counts once, however often the server shows it. An agent's own word stands above it.
    """

    name: str
    every_seconds: float
    """Time between two looks, each made in a thread of the follower's own."""
    on_standby: bool
    """Whether a brain that does not lead looks as well."""
    before_start: bool
    """Whether the first look must be over before anything is judged or told."""

    def look(self) -> None:
        """One look, unless the server rests after failures."""

    def close(self) -> None:
        """Let go of connections; safe to repeat."""


Opener = Callable[[Brain], Follower | None]
"""What the entry point is. None where the settings name no server; a server that does not answer is no error.

Raises InputError for what is wrong in the settings, Unavailable where a library is not installed.
"""


class Patience:
    """When a server may be asked again, and whether what is wrong with it was said already. For one thread."""

    def __init__(self, every_seconds: float, clock: Clock) -> None:
        self._every_seconds = every_seconds
        self._clock = clock
        self._rests_until = 0.0
        self._failures = 0
        self._problem = ""

    def rests(self) -> bool:
        """Whether it is too early to ask."""
        return self._clock.monotonic() < self._rests_until

    def answered(self) -> None:
        """The server did: the next look comes at its time."""
        self._failures, self._rests_until = 0, 0.0

    def failed(self) -> None:
        """It did not: it rests, the longer the more often."""
        # Just under the interval: the thread's next call must not come too early by a hair.
        rest = min(self._every_seconds * (2**self._failures - 0.5), MAX_REST_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._rests_until = self._clock.monotonic() + rest

    def news(self, problem: str) -> bool:
        """Whether `problem`, empty where nothing is wrong, is another than at the look before."""
        before, self._problem = self._problem, problem
        return problem != before


def open_followers(brain: Brain) -> list[Follower]:
    """Those that the settings ask for, of a brain that leads all, else those that a standby needs.

    Nobody names the followers that run, so that one of another package that does not load or open is said and left
    out. Raises what the openers of Tocsin's own raise.
    """
    made = [_opened(one, brain) for one in plugins(Kind.FOLLOWER).values()]
    found = [one for one in made if one is not None]
    kept = [one for one in found if brain.journal.leads or one.on_standby]
    for one in found:
        if one not in kept:
            one.close()
    return kept


def _opened(plugin: Plugin, brain: Brain) -> Follower | None:
    try:
        return cast("Opener", plugin.load())(brain)
    except (InputError, Unavailable) as error:
        if plugin.package == OWN_PACKAGE:
            raise
        problem = str(error)
    except Exception as error:
        if plugin.package == OWN_PACKAGE:
            raise
        problem = f"{type(error).__name__}: {error}"
    brain.metrics.count("tocsin_loop_failures_total", loop=plugin.name)
    log.error("a follower does not open and is left out", follower=plugin.name, package=plugin.package, error=problem)
    return None
