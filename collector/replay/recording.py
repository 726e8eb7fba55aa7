"""Recorded telemetry in memory: one table a GPU, in Tocsin's own names and units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import spec_of
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading

Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

XID = "gpu_xid_last_code"
USED_RATIO = "gpu_memory_used_ratio"


@dataclass(frozen=True, slots=True)
class Track:
    """All of one GPU. `at_ms` int64[n] rises strictly; `values` float64[n, m] in the order of `metrics`, NaN absent.

    `since` int64[m] is the row of each metric's first sample, blank or not.
    """

    gpu: Gpu
    metrics: tuple[str, ...]
    at_ms: Instants
    values: Floats
    since: npt.NDArray[np.int64]

    def reading(self, row: int) -> Reading:
        """The reading at `row`. A metric that the GPU once had and has not now is blank: exporters leave out what the
        driver answers with a sentinel."""
        line = self.values[row]
        present = np.isfinite(line)
        values = {self.metrics[i]: float(line[i]) for i in np.flatnonzero(present)}
        gone = np.flatnonzero(~present & (self.since <= row))
        return Reading(self.gpu, int(self.at_ms[row]), values, {self.metrics[i]: Missing.BLANK for i in gone})

    def xids(self) -> list[Event]:
        """Transitions of the latched XID gauge into a code.

        The gauge holds the last code and is never cleared, so a level says nothing about when. The first sample is
        no transition: the code may be days old. One and the same code twice in a row cannot be seen.
        """
        if XID not in self.metrics:
            return []
        column = self.values[:, self.metrics.index(XID)]
        rows = np.flatnonzero(np.isfinite(column))
        codes = column[rows].astype(np.int64)
        into = np.flatnonzero((codes[1:] != codes[:-1]) & (codes[1:] > 0)) + 1
        return [
            Event(
                kind=EventKind.XID,
                gpu=self.gpu.uuid,
                host=self.gpu.host,
                at_ms=int(self.at_ms[rows[i]]),
                code=int(codes[i]),
                message=f"the last-XID gauge went from {codes[i - 1]} to {codes[i]}",
                source="replay",
                simulated=self.gpu.simulated,
            )
            for i in into
        ]


@dataclass(frozen=True, slots=True)
class Recording:
    """What was read. `observed` has each host's distinct instants with any telemetry, also such as no GPU's.

    `rows` counts the lines read, `problems` what was wrong with the files: each says what was lost.
    """

    tracks: tuple[Track, ...]
    observed: Mapping[str, Instants]
    rows: int
    problems: tuple[InputError, ...] = field(default=())

    @property
    def start_ms(self) -> int:
        """First instant of any GPU; 0 where there is none."""
        return min((int(t.at_ms[0]) for t in self.tracks), default=0)

    def events(self) -> list[Event]:
        """All XID transitions, by instant."""
        return sorted((e for track in self.tracks for e in track.xids()), key=lambda e: (e.at_ms, e.gpu))

    def instants(self) -> Iterator[tuple[int, list[Reading]]]:
        """Each instant with the readings at it, in order."""
        at = np.concatenate([t.at_ms for t in self.tracks]) if self.tracks else np.empty(0, np.int64)
        owner = np.repeat(np.arange(len(self.tracks)), [t.at_ms.size for t in self.tracks])
        row = np.concatenate([np.arange(t.at_ms.size) for t in self.tracks]) if self.tracks else at
        order = np.lexsort((owner, at))
        cuts = np.flatnonzero(np.diff(at[order])) + 1
        for group in np.split(order, cuts) if order.size else ():
            made = [self.tracks[owner[i]].reading(int(row[i])) for i in group]
            yield int(at[group[0]]), made


def build_track(
    gpu: Gpu, metrics: Sequence[str], at_ms: Instants, which: npt.NDArray[np.int64], values: Floats
) -> Track:
    """One GPU's table from single samples: `which` int64[k] indexes `metrics`, `values` are in our units.

    A sample that comes twice counts once, the last one wins (overlapping recordings). Values that are not finite or
    outside the metric table's bounds are absent. Used over used plus free is added where the source has no ratio.
    """
    used = np.unique(which)
    columns = np.searchsorted(used, which)
    instants, rows = np.unique(at_ms, return_inverse=True)
    table = np.full((instants.size, used.size), np.nan)
    table[rows, columns] = values
    since = np.full(used.size, instants.size)
    np.minimum.at(since, columns, rows)
    names = tuple(metrics[i] for i in used)
    for i, name in enumerate(names):
        spec = spec_of(name)
        if spec is not None:
            column = table[:, i]
            with np.errstate(invalid="ignore"):
                column[~((column >= spec.minimum) & (column <= spec.maximum))] = np.nan
    return _with_ratio(Track(gpu, names, instants, table, since))


def _with_ratio(track: Track) -> Track:
    parts = ("gpu_memory_used_bytes", "gpu_memory_free_bytes")
    if USED_RATIO in track.metrics or not set(parts) <= set(track.metrics):
        return track
    places = [track.metrics.index(name) for name in parts]
    used, free = track.values[:, places[0]], track.values[:, places[1]]
    ratio = np.divide(used, used + free, out=np.full(used.size, np.nan), where=used + free > 0)
    return Track(
        gpu=track.gpu,
        metrics=(*track.metrics, USED_RATIO),
        at_ms=track.at_ms,
        values=np.column_stack((track.values, ratio)),
        since=np.append(track.since, track.since[places].max()),
    )
