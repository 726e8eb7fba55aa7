"""The GPUs of this node, read through NVML.

Invariants of the source, which everything below keeps:

- No call into the driver is made on the thread of `read`. A driver call can hang in the kernel for good, and a thread
  inside one can neither be stopped nor its process be killed without the risk of wedging the GPU: so the agent must be
  able to go on without it.
- Of each GPU at most one call is waited for, and the library is never closed while any call is out, one that was left
  behind among them, or while a thread waits for events: closing under a call that hangs would hang as well.
- A handle, a device or an event set is used only within the opening of the library that gave it. NVML does not say that
  an old handle is stale: after a reload it may name another GPU, and values would go to the wrong UUID.
- A GPU that was listed has a reading at every instant, of reasons where there are no values, until the driver no longer
  counts it. Silence would look the same as a GPU that was taken out, and no rule would fire.
- Lost is said of a GPU only by its own answer, by a driver that counts it but gives no handle, or while a driver that
  went away stays away. A library that is slow, or was closed on request, says nothing of any GPU: timed out, not due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.collector.nvml.device import (
    DRIVER_GPUS,
    DeviceSample,
    KnownGpus,
    Listing,
    NvmlDevice,
    list_gpus,
    open_device,
)
from tocsin.collector.nvml.events import XidWatch
from tocsin.collector.nvml.gpm import GpmActivity
from tocsin.collector.nvml.library import LIBRARY_CODES, Code, Nvml, NvmlFailure, unavailable
from tocsin.collector.nvml.workers import DriverThreads
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Missing, Reading
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
FIRST_RETRY_MS = 5 * MINUTE
"""How long a call may hang before its GPU is tried on another thread; the pause doubles with each try."""
MAX_STUCK_RETRY_MS = HOUR
MOST_LEFT_BEHIND = 8
"""Threads that may hang in the driver for good; with as many no further try is made."""
_LIBRARY = "library"
"""Key of what is asked of the library as a whole, beside the UUIDs of GPUs."""


class ReadingBuilder:
    """Turns looks at GPUs into readings, and what changed since the look before into events.

    `driver` is the driver's version as last listed.
    """

    def __init__(self, host: str, source: str, watch: XidWatch, own: OwnMetrics | None) -> None:
        self._host = host
        self._source = source
        self._watch = watch
        self._own = own
        self._transitions = Transitions(source)
        self._logged_models: set[tuple[str, str]] = set()
        self.driver = ""

    @property
    def lost(self) -> AbstractSet[str]:
        """GPUs that are listed and do not answer the driver."""
        return self._transitions.lost

    def event(self, kind: EventKind, at_ms: int, message: str) -> Event:
        """An event of this host that belongs to no GPU."""
        return Event(kind, "", self._host, at_ms, 0, message, self._source)

    def took(self, seconds: float) -> None:
        """How long one GPU's reading took."""
        if self._own is not None:
            self._own.observe("tocsin_nvml_read_seconds", seconds)

    def seen(self, device: NvmlDevice, look: DeviceSample, now_ms: int) -> list[Reading]:
        """The readings of a GPU that answers."""
        self._count("ok")
        self._tell(device, look)
        values, missing = self._watch.values(device.gpu.uuid)
        look.values.update(values)
        look.missing.update(missing)
        return [Reading(device.gpu, now_ms, look.values, look.missing), *look.instances]

    def absent(self, device: NvmlDevice, reason: Missing, now_ms: int) -> list[Reading]:
        """The readings of a GPU that does not answer."""
        self._count(reason.label)
        return device.absent(now_ms, reason)

    def changes(self, readings: Sequence[Reading], now_ms: int) -> list[Event]:
        """GPUs lost and found and new verdicts of the driver, which are dated by their announcement."""
        whole = [reading for reading in readings if not reading.gpu.is_mig]
        events = self._transitions.note(whole, now_ms)
        asked = [reading.gpu.uuid for reading in whole if "gpu_recovery_action" in reading.values]
        announced = {uuid: at_ms for uuid in asked if (at_ms := self._watch.verdict_at(uuid)) is not None}
        if not announced:
            return events
        return [
            replace(event, at_ms=min(announced.get(event.gpu, now_ms), now_ms))
            if event.kind is EventKind.RECOVERY_ACTION
            else event
            for event in events
        ]

    def _tell(self, device: NvmlDevice, look: DeviceSample) -> None:
        """One line for each model and driver: what can be read, and what cannot."""
        kind = (device.gpu.model, self.driver)
        if kind in self._logged_models:
            return
        self._logged_models.add(kind)
        unsupported = sorted(key for key, reason in look.missing.items() if reason is Missing.UNSUPPORTED)
        names = {key.split("{", 1)[0] for key in look.values}
        _log.info("GPU model", model=kind[0], driver=kind[1], metrics=len(names), unsupported=unsupported)

    def _count(self, outcome: str) -> None:
        if self._own is not None:
            self._own.count("tocsin_nvml_reads_total", outcome=outcome)


@dataclass(slots=True)
class _Hang:
    """One time without an answer."""

    since_ms: int
    retry_ms: int
    pause_ms: int = FIRST_RETRY_MS


class HungCalls:
    """The calls that have not come back, when each began and when to try again. Begin and end are logged.

    Each further try may cost one more thread for good, since what hung once will most often hang again: the pause
    doubles up to an hour, and while `most_left_behind` threads are out no further try is made. The GPU stays timed out
    then, and the others are still read.
    """

    most_left_behind = MOST_LEFT_BEHIND

    def __init__(self) -> None:
        self._hangs: dict[str, _Hang] = {}

    @property
    def uuids(self) -> AbstractSet[str]:
        """What hangs: GPUs by UUID, and the library as a whole."""
        return self._hangs.keys()

    def note(self, stuck: AbstractSet[str], now_ms: int) -> None:
        """`stuck` are those whose call is out after the reading at `now_ms`."""
        for uuid in stuck - self._hangs.keys():
            self._hangs[uuid] = _Hang(now_ms, now_ms + FIRST_RETRY_MS)
            _log.warning("a call into the driver hangs: it is not asked again until that comes back", reader=uuid)
        for uuid in self._hangs.keys() - stuck:
            hang = self._hangs.pop(uuid)
            _log.info("it answers again", reader=uuid, seconds=(now_ms - hang.since_ms) / SECOND)

    def due(self, uuid: str, now_ms: int) -> bool:
        """Whether to try `uuid` afresh now; if so, the next try is put off further."""
        hang = self._hangs.get(uuid)
        if hang is None or 0 < hang.retry_ms - now_ms <= hang.pause_ms:  # a longer wait is a clock that was set back
            return False
        hang.pause_ms = min(2 * hang.pause_ms, MAX_STUCK_RETRY_MS)
        hang.retry_ms = now_ms + hang.pause_ms
        return True


@dataclass(frozen=True, slots=True)
class _Taken:
    """One reading of one GPU: None where it is lost. `device` is a new one where the GPU was opened afresh."""

    device: NvmlDevice
    look: DeviceSample | None
    seconds: float


_Result = _Taken | Listing | int | NvmlFailure


class NvmlSource:
    """A `Source` over NVML.

    Every call into the driver is made on a thread that can be left behind, and each GPU has `deadline_seconds`: one
    that hangs has a reading of reasons (timed out), is not asked again until its call comes back, and is opened afresh
    on another thread after a growing pause; one that is lost has reasons (lost); the others have their values. A driver
    that was reloaded is opened again at once, then with a growing pause; until then all its GPUs count as lost. While a
    GPU is lost, or the kernel's driver has a new one, the library is opened anew at each enumeration, so that it is
    seen when it comes. One that was lost before the start is named by the driver's files in `driver_files`, or by its
    place where they do not tell. While `released` says so, the library is closed and nothing is read (not due).

    With `clock` rates are growth over its monotonic scale; without, over the instants that `read` is given. Raises
    Unavailable where NVML cannot be opened at the start, and where the driver was replaced under the loaded library,
    which only a new process can mend.
    """

    name = "nvml"

    def __init__(
        self,
        library: Nvml,
        node: NodeIdentity,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        clock: Clock | None = None,
        own: OwnMetrics | None = None,
        driver_files: Path = DRIVER_GPUS,
        released: Callable[[], bool] = lambda: False,
    ) -> None:
        self._library = library
        self._own = own
        self._released = released
        self._steady = clock is not None
        self._driver_files = driver_files
        self._node = node
        self.deadline_seconds = deadline_seconds
        self._clock = clock if clock is not None else SystemClock()
        self._workers: DriverThreads[_Result] = DriverThreads()
        self._watch = XidWatch(library, self._clock, own)
        self._stuck = HungCalls()
        self._devices: dict[str, NvmlDevice] = {}
        self._without_handle: frozenset[str] = frozenset()
        self._present: frozenset[str] = frozenset()
        self._appeared = False
        self._count = 0
        self._listed_ms: int | None = None
        self._builder = ReadingBuilder(node.host, self.name, self._watch, own)
        self._retired: tuple[GpmActivity, ...] = ()
        self._open = True
        self._closed = False
        self._away = Missing.TIMED_OUT
        self._reopen_at_ms = 0
        self._pause_ms = SECOND
        try:
            self._take(self._opened(OPEN_SECONDS), retire=False)
        except NvmlFailure as failure:
            self.close()
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
        released = self._released()
        if released:
            self._give_back()
        for _ in range(0 if released else 2):
            if not self._is_open(now_ms, events):
                break
            try:
                self._refresh(now_ms)
                taken = self._read_all(now_ms)
                break
            except NvmlFailure as failure:
                self._went_away(failure, now_ms)
        events += self._watch.drain()
        readings: list[Reading] = []
        for uuid, device in self._devices.items():
            readings += self._noted(device, taken.get(uuid), now_ms)
        events += self._builder.changes(readings, now_ms)
        return Batch(readings=tuple(readings), events=tuple(events))

    def _noted(self, device: NvmlDevice, taken: _Taken | None, now_ms: int) -> list[Reading]:
        if taken is not None:
            self._builder.took(taken.seconds)
            if taken.look is not None:
                return self._builder.seen(device, taken.look, now_ms)
        reason = Missing.LOST
        if not self._open:
            reason = self._away
        elif taken is None and device.gpu.uuid not in self._without_handle:
            reason = Missing.TIMED_OUT
        return self._builder.absent(device, reason, now_ms)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._shut_down()
        self._watch.close()
        self._workers.close()

    def _opened(self, seconds: float) -> Listing:
        """The library opened and its GPUs listed. Raises NvmlFailure, a time-out among them."""
        # What belongs to an earlier opening must not be used again.
        known = KnownGpus(dict(self._devices), frozenset(self._stuck.uuids), same_opening=False)

        def task() -> Listing:
            self._library.open()
            return self._listed(known)

        listing = self._run_one(task, seconds)
        if isinstance(listing, Listing):
            return listing
        raise NvmlFailure(Code.TIMEOUT, f"no answer within {seconds:g} s")

    def _listed(self, known: KnownGpus) -> Listing:
        listing = list_gpus(self._library, self._node, known, self._driver_files)
        self._watch.register(listing.devices)
        return listing

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
            # An earlier try may have opened the library and gone no further, or may not have been able to close it.
            self._let_go()
            self._take(self._opened(self.deadline_seconds), retire=False)
        except NvmlFailure as failure:
            self._went_away(failure, now_ms)
            return False
        self._pause_ms = SECOND
        self._listed_ms = now_ms
        if self._away is Missing.LOST:
            text = "NVML went away and was opened again"
            events.append(self._builder.event(EventKind.DRIVER_RELOAD, now_ms, text))
        self._open, self._away = True, Missing.TIMED_OUT
        self._show_released(False)
        return True

    def _went_away(self, failure: NvmlFailure, now_ms: int) -> None:
        if failure.code == Code.LIB_RM_VERSION_MISMATCH:
            raise unavailable(failure) from None
        # A library that only takes its time, as it does where it has to wake every GPU, says nothing of any GPU.
        slow = failure.code == Code.TIMEOUT and self._away is not Missing.LOST
        self._away = Missing.TIMED_OUT if slow else Missing.LOST
        if self._open:
            self._shut_down()
            self._reopen_at_ms = now_ms
        else:
            self._reopen_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, MAX_RETRY_MS)
        wait = (self._reopen_at_ms - now_ms) / SECOND
        _log.warning("NVML went away", problem=str(failure), code=failure.code, retry_seconds=wait)

    def _give_back(self) -> None:
        """Close the library as was asked for; tried with each reading while a call hangs in it."""
        if self._open:
            self._open, self._away = False, Missing.NOT_DUE
            self._reopen_at_ms = 0
        self._show_released(self._let_go())

    def _show_released(self, released: bool) -> None:
        if self._own is not None:
            self._own.set("tocsin_nvml_released", float(released))

    def _shut_down(self) -> None:
        self._open = False
        self._let_go()

    def _let_go(self) -> bool:
        """Close the library; whether it is closed now. Closing it under a call that hangs in it would hang as well."""
        free = self._watch.release()
        if not free or self._workers.stuck or self._workers.left_behind:
            return False
        try:
            return self._run_one(self._close_library, self.deadline_seconds) is not None
        except NvmlFailure as failure:
            _log.debug("NVML did not close", problem=str(failure), code=failure.code)
            return failure.code == Code.UNINITIALIZED

    def _close_library(self) -> int:
        self._watch.free()
        for activity in (*self._retired, *(a for device in self._devices.values() for a in device.activities)):
            activity.close()
        self._retired = ()
        self._library.close()
        return 0

    def _refresh(self, now_ms: int) -> None:
        """List the GPUs anew where that is due."""
        if self._listed_ms is None:
            self._listed_ms = now_ms
        if 0 <= now_ms - self._listed_ms < ENUMERATE_MS:
            return
        calm = not self._workers.stuck and not self._workers.left_behind
        # Closing takes every handle from every GPU: it waits until no call is out, and is done only where there is one
        # to be seen that an open library cannot show.
        if calm and (self._appeared or self._builder.lost):
            # Handles that were open when a GPU went, or was not there yet, never see it.
            self._shut_down()
            self._take(self._opened(self.deadline_seconds), retire=False)
            self._open = True
            self._listed_ms = now_ms
            return
        self._enumerate(now_ms)

    def _enumerate(self, now_ms: int) -> None:
        known = KnownGpus(dict(self._devices), frozenset(self._stuck.uuids), same_opening=True)
        listing = self._run_one(lambda: self._listed(known), self.deadline_seconds)
        if isinstance(listing, Listing):
            self._take(listing, retire=True)
            self._listed_ms = now_ms

    def _take(self, listing: Listing, *, retire: bool) -> None:
        """Go on with what `listing` found; `retire` what only earlier devices of the same opening need."""
        devices = {**{device.gpu.uuid: device for device in listing.devices}, **listing.left}
        if retire:
            in_use = {id(a) for device in devices.values() for a in device.activities}
            gone = (a for uuid, d in self._devices.items() if uuid not in self._stuck.uuids for a in d.activities)
            self._retired += tuple(activity for activity in gone if id(activity) not in in_use)
        else:
            self._present = listing.present
        self._appeared = not listing.present <= self._present
        self._devices = devices
        self._without_handle = frozenset(listing.left.keys() - self._stuck.uuids)
        self._count = listing.count
        self._builder.driver = listing.driver

    def _read_all(self, now_ms: int) -> dict[str, _Taken]:
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
            self._enumerate(now_ms)
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
        try:
            return int(self._library.call("nvmlDeviceGetCount"))
        except NvmlFailure as failure:
            if failure.code in LIBRARY_CODES:
                raise
            return self._count

    def _task(self, device: NvmlDevice, now_ms: int) -> Callable[[], _Result]:
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

    def _timed(self, device: NvmlDevice, now_ms: int) -> _Taken:
        begun = self._clock.monotonic()
        look = device.read(now_ms, round(begun * SECOND) if self._steady else now_ms)
        return _Taken(device, look, self._clock.monotonic() - begun)

    def _afresh(self, stale: NvmlDevice, now_ms: int) -> _Taken:
        """A reading of a GPU in which an earlier call still hangs, through a handle and memory of its own."""
        try:
            device = open_device(self._library, stale.gpu.index or 0, self._node, {})
        except NvmlFailure as failure:
            if failure.code in LIBRARY_CODES:
                raise
            return _Taken(stale, None, 0.0)
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
