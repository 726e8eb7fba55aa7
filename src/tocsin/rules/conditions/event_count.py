"""Kind ``event_count``: so many events of one kind within a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence
from tocsin.rules.conditions.base import Condition, Duration, Probe, Report, World
from tocsin.rules.episodes import MOST_EVENTS, EpisodeProbe, Episodes, burst_evidence, ended_by
from tocsin.rules.units import show_duration
from tocsin.rules.xid import XidSpec

_METRICS = {EventKind.XID: "gpu_xid_last_code", EventKind.RECOVERY_ACTION: "gpu_recovery_action"}
"""Metrics whose value the code of an event is."""


class EventCount(Condition):
    """Holds while at least `count` matching events lie within the last `within`."""

    words = frozenset({"count", "code", "event", "message"})
    told = True
    kind: Literal["event_count"]
    event: EventKind
    """Kind of event."""
    count: int = Field(default=1, ge=1, le=MOST_EVENTS)
    """Least number of events."""
    within: Duration
    """The window."""
    codes: list[int] = Field(default_factory=list)
    """Only these codes; empty is any."""
    classes: list[str] = Field(default_factory=list)
    """For XIDs: only these classes of the catalogue; empty is any."""
    cleared_by: list[EventKind] = Field(default_factory=list)
    """Events on the same GPU, or on its whole host, that end it at once."""
    clear_codes: list[int] = Field(default_factory=list)
    """Codes of the same kind of event that end it at once."""

    def window_ms(self) -> int:
        return self.within

    def check(self) -> None:
        if self.classes and self.event is not EventKind.XID:
            raise InputError("classes", self.classes, f"{self.event} events have no classes", "use event = 'xid'")

    def xid_classes(self) -> Sequence[str]:
        return self.classes

    def about(self, spec: XidSpec) -> bool:
        if self.event is not EventKind.XID or (self.codes and spec.code not in self.codes):
            return False
        return not self.classes or spec.xid_class in self.classes

    def bind(self, world: World) -> Probe:
        def matches(event: Event) -> bool:
            if event.kind is EventKind.XID:
                return self.about(world.xids.seen(event.code, event.severity, event.remedy))
            return event.kind is self.event and (not self.codes or event.code in self.codes)

        ends = ended_by(self.cleared_by, self.clear_codes, self.event)
        return EventCountProbe(self, Episodes(world.frame, world.log, matches, ends, self.within, self.count), world)

    def meaning(self) -> str:
        which = f" {', '.join(map(str, self.codes))}" if self.codes else ""
        which += f" of class {', '.join(self.classes)}" if self.classes else ""
        return f"{self.count} or more {self.event} events{which} within {show_duration(self.within)}"


class EventCountProbe(EpisodeProbe):
    """Reads the episodes."""

    def __init__(self, condition: EventCount, episodes: Episodes, world: World) -> None:
        self._condition = condition
        super().__init__(episodes)
        self._xids = world.xids

    def report(self, row: int) -> Report:
        episode = self._episodes.rows[row]
        last = episode.events[-1]
        single = self._condition.count == 1
        value = float(last.code) if single else float(len(episode.events))
        text = last.said or f"{self._condition.event} {last.code}"
        words = {"count": str(len(episode.events)), "code": str(last.code), "event": self._condition.event.value}
        words["message"] = text
        seen = Evidence(f"{self._condition.event}:{last.code}", text, last.at_ms, value)
        metric = _METRICS.get(self._condition.event, "") if single else ""
        threshold = None if single else float(self._condition.count)
        action = self._xids.seen(last.code, last.severity).action if single and last.kind is EventKind.XID else None
        return Report(metric, value, threshold, (seen, burst_evidence(episode)), words, action)
