"""The kernel log beside a source: XIDs, SXids and verdicts at their true instant, with process and decoded words.

The position on disk is never ahead of what was handed on: the reader's thread takes lines into a queue, `enrich` hands
the queue on, and only the call after that saves the position behind it, when the batch has been spooled. An agent that
is killed in between reads those lines again and makes the same events of them, since an event's id follows from its
instant and code; what was saved too early would be lost for good.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tocsin.collector.kernel_log.amdgpu import AmdgpuParser
from tocsin.collector.kernel_log.host_lines import host_events
from tocsin.collector.kernel_log.parser import KernelEvent, KernelLogParser
from tocsin.collector.kernel_log.readers import (
    JOURNALCTL,
    KMSG,
    JournalReader,
    KernelLogReader,
    KmsgReader,
    Position,
    load_position,
    save_position,
)
from tocsin.collector.pci_tree import the_one_near, way_to
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, Reading, normalise_pci_bus_id
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_KINDS = frozenset({EventKind.XID, EventKind.RECOVERY_ACTION})
_WAITING = 1_024
"""Events of either side that wait for their duplicate."""

SLACK_MS = 5 * SECOND
"""What the two may differ by beyond the time between two readings."""


class Deduplicator:
    """Pairs events of the same kind, GPU and code, one with one.

    The kernel's is the better one: it has the true instant, the process and the text, while a source dates an event to
    the reading that found it, up to `interval_ms` later. Of a pair the kernel's is kept, unless the other has already
    been handed on.
    """

    def __init__(self, interval_ms: int) -> None:
        self._reach_ms = interval_ms + SLACK_MS
        self._kernel: deque[Event] = deque(maxlen=_WAITING)
        self._other: deque[Event] = deque(maxlen=_WAITING)

    def settle(self, kernel: Sequence[Event], other: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """`kernel` and `other`, both new, without those whose duplicate is handed on."""
        own = [event for event in kernel if event.kind not in _KINDS or not self._taken(event, self._other, late=True)]
        self._kernel.extend(event for event in own if event.kind in _KINDS)
        rest = [
            event for event in other if event.kind not in _KINDS or not self._taken(event, self._kernel, late=False)
        ]
        self._other.extend(event for event in rest if event.kind in _KINDS)
        return own, rest

    def _taken(self, event: Event, waiting: deque[Event], *, late: bool) -> bool:
        for one in waiting:
            # Positive where the source's event, as it must be, is the later.
            apart = one.at_ms - event.at_ms if late else event.at_ms - one.at_ms
            same = (one.kind, one.gpu, one.code) == (event.kind, event.gpu, event.code)
            if same and -SLACK_MS <= apart <= self._reach_ms:
                waiting.remove(one)
                return True
        return False


_log = logger("kernel_log")

QUEUE_EVENTS = 4_096
"""Events that wait for the next reading; of a greater storm the first are kept, which are nearest to its cause."""
WAIT_SECONDS = 5.0
_REST_SECONDS = 15.0
"""Pause after a read that failed."""
_REMEMBERED_NAMES = 8_192
DRIVER = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"\b([0-9]{2,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)\b")

_LAST, _COUNT = "gpu_xid_last_code", "gpu_xid_events_total"


class KernelLogCompanion:
    """Adds what the kernel says of GPUs and switches; see `tocsin.collector.source`.

    `start` reads in a thread of its own; without it `pump` reads once. `state` keeps the position: what was handed on
    is marked as read at the next reading, so that a crash in between repeats events, under the same ids, instead of
    losing them. `interval_seconds` is the time between two readings of the source. `alarm` is called, by the thread
    that reads, when events wait. `sys` tells which GPU is nearest to a device that fails. Takes over `reader`.
    """

    name = "kernel_log"

    def __init__(
        self,
        reader: KernelLogReader,
        own: OwnMetrics,
        *,
        host: str,
        state: Path,
        driver: str = "",
        interval_seconds: float = 10.0,
        queue_events: int = QUEUE_EVENTS,
        alarm: Callable[[], None] = lambda: None,
        sys: Path = Path("/sys"),
    ) -> None:
        self._alarm = alarm
        self._sys = sys
        self._reader = reader
        self._own = own
        self._host = host
        self._state = state
        self._parser = KernelLogParser(driver)
        self._amdgpu = AmdgpuParser()
        self._dedup = Deduplicator(round(interval_seconds * SECOND))
        self._bound = queue_events
        self._queue: list[KernelEvent] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._position = reader.position
        self._handed = reader.position
        self._saved = reader.position
        self._buses: dict[str, str] = {}
        self._names: deque[str] = deque(maxlen=_REMEMBERED_NAMES)
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._starts = 0

    def start(self) -> None:
        """Read from now on, in a thread."""
        self._thread = threading.Thread(target=self._run, name="kernel-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.pump(WAIT_SECONDS)
            except Exception as error:  # noqa: BLE001  # the supervisor of the reader's thread
                self._own.set("tocsin_kernel_log_reading", 0, source=self._reader.name)
                self._own.count("tocsin_loop_failures_total", loop="kernel_log")
                _log.error("kernel log cannot be read, it is tried again", problem=str(error) or type(error).__name__)
                self._stop.wait(_REST_SECONDS)

    def pump(self, seconds: float = 0.0) -> None:
        """Read once, waiting up to `seconds` where there is nothing. Raises OSError."""
        source = self._reader.name
        chunk = self._reader.read(seconds)
        self._own.set("tocsin_kernel_log_reading", 1, source=source)
        with self._lock:
            before = len(self._queue)
            dropped = 0
            for record in chunk.records:
                events = [*self._parser.feed(record), *host_events(record), *self._amdgpu.feed(record)]
                room = self._bound - len(self._queue)
                self._queue += events[:room]
                dropped += max(0, len(events) - room)
            self._position = self._reader.position
            added = len(self._queue) - before
        self._own.count("tocsin_kernel_log_lines_total", chunk.lines, source=source)
        losses = (("line", "kernel_log_overrun", chunk.overrun), ("line", "kernel_log_malformed", chunk.malformed))
        for what, reason, number in (*losses, ("event", "kernel_log_full", dropped)):
            if number:
                self._own.count("tocsin_dropped_total", number, what=what, reason=reason)
                _log.warning("lost from the kernel log", what=what, reason=reason, number=number)
        while self._starts < self._reader.starts:
            self._starts += 1
            reason = "first" if self._starts == 1 else "ended"
            if source == JournalReader.name:
                self._own.count("tocsin_child_starts_total", source=source, reason=reason)
        if added:
            _log.debug("read from the kernel log", events=added)
            self._alarm()

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with the kernel's events, without those of the source that these stand for."""
        self._save(self._handed)
        self._learn(batch.readings)
        with self._lock:
            waiting, self._queue = self._queue, []
            self._handed = self._position
            for bus, uuid in self._parser.uuids.items():
                self._buses.setdefault(bus, uuid)
        kernel = [self._own_name(self._as_event(event, now_ms)) for event in waiting]
        self._count(kernel)
        own, rest = self._dedup.settle(kernel, batch.events)
        for kept, number in (("other", len(kernel) - len(own)), ("kernel", len(batch.events) - len(rest))):
            if number:
                self._own.count("tocsin_kernel_log_twins_total", number, kept=kept)
        readings = [self._filled(reading) for reading in batch.readings]
        if (
            not own
            and len(rest) == len(batch.events)
            and all(a is b for a, b in zip(readings, batch.readings, strict=True))
        ):
            return batch
        return replace(batch, readings=readings, events=[*rest, *own])

    def close(self) -> None:
        """End the thread, mark what was handed on as read and close the reader."""
        self._stop.set()
        self._reader.wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._save(self._handed)
        self._reader.close()

    def _save(self, position: Position) -> None:
        if position == self._saved:
            return
        try:
            save_position(self._state, position)
        except OSError as error:
            _log.warning("position in the kernel log cannot be kept", path=str(self._state), problem=error.strerror)
        else:
            self._saved = position

    def _learn(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            gpu = reading.gpu
            if gpu.pci_bus_id and not gpu.is_mig:
                bus = normalise_pci_bus_id(gpu.pci_bus_id)
                if bus:
                    self._buses[bus] = gpu.uuid
            self._host = gpu.host or self._host

    def _as_event(self, seen: KernelEvent, now_ms: int) -> Event:
        uuid = "" if seen.kind is EventKind.SXID or not seen.bus else self._buses.get(seen.bus, seen.uuid)
        if seen.kind is EventKind.NODE_FAULT and seen.bus and not uuid:
            ways = {gpu: way_to(self._sys, bus) for bus, gpu in self._buses.items()}
            uuid = the_one_near(way_to(self._sys, seen.bus), ways)
        message = seen.message
        if not uuid and seen.kind in (EventKind.XID, EventKind.RECOVERY_ACTION, EventKind.DEVICE_FAULT):
            where = seen.bus or (seen.line.address if seen.line is not None else "")
            message = f"PCI {where}, a GPU that nothing else reports: {message}"
        at_ms = seen.at_ms if seen.at_ms is not None else now_ms
        return Event(
            seen.kind,
            uuid,
            self._host,
            at_ms,
            seen.code,
            message,
            self._reader.name,
            severity=seen.severity,
            remedy=seen.remedy,
        )

    def _own_name(self, event: Event) -> Event:
        """`event`, moved on by as many milliseconds as it takes to have an id of its own.

        Several links or switches report the same number within one millisecond, and each report counts.
        """
        while event.id in self._taken:
            event = replace(event, at_ms=event.at_ms + 1)
        if len(self._names) == _REMEMBERED_NAMES:
            self._taken.discard(self._names.popleft())
        self._names.append(event.id)
        self._taken.add(event.id)
        return event

    def _count(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind is EventKind.XID and event.gpu:
                self._last[event.gpu] = event.code
                counts = self._counts.setdefault(event.gpu, {})
                counts[event.code] = counts.get(event.code, 0) + 1

    def _filled(self, reading: Reading) -> Reading:
        """`reading` with the XID metrics of the log where the source cannot have them.

        A lost GPU stays without any value: that is what tells that it is lost.
        """
        if _LAST in reading.values or reading.gpu.is_mig or not reading.values:
            return reading
        uuid, reason = reading.gpu.uuid, reading.missing.get(_LAST)
        if reason in (Missing.LOST, Missing.NOT_DUE) or (reason is None and uuid not in self._last):
            return reading
        values = dict(reading.values)
        values[_LAST] = float(self._last.get(uuid, 0))
        for code, number in self._counts.get(uuid, {}).items():
            values[variant(_COUNT, "xid", str(code))] = float(number)
        missing = {name: reason for name, reason in reading.missing.items() if name not in values and name != _COUNT}
        return replace(reading, values=values, missing=missing)


def driver_version(path: Path = DRIVER) -> str:
    """Version of the driver that is loaded, such as ``575.57.08``; empty where none is."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = _VERSION.search(text)
    return match[1] if match is not None else ""


def open_kernel_log(
    settings: Settings, clock: Clock, own: OwnMetrics, alarm: Callable[[], None] = lambda: None
) -> KernelLogCompanion | None:
    """The companion that ``agent.kernel_log`` asks for, reading already; None where it is `off`.

    `alarm` is called when there are events, from the companion's own thread.
    Raises Unavailable where the log cannot be read in the way that was asked for, for `auto` in neither way.
    """
    wanted = settings.agent
    if wanted.kernel_log == "off":
        return None
    state = wanted.spool.with_name("kernel_log.json")
    reader = _open_reader(wanted.kernel_log, clock, load_position(state))
    companion = KernelLogCompanion(
        reader,
        own,
        host=wanted.host or socket.gethostname(),
        state=state,
        driver=driver_version(),
        interval_seconds=wanted.interval_seconds,
        alarm=alarm,
        sys=wanted.sys,
    )
    companion.start()
    return companion


def _open_reader(kind: str, clock: Clock, before: Position | None) -> KernelLogReader:
    if kind == "journald":
        return JournalReader(clock, before)
    try:
        return KmsgReader(clock, before)
    except Unavailable as error:
        if kind == "kmsg":
            raise
        if shutil.which(JOURNALCTL[0]) is None:
            raise Unavailable(f"neither {KMSG} nor journald can be read: {error}") from None
        _log.info("the kernel log is read through journald", reason=str(error))
        return JournalReader(clock, before)
