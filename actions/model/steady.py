"""Instants that the journal has, on the wall clock as it shows now: a step of that clock changes no rest.

The journal has wall-clock instants, for nothing else outlives a restart. While a process runs, its monotonic clock says
how long ago they were: each instant is remembered with how far the wall clock stood from the monotonic one when it was
written, and moved by what that has changed by since. What an earlier process wrote counts by the wall clock up to the
start of this one, never as less than just now, and by the monotonic clock from there on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.silences import Silence
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.entry import Entry

STEP_MS = 2 * SECOND
"""A smaller difference is drift, and the jitter of reading two clocks one after the other."""
_MOST_NOTED = 100_000
_NAMES = ("until_ms", "expires_ms", "starts_ms", "breaker_until_ms")


class SteadyInstants:
    """Hold the lock of the decision log across calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first = self._now = self._apart()
        self.start_ms = clock.now_ms()
        self._noted: dict[int, int] = {}

    def note(self, entry: Entry) -> None:
        """`entry` was written just now, or by an earlier process whose clock was ahead of this one's."""
        self.wrote(entry.at_ms, *_instants(entry.at_ms, entry.payload))

    def wrote(self, written_ms: int, *instants: int) -> None:
        """The same of `instants` that were written at `written_ms`, by whatever clock."""
        apart = self._look() + max(0, written_ms - self._clock.now_ms())
        for at_ms in instants:
            if abs(apart - self._first) > STEP_MS:
                self._noted[at_ms] = apart
            else:
                self._noted.pop(at_ms, None)
        while len(self._noted) > _MOST_NOTED:
            del self._noted[next(iter(self._noted))]

    def steps(self) -> int:
        """How far the wall clock stands from where it stood at the start, in milliseconds; 0 for what is but drift."""
        apart = self._look() - self._first
        return apart if abs(apart) > STEP_MS else 0

    def moved(self) -> bool:
        """Whether `today` changes any instant."""
        return bool(self._noted) or self.steps() != 0

    def today(self, at_ms: int) -> int:
        """The instant `at_ms` of the journal on the wall clock as it shows now."""
        shift = self._look() - self._noted.get(at_ms, self._first)
        return at_ms + shift if abs(shift) > STEP_MS else at_ms

    def controls(self, controls: Controls) -> Controls:
        """`controls` with the starts, failures, questions, hold-offs and silences on the wall clock as it shows now."""
        if not self.moved():
            return controls
        today = self.today
        return replace(
            controls,
            attempts={slot: tuple(map(today, times)) for slot, times in controls.attempts.items()},
            failures={slot: tuple(map(today, times)) for slot, times in controls.failures.items()},
            hold_offs={key: replace(one, until_ms=today(one.until_ms)) for key, one in controls.hold_offs.items()},
            silences=tuple(map(self._silence, controls.silences)),
            questions={about: one._replace(at_ms=today(one.at_ms)) for about, one in controls.questions.items()},
        )

    def _silence(self, one: Silence) -> Silence:
        # A plan is for a time of the day; what begins at once is for a while.
        if one.planned:
            return one
        starts_ms, until_ms, breaker_until_ms = map(self.today, (one.starts_ms, one.until_ms, one.breaker_until_ms))
        return replace(one, starts_ms=starts_ms, until_ms=until_ms, breaker_until_ms=breaker_until_ms)

    def _look(self) -> int:
        apart = self._apart()
        if abs(apart - self._now) > STEP_MS:
            self._now = apart
        return self._now

    def _apart(self) -> int:
        return self._clock.now_ms() - round(self._clock.monotonic() * SECOND)


def _instants(at_ms: int, payload: Mapping[str, Any]) -> list[int]:
    return [at_ms, *(payload[name] for name in _NAMES if isinstance(payload.get(name), int))]
