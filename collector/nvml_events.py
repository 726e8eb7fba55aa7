"""XID events of the driver, through one NVML event set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tocsin.collector.nvml_answers import GpuLost, reason_of
from tocsin.collector.nvml_device import Device
from tocsin.collector.nvml_library import XID_EVENTS, Nvml, NvmlFailure
from tocsin.domain.event import Event, EventKind
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing

_MOST_AT_ONCE = 256
"""A storm of XIDs must not hold up the readings; what is left stays queued in the driver."""


class XidWatch:
    """Registers GPUs and drains what the driver queued, without waiting. Counts by GPU and XID since its start."""

    def __init__(self, library: Nvml) -> None:
        self._library = library
        self._set: Any = None
        self._gpus: dict[int, Gpu] = {}
        self._deaf: dict[str, Missing] = {}
        self._last: dict[str, int] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def register(self, devices: Iterable[Device]) -> None:
        """Watch `devices`, those already watched and new ones; called after each enumeration."""
        for device in devices:
            key = self._library.key(device.handle)
            known = self._gpus.get(key)
            if known is not None and known.uuid == device.gpu.uuid and device.gpu.uuid not in self._deaf:
                continue
            self._gpus[key] = device.gpu
            try:
                if self._set is None:
                    self._set = self._library.call("nvmlEventSetCreate")
                self._library.call("nvmlDeviceRegisterEvents", device.handle, XID_EVENTS, self._set)
            except NvmlFailure as failure:
                self._deaf[device.gpu.uuid] = _reason(failure.code)
            else:
                self._deaf.pop(device.gpu.uuid, None)

    def reset(self) -> None:
        """Forget handles after the library was closed; counts stay."""
        self._set = None
        self._gpus.clear()
        self._deaf.clear()

    def drain(self, now_ms: int) -> list[Event]:
        """XIDs that were queued, dated `now_ms`: the driver gives them no time of their own."""
        events: list[Event] = []
        while self._set is not None and len(events) < _MOST_AT_ONCE:
            try:
                seen = self._library.wait(self._set, 0)
            except NvmlFailure:
                # Readings, which follow, meet the same failure and treat it.
                break
            if seen is None:
                break
            gpu = self._gpus.get(seen.device)
            if seen.kind != XID_EVENTS or gpu is None:
                continue
            self._last[gpu.uuid] = seen.data
            self._counts[gpu.uuid, seen.data] = self._counts.get((gpu.uuid, seen.data), 0) + 1
            text = f"NVML reports Xid {seen.data}"
            events.append(Event(EventKind.XID, gpu.uuid, gpu.host, now_ms, seen.data, text, "nvml"))
        return events

    def values(self, uuid: str) -> tuple[dict[str, float], dict[str, Missing]]:
        """The XID metrics of a GPU: the last code, 0 where none was seen, and a count per code."""
        deaf = self._deaf.get(uuid)
        if deaf is not None:
            return {}, {"gpu_xid_last_code": deaf}
        values: dict[str, float] = {"gpu_xid_last_code": self._last.get(uuid, 0)}
        for (owner, code), count in self._counts.items():
            if owner == uuid:
                values[variant("gpu_xid_events_total", "xid", str(code))] = count
        return values, {}


def _reason(code: int) -> Missing:
    try:
        return reason_of(code)
    except GpuLost:
        return Missing.LOST
    except NvmlFailure:
        return Missing.BLANK
