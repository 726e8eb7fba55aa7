"""The GPUs of this node, read through NVML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tocsin.collector.nvml_device import Counters, Device, Place, open_device
from tocsin.collector.nvml_events import XidWatch
from tocsin.collector.nvml_library import Code, Nvml, NvmlFailure, unavailable
from tocsin.collector.nvml_workers import Workers
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.telemetry.log import logger

_log = logger("nvml")

DEADLINE_SECONDS = 5.0
"""How long a GPU may take for one reading."""
ENUMERATE_MS = 5 * MINUTE
"""How long handles, static values and what is known as unsupported are kept before GPUs are listed anew."""
MAX_RETRY_MS = 60 * SECOND
"""Longest pause between two attempts to reopen a library that went away."""
_ENUMERATION = "enumeration"
_GONE = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED})


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one enumeration found: how many GPUs the driver counts, those that opened, and indices that did not."""

    count: int
    devices: tuple[Device, ...]
    closed: dict[int, NvmlFailure]


_Result = list[Reading] | _Listing | NvmlFailure


class NvmlSource:
    """A `Source` over NVML.

    Each GPU is read on a thread of its own: one that hangs has a reading of reasons (timed out) after
    `deadline_seconds`, one that is lost has reasons (lost), and the others their values. A driver that was reloaded is
    opened again at once, then with a growing pause; until then all its GPUs count as lost. Raises Unavailable where
    NVML cannot be opened at the start, and where the driver was replaced under the loaded library, which only a new
    process can mend.
    """

    name = "nvml"

    def __init__(self, library: Nvml, place: Place, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._library = library
        self._place = place
        self.deadline_seconds = deadline_seconds
        self._workers: Workers[_Result] = Workers()
        self._watch = XidWatch(library)
        self._devices: dict[str, Device] = {}
        self._without_handle: frozenset[str] = frozenset()
        self._count = 0
        self._listed_ms: int | None = None
        self._lost: set[str] = set()
        self._actions: dict[str, float] = {}
        self._open = True
        self._reopen_at_ms = 0
        self._pause_ms = SECOND
        try:
            library.open()
            self._take(self._list())
        except NvmlFailure as failure:
            raise unavailable(failure) from None

    def gpus(self) -> list[Gpu]:
        return [gpu for device in self._devices.values() for gpu in (device.gpu, *(i.gpu for i in device.instances))]

    def read(self, now_ms: int) -> Batch:
        events: list[Event] = []
        results: dict[str, list[Reading]] = {}
        for _ in range(2):
            if not self._is_open(now_ms, events):
                break
            try:
                self._refresh(now_ms, events)
                results = self._read_all(now_ms)
                break
            except NvmlFailure as failure:
                self._went_away(failure, now_ms)
        if self._open:
            events += self._watch.drain(now_ms)
        readings: list[Reading] = []
        for uuid, device in self._devices.items():
            readings += self._noted(results.get(uuid) or self._absent(device, now_ms), now_ms, events)
        return Batch(readings=tuple(readings), events=tuple(events))

    def close(self) -> None:
        if self._open:
            self._shut_down()
        self._workers.close()

    def _absent(self, device: Device, now_ms: int) -> list[Reading]:
        if not self._open or device.gpu.uuid in self._without_handle:
            return device.absent(now_ms, Missing.LOST)
        _log.warning("GPU did not answer in time", gpu=device.gpu.uuid, seconds=self.deadline_seconds)
        return device.absent(now_ms, Missing.TIMED_OUT)

    def _is_open(self, now_ms: int, events: list[Event]) -> bool:
        if self._open:
            return True
        if now_ms < self._reopen_at_ms:
            return False
        try:
            self._library.open()
            self._take(self._list())
        except NvmlFailure as failure:
            self._went_away(failure, now_ms)
            return False
        self._open = True
        self._pause_ms = SECOND
        self._listed_ms = now_ms
        events.append(self._event(EventKind.DRIVER_RELOAD, "", now_ms, "NVML went away and was opened again"))
        return True

    def _went_away(self, failure: NvmlFailure, now_ms: int) -> None:
        if failure.code == Code.LIB_RM_VERSION_MISMATCH:
            raise unavailable(failure) from None
        if self._open:
            self._shut_down()
            self._watch.reset()
            self._reopen_at_ms = now_ms
        else:
            self._reopen_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, MAX_RETRY_MS)
        wait = (self._reopen_at_ms - now_ms) / SECOND
        _log.warning("NVML went away", problem=str(failure), code=failure.code, retry_seconds=wait)

    def _shut_down(self) -> None:
        self._open = False
        if self._workers.stuck:
            # Closing the library under a call that hangs in it would hang as well.
            return
        try:
            self._library.close()
        except NvmlFailure as failure:
            _log.debug("NVML did not close", problem=str(failure), code=failure.code)

    def _refresh(self, now_ms: int, events: list[Event]) -> None:
        if self._listed_ms is None:
            self._listed_ms = now_ms
        count = int(self._library.call("nvmlDeviceGetCount"))
        if count == self._count and now_ms - self._listed_ms < ENUMERATE_MS:
            return
        before = set(self._devices)
        listing = self._workers.run({_ENUMERATION: _guarded(self._list)}, self.deadline_seconds).get(_ENUMERATION)
        if isinstance(listing, NvmlFailure):
            raise listing
        if not isinstance(listing, _Listing):
            return
        self._take(listing)
        self._listed_ms = now_ms
        for uuid in before - self._devices.keys():
            if uuid not in self._lost:
                events.append(self._event(EventKind.GPU_LOST, uuid, now_ms, "the driver no longer lists the GPU"))
            self._lost.discard(uuid)
        new = self._devices.keys() - before
        events += [self._event(EventKind.GPU_FOUND, uuid, now_ms, "the driver lists a new GPU") for uuid in new]

    def _list(self) -> _Listing:
        count = int(self._library.call("nvmlDeviceGetCount"))
        counters = {uuid: d.counters for uuid, d in self._devices.items() if isinstance(d.counters, Counters)}
        devices: list[Device] = []
        closed: dict[int, NvmlFailure] = {}
        for index in range(count):
            try:
                devices.append(open_device(self._library, index, self._place, counters))
            except NvmlFailure as failure:
                if failure.code in _GONE:
                    raise
                closed[index] = failure
        return _Listing(count, tuple(devices), closed)

    def _take(self, listing: _Listing) -> None:
        opened = {device.gpu.uuid: device for device in listing.devices}
        # A GPU that fell off the bus keeps its place in the count but gives no handle: its UUID is known from before,
        # and the handle of before must not be used again.
        left = {
            uuid: device
            for uuid, device in self._devices.items()
            if uuid not in opened and device.gpu.index in listing.closed
        }
        for index, failure in listing.closed.items():
            _log.warning("GPU cannot be opened", index=index, problem=str(failure), code=failure.code)
        self._devices = opened | left
        self._without_handle = frozenset(left)
        self._count = listing.count
        self._watch.register(listing.devices)

    def _read_all(self, now_ms: int) -> dict[str, list[Reading]]:
        tasks = {
            uuid: _guarded(device.read, now_ms)
            for uuid, device in self._devices.items()
            if uuid not in self._without_handle
        }
        readings: dict[str, list[Reading]] = {}
        for uuid, result in self._workers.run(tasks, self.deadline_seconds).items():
            if isinstance(result, NvmlFailure):
                raise result
            if isinstance(result, list):
                readings[uuid] = result
        return readings

    def _noted(self, readings: Sequence[Reading], now_ms: int, events: list[Event]) -> list[Reading]:
        """`readings` of one GPU with its XID metrics, after its loss, return and change of verdict became events."""
        own = readings[0]
        uuid = own.gpu.uuid
        lost = Missing.LOST in own.missing.values() and not own.values
        if lost and uuid not in self._lost:
            self._lost.add(uuid)
            events.append(self._event(EventKind.GPU_LOST, uuid, now_ms, "the GPU does not answer the driver"))
        elif own.values and uuid in self._lost:
            self._lost.discard(uuid)
            events.append(self._event(EventKind.GPU_FOUND, uuid, now_ms, "the GPU answers again"))
        self._note_action(own, now_ms, events)
        if not own.values:
            return list(readings)
        values, missing = self._watch.values(uuid)
        own = replace(own, values={**own.values, **values}, missing={**own.missing, **missing})
        return [own, *readings[1:]]

    def _note_action(self, own: Reading, now_ms: int, events: list[Event]) -> None:
        action = own.values.get("gpu_recovery_action")
        if action is None:
            return
        if action != self._actions.get(own.gpu.uuid, 0.0):
            text = f"the driver's recovery verdict is now {action:.0f}"
            events.append(self._event(EventKind.RECOVERY_ACTION, own.gpu.uuid, now_ms, text, int(action)))
        self._actions[own.gpu.uuid] = action

    def _event(self, kind: EventKind, uuid: str, now_ms: int, message: str, code: int = 0) -> Event:
        return Event(kind, uuid, self._place.host, now_ms, code, message, self.name)


def _guarded(task: Callable[..., _Result], *arguments: int) -> Callable[[], _Result]:
    """`task` with an NvmlFailure as its result where it raises one."""

    def run() -> _Result:
        try:
            return task(*arguments)
        except NvmlFailure as failure:
            return failure

    return run
