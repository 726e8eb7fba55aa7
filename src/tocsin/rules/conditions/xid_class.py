"""Kind ``xid``: driver errors chosen by class and severity of the catalogue, or by number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence, Severity
from tocsin.domain.phrase import word_in_chinese
from tocsin.rules.conditions.base import Condition, Duration, Probe, Report, World
from tocsin.rules.episodes import Episode, EpisodeProbe, Episodes, burst_evidence, burst_of, ended_by
from tocsin.rules.remote_ends import RemoteEnds
from tocsin.rules.xid import XidCatalogue, XidSpec

_LINKS = frozenset({"nvlink", "c2c"})
"""Classes of which the fault and what is said of it at the far end come from two GPUs."""
XID_METRIC = "gpu_xid_last_code"
"""Metric that a finding about an XID names; its value is the number."""


class Xid(Condition):
    """Holds from a matching XID until `hold` has passed without another, or until the GPU was renewed. What the far end
    of an NVLink said holds no longer than the fault that it told of."""

    words = frozenset({"code", "name", "help", "remedy", "codes"})
    told = True
    kind: Literal["xid"]
    classes: list[str] = Field(default_factory=list)
    """Classes of the catalogue."""
    codes: list[int] = Field(default_factory=list)
    """Further numbers, whatever their class."""
    except_codes: list[int] = Field(default_factory=list)
    """Numbers that are left out."""
    least: Severity = Severity.INFO
    """Least severity for `classes`: that of the event's own sub-code where it has one, else the catalogue's."""
    most: Severity = Severity.CRITICAL
    """Greatest severity for `classes`, in the same way."""
    hold: Duration = DAY
    """How long the finding goes on after the last such XID."""
    cleared_by: list[EventKind] = Field(default_factory=lambda: [EventKind.DRIVER_RELOAD, EventKind.GPU_FOUND])
    """Events on the same GPU, or on its whole host, after which the XID is past."""

    def window_ms(self) -> int:
        return self.hold

    def check(self) -> None:
        if not self.classes and not self.codes:
            raise InputError("classes", [], "neither classes nor codes are given", "name at least one")

    def xid_classes(self) -> Sequence[str]:
        return self.classes

    def about(self, spec: XidSpec) -> bool:
        if spec.code in self.except_codes:
            return False
        ranked = self.least.rank <= spec.severity.rank <= self.most.rank
        return spec.code in self.codes or (spec.xid_class in self.classes and ranked)

    def bind(self, world: World) -> Probe:
        def matches(event: Event) -> bool:
            return event.kind is EventKind.XID and self.about(_seen(world.xids, event))

        def breaks_link(event: Event) -> bool:
            spec = _seen(world.xids, event) if event.kind is EventKind.XID else None
            return spec is not None and spec.xid_class in _LINKS and spec.severity is Severity.CRITICAL

        ends = ended_by(self.cleared_by, (), None)
        episodes = Episodes(world.frame, world.log, matches, ends, self.hold)
        if _LINKS.isdisjoint(self.classes):
            return XidProbe(episodes, world.xids)
        faults = Episodes(world.frame, world.log, breaks_link, ends, self.hold)
        return XidProbe(episodes, world.xids, RemoteEnds(world.frame, faults, episodes))

    def meaning(self) -> str:
        parts = [f"of class {', '.join(self.classes)}"] if self.classes else []
        if self.classes and self.least is self.most:
            parts.append(f"({self.least})")
        elif self.classes and self.least is not Severity.INFO:
            parts.append(f"({self.least} or worse)")
        elif self.classes and self.most is not Severity.CRITICAL:
            parts.append(f"({self.most} or less)")
        parts += [f"{'or ' if self.classes else ''}number {', '.join(map(str, self.codes))}"] if self.codes else []
        parts += [f"but not {', '.join(map(str, self.except_codes))}"] if self.except_codes else []
        return "an XID " + " ".join(parts)


class XidProbe(EpisodeProbe):
    """Reads the episodes; of several numbers the one nearest to the cause speaks for the finding."""

    def __init__(self, episodes: Episodes, xids: XidCatalogue, remote: RemoteEnds | None = None) -> None:
        super().__init__(episodes)
        self._xids = xids
        self._remote = remote

    def update(self) -> None:
        super().update()
        if self._remote is not None:
            self._remote.update()

    def forget(self, rows: Iterable[int]) -> None:
        gone = list(rows)
        super().forget(gone)
        if self._remote is not None:
            self._remote.forget(gone)

    def report(self, row: int) -> Report:
        episode = self._episodes.rows[row]
        worst = self._by_cause(episode)
        specs = [spec for spec, _ in worst]
        first = specs[0]
        remedy = first.vendor_action.upper() or "nothing"
        words = {
            "code": str(first.code),
            "name": first.name,
            "help": first.help,
            "help_zh": first.help_zh,
            "remedy": remedy,
            "remedy_zh": word_in_chinese(remedy),
            "codes": ", ".join(str(spec.code) for spec in sorted(specs, key=lambda spec: spec.code)),
        }
        evidence = (*(_evidence(spec, event, episode) for spec, event in worst), burst_evidence(episode))
        return Report(XID_METRIC, float(first.code), None, evidence, words, first.action)

    def _by_cause(self, episode: Episode) -> list[tuple[XidSpec, Event]]:
        """Each number as its worst event had it, the last of equals, nearest to the cause first."""
        worst: dict[int, tuple[XidSpec, Event]] = {}
        for event in episode.events:
            spec, before = _seen(self._xids, event), worst.get(event.code)
            if before is None or spec.severity.rank >= before[0].severity.rank:
                worst[event.code] = (spec, event)
        return sorted(worst.values(), key=lambda one: (one[0].cause_rank, one[0].code))


def _seen(xids: XidCatalogue, event: Event) -> XidSpec:
    return xids.seen(event.code, event.severity, event.remedy)


def _evidence(spec: XidSpec, worst: Event, episode: Episode) -> Evidence:
    times = [event.at_ms for event in episode.events if event.code == spec.code]
    said = worst.said if worst.severity is not None else ""
    return burst_of(f"xid:{spec.code}", said, spec, times)
