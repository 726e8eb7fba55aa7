"""Onsets of hardware faults, from events and heat: what a forecast is about and is judged by; and labels from them.

An onset is the first sign of a fault on one device: an event, or hardware that slows it for heat. What follows within a
quiet time belongs to the same fault, and what programs cause is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.examples import NEVER, Codes, Ints, Mask
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid import APPLICATION_CLASSES, XidCatalogue, shipped_catalogue

MEMORY, BUS, NVLINK, FIRMWARE, THERMAL, POWER, OTHER = (
    "memory",
    "bus",
    "nvlink",
    "firmware",
    "thermal",
    "power",
    "other",
)
FAULT_CLASSES = (MEMORY, BUS, NVLINK, FIRMWARE, THERMAL, POWER, OTHER)
WARNING, APPLICATION = "warning", "application"
EVENT_CLASSES = (*FAULT_CLASSES, WARNING, APPLICATION)
"""Every class of `event_class`."""

QUIET_MS = DAY
"""Silence after which the next fault of a device is a new one."""
CAUSE_MS = 5 * MINUTE
"""How long after the first sign a more telling one may name the fault (the same burst, own choice)."""

_OF_XID = {
    "memory": MEMORY,
    "bus": BUS,
    "nvlink": NVLINK,
    "c2c": NVLINK,
    "firmware": FIRMWARE,
    "power": POWER,
    "hang": OTHER,
    "security": OTHER,
    "inforom": OTHER,
    "unknown": OTHER,
}
_OF_KIND = {EventKind.GPU_LOST: BUS, EventKind.RECOVERY_ACTION: OTHER, EventKind.ALLOCATOR_OOM: APPLICATION}
_HARDWARE = frozenset({*_OF_XID}) - {"unknown", "hang", "security"}
"""Classes of XIDs of which a warning, too, tells of the hardware."""
_MEMORY_FAULTS = frozenset({63, 94})
"""Warnings that are a fault none the less: a row that is to be remapped, an error that cost the application."""
_RETURNS = frozenset({EventKind.GPU_FOUND, EventKind.DRIVER_RELOAD})
_SXID_THERMAL = frozenset({10004})


@dataclass(frozen=True, slots=True)
class Onset:
    """The begin of a fault of `device` (a UUID, or a name of whatever fails as one) at `at_ms`.

    `fault_class` is one of `FAULT_CLASSES`. Until `ended_ms` the device counts as faulted: it came back, or had been
    quiet for long enough. 0 means at once.
    """

    device: str
    at_ms: int
    fault_class: str = OTHER
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlowSpan:
    """Hardware slowed a GPU for heat in the reading at `first_ms` and again at `last_ms`, never quiet in between."""

    first_ms: int
    last_ms: int


Heat = Mapping[str, Sequence[SlowSpan]]
"""The spans of each UUID, by instant."""


def event_class(event: Event, catalogue: XidCatalogue | None = None) -> str:
    """One of `EVENT_CLASSES`; empty for what tells neither of a fault nor of a program."""
    if event.kind is EventKind.XID:
        return _xid_class(event, catalogue or shipped_catalogue())
    if event.kind is EventKind.SXID:
        return _sxid_class(event)
    if event.kind is EventKind.RECOVERY_ACTION and event.code <= 0:
        return ""
    return _OF_KIND.get(event.kind, "")


def _xid_class(event: Event, catalogue: XidCatalogue) -> str:
    spec = catalogue.seen(event.code, event.severity, event.remedy)
    if spec.xid_class in APPLICATION_CLASSES:
        return APPLICATION
    if spec.severity is Severity.CRITICAL or event.code in _MEMORY_FAULTS:
        return _OF_XID.get(spec.xid_class, OTHER)
    return WARNING if spec.xid_class in _HARDWARE else ""


def _sxid_class(event: Event) -> str:
    if event.code in _SXID_THERMAL:
        return THERMAL
    return NVLINK if shipped_sxids().seen(event.code, event.severity).fatal else WARNING


def is_return(event: Event) -> bool:
    """Whether the device came back: it was found again, or reset."""
    return event.kind in _RETURNS


def by_device(events: Iterable[Event], gpus: Sequence[Gpu]) -> dict[str, list[Event]]:
    """Events of each UUID by instant; an event of a whole host is one of each of its GPUs."""
    mates: dict[str, list[str]] = defaultdict(list)
    for gpu in gpus:
        mates[gpu.host].append(gpu.uuid)
    found: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda one: (one.at_ms, one.id)):
        for uuid in (event.gpu,) if event.gpu else mates.get(event.host, ()):
            found[uuid].append(event)
    return dict(found)


def onsets_of(
    events: Iterable[Event],
    gpus: Sequence[Gpu] = (),
    *,
    quiet_ms: int = QUIET_MS,
    catalogue: XidCatalogue | None = None,
    heat: Heat | None = None,
) -> list[Onset]:
    """The onsets in `events` and `heat`, by instant, then device. `gpus` say which GPUs an event of a whole host
    concerns."""
    told, slow = by_device(events, gpus), heat or {}
    found = [
        onset
        for device in {**told, **slow}
        for onset in _of_device(device, _signs(told.get(device, ()), slow.get(device, ()), catalogue), quiet_ms)
    ]
    return sorted(found, key=lambda onset: (onset.at_ms, onset.device))


@dataclass(frozen=True, slots=True)
class _Sign:
    """Of a fault of `fault_class`, from `at_ms` to `last_ms`; of the device that came back where that is empty."""

    at_ms: int
    last_ms: int
    fault_class: str = ""


def _signs(events: Iterable[Event], slow: Iterable[SlowSpan], catalogue: XidCatalogue | None) -> list[_Sign]:
    """By instant, events before heat of the same one."""
    found = []
    for event in events:
        fault_class = "" if is_return(event) else event_class(event, catalogue)
        if is_return(event) or fault_class in FAULT_CLASSES:
            found.append(_Sign(event.at_ms, event.at_ms, fault_class))
    found += [_Sign(span.first_ms, span.last_ms, THERMAL) for span in slow]
    return sorted(found, key=lambda sign: sign.at_ms)


@dataclass(slots=True)
class _Episode:
    at_ms: int
    fault_class: str
    last_ms: int
    back_ms: int | None = None

    def add(self, sign: _Sign) -> None:
        if self.fault_class == OTHER and sign.at_ms - self.at_ms <= CAUSE_MS:
            self.fault_class = sign.fault_class
        self.last_ms, self.back_ms = max(self.last_ms, sign.last_ms), None

    def onset(self, device: str, quiet_ms: int) -> Onset:
        ended_ms = self.last_ms + quiet_ms if self.back_ms is None else self.back_ms
        return Onset(device, self.at_ms, self.fault_class, ended_ms)


def _of_device(device: str, signs: Iterable[_Sign], quiet_ms: int) -> list[Onset]:
    episodes: list[_Episode] = []
    for sign in signs:
        last = episodes[-1] if episodes else None
        if not sign.fault_class:
            if last is not None and last.back_ms is None and 0 <= sign.at_ms - last.last_ms < quiet_ms:
                last.back_ms = sign.at_ms
            continue
        if last is None or sign.at_ms - last.last_ms >= quiet_ms:
            episodes.append(_Episode(sign.at_ms, sign.fault_class, sign.last_ms))
        else:
            last.add(sign)
    return [episode.onset(device, quiet_ms) for episode in episodes]


# Labels of decision instants, from onsets alone: what came next, up to when that is known, and what to leave out.

GAP_MS = 3 * DAY
"""How long after an onset a device is left out: what then follows is mostly the same fault."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Of each row: whether to `keep` it, and `event_ms`, `event_class` and `until_ms` as `Examples` have them."""

    keep: Mask
    event_ms: Ints
    event_class: npt.NDArray[np.str_]
    until_ms: Ints


def label(
    at_ms: Ints,
    device: Codes,
    devices: Sequence[str],
    onsets: Iterable[Onset],
    observed_ms: Ints,
    *,
    gap_ms: int = GAP_MS,
) -> Labels:
    """Label the rows (`at_ms`, `device`), both [n]; `device` indexes `devices`.

    `observed_ms` [devices] is the last instant at which each device was observed; an onset after it still counts. A row
    is not kept where its device is faulted at that instant, has had an onset less than `gap_ms` before, or was not
    observed any more.
    """
    known: dict[str, list[Onset]] = defaultdict(list)
    for onset in sorted(onsets, key=lambda one: one.at_ms):
        known[onset.device].append(onset)
    until_ms = observed_ms[device]
    keep = at_ms <= until_ms
    event_ms = np.full(at_ms.size, NEVER, np.int64)
    event_class = np.full(at_ms.size, "", dtype="<U16")
    numbers = {name: number for number, name in enumerate(devices)}
    order = np.argsort(device, kind="stable")
    edges = np.searchsorted(device[order], np.arange(len(devices) + 1))
    for name, own in known.items():
        number = numbers.get(name)
        if number is None:
            continue
        rows = order[edges[number] : edges[number + 1]]
        event_ms[rows], event_class[rows], free = _next(at_ms[rows], own, gap_ms)
        keep[rows] &= free
    return Labels(keep, event_ms, event_class, until_ms)


def _next(at_ms: Ints, onsets: Sequence[Onset], gap_ms: int) -> tuple[Ints, npt.NDArray[np.str_], Mask]:
    """The first onset after each instant, its class, and whether the device is free of earlier ones."""
    starts = np.array([onset.at_ms for onset in onsets], dtype=np.int64)
    ends = np.array([max(onset.ended_ms, onset.at_ms + gap_ms) for onset in onsets], dtype=np.int64)
    classes = np.array([*(onset.fault_class for onset in onsets), ""], dtype="<U16")
    place = np.searchsorted(starts, at_ms, side="right")
    event_ms = np.append(starts, NEVER)[place]
    busy_until = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)))[place]
    return event_ms, classes[place], at_ms >= busy_until
