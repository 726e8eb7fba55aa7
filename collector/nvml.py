"""The GPUs of this node, read through NVML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.collector.nvml_account import Account
from tocsin.collector.nvml_device import Device, Look, Place, open_device
from tocsin.collector.nvml_events import XidWatch
from tocsin.collector.nvml_gpm import Activity
from tocsin.collector.nvml_library import Code, Nvml, NvmlFailure, attempt, text, unavailable
from tocsin.collector.nvml_proc import DRIVER_GPUS, driver_gpus, name_closed
from tocsin.collector.nvml_stuck import Stuck
from tocsin.collector.nvml_workers import Workers
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")

DEADLINE_SECONDS = 5.0
"""How long a GPU may take for one reading."""
OPEN_SECONDS = 60.0
"""How long the library may take to open at the start: without persistence mode the driver wakes every GPU first."""
ENUMERATE_MS = 5 * MINUTE
"""How long handles, static values and what is known as unsupported are kept before GPUs are listed anew."""
MAX_RETRY_MS = 60 * SECOND
"""Longest pause between two attempts to reopen a library that went away."""
_LIBRARY = "library"
_GONE = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED})
_NOT_OURS = frozenset({Code.NO_PERMISSION, Code.TIMEOUT})
"""Why a GPU may not open although nothing is wrong with it: it is somebody else's, or a call to it hangs."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one enumeration found: how many GPUs the driver counts, those that opened, and indices that did not."""

    count: int
    devices: tuple[Device, ...]
    closed: Mapping[int, NvmlFailure]
    driver: str


@dataclass(frozen=True, slots=True)
class _Taken:
    """One reading of one GPU: None where it is lost. `device` is a new one where the GPU was opened afresh."""

    device: Device
    look: Look | None
    seconds: float


_Result = _Taken | _Listing | int | NvmlFailure


class NvmlSource:
    """A `Source` over NVML.

    Every call into the driver is made on a thread that can be left behind, and each GPU has `deadline_seconds`: one
    that hangs has a reading of reasons (timed out), is not asked again until its call comes back, and is opened afresh
    on another thread after a growing pause; one that is lost has reasons (lost); the others have their values. A driver
    that was reloaded is opened again at once, then with a growing pause; until then all its GPUs count as lost. While a
    GPU is lost the library is opened anew at each enumeration, so that it is seen when it comes back. One that was lost
    before the start is named by the driver's files in `driver_files`, or by its place where they do not tell. Raises
    Unavailable where NVML cannot be opened at the start, and where the driver was replaced under the loaded library,
    which only a new process can mend.
    """

    name = "nvml"

    def __init__(
        self,
        library: Nvml,
        place: Place,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        clock: Clock | None = None,
        own: OwnMetrics | None = None,
        driver_files: Path = DRIVER_GPUS,
    ) -> None:
        self._library = library
        self._driver_files = driver_files
        self._place = place
        self.deadline_seconds = deadline_seconds
        self._clock = clock if clock is not None else SystemClock()
        self._workers: Workers[_Result] = Workers()
        self._watch = XidWatch(library, self._clock, own)
        self._stuck = Stuck()
        self._devices: dict[str, Device] = {}
        self._without_handle: frozenset[str] = frozenset()
        self._count = 0
        self._listed_ms: int | None = None
        self._account = Account(place.host, self.name, self._watch, own)
        self._retired: tuple[Activity, ...] = ()
        self._open = True
        self._reopen_at_ms = 0
        self._pause_ms = SECOND
        try:
            self._take(self._opened(OPEN_SECONDS), retire=False)
        except NvmlFailure as failure:
            self._workers.close()
            raise unavailable(failure) from None

    @property
    def stuck_readers(self) -> int:
        """Calls into the driver that have not come back, those of GPUs opened afresh since among them."""
        return len(self._workers.stuck) + self._workers.left_behind

    def gpus(self) -> list[Gpu]:
        return [gpu for device in self._devices.values() for gpu in (device.gpu, *(i.gpu for i in device.instances))]

    def read(self, now_ms: int) -> Batch:
        events: list[Event] = []
        taken: dict[str, _Taken] = {}
        for _ in range(2):
            if not self._is_open(now_ms, events):
                break
            try:
                self._refresh(now_ms, events)
                taken = self._read_all(now_ms, events)
                break
            except NvmlFailure as failure:
                self._went_away(failure, now_ms)
        events += self._watch.drain()
        readings: list[Reading] = []
        for uuid, device in self._devices.items():
            readings += self._noted(device, taken.get(uuid), now_ms, events)
        return Batch(readings=tuple(readings), events=tuple(events))

    def _noted(self, device: Device, taken: _Taken | None, now_ms: int, events: list[Event]) -> list[Reading]:
        if taken is None:
            unseen = not self._open or device.gpu.uuid in self._without_handle
            return self._account.absent(device, Missing.LOST if unseen else Missing.TIMED_OUT, now_ms, events)
        self._account.took(taken.seconds)
        if taken.look is None:
            return self._account.absent(device, Missing.LOST, now_ms, events)
        return self._account.seen(device, taken.look, now_ms, events)

    def close(self) -> None:
        if self._open:
            self._shut_down()
        self._watch.close()
        self._workers.close()

    def _opened(self, seconds: float) -> _Listing:
        """The library opened and its GPUs listed. Raises NvmlFailure, a time-out among them."""
        listing = self._run_one(self._open_and_list, seconds)
        if isinstance(listing, _Listing):
            return listing
        raise NvmlFailure(Code.TIMEOUT, f"no answer within {seconds:g} s")

    def _open_and_list(self) -> _Listing:
        self._library.open()
        # What belongs to an earlier opening must not be used again.
        return self._listed({})

    def _run_one(self, task: Callable[[], _Result], seconds: float) -> _Result | None:
        result = self._workers.run({_LIBRARY: _guarded(task)}, seconds).get(_LIBRARY)
        if isinstance(result, NvmlFailure):
            raise result
        return result

    def _is_open(self, now_ms: int, events: list[Event]) -> bool:
        if self._open:
            return True
        if 0 < self._reopen_at_ms - now_ms <= MAX_RETRY_MS:  # a longer wait is a clock that was set back
            return False
        try:
            self._take(self._opened(self.deadline_seconds), retire=False)
        except NvmlFailure as failure:
            self._went_away(failure, now_ms)
            return False
        self._open = True
        self._pause_ms = SECOND
        self._listed_ms = now_ms
        events.append(self._account.event(EventKind.DRIVER_RELOAD, "", now_ms, "NVML went away and was opened again"))
        return True

    def _went_away(self, failure: NvmlFailure, now_ms: int) -> None:
        if failure.code == Code.LIB_RM_VERSION_MISMATCH:
            raise unavailable(failure) from None
        if self._open:
            self._shut_down()
            self._reopen_at_ms = now_ms
        else:
            self._reopen_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, MAX_RETRY_MS)
        wait = (self._reopen_at_ms - now_ms) / SECOND
        _log.warning("NVML went away", problem=str(failure), code=failure.code, retry_seconds=wait)

    def _shut_down(self) -> None:
        self._open = False
        free = self._watch.release()
        if not free or self._workers.stuck or self._workers.left_behind:
            # Closing the library under a call that hangs in it would hang as well.
            return
        try:
            self._run_one(self._close_library, self.deadline_seconds)
        except NvmlFailure as failure:
            _log.debug("NVML did not close", problem=str(failure), code=failure.code)

    def _close_library(self) -> int:
        for activity in (*self._retired, *(a for device in self._devices.values() for a in device.activities)):
            activity.close()
        self._retired = ()
        self._library.close()
        return 0

    def _refresh(self, now_ms: int, events: list[Event]) -> None:
        """List the GPUs anew where that is due."""
        if self._listed_ms is None:
            self._listed_ms = now_ms
        if 0 <= now_ms - self._listed_ms < ENUMERATE_MS:
            return
        if self._account.lost and not self._workers.stuck and not self._workers.left_behind:
            # A lost GPU does not come back to handles that were open when it went.
            self._shut_down()
            self._take(self._opened(self.deadline_seconds), retire=False)
            self._open = True
            self._listed_ms = now_ms
            return
        self._enumerate(now_ms, events)

    def _enumerate(self, now_ms: int, events: list[Event]) -> None:
        before = set(self._devices)
        listing = self._run_one(self._list, self.deadline_seconds)
        if not isinstance(listing, _Listing):
            return
        self._take(listing, retire=True)
        self._listed_ms = now_ms
        events += self._account.relisted(before, self._devices.keys(), now_ms)

    def _list(self) -> _Listing:
        return self._listed(self._devices)

    def _listed(self, before: Mapping[str, Device]) -> _Listing:
        count = int(self._library.call("nvmlDeviceGetCount"))
        # Opening a GPU in which a call hangs would hang as well; it keeps its place.
        hanging = {d.gpu.index for uuid, d in self._devices.items() if uuid in self._stuck.uuids}
        devices: list[Device] = []
        closed: dict[int, NvmlFailure] = {}
        for index in range(count):
            if index in hanging:
                closed[index] = NvmlFailure(Code.TIMEOUT, "a call to this GPU hangs")
                continue
            try:
                devices.append(open_device(self._library, index, self._place, before))
            except NvmlFailure as failure:
                if failure.code in _GONE:
                    raise
                closed[index] = failure
        self._watch.register(devices)
        return _Listing(count, tuple(devices), closed, text(attempt(self._library, "nvmlSystemGetDriverVersion")))

    def _take(self, listing: _Listing, *, retire: bool) -> None:
        """Go on with what `listing` found; `retire` what only earlier devices of the same opening need."""
        opened = {device.gpu.uuid: device for device in listing.devices}
        # A GPU that fell off the bus keeps its place in the count but gives no handle: its UUID is known from before,
        # and the handle of before must not be used again.
        left = {
            uuid: device
            for uuid, device in self._devices.items()
            if uuid not in opened and device.gpu.index in listing.closed
        }
        left |= self._never_opened(listing, {device.gpu.index for device in left.values()}, opened)
        for index, failure in listing.closed.items():
            _log.warning("GPU cannot be opened", index=index, problem=str(failure), code=failure.code)
        if retire:
            kept = {id(a) for device in (opened | left).values() for a in device.activities}
            gone = (a for uuid, d in self._devices.items() if uuid not in self._stuck.uuids for a in d.activities)
            self._retired += tuple(activity for activity in gone if id(activity) not in kept)
        self._devices = opened | left
        self._without_handle = frozenset(left.keys() - self._stuck.uuids)
        self._count = listing.count
        self._account.driver = listing.driver

    def _never_opened(
        self, listing: _Listing, known: Collection[int | None], opened: Collection[str]
    ) -> dict[str, Device]:
        """GPUs that the driver counts but that gave no handle since the start, as devices without one."""
        unknown = [
            index for index, failure in listing.closed.items() if index not in known and failure.code not in _NOT_OURS
        ]
        if not unknown:
            return {}
        named = name_closed(unknown, {*opened, *self._devices}, driver_gpus(self._driver_files))
        found: dict[str, Device] = {}
        for index in unknown:
            told = named.get(index)
            uuid = (told.uuid if told is not None else "") or f"GPU-unknown-{self._place.host}-{index}"
            model, bus = (told.model, told.pci_bus_id) if told is not None else ("", "")
            gpu = self._place.gpu(uuid, index=index, model=model, pci_bus_id=bus)
            found[uuid] = Device(self._library, None, gpu, ())
        return found

    def _read_all(self, now_ms: int, events: list[Event]) -> dict[str, _Taken]:
        self._given_up(_LIBRARY, now_ms)
        tasks: dict[str, Callable[[], _Result]] = {_LIBRARY: _guarded(self._count_gpus)}
        for uuid in self._watch.hurried() & self._devices.keys():
            self._devices[uuid].hurry()
        for uuid, device in self._devices.items():
            if uuid not in self._without_handle:
                tasks[uuid] = self._task(device, now_ms)
        taken, count = self._sort(self._workers.run(tasks, self.deadline_seconds))
        self._stuck.note(self._workers.stuck, now_ms)
        if count is not None and count != self._count:
            self._enumerate(now_ms, events)
            fresh = {u: self._task(d, now_ms) for u, d in self._devices.items() if u not in self._without_handle}
            taken, _ = self._sort(self._workers.run(fresh, self.deadline_seconds))
        return taken

    def _sort(self, results: Mapping[str, _Result]) -> tuple[dict[str, _Taken], int | None]:
        taken: dict[str, _Taken] = {}
        count = None
        for uuid, result in results.items():
            if isinstance(result, NvmlFailure):
                raise result
            if isinstance(result, _Taken):
                taken[uuid] = result
                self._devices[uuid] = result.device
            elif isinstance(result, int):
                count = result
        return taken, count

    def _count_gpus(self) -> int:
        retired, self._retired = self._retired, ()
        for activity in retired:
            activity.close()
        return int(self._library.call("nvmlDeviceGetCount"))

    def _task(self, device: Device, now_ms: int) -> Callable[[], _Result]:
        uuid = device.gpu.uuid
        if self._given_up(uuid, now_ms):
            return _guarded(lambda: self._afresh(device, now_ms))
        return _guarded(lambda: self._timed(device, now_ms))

    def _given_up(self, key: str, now_ms: int) -> bool:
        """Whether a call that hangs is now left behind, so that `key` is tried on another thread."""
        if not self._stuck.due(key, now_ms) or self._workers.left_behind >= self._stuck.most_left_behind:
            return False
        self._workers.abandon(key)
        return True

    def _timed(self, device: Device, now_ms: int) -> _Taken:
        begun = self._clock.monotonic()
        look = device.read(now_ms)
        return _Taken(device, look, self._clock.monotonic() - begun)

    def _afresh(self, stale: Device, now_ms: int) -> _Taken:
        """A reading of a GPU in which an earlier call still hangs, through a handle and memory of its own."""
        device = open_device(self._library, stale.gpu.index or 0, self._place, {})
        if device.gpu.uuid != stale.gpu.uuid:
            return _Taken(stale, None, 0.0)
        return self._timed(device, now_ms)


def _guarded(task: Callable[[], _Result]) -> Callable[[], _Result]:
    """`task` with an NvmlFailure as its result where it raises one."""

    def run() -> _Result:
        try:
            return task()
        except NvmlFailure as failure:
            return failure

    return run
