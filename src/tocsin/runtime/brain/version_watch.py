"""Which versions changed on which hosts: on record once, and what each host had a day ago.

The journal remembers, not the store, which keeps no past of labels: a restart must not take a roll-out for drift. A
host's versions are looked at every ten minutes, and what many hosts changed alike is one entry. A host that is new has
changed from nothing; those of a site's first hour are not new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.reading import Reading
from tocsin.domain.versions import COMPONENTS, VersionBefore
from tocsin.journal.page import Wanted
from tocsin.journal.port import Draft, LiveJournal
from tocsin.rules.version_groups import BACK_HOURS, host_versions

EVERY_MS = 10 * MINUTE
"""Time between two looks: also how often at most a host's change is on record, whatever it says in between."""
MOST_OF_HOST = 2 * len(COMPONENTS)
"""Changes of one host that one look takes; more wait for the next. A host with two models has as many at most."""
MOST_HOSTS = 500
"""Hosts that one part of an entry names."""
MOST_ENTRIES = 2_000
"""Entries of the last day that are read back: ten times those of a look every ten minutes."""
_BACK_MS = BACK_HOURS * HOUR

FIRST_MS = HOUR
"""How long after the site's first start its agents may still come one by one."""

HostModel = tuple[str, str]


@dataclass(frozen=True, slots=True, order=True)
class _Change:
    at_ms: int
    host: str
    model: str
    component: str
    before: str
    after: str


class VersionWatch:
    """Compares what hosts tell with what is known of them. For one thread; `before` may be read by any."""

    def __init__(self, journal: LiveJournal) -> None:
        self._journal = journal
        self._settled_ms = 0
        self._known: dict[HostModel, dict[str, str]] = {}
        self._changes: list[_Change] = []
        self._looked_ms: int | None = None
        self.before: Sequence[VersionBefore] = ()

    def recall(self, readings: Sequence[Reading], now_ms: int, first_ms: int) -> None:
        """Take up what the store and the journal have from before this start; `first_ms` is the site's first."""
        self._settled_ms = first_ms + FIRST_MS
        wanted = Wanted(kinds={EntryKind.VERSIONS_CHANGED}, start_ms=now_ms - _BACK_MS)
        self._known = _told(readings)
        self._changes = [one for entry in self._journal.newest(MOST_ENTRIES, wanted) for one in _read(entry)]
        self._tell(now_ms)

    def follow(self, entries: Iterable[Entry]) -> None:
        """On standby: take in what the active brain has put on record."""
        for entry in entries:
            if entry.kind == EntryKind.VERSIONS_CHANGED:
                self._take(_read(entry))

    def look(self, readings: Sequence[Reading], now_ms: int) -> Sequence[VersionBefore]:
        """Record what changed, where that is due; returns `before`, the same object while it says the same."""
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < EVERY_MS:
            return self.before
        self._looked_ms = now_ms
        told = _told(readings)
        if self._journal.leads:
            changes = self._changed(told, now_ms)
            if changes:
                simulated = {one.gpu.host for one in readings if one.gpu.simulated}
                self._journal.append_many(_drafts(changes, simulated))
                self._take(changes)
        self._known = {key: {**versions, **self._known.get(key, {})} for key, versions in told.items()}
        self._tell(now_ms)
        return self.before

    def _changed(self, told: Mapping[HostModel, Mapping[str, str]], now_ms: int) -> list[_Change]:
        """What differs from what is known."""
        made: list[_Change] = []
        counts: dict[str, int] = {}
        for (host, model), versions in sorted(told.items()):
            # A host that is known may tell later what it could not read before: that is no change.
            new = (host, model) not in self._known and now_ms >= self._settled_ms
            known = self._known.get((host, model), {})
            for component, after in versions.items():
                before = known.get(component, "" if new else after)
                if before != after and counts.get(host, 0) < MOST_OF_HOST:
                    counts[host] = counts.get(host, 0) + 1
                    made.append(_Change(now_ms, host, model, component, before, after))
        return made

    def _take(self, changes: Iterable[_Change]) -> None:
        """Take in what is on record."""
        for one in changes:
            self._changes.append(one)
            self._known.setdefault((one.host, one.model), {})[one.component] = one.after

    def _tell(self, now_ms: int) -> None:
        """Work out `before` from the changes of the last day."""
        self._changes = sorted(one for one in self._changes if 0 <= now_ms - one.at_ms < _BACK_MS)
        first: dict[tuple[str, str, str], str] = {}
        for one in self._changes:
            first.setdefault((one.host, one.model, one.component), one.before)
        made = tuple(VersionBefore(*key, version) for key, version in sorted(first.items()))
        if made != self.before:
            self.before = made


def _told(readings: Sequence[Reading]) -> dict[HostModel, dict[str, str]]:
    found: dict[HostModel, dict[str, str]] = {}
    for group, hosts in host_versions(one.gpu for one in readings).items():
        for host, versions in hosts.items():
            found.setdefault((host, group.model), {}).update(versions)
    return found


def _drafts(changes: Sequence[_Change], simulated: set[str]) -> list[Draft]:
    """An entry for the real hosts and one for the simulated, each with like changes as one part."""
    drafts: list[Draft] = []
    for marked in (False, True):
        parts: dict[tuple[str, str, str, str], list[str]] = {}
        for one in changes:
            if (one.host in simulated) is marked:
                parts.setdefault((one.component, one.model, one.before, one.after), []).append(one.host)
        rows = [
            {**dict(zip(_KEYS, key, strict=True)), "hosts": hosts[at : at + MOST_HOSTS]}
            for key, hosts in sorted(parts.items())
            for at in range(0, len(hosts), MOST_HOSTS)
        ]
        if rows:
            drafts.append((EntryKind.VERSIONS_CHANGED, {"changes": rows}, marked))
    return drafts


_KEYS = ("component", "model", "before", "after")


def _read(entry: Entry) -> Iterable[_Change]:
    """The changes of an entry; what is not in its form, as of another version, is left out."""
    rows = entry.payload.get("changes")
    for row in rows if isinstance(rows, list) else ():
        words = [row.get(key) for key in _KEYS] if isinstance(row, dict) else []
        if not words or not all(isinstance(word, str) for word in words) or words[0] not in COMPONENTS:
            continue
        component, model, before, after = (str(word) for word in words)
        for host in row.get("hosts") or ():
            yield _Change(entry.at_ms, str(host), model, component, before, after)
