"""The newest that is known of each GPU, and the events of the last day, of whichever way they came."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event
from tocsin.domain.reading import UNKNOWN_GPU, Gpu, Missing, Reading
from tocsin.store.identity import is_bare


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at one instant: the newest reading of each GPU, by UUID, and the events since the last snapshot."""

    readings: tuple[Reading, ...]
    events: tuple[Event, ...]


class FleetMemory:
    """Newest reading of each GPU and the events not yet evaluated; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, Reading] = {}
        # Their UUIDs in order until a GPU comes or goes, and what `latest` answers until anything is put.
        self._order: list[str] | None = None
        self._readings: tuple[Reading, ...] | None = None
        self._by_host: defaultdict[str, set[str]] = defaultdict(set)
        self._unknown: set[str] = set()
        # What went before its time: what others know it by goes when that of any GPU would.
        self._left: dict[str, Reading] = {}
        self._recalled: set[str] = set()
        self._events: dict[str, Event] = {}
        self._recent: dict[str, Event] = {}
        self._count = 0

    def put(self, batch: Batch) -> None:
        """Take in what the store has kept."""
        with self._lock:
            self._count += len(batch.readings)
            self._readings = self._readings if not batch.readings else None
            self._drop_unknown(batch.readings)
            for reading in batch.readings:
                uuid, known = reading.gpu.uuid, self._latest.get(reading.gpu.uuid)
                if known is None:
                    self._order = None
                if known is None or reading.at_ms > known.at_ms:
                    self._recalled.discard(uuid)
                self._latest[uuid] = newest = _newer(known, reading)
                if known is None or known.gpu.host != newest.gpu.host:
                    self._by_host[newest.gpu.host].add(uuid)
                    self._leave_host(known)
            for event in batch.events:
                # One that was taken already is not judged again when it comes a second time, or by another way.
                if event.id in self._events or event.id not in self._recent:
                    self._events[event.id] = event
                self._recent[event.id] = event

    def recall(self, batch: Batch) -> None:
        """Take in what the store has from before this start: it is known, and nobody has said it to this process."""
        self.put(batch)
        with self._lock:
            self._recalled = set(self._latest)

    def is_recalled(self, uuid: str) -> bool:
        """Whether nothing newer than what was recalled has come of a GPU."""
        with self._lock:
            return uuid in self._recalled

    def recalled(self) -> frozenset[str]:
        """UUIDs of all of which `is_recalled` is true."""
        with self._lock:
            return frozenset(self._recalled)

    def _drop_unknown(self, readings: Sequence[Reading]) -> None:
        """A host that names its GPUs now has none any more that it could not name before."""
        named = {one.gpu.uuid for one in readings}
        hosts = {one.gpu.host for one in readings if not one.gpu.uuid.startswith(UNKNOWN_GPU)}
        for uuid in self._unknown - named:
            if uuid not in self._latest or self._latest[uuid].gpu.host in hosts:
                if uuid in self._latest:
                    # Names of a host are bounded for a time.
                    self._left[uuid] = self._drop(uuid)
                self._unknown.discard(uuid)
        self._unknown |= {uuid for uuid in named if uuid.startswith(UNKNOWN_GPU)}

    def take(self) -> Snapshot:
        """The newest readings, and the events since the last call, by instant."""
        with self._lock:
            return Snapshot(self._sorted(), self._taken())

    def take_events(self) -> tuple[Event, ...]:
        """The events since the last call of this or of `take`, by instant."""
        with self._lock:
            return self._taken()

    def _taken(self) -> tuple[Event, ...]:
        events = tuple(sorted(self._events.values(), key=lambda event: (event.at_ms, event.id)))
        self._events.clear()
        return events

    def newest(self, gpus: Collection[str], hosts: Collection[str]) -> list[Reading]:
        """The newest reading of each of `gpus` and of each GPU on `hosts`, by UUID."""
        with self._lock:
            found = set[str]().union(*(self._by_host.get(host, ()) for host in hosts))
            return [self._latest[uuid] for uuid in sorted(found.union(gpus)) if uuid in self._latest]

    def events_since(self, since_ms: int) -> list[Event]:
        """Events at or after `since_ms`, taken or not; older ones are dropped."""
        with self._lock:
            self._recent = {name: event for name, event in self._recent.items() if event.at_ms >= since_ms}
            return list(self._recent.values())

    def has_event(self, name: str) -> bool:
        """Whether the event with id `name` came lately."""
        with self._lock:
            return name in self._recent

    def latest(self) -> tuple[Reading, ...]:
        """The newest reading of each GPU, by UUID."""
        with self._lock:
            return self._sorted()

    def known(self) -> set[str]:
        """The GPUs that are there, by UUID."""
        with self._lock:
            return set(self._latest)

    def reading(self, uuid: str) -> Reading | None:
        """The newest reading of one GPU."""
        with self._lock:
            return self._latest.get(uuid)

    def left(self) -> list[Reading]:
        """The newest readings of GPUs that were let go of or are known by another name, until they are forgotten."""
        with self._lock:
            return [one for uuid, one in self._left.items() if uuid not in self._latest]

    def gpu(self, uuid: str) -> Gpu | None:
        """A GPU that is there or has left and is not forgotten yet."""
        with self._lock:
            found = self._latest.get(uuid) or self._left.get(uuid)
            return None if found is None else found.gpu

    def forget(self, before_ms: int) -> list[Gpu]:
        """Drop GPUs whose newest reading is older than `before_ms`; returns them and those that had left before."""
        with self._lock:
            gone = [reading.gpu for reading in self._latest.values() if reading.at_ms < before_ms]
            for gpu in gone:
                self._drop(gpu.uuid)
            left = [one.gpu for uuid, one in self._left.items() if one.at_ms < before_ms or uuid in self._latest]
            for gpu in left:
                del self._left[gpu.uuid]
            return [*gone, *(gpu for gpu in left if gpu.uuid not in self._latest)]

    def silent(self, before_ms: int) -> dict[str, str]:
        """GPUs whose newest reading is older than `before_ms`, with their hosts."""
        with self._lock:
            return {uuid: one.gpu.host for uuid, one in self._latest.items() if one.at_ms < before_ms}

    def let_go(self, gpus: Iterable[str], before_ms: int) -> list[Gpu]:
        """Drop those of `gpus` whose newest reading is older than `before_ms`; returns them. They may come back: they
        are forgotten when they would have been here."""
        with self._lock:
            known = [self._latest[uuid] for uuid in gpus if uuid in self._latest]
            gone = [reading.gpu for reading in known if reading.at_ms < before_ms]
            for gpu in gone:
                self._left[gpu.uuid] = self._drop(gpu.uuid)
            return gone

    def _drop(self, uuid: str) -> Reading:
        self._order = self._readings = None
        left = self._latest.pop(uuid)
        self._leave_host(left)
        return left

    def _leave_host(self, reading: Reading | None) -> None:
        if reading is not None:
            left = self._by_host[reading.gpu.host]
            left.discard(reading.gpu.uuid)
            if not left:
                del self._by_host[reading.gpu.host]

    @property
    def count(self) -> int:
        """Readings taken in so far."""
        with self._lock:
            return self._count

    def _sorted(self) -> tuple[Reading, ...]:
        if self._order is None:
            self._order = sorted(self._latest)
        if self._readings is None:
            self._readings = tuple(map(self._latest.__getitem__, self._order))
        return self._readings


def _newer(old: Reading | None, new: Reading) -> Reading:
    if old is None or new.at_ms > old.at_ms:
        return _with_identity(old, new)
    if new.at_ms < old.at_ms:
        return old
    values = {**old.values, **new.values}
    missing: dict[str, Missing] = {**old.missing, **new.missing}
    for name in new.values:
        missing.pop(name, None)
    return replace(
        _with_identity(old, new), values=values, missing={k: v for k, v in missing.items() if k not in values}
    )


def _with_identity(old: Reading | None, new: Reading) -> Reading:
    """Attributes travel in a point of their own, now and then: a bare identity must not wipe out a full one."""
    same = old is not None and old.gpu.host == new.gpu.host
    return replace(new, gpu=old.gpu) if old is not None and same and is_bare(new.gpu) else new


def by_uuid(readings: Iterable[Reading]) -> dict[str, Reading]:
    """Readings by UUID."""
    return {reading.gpu.uuid: reading for reading in readings}
