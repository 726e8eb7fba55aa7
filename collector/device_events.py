"""Events of kind ``device_fault`` of sources whose vendors have codes in place of XIDs: named once, and taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tocsin.domain.clock import HOUR
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu
from tocsin.rules.device_faults import FaultMeaning

REPEAT_MS = 6 * HOUR
"""A fault that stands is told again after this; rules hold it for 24 hours."""
MESSAGE_CHARACTERS = 300

Standing = Mapping[DeviceFault, str]
"""Faults of a card that hold now, with what is said of each."""


class DeviceEvents:
    """Makes the events of one source. Two at one instant are moved apart: an event's name follows from its instant."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._last_ms = 0
        self._told: dict[tuple[str, DeviceFault], tuple[str, int]] = {}

    def once(self, gpu: Gpu, meaning: FaultMeaning, said: str, now_ms: int) -> Event:
        """The event of something that happened at `now_ms`, in the words of the table and the vendor's own."""
        return self._event(gpu, int(meaning.meaning), f"{meaning.help} ({said})" if said else meaning.help, now_ms)

    def standing(self, gpu: Gpu, found: Standing, now_ms: int) -> list[Event]:
        """Events of what began, changed, or has to be told again, and of what is over since the call before."""
        events: list[Event] = []
        for fault, words in found.items():
            before, at_ms = self._told.get((gpu.uuid, fault), ("", 0))
            if words != before or not 0 <= now_ms - at_ms < REPEAT_MS:
                self._told[gpu.uuid, fault] = words, now_ms
                events.append(self._event(gpu, int(fault), words, now_ms))
        for key in [key for key in self._told if key[0] == gpu.uuid and key[1] not in found]:
            words, _ = self._told.pop(key)
            events.append(self._event(gpu, key[1].over, f"over: {words}", now_ms))
        return events

    def _event(self, gpu: Gpu, code: int, message: str, now_ms: int) -> Event:
        self._last_ms = max(now_ms, self._last_ms + 1)
        text = message[:MESSAGE_CHARACTERS]
        return Event(EventKind.DEVICE_FAULT, gpu.uuid, gpu.host, self._last_ms, code, text, self._source)


def words_of(meanings: Iterable[tuple[FaultMeaning, str]]) -> dict[DeviceFault, str]:
    """What is said of each fault, of all its codes together."""
    found: dict[DeviceFault, list[str]] = {}
    for meaning, said in meanings:
        found.setdefault(meaning.meaning, []).append(f"{meaning.help} ({said})")
    return {fault: "; ".join(sorted(set(words))) for fault, words in found.items()}
