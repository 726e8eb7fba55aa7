"""What readings say about GPUs as a whole: lost, found, a new verdict; and counts of readings."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tocsin.collector.nvml_device import Device, Look
from tocsin.collector.nvml_events import XidWatch
from tocsin.domain.event import Event, EventKind
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")


class Account:
    """Turns looks at GPUs into readings, and what changed since the look before into events.

    `lost` are the GPUs that do not answer, `driver` the driver's version as last listed.
    """

    def __init__(self, host: str, source: str, watch: XidWatch, own: OwnMetrics | None) -> None:
        self._host = host
        self._source = source
        self._watch = watch
        self._own = own
        self._actions: dict[str, float] = {}
        self._told_of: set[tuple[str, str]] = set()
        self.lost: set[str] = set()
        self.driver = ""

    def event(self, kind: EventKind, uuid: str, at_ms: int, message: str, code: int = 0) -> Event:
        """An event of this host; `uuid` is empty where it belongs to no GPU."""
        return Event(kind, uuid, self._host, at_ms, code, message, self._source)

    def took(self, seconds: float) -> None:
        """How long one GPU's reading took."""
        if self._own is not None:
            self._own.observe("tocsin_nvml_read_seconds", seconds)

    def seen(self, device: Device, look: Look, now_ms: int, events: list[Event]) -> list[Reading]:
        """The readings of a GPU that answers, after its return and a change of verdict became events."""
        uuid = device.gpu.uuid
        self._count("ok")
        if uuid in self.lost:
            self.lost.discard(uuid)
            events.append(self.event(EventKind.GPU_FOUND, uuid, now_ms, "the GPU answers again"))
        self._note_action(uuid, look.values.get("gpu_recovery_action"), now_ms, events)
        self._tell(device, look)
        values, missing = self._watch.values(uuid)
        look.values.update(values)
        look.missing.update(missing)
        return [Reading(device.gpu, now_ms, look.values, look.missing), *look.instances]

    def absent(self, device: Device, reason: Missing, now_ms: int, events: list[Event]) -> list[Reading]:
        """The readings of a GPU that does not answer, after its loss became an event."""
        uuid = device.gpu.uuid
        self._count(reason.label)
        if reason is Missing.LOST and uuid not in self.lost:
            self.lost.add(uuid)
            events.append(self.event(EventKind.GPU_LOST, uuid, now_ms, "the GPU does not answer the driver"))
        return device.absent(now_ms, reason)

    def relisted(self, before: AbstractSet[str], after: AbstractSet[str], now_ms: int) -> list[Event]:
        """What an enumeration changed: UUIDs that are gone, unless they were lost before, and new ones."""
        gone, new = before - after, after - before
        text = "the driver no longer lists the GPU"
        events = [self.event(EventKind.GPU_LOST, uuid, now_ms, text) for uuid in sorted(gone - self.lost)]
        self.lost -= gone
        events += [self.event(EventKind.GPU_FOUND, uuid, now_ms, "the driver lists a new GPU") for uuid in sorted(new)]
        return events

    def _note_action(self, uuid: str, action: float | None, now_ms: int, events: list[Event]) -> None:
        if action is None:
            return
        announced = self._watch.verdict_at(uuid)
        if action != self._actions.get(uuid, 0.0):
            at_ms = now_ms if announced is None else min(announced, now_ms)
            text = f"the driver's recovery verdict is now {action:.0f}"
            events.append(self.event(EventKind.RECOVERY_ACTION, uuid, at_ms, text, int(action)))
        self._actions[uuid] = action

    def _tell(self, device: Device, look: Look) -> None:
        """One line for each model and driver: what can be read, and what cannot."""
        kind = (device.gpu.model, self.driver)
        if kind in self._told_of:
            return
        self._told_of.add(kind)
        unsupported = sorted(key for key, reason in look.missing.items() if reason is Missing.UNSUPPORTED)
        names = {key.split("{", 1)[0] for key in look.values}
        _log.info("GPU model", model=kind[0], driver=kind[1], metrics=len(names), unsupported=unsupported)

    def _count(self, outcome: str) -> None:
        if self._own is not None:
            self._own.count("tocsin_nvml_reads_total", outcome=outcome)
