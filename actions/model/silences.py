"""Silences: what people acknowledged, snoozed or planned, what each covers, and the fold of the journal's entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import Incident, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind

MOST_STANDING = 500
"""Silences that stand or are planned at one time (own choice)."""
MOST_CAUSES = 200
"""Findings of a card that one silence names; a card of more names the first."""
KEPT_MS = 7 * DAY
"""How long an ended silence is remembered: nothing that it covered is acknowledged anew after that (own choice)."""


def matchers_of(gpu: Gpu) -> frozenset[Matcher]:
    """Every matcher that covers `gpu`, but those of cards."""
    named = {MatcherKind.HOST: gpu.host, MatcherKind.POOL: gpu.pool, MatcherKind.RACK: gpu.rack}
    found = {Matcher(kind, name) for kind, name in named.items() if name}
    return frozenset(found | {Matcher(MatcherKind.LABEL, f"{key}={value}") for key, value in gpu.labels.items()})


GpusOn = Callable[[Subject], Iterable[Gpu]]
"""The GPUs that are known of a GPU or a host; none of what is unknown."""


def around(subjects: Iterable[Subject], gpus_on: GpusOn) -> frozenset[Matcher]:
    """The matchers that all of `subjects` lie in; empty where none does, or nobody knows."""
    common: frozenset[Matcher] | None = None
    for subject in subjects:
        mine = _around_one(subject, gpus_on)
        common = mine if common is None else common & mine
    return common or frozenset()


def _around_one(subject: Subject, gpus_on: GpusOn) -> frozenset[Matcher]:
    if subject.kind is SubjectKind.POOL:
        return frozenset({Matcher(MatcherKind.POOL, subject.name)})
    if subject.kind is SubjectKind.FLEET:
        return frozenset()
    known = [matchers_of(gpu) for gpu in gpus_on(subject)]
    if known:
        return frozenset.intersection(*known)
    named = {MatcherKind.HOST: subject.host, MatcherKind.POOL: subject.pool}
    return frozenset(Matcher(kind, name) for kind, name in named.items() if name)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause as silences see it: the id of its root or its card, how bad it is, and what it touches.

    `findings` are the ids by which it is known again where one of them becomes its root.
    """

    id: str
    level: AlertLevel
    subjects: tuple[Subject, ...]
    findings: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, that of the root first."""
        return (self.id, *self.findings)


def cause_of(incident: Incident) -> Cause:
    """An incident as silences see it: it has the id of its root."""
    findings = tuple(one.id for one in incident.members if one.id != incident.id)
    subjects = tuple({one.subject: None for one in (incident.root, *incident.members)})
    return Cause(incident.id, incident.alert_level, subjects, findings)


@dataclass(frozen=True, slots=True)
class Silence:
    """One of them, from `starts_ms` until `until_ms`; `ended_by` names who ended it before its time.

    `causes` are the ids that the card of a silence for one card stood for. `level` is the worst that a snooze hides,
    `levels` that of the causes that were known when it was given, by id. Until `breaker_until_ms` the breaker does not
    count `causes`.
    """

    id: str
    kind: SilenceKind
    matcher: Matcher
    starts_ms: int
    until_ms: int
    at_ms: int = 0
    actor: str = ""
    reason: str = ""
    causes: frozenset[str] = frozenset()
    level: AlertLevel = AlertLevel.WARNING
    levels: Mapping[str, AlertLevel] = field(default_factory=dict)
    breaker_until_ms: int = 0
    ended_by: str = ""

    @property
    def planned(self) -> bool:
        """Whether it was set for later."""
        return self.starts_ms > self.at_ms

    def stands(self, now_ms: int) -> bool:
        return self.starts_ms <= now_ms < self.until_ms

    def contains(self, cause: Cause, matchers: frozenset[Matcher]) -> bool:
        """Whether all of `cause`, around which `matchers` are, lies in it, and a snooze has not seen it get worse."""
        inside = cause.id in self.causes if self.matcher.kind is MatcherKind.CARD else self.matcher in matchers
        worst = self.levels.get(cause.id, self.level)
        return inside and (self.kind is not SilenceKind.SNOOZE or cause.level.rank <= worst.rank)


def standing(silences: Iterable[Silence], now_ms: int, *kinds: SilenceKind) -> list[Silence]:
    """Those of `kinds` that stand at `now_ms`; of all kinds where none is named."""
    return [one for one in silences if one.stands(now_ms) and (not kinds or one.kind in kinds)]


_SILENCE = TypeAdapter(Silence)
_ALL = TypeAdapter(list[Silence])
_KIND_OF = {
    EntryKind.CAUSE_ACKNOWLEDGED: SilenceKind.ACKNOWLEDGEMENT,
    EntryKind.SNOOZED: SilenceKind.SNOOZE,
    EntryKind.MAINTENANCE_PLANNED: SilenceKind.MAINTENANCE,
}
ENTRY_OF = {kind: entry for entry, kind in _KIND_OF.items()}
"""The kind of entry that begins each kind of silence."""


def payload_of(silence: Silence) -> dict[str, Any]:
    """What the journal keeps of a silence that begins; who and when is the entry's."""
    content: dict[str, Any] = _SILENCE.dump_python(
        silence, mode="json", exclude_defaults=True, exclude={"kind", "at_ms", "actor", "ended_by"}
    )
    if "causes" in content:
        content["causes"] = sorted(content["causes"])
    return content | {"subject": f"{silence.matcher.kind}:{silence.matcher.name}"}


class Silences:
    """The fold of the entries: the same entries give the same silences, oldest first. It reads no clock."""

    def __init__(self, known: Iterable[Silence] = ()) -> None:
        self.known: dict[str, Silence] = {one.id: one for one in known}

    def begin(self, entry: Entry) -> None:
        """A person acknowledged, snoozed or planned something."""
        content = {name: value for name, value in entry.payload.items() if name != "subject"}
        kind = _KIND_OF[EntryKind(entry.kind)]
        made = _SILENCE.validate_python(content | {"kind": kind, "at_ms": entry.at_ms, "actor": entry.actor})
        self.known[made.id] = made
        self._forget(entry.at_ms)

    def end(self, entry: Entry) -> None:
        """A person ended one before its time."""
        one = self.known.get(str(entry.payload["id"]))
        if one is not None:
            until_ms = min(one.until_ms, entry.at_ms)
            self.known[one.id] = replace(
                one,
                until_ms=until_ms,
                breaker_until_ms=min(one.breaker_until_ms, entry.at_ms),
                ended_by=entry.actor,
            )

    def _forget(self, now_ms: int) -> None:
        ended = [one.id for one in self.known.values() if one.until_ms <= now_ms]
        old = [name for name in ended if self.known[name].until_ms <= now_ms - KEPT_MS]
        for name in {*old, *ended[: max(0, len(ended) - MOST_STANDING)]}:
            del self.known[name]

    def state(self) -> list[Any]:
        """As JSON, for a checkpoint of the journal."""
        dumped: list[Any] = _ALL.dump_python(list(self.known.values()), mode="json", exclude_defaults=True)
        return dumped

    @classmethod
    def restored(cls, state: object) -> Silences:
        """The fold whose `state` this was."""
        return cls(_ALL.validate_python(state))
