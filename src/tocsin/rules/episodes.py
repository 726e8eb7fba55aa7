"""Spells of events: from the first matching event until nothing has renewed it for its hold, or something ended it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence
from tocsin.rules.conditions.base import Probe
from tocsin.rules.frame import EventLog, Frame
from tocsin.rules.table import Bools, Ints

# What every condition on events shares: a probe that holds where a spell of them goes on.


class EpisodeProbe(Probe):
    """Reads the spells; always known. A condition adds what it reports of one."""

    clocked = True

    def __init__(self, spells: Episodes) -> None:
        self._spells = spells

    def update(self) -> None:
        self._spells.update()

    def true(self) -> Bools:
        return self._spells.on

    def known(self) -> Bools:
        return np.ones(self._spells.on.shape, dtype=np.bool_)

    def since(self) -> Ints | None:
        return self._spells.since


MOST_EVENTS = 256
"""Events kept of one spell."""

QUIET_MS = 3 * MINUTE
"""Silence on a GPU that ends an incident (the same figure as in NVIDIA Fleet Intelligence)."""

BURST_EVIDENCE = "burst"
"""Name of the evidence that says until when the first burst of a finding's events went on."""


@dataclass
class Episode:
    """`events` are at most MOST_EVENTS of the newest; `burst_ms` is the last event before the first quiet QUIET_MS."""

    started_ms: int
    last_ms: int
    burst_ms: int
    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take in one more event."""
        self.last_ms = max(self.last_ms, event.at_ms)
        if self.burst_ms < event.at_ms < self.burst_ms + QUIET_MS:
            self.burst_ms = event.at_ms
        self.events.append(event)
        if len(self.events) > MOST_EVENTS:
            del self.events[0]


class Episodes:
    """The spells of every GPU or host row for events that `matches` picks.

    A spell ends `hold_ms` after its last event, or at an event that `ends` picks. With `least` above 1 a spell counts
    only while that many events lie within the last `hold_ms`, and starts with the event that makes it so.
    """

    def __init__(
        self,
        frame: Frame,
        log: EventLog,
        matches: Callable[[Event], bool],
        ends: Callable[[Event], bool],
        hold_ms: int,
        least: int = 1,
    ) -> None:
        self.rows: dict[int, Episode] = {}
        self._frame = frame
        self._log = log
        self._matches = matches
        self._ends = ends
        self._hold_ms = hold_ms
        self._least = least
        self._on = frame.gpus.vector(np.bool_, False)
        self._since = frame.gpus.vector(np.int64, 0)

    def update(self) -> None:
        """Take in the new events and let old ones go."""
        for row, event in self._log.fresh:
            if self._ends(event):
                for affected in self._log.affected(row, event):
                    self._end(affected, event.at_ms)
            elif self._matches(event):
                self._add(row, event)
        if self.rows:
            self._expire()

    def _end(self, row: int, at_ms: int) -> None:
        spell = self.rows.get(row)
        if spell is not None and spell.last_ms <= at_ms:
            self.forget([row])

    def _add(self, row: int, event: Event) -> None:
        spell = self.rows.get(row)
        if spell is None or event.at_ms - spell.last_ms >= self._hold_ms:
            spell = self.rows[row] = Episode(event.at_ms, event.at_ms, event.at_ms)
        spell.add(event)

    def _expire(self) -> None:
        edge = self._frame.now_ms - self._hold_ms
        for row, spell in list(self.rows.items()):
            if spell.last_ms <= edge:
                self.forget([row])
                continue
            if self._least > 1:
                spell.events = [event for event in spell.events if event.at_ms > edge]
            on = self._least == 1 or len(spell.events) >= self._least
            if on and not self._on.v[row]:
                self._since.v[row] = self._start(spell)
            self._on.v[row] = on

    def _start(self, spell: Episode) -> int:
        return spell.started_ms if self._least == 1 else spell.events[self._least - 1].at_ms

    @property
    def on(self) -> Bools:
        """Which rows have a spell now."""
        on: Bools = self._on.v
        return on

    @property
    def since(self) -> Ints:
        """When each row's spell began."""
        since: Ints = self._since.v
        return since

    def forget(self, rows: Iterable[int]) -> None:
        """Drop the spells of `rows`."""
        for row in rows:
            if self.rows.pop(row, None) is not None:
                self._on.v[row] = False


def burst_evidence(spell: Episode) -> Evidence:
    """Until when the first burst went on; it stays the same however long the finding lasts."""
    return Evidence(BURST_EVIDENCE, "last event of the first burst", spell.burst_ms)


def ended_by(kinds: Collection[EventKind], codes: Collection[int], own: EventKind | None) -> Callable[[Event], bool]:
    """A test for events that end a spell: one of `kinds`, or one of kind `own` with one of `codes`."""
    chosen, zero = frozenset(kinds), frozenset(codes)
    return lambda event: event.kind in chosen or (event.kind is own and event.code in zero)
