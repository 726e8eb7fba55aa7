"""Labels of decision instants, from onsets alone: what came next, up to when that is known, and what to leave out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import NEVER, Codes, Ints, Mask
from tocsin.forecaster.features.onsets import Onset

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
