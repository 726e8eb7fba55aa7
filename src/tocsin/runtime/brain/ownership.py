"""Which host speaks for a GPU: what another one says of it is refused, and said.

What must hold: values, identity and freshness of a GPU come from one host, the first that reported it. Otherwise
whoever may write one line could keep a GPU alive that is gone, or have the node of another drained. A MIG instance
belongs to the host of its GPU. A host gives a GPU up where it reports others and not that one any more, where managers
do not have it and have the new host, where a person releases it, or where it has been silent for as long as readings
are remembered. Every change of hosts is told, and the host before has its GPU back once it reports it within a day.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading

DUPLICATE, TOO_MANY = "duplicate_identity", "gpus_per_host"
"""Why a reading or an event is refused, as ``tocsin_dropped_total`` names it."""
BACK_MS = DAY
"""How long the host that a GPU was taken over from has it back at once."""
MOST_CLAIMANTS = 20
"""Hosts that are named in an hour; refused and counted are the lines of all."""


Reasons = Counter[tuple[str, str]]
"""How many were refused, by what they are and why."""
Claims = dict[str, tuple[str, str, bool]]
"""By claimant: the first GPU that it claims, the host that has or had it, and whether it was taken over."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Places of the readings and events of a batch that may not be kept, their number by reason, events that say so."""

    readings: frozenset[int]
    events: frozenset[int]
    reasons: Reasons
    told: list[Event]


class Ownership:
    """Owners of the GPUs that are remembered; safe to use from several threads."""

    def __init__(
        self, most_per_host: int, newcomer_ms: int, replaced: Callable[[str, str], bool] = lambda _old, _new: False
    ) -> None:
        """`replaced` says of two hosts whether managers have the second and not the first."""
        self._most_per_host = most_per_host
        self.newcomer_ms = newcomer_ms
        self._replaced = replaced
        self._named_ms: dict[str, int] = {}
        self._spoke_ms: dict[str, int] = {}
        self._before: dict[str, tuple[str, int]] = {}
        self._first_ms: int | None = None
        self._since: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._came_with: defaultdict[str, set[str]] = defaultdict(set)
        self._revisions: dict[str, int] = {}
        self._counter = count(1)
        self._lock = threading.Lock()
        self._hosts: dict[str, str] = {}
        self._gpus: defaultdict[str, set[str]] = defaultdict(set)
        self._spelt: dict[str, str] = {}
        self._parts: defaultdict[str, set[str]] = defaultdict(set)
        self._named: dict[str, int] = {}

    def refuse(self, batch: Batch, now_ms: int) -> Refused:
        """What the hosts of `batch` may not say; GPUs that nobody has reported yet belong to who does so now."""
        reasons: Reasons = Counter()
        claims: Claims = {}
        with self._lock:
            readings = frozenset(
                n for n, one in enumerate(batch.readings) if not self._takes(one.gpu, now_ms, reasons, claims)
            )
            events = frozenset(n for n, one in enumerate(batch.events) if not self._believes(one, reasons, claims))
            return Refused(readings, events, reasons, self._told(claims, now_ms))

    def seed(self, readings: Iterable[Reading], first_ms: int, known: Collection[str]) -> None:
        """Take the hosts of readings from the store for owners.

        `first_ms` is the instant of the site's first start: what comes soon after it is no newcomer, nor are `known`.
        """
        with self._lock:
            self._first_ms = first_ms
            for reading in sorted(readings, key=lambda one: one.at_ms):
                self._own(reading.gpu, first_ms if reading.gpu.uuid in known else reading.at_ms)
                self._spoke_ms[reading.gpu.host] = reading.at_ms
                self._named_ms.update(dict.fromkeys({reading.gpu.uuid, reading.gpu.parent} - {""}, reading.at_ms))

    def counts(self, uuid: str, now_ms: int) -> bool:
        """Whether the GPU has been seen for long enough to count in shares."""
        with self._lock:
            since = self._since.get(uuid, now_ms)
            new_site = self._first_ms is not None and since < self._first_ms + self.newcomer_ms
            return new_site or now_ms - since >= self.newcomer_ms

    def age_ms(self, uuid: str, now_ms: int) -> int:
        """How long the host that owns a GPU has owned it; 0 where nobody does."""
        with self._lock:
            return now_ms - self._since.get(uuid, now_ms)

    def came_with(self, host: str) -> int:
        """How many whole GPUs `host` reported within the settling time of its first one. What it adds later is not
        among them: its own word must not make it wider."""
        with self._lock:
            return len(self._came_with.get(host, ()))

    def revision(self, host: str) -> int:
        """A number that is another one after a GPU of `host` has come or gone."""
        with self._lock:
            return self._revisions.get(host, 0)

    def joined(self, start_ms: int) -> dict[str, int]:
        """Hosts that nobody knew before `start_ms`, with the instant of their first GPU.

        Those that came with the site's first start are left out.
        """
        with self._lock:
            settled_ms = start_ms if self._first_ms is None else max(start_ms, self._first_ms + self.newcomer_ms)
            first = {host: min(self._since[uuid] for uuid in gpus) for host, gpus in self._gpus.items() if gpus}
            return {host: at_ms for host, at_ms in first.items() if at_ms >= settled_ms}

    def forget(self, gpus: Iterable[Gpu]) -> None:
        """These GPUs are remembered no longer: who reports one next owns it."""
        with self._lock:
            for gpu in gpus:
                self._drop(gpu.uuid)
                self._before.pop(gpu.uuid, None)
                parts = self._parts.get(gpu.parent, set())
                parts.discard(gpu.uuid)
                if gpu.parent and not parts:
                    self._parts.pop(gpu.parent, None)
                    self._drop(gpu.parent)
                    self._before.pop(gpu.parent, None)

    def against(self, uuid: str, host: str, now_ms: int) -> tuple[str, list[Event]]:
        """The host that stands against what `host` says of a GPU, empty where none does, and events that say so."""
        with self._lock:
            owner = self._hosts.get(uuid, host)
            if owner == host or self._gives_up(uuid, owner, host, now_ms):
                return "", []
            return owner, self._told({host: (uuid, owner, False)}, now_ms)

    def host_of(self, uuid: str) -> str:
        """The host that owns a GPU or a MIG instance; empty where nobody has reported it."""
        with self._lock:
            return self._hosts.get(uuid, "")

    def _drop(self, uuid: str) -> None:
        self._since.pop(uuid, None)
        self._named_ms.pop(uuid, None)
        host = self._hosts.pop(uuid, "")
        if host in self._gpus:
            self._gpus[host].discard(uuid)
            self._revisions[host] = next(self._counter)
            if not self._gpus[host]:
                del self._gpus[host]
                self._begun.pop(host, None)
                self._came_with.pop(host, None)
                self._spoke_ms.pop(host, None)
                self._revisions.pop(host, None)
                if self._spelt.get(host.lower()) == host:
                    del self._spelt[host.lower()]

    def _takes(self, gpu: Gpu, now_ms: int, reasons: Reasons, claims: Claims) -> bool:
        names = {gpu.uuid, gpu.parent} - {""}
        others = {uuid: self._hosts[uuid] for uuid in names if self._hosts.get(uuid, gpu.host) != gpu.host}
        for uuid in names:
            owner = others.get(uuid, gpu.host)
            given = owner == gpu.host or self._gives_up(uuid, owner, gpu.host, now_ms)
            if not given or not self._is_spelt(gpu.host):
                reasons["reading", DUPLICATE] += 1
                claims.setdefault(gpu.host, (uuid, self._rival(uuid, gpu.host), False))
                return False
        new = sum(uuid not in self._hosts for uuid in names) + len(others)
        if new and len(self._gpus.get(gpu.host, ())) + new > self._most_per_host:
            reasons["reading", TOO_MANY] += 1
            return False
        for uuid, owner in others.items():
            claims.setdefault(gpu.host, (uuid, owner, True))
            self._change(uuid, owner, gpu.host, now_ms)
        self._own(gpu, now_ms)
        self._spoke_ms[gpu.host] = now_ms
        self._named_ms.update(dict.fromkeys(names, now_ms))
        return True

    def _gives_up(self, uuid: str, owner: str, host: str, now_ms: int) -> bool:
        """Whether `owner` has let go of a GPU that `host` reports."""
        before, at_ms = self._before.get(uuid, ("", 0))
        if before == host and now_ms - at_ms < BACK_MS:
            return True
        named, spoke = self._named_ms.get(uuid), self._spoke_ms.get(owner)
        silent = named is not None and now_ms - named >= self.newcomer_ms
        goes_on = named is not None and spoke is not None and spoke - named >= self.newcomer_ms
        return goes_on or (silent and self._replaced(owner, host))

    def _change(self, uuid: str, owner: str, host: str, now_ms: int) -> None:
        """Remember whose the GPU was: of several changes within a day the host before the first of them."""
        before, at_ms = self._before.pop(uuid, ("", 0))
        if before != host:
            recent = before and now_ms - at_ms < BACK_MS
            self._before[uuid] = (before, at_ms) if recent else (owner, now_ms)

    def _rival(self, uuid: str, host: str) -> str:
        return self._hosts.get(uuid) or self._spelt.get(host.lower(), "")

    def _is_spelt(self, host: str) -> bool:
        """A token's host goes without regard to case; each spelling would be one more host to every limit."""
        return self._spelt.get(host.lower(), host) == host

    def _own(self, gpu: Gpu, at_ms: int) -> None:
        for uuid in filter(None, (gpu.uuid, gpu.parent)):
            if self._hosts.get(uuid) != gpu.host:
                self._drop(uuid)
                self._hosts[uuid], self._since[uuid] = gpu.host, at_ms
                self._gpus[gpu.host].add(uuid)
                self._revisions[gpu.host] = next(self._counter)
                # Of the spellings that a store has, the newest counts: they come in the order of their readings.
                self._spelt[gpu.host.lower()] = gpu.host
                if at_ms - self._begun.setdefault(gpu.host, at_ms) < self.newcomer_ms:
                    self._came_with[gpu.host].add(gpu.parent or gpu.uuid)
        if gpu.parent:
            self._parts[gpu.parent].add(gpu.uuid)

    def _believes(self, event: Event, reasons: Reasons, claims: Claims) -> bool:
        owner = self._hosts.get(event.gpu, event.host) if event.gpu else event.host
        if owner == event.host and self._is_spelt(event.host) and event.kind is not EventKind.DUPLICATE_IDENTITY:
            return True
        reasons["event", DUPLICATE] += 1
        if owner != event.host:
            claims.setdefault(event.host, (event.gpu, owner, False))
        return False

    def _told(self, claims: Claims, now_ms: int) -> list[Event]:
        """One event an hour for each host that claims what is, or was, another's."""
        hour = now_ms // HOUR * HOUR
        self._named = {host: at_ms for host, at_ms in self._named.items() if at_ms == hour}
        made = []
        for host, (uuid, owner, taken) in claims.items():
            if host in self._named or len(self._named) >= MOST_CLAIMANTS:
                continue
            self._named[host] = hour
            who = host or "a sender without a host"
            text = f"{who} reports {uuid}, which {owner} reported before: taken over"
            if not taken:
                remedy = f"if it has moved, run tocsin release gpu {uuid} once {owner} is silent about it"
                text = f"{who} reports {uuid}, which {owner} reports: refused; {remedy}"
            made.append(Event(EventKind.DUPLICATE_IDENTITY, "", host, now_ms, message=text, source="brain"))
        return made
