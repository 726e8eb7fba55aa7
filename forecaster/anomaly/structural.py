"""Signs that a node's GPUs are failing which lie in the shape of its telemetry, not in its values.

A GPU that fell off the bus often shows first as metrics that are gone, as values that no longer move, or as no GPU
telemetry at all from a node that still answers otherwise. The four signs here need no training. Which signs there are
was decided with recorded incidents in view; their spans are round numbers that were not searched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.forecaster.features.examples import Floats, Ints, Mask
from tocsin.forecaster.features.onsets import FAULT_CLASSES, event_class

XID, LOST, SILENT, FROZEN = "hardware XID", "metrics lost", "GPUs silent", "values frozen"
SIGNS = (XID, LOST, SILENT, FROZEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignSettings:
    """Own choices, all of them. Something is gone after `hold_ms`: two scrapes may fail. It was there before if it was
    in the share `usual` of the reports of `before_ms`, of which there must be `reports`; after `forget_ms` it is no
    longer missed. `frozen_ms` is how long no value of any GPU moves. Pauses of the whole recording longer than
    `pause_ms` begin it anew, as nothing is known of the time between."""

    hold_ms: int = 30 * MINUTE
    before_ms: int = DAY
    usual: float = 0.9
    reports: int = 12
    forget_ms: int = 7 * DAY
    frozen_ms: int = 2 * HOUR
    pause_ms: int = 6 * HOUR


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What was recorded of one node. `at_ms` int64[n], rising, are the instants at which anything of it was seen;
    `values` float64[n, gpus, metrics] is NaN where a GPU did not report a metric. `code` float64[n, gpus] is the last
    XID as the driver latches it. `powered` bool[n] is False where the board's controller says that the node is off."""

    node: str
    at_ms: Ints
    gpus: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    code: Floats
    powered: Mask

    def cut(self, first: int, end: int) -> NodeRecord:
        """Rows `first` up to `end`, without it."""
        part = slice(first, end)
        return NodeRecord(
            self.node,
            self.at_ms[part],
            self.gpus,
            self.metrics,
            self.values[part],
            self.code[part],
            self.powered[part],
        )

    def stretches(self, pause_ms: int) -> Iterator[tuple[int, int]]:
        """First row and end of each stretch without a longer pause."""
        cut = np.flatnonzero(np.diff(self.at_ms) > pause_ms) + 1
        edges = [0, *cut.tolist(), self.at_ms.size]
        yield from pairwise(edges) if self.at_ms.size else ()


def signs(record: NodeRecord, settings: SignSettings | None = None) -> dict[str, Mask]:
    """Each of `SIGNS` with whether it holds at each instant, bool[n], knowing only what came up to it."""
    settings = settings or SignSettings()
    found = {name: np.zeros(record.at_ms.size, np.bool_) for name in SIGNS}
    for first, end in record.stretches(settings.pause_ms):
        part = record.cut(first, end)
        found[XID][first:end] = _codes(part).any(axis=1)
        found[LOST][first:end] = _lost(part, settings)
        found[SILENT][first:end] = _silent(part, settings)
        found[FROZEN][first:end] = _frozen(part, settings)
    return found


def code_onsets(record: NodeRecord, pause_ms: int = SignSettings().pause_ms) -> list[Event]:
    """An event for each transition of a GPU into another code, by instant. The first code of a GPU in a stretch is
    none, because it may be days old."""
    events = []
    for first, end in record.stretches(pause_ms):
        for gpu, name in enumerate(record.gpus):
            rows, codes = _known(record.code[first:end, gpu])
            places = np.flatnonzero((np.diff(codes) != 0) & (codes[1:] > 0)) + 1
            at_ms = record.at_ms[first + rows[places]].tolist()
            changes = zip(at_ms, codes[places].astype(int).tolist(), strict=True)
            events += [Event(EventKind.XID, name, record.node, at, code, source="recording") for at, code in changes]
    return sorted(events, key=lambda event: (event.at_ms, event.gpu))


def is_hardware(code: int) -> bool:
    """Whether an XID tells of a hardware fault, by the catalogue."""
    return event_class(Event(EventKind.XID, "", "", 0, code)) in FAULT_CLASSES


def _known(codes: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
    rows = np.flatnonzero(np.isfinite(codes))
    return rows, codes[rows]


def _codes(part: NodeRecord) -> Mask:
    """bool[n, gpus]: a hardware code that was come into within the stretch is still there."""
    held = np.zeros(part.code.shape, np.bool_)
    hardware = {code: is_hardware(code) for code in np.unique(part.code[np.isfinite(part.code)]).astype(int).tolist()}
    for gpu in range(len(part.gpus)):
        rows, codes = _known(part.code[:, gpu])
        if rows.size:
            changed = np.cumsum(np.diff(codes, prepend=codes[0]) != 0) > 0
            held[rows, gpu] = changed & np.array([hardware[int(code)] for code in codes])
    return held


def _reporting(part: NodeRecord) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.isfinite(part.values).any(axis=(1, 2)))


def _gone(at_ms: Ints, there: Mask, settings: SignSettings) -> Mask:
    """bool[k, c]: what was usually there, `there` [k, c] at `at_ms` [k], is missing for long enough by now."""
    count = np.arange(1, at_ms.size + 1) - np.searchsorted(at_ms, at_ms - settings.before_ms, side="right")
    total = np.concatenate([np.zeros((1, there.shape[1])), np.cumsum(there, axis=0)])
    share = (total[1:] - total[np.arange(1, at_ms.size + 1) - count]) / count[:, None]
    usual = (share >= settings.usual) & (count >= settings.reports)[:, None]
    last = np.maximum.accumulate(np.where(there, np.arange(at_ms.size)[:, None], -1), axis=0)
    away_ms = at_ms[:, None] - at_ms[last]
    was = (last >= 0) & np.take_along_axis(usual, np.maximum(last, 0), axis=0)
    return np.asarray(~there & was & (away_ms >= settings.hold_ms) & (away_ms <= settings.forget_ms))


def _lost(part: NodeRecord, settings: SignSettings) -> Mask:
    """Some metric of some GPU is gone, while others still report."""
    out = np.zeros(part.at_ms.size, np.bool_)
    rows = _reporting(part)
    if rows.size:
        there = np.isfinite(part.values[rows]).reshape(rows.size, -1)
        out[rows] = _gone(part.at_ms[rows], there, settings).any(axis=1)
    return out


def _silent(part: NodeRecord, settings: SignSettings) -> Mask:
    """No GPU reports anything, though the node is powered and seen by other means."""
    there = np.zeros((part.at_ms.size, 1), np.bool_)
    there[_reporting(part)] = True
    return np.asarray(_gone(part.at_ms, there, settings)[:, 0] & part.powered)


def _frozen(part: NodeRecord, settings: SignSettings) -> Mask:
    """Not one value of any GPU has moved for long enough."""
    out = np.zeros(part.at_ms.size, np.bool_)
    rows = _reporting(part)
    if rows.size == 0:
        return out
    values, at_ms = part.values[rows].reshape(rows.size, -1), part.at_ms[rows]
    moved = np.ones(rows.size, np.bool_)
    before, now = values[:-1], values[1:]
    both = np.isfinite(before) & np.isfinite(now)
    moved[1:] = ((before != now) & both).any(axis=1) | ~both.any(axis=1)
    since_ms = at_ms[np.maximum.accumulate(np.where(moved, np.arange(rows.size), 0))]
    out[rows] = at_ms - since_ms >= settings.frozen_ms
    return out
