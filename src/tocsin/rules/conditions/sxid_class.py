"""Kind ``sxid``: NVSwitch errors chosen by how far they reach, or by number."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Evidence, Severity
from tocsin.domain.phrase import word_in_chinese
from tocsin.rules.conditions.base import Condition, Duration, Probe, Report, World
from tocsin.rules.episodes import MOST_EVENTS, Episode, EpisodeProbe, Episodes, burst_evidence, burst_of, ended_by
from tocsin.rules.schema import did_you_mean
from tocsin.rules.sxid import CLASSES, SxidCatalogue, SxidSpec
from tocsin.rules.units import show_duration


class Sxid(Condition):
    """Holds while at least `count` matching SXids lie within the last `hold`, or until the driver was loaded anew.

    SXids belong to a host: its switches are no GPUs.
    """

    words = frozenset({"code", "name", "help", "remedy", "codes", "count"})
    told = True
    kind: Literal["sxid"]
    classes: list[str] = Field(default_factory=list)
    """Classes of the SXid catalogue."""
    codes: list[int] = Field(default_factory=list)
    """Further numbers, whatever their class."""
    except_codes: list[int] = Field(default_factory=list)
    """Numbers that are left out."""
    count: int = Field(default=1, ge=1, le=MOST_EVENTS)
    """Least number of them."""
    hold: Duration = DAY
    """How long each of them counts."""
    cleared_by: list[EventKind] = Field(default_factory=lambda: [EventKind.DRIVER_RELOAD])
    """Events on the host after which the SXid is past."""

    def window_ms(self) -> int:
        return self.hold

    def check(self) -> None:
        if not self.classes and not self.codes:
            raise InputError("classes", [], "neither classes nor codes are given", "name at least one")
        for name in self.classes:
            if name not in CLASSES:
                raise InputError("classes", name, "no such SXid class", did_you_mean(name, CLASSES))

    def about_switch(self, spec: SxidSpec) -> bool:
        if spec.code in self.except_codes:
            return False
        return spec.code in self.codes or spec.sxid_class in self.classes

    def bind(self, world: World) -> Probe:
        def matches(event: Event) -> bool:
            return event.kind is EventKind.SXID and self.about_switch(world.sxids.seen(event.code, event.severity))

        ends = ended_by(self.cleared_by, (), None)
        return SxidProbe(Episodes(world.frame, world.log, matches, ends, self.hold, self.count), world.sxids)

    def meaning(self) -> str:
        parts = [f"of class {', '.join(self.classes)}"] if self.classes else []
        parts += [f"{'or ' if self.classes else ''}number {', '.join(map(str, self.codes))}"] if self.codes else []
        parts += [f"but not {', '.join(map(str, self.except_codes))}"] if self.except_codes else []
        head = "an SXid" if self.count == 1 else f"{self.count} or more SXids within {show_duration(self.hold)}"
        return " ".join([head, *parts])


class SxidProbe(EpisodeProbe):
    """Reads the episodes; of several numbers the one nearest to the cause speaks for the finding."""

    def __init__(self, episodes: Episodes, sxids: SxidCatalogue) -> None:
        super().__init__(episodes)
        self._sxids = sxids

    def report(self, row: int) -> Report:
        episode = self._episodes.rows[row]
        # The critical ones last: of one number the worst event counts.
        worst_last = sorted(episode.events, key=lambda event: event.severity is Severity.CRITICAL)
        seen = {event.code: self._sxids.seen(event.code, event.severity) for event in worst_last}
        specs = sorted(seen.values(), key=lambda spec: (spec.cause_rank, spec.code))
        first = specs[0]
        remedy = first.vendor_action.replace("_", " ") or "nothing"
        words = {
            "code": str(first.code),
            "name": first.name,
            "help": first.help,
            "help_zh": first.help_zh,
            "remedy": remedy,
            "remedy_zh": word_in_chinese(remedy),
            "codes": ", ".join(str(spec.code) for spec in sorted(specs, key=lambda spec: spec.code)),
            "count": str(len(episode.events)),
        }
        evidence = (*(_evidence(spec, episode) for spec in specs), burst_evidence(episode))
        return Report("", float(first.code), None, evidence, words)


def _evidence(spec: SxidSpec, episode: Episode) -> Evidence:
    seen = [event for event in episode.events if event.code == spec.code]
    return burst_of(f"sxid:{spec.code}", seen[-1].said, spec, [event.at_ms for event in seen])
