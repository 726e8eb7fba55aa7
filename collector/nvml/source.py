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

from tocsin.collector.nvml.device import DRIVER_GPUS, DeviceSample, NvmlDevice, PlausibleCounts, open_device
from tocsin.collector.nvml.events import XidWatch
from tocsin.collector.nvml.gpm import GpmActivity
from tocsin.collector.nvml.library import LIBRARY_CODES, Code, Nvml, NvmlFailure, unavailable
from tocsin.collector.nvml.opening import KnownGpus, LibraryOpening, Listing
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.collector.workers import DriverThreads, WaitBudget
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")

DEADLINE_SECONDS = 5.0
"""How long a GPU may take for one reading."""
START_SECONDS = 4.0
"""How long the start waits for the library and its GPUs; what takes longer is taken up when it comes."""
FIRST_READING_SECONDS = 6.5
"""How long start and first reading may take together: whatever its driver does, a node is heard of within 10 s."""
LEAST_SECONDS = 1.0
"""What a later step of a reading may take although an earlier one used up the time."""
OPEN_SECONDS = 60.0
"""How long one who reads but once waits for the library: without persistence mode the driver wakes every GPU first."""
CLOSE_SECONDS = 2.0
"""How long closing the library is waited for: an agent that is told to end does so within 5 s."""
OPEN_GPUS_SECONDS = 10.0
"""How long he then waits for its GPUs."""
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
_FILES = "driver files"
"""Key of reading the driver's files."""


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

    def opened_late(self, before: AbstractSet[str], gpus: Sequence[Gpu]) -> None:
        """`gpus` were there before as `before`, perhaps under no name of their own: that is no event."""
        for uuid in before - {gpu.uuid for gpu in gpus}:
            self._transitions.forget(uuid)
        for gpu in gpus:
            self._transitions.admit(gpu)

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


_Result = _Taken | int | NvmlFailure | None


class NvmlSource:
    """A `Source` over NVML.

    Every call into the driver is made on a thread that can be left behind, and each GPU has `deadline_seconds`: one
    that hangs has a reading of reasons (timed out), is not asked again until its call comes back, and is opened afresh
    on another thread after a growing pause; one that is lost has reasons (lost); the others have their values. So it is
    while the library or a GPU is opened, which may be as slow as it likes: it is timed out until it comes. A driver
    that was reloaded is opened again at once, then with a growing pause; until then all its GPUs count as lost. While a
    GPU is lost, or the kernel's driver has a new one, the library is opened anew at each enumeration, so that it is
    seen when it comes. One that was lost before the start is named by the driver's files in `driver_files`, or by its
    place where they do not tell. While `released` says so, the library is closed and nothing is read (not due).

    With `clock` rates are growth over its monotonic scale; without, over the instants that `read` is given. Raises
    Unavailable where NVML says at the start that it cannot be opened, and where the driver was replaced under the
    loaded library, which only a new process can mend.
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
        self._library, self._own = library, own
        self._released = released
        self._steady = clock is not None
        self._node, self._driver_files = node, driver_files
        self.deadline_seconds = deadline_seconds
        self._clock = clock if clock is not None else SystemClock()
        self._workers: DriverThreads[_Result] = DriverThreads()
        self._watch = XidWatch(library, self._clock, own)
        self._stuck = HungCalls()
        self._counts = PlausibleCounts(own)
        self._devices: dict[str, NvmlDevice] = {}
        self._without_handle: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._unopened: Mapping[str, int] = {}
        self._present: frozenset[str] = frozenset()
        self._appeared, self._count = False, 0
        self._listed_ms: int | None = None
        self._builder = ReadingBuilder(node.host, self.name, self._watch, own)
        self._retired: tuple[GpmActivity, ...] = ()
        self._open = self._closed = False
        self._away = Missing.TIMED_OUT
        self._reopen_at_ms, self._pause_ms = 0, SECOND
        self._opening = self._new_opening(same_opening=False)
        self._first: WaitBudget | None = WaitBudget(FIRST_READING_SECONDS)
        try:
            self._start()
        except NvmlFailure as failure:
            self.close()
            raise unavailable(failure) from None

    def _start(self) -> None:
        """Open as far as that goes in time; Raises NvmlFailure where the library says no."""
        budget = WaitBudget(START_SECONDS)
        try:
            self._advance(self._opening, budget)
        except NvmlFailure as failure:
            if failure.code != Code.TIMEOUT:
                raise
            _log.warning("NVML does not open: its GPUs are timed out until it does", problem=str(failure))
            self._name_gpus(self._opening, LEAST_SECONDS)
            self._take(self._opening.listing(), retire=False)
            return
        self._take(self._opening.listing(), retire=False)
        self._open = True

    def settle(self) -> None:
        """Wait longer for what is still being opened. Raises Unavailable where the library does not open."""
        self._first = None
        if self._open:
            self._workers.wait({self._opening.key(index) for index in self._unopened.values()}, OPEN_GPUS_SECONDS)
            return
        self._workers.wait({_LIBRARY}, OPEN_SECONDS)
        try:
            self._advance(self._opening, WaitBudget(OPEN_GPUS_SECONDS if self._opening.answered else 0.0))
        except NvmlFailure as failure:
            slow = failure.code == Code.TIMEOUT
            told = NvmlFailure(Code.TIMEOUT, f"no answer within {OPEN_SECONDS:g} s") if slow else failure
            raise unavailable(told) from None

    @property
    def stuck_readers(self) -> int:
        """Calls into the driver that have not come back, those of GPUs opened afresh since among them."""
        return len(self._workers.stuck) + self._workers.left_behind

    def gpus(self) -> list[Gpu]:
        return [gpu for device in self._devices.values() for gpu in (device.gpu, *(i.gpu for i in device.instances))]

    def hurry(self) -> None:
        """Ask everything with the next reading, for looks that are a second apart. Belongs to the thread of `read`."""
        for device in self._devices.values():
            device.hurry()

    def read(self, now_ms: int) -> Batch:
        events: list[Event] = []
        taken: dict[str, _Taken] = {}
        budget = WaitBudget(self._seconds())
        released = self._released()
        if released:
            self._give_back()
        for _ in range(0 if released else 2):
            if not self._is_open(now_ms, events, budget):
                break
            try:
                self._refresh(now_ms, budget)
                taken = self._read_all(now_ms, budget)
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
        elif taken is None and device.gpu.uuid not in self._without_handle - self._waiting:
            reason = Missing.TIMED_OUT
        return self._builder.absent(device, reason, now_ms)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._shut_down()
        self._watch.close()
        self._workers.close()

    def _seconds(self) -> float:
        """How long this reading may take."""
        first, self._first = self._first, None
        return self.deadline_seconds if first is None else min(self.deadline_seconds, first.left(LEAST_SECONDS))

    def _new_opening(self, *, same_opening: bool) -> LibraryOpening:
        hanging = frozenset(self._stuck.uuids | self._workers.stuck)
        # With another opening what belongs to an earlier one must not be used again.
        known = KnownGpus(dict(self._devices), hanging, same_opening)
        return LibraryOpening(self._library, self._node, known, self._driver_files, self._watch, self._counts)

    def _advance(self, opening: LibraryOpening, budget: WaitBudget) -> None:
        """Go on with `opening` as far as that comes in time.

        Raises NvmlFailure where the library says no, or says nothing in time.
        """
        seconds = budget.left(self._least())
        if not opening.begun:
            self._workers.run({_LIBRARY: opening.ask_library}, seconds)
        opening.check()
        if not opening.answered:
            raise NvmlFailure(Code.TIMEOUT, f"no answer within {seconds:.3g} s")
        self._workers.run(opening.gpu_tasks(), budget.left(self._least()))
        opening.check()
        self._name_gpus(opening, budget.left(self._least()))

    def _name_gpus(self, opening: LibraryOpening, seconds: float) -> None:
        if opening.wants_files():
            self._workers.run({_FILES: opening.read_files}, seconds)

    def _least(self) -> float:
        return min(LEAST_SECONDS, self.deadline_seconds)

    def _run_one(self, task: Callable[[], _Result], seconds: float) -> _Result | None:
        result = self._workers.run({_LIBRARY: _guarded(task)}, seconds).get(_LIBRARY)
        if isinstance(result, NvmlFailure):
            raise result
        return result

    def _is_open(self, now_ms: int, events: list[Event], budget: WaitBudget) -> bool:
        if self._open:
            return True
        stuck = self._workers.stuck
        self._stuck.note(stuck, now_ms)
        arrived = self._opening.answered and not self._opening.superseded
        if not arrived and not self._given_up(_LIBRARY, now_ms):
            if _LIBRARY in stuck:
                self._name_late()
                return False
            if 0 < self._reopen_at_ms - now_ms <= MAX_RETRY_MS:  # a longer wait is a clock that was set back
                return False
        try:
            if not arrived:
                # An earlier try may have opened the library and gone no further, or may not have been able to close it.
                self._let_go()
                self._renew(same_opening=False)
            self._advance(self._opening, budget)
            self._take(self._opening.listing(), retire=False)
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
        if failure.code != Code.TIMEOUT or self._opening.answered:
            self._opening.supersede()
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
        self._opening.supersede()
        free = self._watch.release()
        if not free or self._workers.stuck or self._workers.left_behind:
            return False
        try:
            return self._run_one(self._close_library, min(self.deadline_seconds, CLOSE_SECONDS)) is not None
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

    def _refresh(self, now_ms: int, budget: WaitBudget) -> None:
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
            self._renew(same_opening=False)
            self._advance(self._opening, budget)
            self._take(self._opening.listing(), retire=False)
            self._open = True
            self._listed_ms = now_ms
            return
        self._enumerate(now_ms, budget)

    def _renew(self, *, same_opening: bool) -> None:
        self._opening.supersede()
        self._opening = self._new_opening(same_opening=same_opening)

    def _enumerate(self, now_ms: int, budget: WaitBudget) -> None:
        listed = self._new_opening(same_opening=True)
        try:
            self._advance(listed, budget)
        except NvmlFailure as failure:
            listed.supersede()
            if failure.code != Code.TIMEOUT:
                raise
            return
        self._opening.supersede()
        self._opening = listed
        self._take(listed.listing(), retire=True)
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
        self._tell_late(devices, listing)
        self._devices = devices
        self._waiting = listing.waiting
        self._unopened = listing.unopened
        without = {uuid for uuid in listing.left if uuid not in listing.waiting or listing.left[uuid].handle is None}
        self._without_handle = frozenset(without | listing.unopened.keys())
        self._count = listing.count
        self._builder.driver = listing.driver

    def _tell_late(self, devices: Mapping[str, NvmlDevice], listing: Listing) -> None:
        """GPUs that were waited for, and are open now or have another name, are neither found nor lost."""
        before = self._waiting - listing.waiting
        places = {self._devices[uuid].gpu.index for uuid in before}
        late = [d.gpu for u, d in devices.items() if u in listing.waiting or d.gpu.index in places or None in places]
        if before:
            self._builder.opened_late(before, late)

    def _name_late(self) -> None:
        """Take up the names of GPUs that the driver's files brought while the library says nothing."""
        if self._opening.changed and not any(device.handle for device in self._devices.values()):
            self._take(self._opening.listing(), retire=False)

    def _take_late(self) -> None:
        """Take up what an opening brought since it was last looked at."""
        if self._opening.changed:
            self._opening.check()
            self._take(self._opening.listing(), retire=True)

    def _read_all(self, now_ms: int, budget: WaitBudget) -> dict[str, _Taken]:
        self._take_late()
        self._given_up(_LIBRARY, now_ms)
        tasks: dict[str, Callable[[], _Result]] = {_LIBRARY: _guarded(self._count_gpus)}
        for index in self._unopened.values():
            key = self._opening.key(index)
            self._given_up(key, now_ms)
            tasks[key] = self._opening.gpu_task(index)
        for uuid in self._watch.hurried() & self._devices.keys():
            self._devices[uuid].hurry()
        for uuid, device in self._devices.items():
            if uuid not in self._without_handle:
                tasks[uuid] = self._task(device, now_ms)
        taken, count = self._sort(self._workers.run(tasks, budget.left(self._least())))
        self._stuck.note(self._workers.stuck, now_ms)
        if count is not None and count != self._count:
            self._enumerate(now_ms, budget)
            fresh = {u: self._task(d, now_ms) for u, d in self._devices.items() if u not in self._without_handle}
            taken.update(self._sort(self._workers.run(fresh, budget.left(self._least())))[0])
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
            count, doubtful = self._counts.gpus(int(self._library.call("nvmlDeviceGetCount")))
            return self._count if doubtful else count
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
            device = open_device(self._library, stale.gpu.index or 0, self._node, {}, self._counts)
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
