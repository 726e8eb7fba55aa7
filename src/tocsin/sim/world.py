"""What faults and actions work on: the inventory, the state, and the events that they give rise to."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.sim import load
from tocsin.sim.background import Background
from tocsin.sim.inventory import Bools, Floats, Ints, Inventory
from tocsin.sim.state import SimState

SOURCE = "simulated"


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The span of one step, (`start_ms`, `end_ms`]."""

    start_ms: int
    end_ms: int

    @property
    def seconds(self) -> float:
        return (self.end_ms - self.start_ms) / SECOND

    def after(self, at_ms: int) -> float:
        """Seconds of the window that lie after `at_ms`."""
        return max(0.0, (self.end_ms - max(self.start_ms, at_ms)) / SECOND)


@dataclass
class SimWorld:
    """The mutable world of one fleet. `usual_power` is what each GPU draws at its pool's typical load, in watts."""

    inventory: Inventory
    state: SimState
    usual_power: Floats
    normal: Background
    _queue: list[tuple[int, int, Event]] = field(default_factory=list)
    _sequence: int = 0

    def emit(
        self,
        kind: EventKind,
        gpu: int,
        at_ms: int,
        code: int = 0,
        message: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Let an event happen at `at_ms`; it is delivered with the first batch at or after that instant. `severity` is
        what a reader of the kernel log takes from the message, where that says more than the code."""
        who = self.inventory.gpus[gpu]
        event = Event(kind, who.uuid, who.host, at_ms, code, message, SOURCE, severity=severity, simulated=True)
        self._sequence += 1
        heapq.heappush(self._queue, (at_ms, self._sequence, event))

    def xids(self, gpu: int, at_ms: int, codes: Sequence[tuple[int, str]]) -> None:
        """A sequence of XIDs on one GPU, a second apart, as the kernel log shows them."""
        for place, (code, message) in enumerate(codes):
            self.emit(EventKind.XID, gpu, at_ms + place * SECOND, code, message)

    def verdict(self, gpu: int, at_ms: int, action: int, words: str) -> None:
        """The driver changes its recovery action: the flag, XID 154 and the event of NVML field 230."""
        before = int(self.state.flags["gpu_recovery_action"][gpu])
        self.state.flags["gpu_recovery_action"][gpu] = float(action)
        message = f"GPU recovery action changed from 0x{before:x} to 0x{action:x} ({words})"
        self.emit(EventKind.XID, gpu, at_ms, 154, message)
        self.emit(EventKind.RECOVERY_ACTION, gpu, at_ms, action, message)

    def deliver(self, until_ms: int) -> list[Event]:
        """Events up to `until_ms`, in the order of time; counts the XIDs among them."""
        due: list[Event] = []
        while self._queue and self._queue[0][0] <= until_ms:
            event = heapq.heappop(self._queue)[2]
            due.append(event)
            if event.kind is EventKind.XID:
                gpu = self.inventory.by_uuid[event.gpu]
                counts = self.state.xid_counts[gpu]
                counts[event.code] = counts.get(event.code, 0) + 1
                self.state.xid_last[gpu] = float(event.code)
        return due

    def reset(self, gpu: int, at_ms: int) -> None:
        """Reset the GPU: volatile counters start again, verdicts are cleared."""
        self.state.reset_gpu(gpu)
        self.emit(EventKind.DRIVER_RELOAD, gpu, at_ms, message="the GPU was reset")

    def count(self, name: str, gpu: int, amount: float) -> None:
        self.state.counters[name][gpu] += amount

    def kill_job(self, gpu: int, at_ms: int) -> None:
        load.end_job(self.state, self.inventory, gpu, at_ms)

    def host_mates(self, gpu: int) -> Ints:
        """All GPUs of the same host, itself among them."""
        return np.flatnonzero(self.inventory.host == self.inventory.host[gpu])

    def rack_mates(self, gpu: int) -> Ints:
        """All GPUs of the same rack, itself among them."""
        return np.flatnonzero(self.inventory.rack == self.inventory.rack[gpu])

    def link_peers(self, gpu: int) -> Ints:
        """The other GPUs of the NVLink domain that still answer."""
        same: Bools = (self.inventory.domain == self.inventory.domain[gpu]) & ~self.state.lost
        same[gpu] = False
        return np.flatnonzero(same)
