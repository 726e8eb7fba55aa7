"""The newest state of the fleet in memory: what ingest puts in and evaluation takes out."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu, Missing, Reading
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
        self._events: dict[str, Event] = {}
        self._recent: dict[str, Event] = {}
        self._count = 0

    def put(self, batch: Batch) -> None:
        """Take in what the store has kept."""
        with self._lock:
            self._count += len(batch.readings)
            for reading in batch.readings:
                uuid = reading.gpu.uuid
                self._latest[uuid] = _newer(self._latest.get(uuid), reading)
            for event in batch.events:
                self._events[event.id] = event
                self._recent[event.id] = event

    def take(self) -> Snapshot:
        """The newest readings, and the events since the last call, by instant."""
        with self._lock:
            events = tuple(sorted(self._events.values(), key=lambda event: (event.at_ms, event.id)))
            self._events.clear()
            return Snapshot(self._sorted(), events)

    def events_since(self, since_ms: int) -> list[Event]:
        """Events at or after `since_ms`, taken or not; older ones are dropped."""
        with self._lock:
            self._recent = {name: event for name, event in self._recent.items() if event.at_ms >= since_ms}
            return list(self._recent.values())

    def latest(self) -> tuple[Reading, ...]:
        """The newest reading of each GPU, by UUID."""
        with self._lock:
            return self._sorted()

    def reading(self, uuid: str) -> Reading | None:
        """The newest reading of one GPU."""
        with self._lock:
            return self._latest.get(uuid)

    def forget(self, before_ms: int) -> list[Gpu]:
        """Drop GPUs whose newest reading is older than `before_ms`; returns them."""
        with self._lock:
            gone = [reading.gpu for reading in self._latest.values() if reading.at_ms < before_ms]
            for gpu in gone:
                del self._latest[gpu.uuid]
            return gone

    @property
    def count(self) -> int:
        """Readings taken in so far."""
        with self._lock:
            return self._count

    def _sorted(self) -> tuple[Reading, ...]:
        return tuple(self._latest[uuid] for uuid in sorted(self._latest))


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
    bare = is_bare(new.gpu)
    return replace(new, gpu=old.gpu) if old is not None and bare else new


def by_uuid(readings: Iterable[Reading]) -> dict[str, Reading]:
    """Readings by UUID."""
    return {reading.gpu.uuid: reading for reading in readings}
