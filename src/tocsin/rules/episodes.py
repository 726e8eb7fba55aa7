"""Episodes of events: from the first that matches until nothing has renewed it for its hold, or something ended it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence, evidence_of
from tocsin.domain.phrase import say
from tocsin.rules.catalogue import ErrorSpec
from tocsin.rules.conditions.base import Probe
from tocsin.rules.frame import EventLog, Frame
from tocsin.rules.table import Bools, Ints

# What every condition on events shares: a probe that holds where an episode of them goes on.


class EpisodeProbe(Probe):
    """Reads the episodes; always known. A condition adds what it reports of one."""

    clocked = True

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes

    def update(self) -> None:
        self._episodes.update()

    def true(self) -> Bools:
        return self._episodes.on.v

    def known(self) -> Bools:
        return np.ones(self._episodes.on.v.shape, dtype=np.bool_)

    def since(self) -> Ints | None:
        return self._episodes.since.v

    def forget(self, rows: Iterable[int]) -> None:
        self._episodes.forget(rows)


MOST_EVENTS = 256
"""Events kept of one episode."""

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
        self.last_ms = max(self.last_ms, event.at_ms)
        if self.burst_ms < event.at_ms < self.burst_ms + QUIET_MS:
            self.burst_ms = event.at_ms
        self.events.append(event)
        if len(self.events) > MOST_EVENTS:
            del self.events[0]


class Episodes:
    """The episodes of every GPU or host row for events that `matches` picks.

    An episode ends `hold_ms` after its last event, or at an event that `ends` picks. With `least` above 1 it counts
    only while that many events lie within the last `hold_ms`, and starts with the event that makes it so. `on`
    says which rows have one now, `since` when it began; `ended` has those that ended in the last update, by row, also
    where the same update began them.
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
        self.ended: list[tuple[int, Episode]] = []
        self._frame = frame
        self._log = log
        self._matches = matches
        self._ends = ends
        self._hold_ms = hold_ms
        self._least = least
        self.on = frame.gpus.vector(np.bool_, False)
        self.since = frame.gpus.vector(np.int64, 0)

    def update(self) -> None:
        self.ended = []
        for row, event in self._log.fresh:
            if self._ends(event):
                for affected in self._log.affected(row, event):
                    self._end(affected, event.at_ms)
            elif self._matches(event):
                self._add(row, event)
        if self.rows:
            self._expire()

    def _end(self, row: int, at_ms: int) -> None:
        episode = self.rows.get(row)
        if episode is not None and episode.last_ms <= at_ms:
            self.forget([row])

    def _add(self, row: int, event: Event) -> None:
        episode = self.rows.get(row)
        if episode is None or event.at_ms - episode.last_ms >= self._hold_ms:
            episode = self.rows[row] = Episode(event.at_ms, event.at_ms, event.at_ms)
        episode.add(event)

    def _expire(self) -> None:
        edge = self._frame.now_ms - self._hold_ms
        for row, episode in list(self.rows.items()):
            if episode.last_ms <= edge:
                self.forget([row])
                continue
            if self._least > 1:
                episode.events = [event for event in episode.events if event.at_ms > edge]
            on = self._least == 1 or len(episode.events) >= self._least
            if on and not self.on.v[row]:
                self.since.v[row] = self._start(episode)
            self.on.v[row] = on

    def _start(self, episode: Episode) -> int:
        return episode.started_ms if self._least == 1 else episode.events[self._least - 1].at_ms

    def forget(self, rows: Iterable[int]) -> None:
        for row in rows:
            if (episode := self.rows.pop(row, None)) is not None:
                self.on.v[row] = False
                self.ended.append((row, episode))


def burst_evidence(episode: Episode) -> Evidence:
    """Until when the first burst went on; it stays the same however long the finding lasts."""
    return evidence_of(BURST_EVIDENCE, say("last event of the first burst"), episode.burst_ms)


def burst_of(name: str, message: str, spec: ErrorSpec, times: Sequence[int]) -> Evidence:
    """One error number as evidence: the driver's own words where it gave any, else what the number means."""
    often, often_zh = (f", {len(times)} times", f"，{len(times)} 次") if len(times) > 1 else ("", "")
    chinese = "" if message else f"{spec.help_zh}{often_zh}"
    return Evidence(name, f"{message or spec.help}{often}", times[-1], float(spec.code), chinese)


def ended_by(kinds: Collection[EventKind], codes: Collection[int], own: EventKind | None) -> Callable[[Event], bool]:
    """A test for events that end an episode: one of `kinds`, or one of kind `own` with one of `codes`."""
    chosen, zero = frozenset(kinds), frozenset(codes)
    return lambda event: event.kind in chosen or (event.kind is own and event.code in zero)
