"""The spool as the agent uses it: it goes on in memory, for a while, where the disk takes nothing."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.collector.spool import MAX_PARKED_LINES, Dropped, Spool, Spooled, unpacked
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("buffer")

MEMORY_BYTES = 8 * 1024 * 1024
"""Bound of what waits in memory, compressed: some hours of one node."""
FLUSHED_AT_ONCE = 64
"""Batches moved from memory to disk with one new one: each is a flush of the disk, and a reading waits for them."""
REOPEN_SECONDS = 10.0
FULL_BYTES = 1024 * 1024
"""Free space below which a file that cannot be opened is the disk's fault rather than the setting's."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch that is in memory alone; numbers are below zero, so that they meet none of the disk's."""

    id: int
    body: bytes
    readings: int
    events: int
    at_ms: int

    def opened(self) -> Spooled:
        """As the uplink sees it."""
        return Spooled(self.id, unpacked(self.body), self.readings)


class Buffer:
    """A `Spool` with memory behind it, which counts all that is lost. Safe to use from several threads.

    A batch that the disk refuses (full, read-only, locked) waits in memory within a bound and is moved to the disk as
    soon as that takes it; what waits in memory is pushed first. A batch that was acknowledged by the receiver and
    cannot be removed from a full disk is remembered, and not sent again by this process. Raises InputError where the
    file cannot be used for another reason than a full disk.
    """

    def __init__(
        self, path: Path, max_bytes: int, clock: Clock, own: OwnMetrics, *, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._own = own
        self._lock = threading.RLock()
        self._numbers = itertools.count(-1, -1)
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._settled: set[int] = set()
        self._refused: list[tuple[str, str]] = []
        self._working = True
        self._closed = False
        self._reopen_at = 0.0
        self._disk: Spool | None = None
        try:
            self._disk = self._opened()
        except InputError as error:
            if not _is_full(path):
                raise
            self._troubled(str(error))
        own.set_function("tocsin_spool_oldest_seconds", self.oldest_seconds)

    @property
    def batches(self) -> int:
        """Batches that wait, on disk and in memory."""
        return len(self._held) + (self._disk.batches - len(self._settled) if self._disk is not None else 0)

    @property
    def size(self) -> int:
        """Their size in bytes, compressed."""
        return self._held_bytes + (self._disk.size if self._disk is not None else 0)

    @property
    def in_memory(self) -> int:
        """Batches that are in memory alone."""
        return len(self._held)

    def oldest_seconds(self) -> float:
        """Age of the oldest batch that waits by the wall clock; 0 where none does, or where it seems to lie ahead."""
        with self._lock:
            instants = [held.at_ms for held in itertools.islice(self._held, 1)]
            try:
                on_disk = self._disk.oldest_ms() if self._disk is not None else None
            except sqlite3.Error:
                on_disk = None
        if on_disk is not None:
            instants.append(on_disk)
        return max(self._clock.now_ms() - min(instants), 0) / SECOND if instants else 0.0

    def put(self, text: str, readings: int, events: int = 0) -> bool:
        """Append a batch; whether it is on disk. What a bound costs is counted."""
        held = _Held(next(self._numbers), zlib.compress(text.encode(), 1), readings, events, self._clock.now_ms())
        with self._lock:
            written = self._flush() and self._written(held)
            if not written:
                self._hold(held)
            self._show()
        return written

    def peek(self, max_bytes: int) -> list[Spooled]:
        """The next batches to push, together at most `max_bytes` of text, at least one where any waits; they stay."""
        with self._lock:
            found: list[Spooled] = []
            length = 0
            for held in self._held:
                batch = held.opened()
                length += len(batch.text)
                if found and length > max_bytes:
                    break
                found.append(batch)
            if found or self._disk is None:
                return found
            try:
                return self._disk.peek(max_bytes, self._settled)
            except sqlite3.Error as error:
                self._troubled(str(error), error)
                return []

    def settle(self, batches: Iterable[Spooled], parked: Sequence[tuple[str, str]] = ()) -> int:
        """Remove `batches` and keep `parked` lines (line, problem) aside; how many parked lines made room."""
        with self._lock:
            done = {batch.id for batch in batches}
            left = [held for held in self._held if held.id not in done]
            self._held_bytes = sum(len(held.body) for held in left)
            self._held = deque(left)
            self._settled |= {number for number in done if number > 0}
            self._refused += parked
            evicted = self._settle_on_disk()
            excess = len(self._refused) - MAX_PARKED_LINES
            if excess > 0:
                del self._refused[:excess]
                evicted += excess
            self._show()
            return evicted

    def parked_lines(self) -> int:
        """How many lines are kept aside."""
        return len(self._refused) + (self._disk.parked_lines() if self._disk is not None else 0)

    def close(self) -> None:
        """Move what is in memory to the disk, count what that does not take, and close; safe to repeat."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._held and self._flush():
                pass
            if self._held:
                lost = Dropped(len(self._held), sum(h.readings for h in self._held), sum(h.events for h in self._held))
                self._count(lost, "spool_failed")
                _log.error("batches are lost: the disk takes none", batches=lost.batches, readings=lost.readings)
                self._held.clear()
            if self._disk is not None:
                self._settle_on_disk()
                self._disk.close()

    def _opened(self) -> Spool:
        disk = Spool(self.path, self._max_bytes, self._clock)
        if disk.damaged:
            self._own.count("tocsin_dropped_total", disk.damaged, what="spool", reason="damaged")
        return disk

    def _usable(self) -> Spool | None:
        """The disk's queue, opened now where that was not possible before."""
        if self._disk is None and self._clock.monotonic() >= self._reopen_at:
            try:
                self._disk = self._opened()
            except InputError as error:
                self._troubled(str(error))
        return self._disk

    def _written(self, held: _Held) -> bool:
        disk = self._usable()
        if disk is None:
            return False
        try:
            dropped = disk.put_packed(held.body, held.readings, held.events)
        except sqlite3.Error as error:
            self._troubled(str(error), error)
            return False
        self._count(dropped, "spool_full")
        if not self._working:
            self._working = True
            _log.info("spool takes batches again", path=str(self.path))
        return True

    def _flush(self) -> bool:
        """Move batches from memory to the disk, the oldest first; whether the disk took all that it was given."""
        for _ in range(min(len(self._held), FLUSHED_AT_ONCE)):
            if not self._written(self._held[0]):
                return False
            self._held_bytes -= len(self._held.popleft().body)
        return True

    def _hold(self, held: _Held) -> None:
        self._held.append(held)
        self._held_bytes += len(held.body)
        lost = Dropped()
        while self._held_bytes > self._memory_bytes:
            oldest = self._held.popleft()
            self._held_bytes -= len(oldest.body)
            lost += Dropped(1, oldest.readings, oldest.events)
        self._count(lost, "spool_failed")

    def _settle_on_disk(self) -> int:
        if self._disk is None or not (self._settled or self._refused):
            return 0
        try:
            evicted = self._disk.settle([Spooled(number, "", 0) for number in self._settled], self._refused)
        except sqlite3.Error as error:
            self._troubled(str(error), error)
            return 0
        self._settled.clear()
        self._refused.clear()
        return evicted

    def _troubled(self, problem: str, error: sqlite3.Error | None = None) -> None:
        self._reopen_at = self._clock.monotonic() + REOPEN_SECONDS
        if self._working:
            self._working = False
            _log.error("spool takes nothing, batches wait in memory", path=str(self.path), problem=problem)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            self._mend()

    def _mend(self) -> None:
        """Begin a fresh file where the present one turned out to be damaged while in use."""
        disk, self._disk = self._disk, None
        if disk is None or self._closed:
            return
        damaged = disk.damaged
        try:
            disk.reopen()
        except (InputError, sqlite3.Error) as error:
            _log.error("spool cannot be opened again", path=str(self.path), problem=str(error))
            return
        self._disk = disk
        self._settled.clear()
        self._own.count("tocsin_dropped_total", disk.damaged - damaged, what="spool", reason="damaged")

    def _count(self, lost: Dropped, reason: str) -> None:
        for what, amount in (("batch", lost.batches), ("reading", lost.readings), ("event", lost.events)):
            if amount:
                self._own.count("tocsin_dropped_total", amount, what=what, reason=reason)

    def _show(self) -> None:
        self._own.set("tocsin_spool_batches", self.batches)
        self._own.set("tocsin_spool_bytes", self.size)
        self._own.set("tocsin_spool_memory_batches", len(self._held))
        self._own.set("tocsin_spool_parked_lines", self.parked_lines())


def _is_full(path: Path) -> bool:
    """Whether the disk below `path` has no room left."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    return shutil.disk_usage(folder).free < FULL_BYTES
