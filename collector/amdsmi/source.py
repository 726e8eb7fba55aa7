"""The source over AMD's library. Each card is asked on a thread of its own: one that hangs costs only its own values.

What is read is the table of vendor metrics; temperatures are the hotspot's, where NVIDIA's are the core's. A card that
is lost is believed lost once the kernel's PCI tree agrees. After a reset the handles are worth nothing: the library is
opened anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tocsin.collector.amdsmi.card import Card, Look, identify, is_gone
from tocsin.collector.amdsmi.library import AmdEvent, AmdSmi
from tocsin.collector.device_events import DeviceEvents
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.collector.workers import DriverThreads
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.domain.vendor_metrics import AMD, VendorMetric, vendor_metrics
from tocsin.rules.device_faults import fault_meaning
from tocsin.telemetry.log import logger

_log = logger("amdsmi")

DEADLINE_SECONDS = 10.0
SLOW_SECONDS = 60.0
"""Time between two looks at what changes slowly or is dear to ask."""
REOPEN_SECONDS = 30.0
"""Time between two attempts to open a library that was lost (own choice)."""
_RESET_OVER = "GPU_POST_RESET"


class AmdSmiSource:
    """A source over amdsmi. Raises Unavailable where the package, ROCm, the driver or every card is missing."""

    name = "amdsmi"

    def __init__(
        self,
        library: AmdSmi,
        node: NodeIdentity,
        clock: Clock,
        sys: Path = Path("/sys"),
        deadline_seconds: float = DEADLINE_SECONDS,
        rows: Sequence[VendorMetric] | None = None,
    ) -> None:
        self._library = library
        self._node = node
        self._clock = clock
        self._sys = sys
        self._deadline = deadline_seconds
        self._rows = vendor_metrics(AMD) if rows is None else tuple(rows)
        self._cards: list[Card] = []
        self._closed_since: float | None = None
        self._refused = 0
        self._slow_at = clock.monotonic()
        self._transitions = Transitions(self.name)
        self._events = DeviceEvents(self.name)
        self._threads: DriverThreads[Look] = DriverThreads(name="amdsmi")
        self._told = ""
        self._open()

    def gpus(self) -> list[Gpu]:
        return [card.gpu for card in self._cards]

    @property
    def stuck_readers(self) -> int:
        """Cards whose reader hangs now."""
        return len(self._threads.stuck)

    def hurry(self) -> None:
        """Ask everything with the next reading."""
        self._slow_at = self._clock.monotonic()

    def read(self, now_ms: int) -> Batch:
        if self._closed_since is not None and not self._reopened():
            # One refusal may be the driver at work on a reset, and a thread that hangs keeps the library as it is.
            reason = Missing.LOST if self._refused > 1 else Missing.TIMED_OUT
            readings = [self._without(card.gpu, now_ms, reason) for card in self._cards]
            return Batch(tuple(readings), tuple(self._transitions.note(readings, now_ms)))
        told = self._library.events()
        looks = self._look()
        readings = [self._reading(card, looks.get(card.gpu.uuid), now_ms) for card in self._cards]
        events = [*self._happened(told, now_ms), *self._recorded(looks, now_ms)]
        events += self._transitions.note(readings, now_ms)
        if any(look.closed for look in looks.values()) or any(one.name == _RESET_OVER for one in told):
            self._close_library()
        return Batch(tuple(readings), tuple(events))

    def close(self) -> None:
        self._threads.close()
        self._library.close()

    def _open(self) -> None:
        number = self._library.open()
        cards = [
            Card(self._library, card, identify(self._library, card, self._node), self._rows) for card in range(number)
        ]
        names = [card.gpu.uuid for card in cards]
        self._cards = [card for place, card in enumerate(cards) if card.gpu.uuid not in names[:place]]
        if len(self._cards) < number:
            self._tell(f"{number - len(self._cards)} cards have the identity of another and are left out")
        self._closed_since = None
        self._refused = 0

    def _reopened(self) -> bool:
        """Whether the library is open again; tried at once, then now and then."""
        now = self._clock.monotonic()
        if self._closed_since is None or now < self._closed_since or self._threads.stuck:
            return False
        try:
            self._open()
        except Unavailable as error:
            self._tell(str(error))
            self._refused += 1
            self._closed_since = now + REOPEN_SECONDS
            return False
        self._slow_at = now
        return True

    def _close_library(self) -> None:
        """Let the library be opened anew by the next reading; a thread inside it would be left with dead handles."""
        self._closed_since = self._clock.monotonic()

    def _look(self) -> dict[str, Look]:
        now = self._clock.monotonic()
        slow = now >= self._slow_at
        if slow:
            self._slow_at = now + SLOW_SECONDS
        tasks = {card.gpu.uuid: partial(card.look, slow=slow) for card in self._cards}
        return self._threads.run(tasks, self._deadline)

    def _reading(self, card: Card, look: Look | None, now_ms: int) -> Reading:
        if look is None:
            return self._without(card.gpu, now_ms, Missing.TIMED_OUT)
        if look.maybe_lost and is_gone(self._sys, card.gpu.pci_bus_id):
            return self._without(card.gpu, now_ms, Missing.LOST)
        return Reading(card.gpu, now_ms, look.values, look.missing)

    def _without(self, gpu: Gpu, now_ms: int, reason: Missing) -> Reading:
        return Reading(gpu, now_ms, {}, {row.metric: reason for row in self._rows if not row.label_value})

    def _happened(self, told: Sequence[AmdEvent], now_ms: int) -> list[Event]:
        gpus = {card.number: card.gpu for card in self._cards}
        return [
            self._events.once(gpus[one.card], fault_meaning(AMD, f"event:{one.name}"), one.message or one.name, now_ms)
            for one in told
            if one.card in gpus and one.name != _RESET_OVER
        ]

    def _recorded(self, looks: dict[str, Look], now_ms: int) -> list[Event]:
        return [
            self._events.once(
                card.gpu, fault_meaning(AMD, f"cper:{record.severity}"), f"{record.kind} at {record.time}", now_ms
            )
            for card in self._cards
            if card.gpu.uuid in looks
            for record in looks[card.gpu.uuid].records
        ]

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            _log.warning("amdsmi", problem=problem)
