"""Hardware faults out of events: what a GPU reports in a row is one, and so is what the other end of its link says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.queries.scoreboard import is_hardware
from tocsin.rules.consequences import SOON_MS
from tocsin.rules.symptoms import NVLINK_CLASS
from tocsin.rules.xid import xid

_BUS_CLASS = "bus"


@dataclass(slots=True)
class HardwareFault:
    """One fault: its first event, the last of its own GPU, and the GPUs and hosts that it shows on."""

    first: Event
    last_ms: int
    gpus: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    def show(self, event: Event) -> None:
        """Take in where `event` was seen."""
        self.gpus.add(event.gpu)
        self.hosts.add(event.host)


def fabrics_of(gpus: Iterable[Gpu]) -> dict[str, str]:
    """By UUID what GPUs share links in: their NVLink domain, else their host."""
    return {gpu.uuid: gpu.labels.get(NVLINK_DOMAIN) or gpu.host for gpu in gpus}


def hardware_faults(events: Sequence[Event], gap_ms: int, fabrics: Mapping[str, str]) -> list[HardwareFault]:
    """The faults that `events` tell of, the oldest first: events of one GPU at most `gap_ms` apart are one.

    An NVLink error within `SOON_MS` of what another GPU of the fabric lost, a link or itself, is that fault's: both
    ends of a link report it, and incidents join the two in the same time.
    """
    found: list[HardwareFault] = []
    of_gpu: dict[tuple[str, str], HardwareFault] = {}
    of_fabric: dict[str, tuple[int, HardwareFault]] = {}
    for event in sorted(filter(is_hardware, events), key=lambda one: one.at_ms):
        own = of_gpu.get((event.host, event.gpu))
        fabric = fabrics.get(event.gpu, event.host)
        cut_ms, other = of_fabric.get(fabric, (event.at_ms - SOON_MS - 1, None))
        if own is not None and event.at_ms - own.last_ms <= gap_ms:
            fault = own
            fault.last_ms = event.at_ms
        elif other is not None and _is_of_link(event) and event.at_ms - cut_ms <= SOON_MS:
            other.show(event)
            continue
        else:
            fault = of_gpu[event.host, event.gpu] = HardwareFault(event, event.at_ms)
            fault.show(event)
            found.append(fault)
        if _is_of_link(event) or _is_loss(event):
            of_fabric[fabric] = event.at_ms, fault
    return found


def _is_of_link(event: Event) -> bool:
    return event.kind is EventKind.XID and xid(event.code).xid_class == NVLINK_CLASS


def _is_loss(event: Event) -> bool:
    """Whether the GPU is gone from its bus: its peers see their links to it fail."""
    return event.kind is EventKind.GPU_LOST or (event.kind is EventKind.XID and xid(event.code).xid_class == _BUS_CLASS)
