"""What readings say about GPUs as a whole: lost, found, a new verdict; and counts of readings."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tocsin.collector.nvml.device import Device, Look
from tocsin.collector.nvml.events import XidWatch
from tocsin.collector.transitions import Transitions
from tocsin.domain.event import Event, EventKind
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")


class Account:
    """Turns looks at GPUs into readings, and what changed since the look before into events.

    `driver` is the driver's version as last listed.
    """

    def __init__(self, host: str, source: str, watch: XidWatch, own: OwnMetrics | None) -> None:
        self._host = host
        self._source = source
        self._watch = watch
        self._own = own
        self._transitions = Transitions(source)
        self._told_of: set[tuple[str, str]] = set()
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

    def seen(self, device: Device, look: Look, now_ms: int) -> list[Reading]:
        """The readings of a GPU that answers."""
        self._count("ok")
        self._tell(device, look)
        values, missing = self._watch.values(device.gpu.uuid)
        look.values.update(values)
        look.missing.update(missing)
        return [Reading(device.gpu, now_ms, look.values, look.missing), *look.instances]

    def absent(self, device: Device, reason: Missing, now_ms: int) -> list[Reading]:
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
