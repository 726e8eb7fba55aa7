"""Events of the driver, through one NVML event set and a thread that waits on it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from tocsin.collector.nvml.answers import quiet_reason
from tocsin.collector.nvml.device import NvmlDevice
from tocsin.collector.nvml.library import ALL_EVENTS, LIBRARY_CODES, DeviceEvent, EventType, Nvml, NvmlFailure
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Gpu, Missing
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")

WAIT_MS = 200
"""How long one wait blocks in the driver: what closing has to wait for at most."""
MAX_WAITING = 4096
"""XIDs kept for the next readings; in a storm the rest is counted as dropped."""
_MOST_AT_ONCE = 256
"""A storm of XIDs must not swell one batch; what is left comes with the next."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""Shortest and longest pause after a wait that failed."""


class XidWatch:
    """Waits for events and dates each at the instant when the wait comes back; counts them since its start.

    XIDs become events. Of the other kinds the driver tells nothing but that they happened: they are counted, and the
    GPU is due for a full reading (`hurried`). A wait that fails says nothing about any GPU: it is tried again with a
    fresh event set after a growing pause.

    The thread owns no handle of its own: under the lock it takes the event set that is current, and says by `_waiting`
    that it is inside the driver with it. A set that was let go is freed only when nobody waits on it, and the library
    may be closed only when `release` saw the thread come back: closing under a wait hangs, or frees what the driver
    still writes to.
    """

    def __init__(self, library: Nvml, clock: Clock, own: OwnMetrics | None = None) -> None:
        self._library = library
        self._clock = clock
        self._own = own
        self._change = threading.Condition()
        self._set: Any = None
        self._made: Any = None
        self._spent: list[Any] = []
        self._watched: dict[int, tuple[Gpu, Any]] = {}
        self._deaf: dict[str, Missing] = {}
        self._waiting = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._queue: deque[Event] = deque()
        self._hurried: set[str] = set()
        self._verdicts: dict[str, int] = {}
        self._newest: dict[tuple[str, int], int] = {}
        self._values: dict[str, dict[str, float]] = {}
        self._pause = FIRST_PAUSE_SECONDS

    def register(self, devices: Iterable[NvmlDevice]) -> None:
        """Watch `devices`, those already watched and new ones; called as each is opened, by several threads at once."""
        for device in devices:
            self._register(device.gpu, device.handle)
        with self._change:
            if self._set is not None and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="nvml events", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def _register(self, gpu: Gpu, handle: Any) -> None:
        key = self._library.key(handle)
        known = self._watched.get(key)
        if known is not None and known[0].uuid == gpu.uuid and gpu.uuid not in self._deaf:
            return
        event_set = None
        try:
            event_set = self._event_set()
            self._library.call("nvmlDeviceRegisterEvents", handle, self._kinds(handle), event_set)
        except NvmlFailure as failure:
            self._deaf[gpu.uuid] = quiet_reason(failure.code)
        else:
            self._deaf.pop(gpu.uuid, None)
            self._values.setdefault(gpu.uuid, {"gpu_xid_last_code": 0.0})
        with self._change:
            if event_set is not None and event_set is not self._made:
                return  # the library was let go of meanwhile: this handle is void
            self._watched = {**self._watched, key: (gpu, handle)}
            if gpu.uuid not in self._deaf:
                self._set = event_set

    def _event_set(self) -> Any:
        """The set to register with; it is current, and waited for, once something is registered."""
        if (made := self._made) is None:
            made = self._library.call("nvmlEventSetCreate")
            with self._change:
                if self._made is None:
                    self._made = made
                else:
                    self._spent.append(made)
                    made = self._made
        return made

    def _kinds(self, handle: Any) -> int:
        try:
            supported = int(self._library.call("nvmlDeviceGetSupportedEventTypes", handle))
        except NvmlFailure:
            supported = 0
        return (supported & ALL_EVENTS) | EventType.XID

    def release(self) -> bool:
        """Let go of the event set and all handles, as before the library is closed; counts stay. Asks nothing.

        False where the thread does not come back from the driver: then the library must not be closed.
        """
        with self._change:
            self._forget()
            self._deaf.clear()
            self._change.notify_all()
            return self._change.wait_for(lambda: not self._waiting, 1.0 + WAIT_MS / SECOND)

    def free(self) -> None:
        """Give the driver back the event sets that nobody waits on any more."""
        with self._change:
            spent, self._spent = self._spent, []
        for event_set in spent:
            try:
                self._library.call("nvmlEventSetFree", event_set)
            except NvmlFailure as failure:
                _log.debug("NVML event set was not freed", problem=str(failure), code=failure.code)

    def _forget(self) -> None:
        """Let go of the event set and all handles; the lock is held."""
        if self._made is not None:
            self._spent.append(self._made)
        self._set = self._made = None
        self._watched = {}

    def close(self) -> None:
        """End the thread; `release` comes before."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None and not self._waiting:
            self._thread.join(1.0)

    def drain(self) -> list[Event]:
        """XIDs since the call before, oldest first."""
        return [self._queue.popleft() for _ in range(min(len(self._queue), _MOST_AT_ONCE))]

    def hurried(self) -> set[str]:
        """GPUs to which something happened since the call before."""
        with self._change:
            hurried, self._hurried = self._hurried, set()
        return hurried

    def verdict_at(self, uuid: str) -> int | None:
        """When the driver announced a new recovery verdict of a GPU that was not asked for yet."""
        return self._verdicts.pop(uuid, None)

    def values(self, uuid: str) -> tuple[dict[str, float], dict[str, Missing]]:
        """The event metrics of a GPU: the last XID, 0 where none was seen, a count per XID and per other event."""
        if (deaf := self._deaf.get(uuid)) is not None:
            return {}, {"gpu_xid_last_code": deaf}
        return self._values.get(uuid, {}), {}

    def _run(self) -> None:
        while True:
            with self._change:
                self._waiting = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._closed or self._set is not None)
                if self._closed:
                    return
                event_set = self._set
                self._waiting = True
            began = self._clock.monotonic()
            try:
                seen = self._library.wait(event_set, WAIT_MS)
            except NvmlFailure as failure:
                self._failed(failure, event_set)
                continue
            self._pause = FIRST_PAUSE_SECONDS
            if seen is not None:
                self._note(seen, self._clock.now_ms())
            elif self._clock.monotonic() - began < WAIT_MS / SECOND / 2:
                # A driver that does not block must not make this thread spin.
                self._rest(WAIT_MS / SECOND, event_set)

    def _rest(self, seconds: float, event_set: Any) -> None:
        with self._change:
            self._waiting = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._closed or self._set is not event_set, seconds)

    def _failed(self, failure: NvmlFailure, event_set: Any) -> None:
        if failure.code in LIBRARY_CODES:
            # The readings meet the same failure and open the library; where they do not, the next listing registers.
            with self._change:
                if self._set is event_set:
                    self._forget()
            return
        _log.warning(
            "waiting for NVML events failed", problem=str(failure), code=failure.code, retry_seconds=self._pause
        )
        self._rest(self._pause, event_set)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        with self._change:
            if self._set is not event_set or self._closed:
                return
            watched = self._watched
            self._forget()
            self._waiting = True
        self.free()
        for gpu, handle in watched.values():
            self._register(gpu, handle)

    def _note(self, seen: DeviceEvent, at_ms: int) -> None:
        gpu, _ = self._watched.get(seen.device, (None, None))
        if gpu is None:
            return
        if seen.kind == EventType.XID:
            self._note_xid(gpu, seen, at_ms)
        else:
            self._note_other(gpu, seen.kind, at_ms)
        with self._change:
            self._hurried.add(gpu.uuid)

    def _note_xid(self, gpu: Gpu, seen: DeviceEvent, at_ms: int) -> None:
        code = seen.data
        self._count(gpu.uuid, variant("gpu_xid_events_total", "xid", str(code)), last=code)
        if self._newest.get((gpu.uuid, code)) == at_ms:
            # Within one millisecond the same XID is one event; its count has them all.
            return
        self._newest[gpu.uuid, code] = at_ms
        if len(self._queue) >= MAX_WAITING:
            if self._own is not None:
                self._own.count("tocsin_dropped_total", what="event", reason="storm")
            return
        on = "" if seen.instance is None else f" on GPU instance {seen.instance}"
        text = f"NVML reports Xid {code}{on}"
        self._queue.append(Event(EventKind.XID, gpu.uuid, gpu.host, at_ms, code, text, "nvml"))

    def _note_other(self, gpu: Gpu, kind: int, at_ms: int) -> None:
        try:
            name = EventType(kind).name.lower()
        except ValueError:
            name = "other"
        self._count(gpu.uuid, variant("gpu_driver_events_total", "kind", name))
        if kind == EventType.RECOVERY_ACTION:
            self._verdicts.setdefault(gpu.uuid, at_ms)
        _log.warning("NVML event", gpu=gpu.uuid, kind=name)

    def _count(self, uuid: str, key: str, last: int | None = None) -> None:
        known = self._values.get(uuid, {"gpu_xid_last_code": 0.0})
        changed = {**known, key: known.get(key, 0.0) + 1.0}
        if last is not None:
            changed["gpu_xid_last_code"] = float(last)
        # A new mapping each time: a reading may be copying the old one.
        self._values = {**self._values, uuid: changed}
