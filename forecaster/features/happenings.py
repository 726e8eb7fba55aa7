"""What happened to each GPU: onsets by class with decay, repairs, own history, and bursts that hit many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Floats, Ints
from tocsin.forecaster.features.onsets import EVENT_CLASSES, FAULT_CLASSES, event_class, is_return

DECAYS_MS = (DAY, 14 * DAY)
"""Time constants of the decay (own choice): the recent, and the inclined."""
REPEAT_MS = 10 * MINUTE
"""Within this an event of the same class on the same GPU is the same onset."""
BURST_MS = MINUTE
"""How near in time events of different GPUs are one burst; on a fleet of 2,344 dozens fell into one scrape of 15 s."""
_FAULTS = len(FAULT_CLASSES)
_REMEMBERED = 100_000
_FADED = 1e-3


class Happenings:
    """Counts events by class. Every class has its number in `EVENT_CLASSES`."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        classes = len(EVENT_CLASSES)
        arrays.add("events", (classes,), np.int64)
        arrays.add("event_ms", (classes,), np.int64, NOT_YET)
        arrays.add("decayed", (len(DECAYS_MS), classes), np.float64)
        arrays.add("decayed_ms", (classes,), np.int64, NOT_YET)
        arrays.add("back_ms", (), np.int64, NOT_YET)
        arrays.add("backs", (), np.int64)
        arrays.add("lost", (), np.bool_)
        self._known: dict[str, int] = {}

    def fresh(self, events: Iterable[Event]) -> list[Event]:
        """Those that were not seen before, by instant; a store may give an event again."""
        new: dict[str, Event] = {event.id: event for event in events if event.id not in self._known}
        self._known.update((name, event.at_ms) for name, event in new.items())
        if len(self._known) > _REMEMBERED:
            newest = sorted(self._known.items(), key=lambda item: item[1])[-_REMEMBERED // 2 :]
            self._known = dict(newest)
        return sorted(new.values(), key=lambda event: (event.at_ms, event.id))

    def known(self) -> Mapping[str, int]:
        """Ids of events with their instants, to be saved."""
        return self._known

    def recall(self, known: Mapping[str, int]) -> None:
        """Take up what `known` gave."""
        self._known = dict(known)

    def take(self, event: Event, gpu: int) -> bool | None:
        """Count `event` of GPU number `gpu`; whether it is a fault of the hardware, None where it counts as nothing."""
        arrays = self._arrays
        if is_return(event):
            arrays["back_ms"][gpu] = max(arrays["back_ms"][gpu], event.at_ms)
            arrays["backs"][gpu] += 1
            arrays["lost"][gpu] = False
            return None
        name = event_class(event)
        if not name:
            return None
        if event.kind is EventKind.GPU_LOST:
            arrays["lost"][gpu] = True
        self._count(EVENT_CLASSES.index(name), gpu, event.at_ms)
        return name in FAULT_CLASSES

    def _count(self, number: int, gpu: int, at_ms: int) -> None:
        last_ms = self._arrays["event_ms"][:, gpu]
        repeated = 0 <= at_ms - last_ms[number] < REPEAT_MS
        last_ms[number] = max(last_ms[number], at_ms)
        if repeated:
            return
        self._arrays["events"][number, gpu] += 1
        since_ms = self._arrays["decayed_ms"][:, gpu]
        base_ms = max(int(since_ms[number]), at_ms)
        for place, decay_ms in enumerate(DECAYS_MS):
            value = self._arrays["decayed"][place, number, gpu]
            before = value * np.exp((since_ms[number] - base_ms) / decay_ms) if value else 0.0
            self._arrays["decayed"][place, number, gpu] = before + np.exp((at_ms - base_ms) / decay_ms)
        since_ms[number] = base_ms

    def decayed(self, now_ms: int) -> Floats:
        """float64[decays, classes, g]: events so far, each worth exp(-age / decay)."""
        since = self._arrays["decayed_ms"]
        age = np.where(since == NOT_YET, 0, now_ms - since)
        weight = np.exp(-age[None] / np.array(DECAYS_MS, dtype=np.float64)[:, None, None])
        return np.asarray(self._arrays["decayed"] * weight)

    def hours_since(self, now_ms: int) -> Floats:
        """float64[classes, g]: hours since the last event of each class, NaN without one."""
        return hours_since(self._arrays["event_ms"], now_ms)

    @property
    def last_fault_ms(self) -> Ints:
        """int64[g]: the last event of the hardware, `NOT_YET` without one."""
        return np.asarray(self._arrays["event_ms"][:_FAULTS].max(axis=0))


def hours_since(since_ms: Ints, now_ms: int) -> Floats:
    """Hours from `since_ms` to `now_ms`, NaN where it is `NOT_YET`."""
    return np.asarray(np.where(since_ms == NOT_YET, np.nan, (now_ms - since_ms) / HOUR))


def burst(last_ms: Ints, host: Ints, now_ms: int) -> tuple[Floats, Floats]:
    """Of each GPU's last fault: how many other GPUs, and how many other hosts, had theirs within `BURST_MS` of it.

    Both float64[g], decayed over a day since; 0 without a fault.
    """
    had = last_ms != NOT_YET
    if not had.any():
        return np.zeros(last_ms.size), np.zeros(last_ms.size)
    fade = np.where(had, np.exp(-(now_ms - np.where(had, last_ms, now_ms)) / DAY), 0.0)
    gpus = _near(np.sort(last_ms[had]), last_ms) - 1.0
    pairs = np.unique(np.stack([host[had], last_ms[had]]), axis=1)
    hosts = np.zeros(last_ms.size)
    for row in np.flatnonzero(had & (gpus > 0) & (fade > _FADED)):
        near = np.abs(pairs[1] - last_ms[row]) <= BURST_MS
        hosts[row] = np.unique(pairs[0, near]).size - 1
    return gpus * fade, hosts * fade


def _near(ordered: Ints, instants: Ints) -> Floats:
    """How many of `ordered` lie within `BURST_MS` of each instant."""
    high = np.searchsorted(ordered, instants + BURST_MS, side="right")
    low = np.searchsorted(ordered, instants - BURST_MS, side="left")
    return np.asarray(high - low, dtype=np.float64)
