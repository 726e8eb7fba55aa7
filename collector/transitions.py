"""Events that only a comparison with the reading before shows: a GPU lost, a GPU back, a new verdict of the driver."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading


class Transitions:
    """Remembers how each GPU last looked to one source. The first look at a GPU is no transition.

    `lost` are the GPUs that are listed, and lost.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[str, Gpu] = {}
        self.lost: set[str] = set()
        self._actions: dict[str, float] = {}
        self._begun = False

    def note(self, readings: Sequence[Reading], now_ms: int) -> list[Event]:
        """What changed since the call before; `readings` are those of all physical GPUs."""
        events: list[Event] = []
        gpus = {reading.gpu.uuid: reading.gpu for reading in readings}
        for uuid in self._known.keys() - gpus.keys():
            if uuid not in self.lost:
                events.append(self._event(EventKind.GPU_LOST, self._known[uuid], now_ms, "the GPU is no longer listed"))
            self.forget(uuid)
        for reading in readings:
            if self._begun and reading.gpu.uuid not in self._known:
                events.append(self._event(EventKind.GPU_FOUND, reading.gpu, now_ms, "a new GPU is listed"))
            events += self._noted(reading, now_ms)
        self._known = gpus
        self._begun = True
        return events

    def forget(self, uuid: str) -> None:
        """Let a GPU go without an event: it became MIG instances, or was lost long ago."""
        self._known.pop(uuid, None)
        self.lost.discard(uuid)
        self._actions.pop(uuid, None)

    def admit(self, gpu: Gpu) -> None:
        """Let a GPU be known without an event: it was there before, under no name or another."""
        self._known.setdefault(gpu.uuid, gpu)

    def _noted(self, reading: Reading, now_ms: int) -> list[Event]:
        uuid = reading.gpu.uuid
        events: list[Event] = []
        if reading.is_lost:
            if uuid not in self.lost:
                self.lost.add(uuid)
                text = "the GPU does not answer the driver"
                events.append(self._event(EventKind.GPU_LOST, reading.gpu, now_ms, text))
        elif reading.values and uuid in self.lost:
            self.lost.discard(uuid)
            events.append(self._event(EventKind.GPU_FOUND, reading.gpu, now_ms, "the GPU answers again"))
        if (action := reading.values.get("gpu_recovery_action")) is not None:
            if action != self._actions.get(uuid, 0.0):
                text = f"the driver's recovery verdict is now {action:.0f}"
                events.append(self._event(EventKind.RECOVERY_ACTION, reading.gpu, now_ms, text, int(action)))
            self._actions[uuid] = action
        return events

    def _event(self, kind: EventKind, gpu: Gpu, now_ms: int, message: str, code: int = 0) -> Event:
        return Event(kind, gpu.uuid, gpu.host, now_ms, code, message, self._source)
