"""Recorded telemetry in memory: samples as files are read, then one table a GPU in Tocsin's own names and units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.collector.dcgm.fields import FP64_BLANK, INT32_BLANK, INT64_BLANK
from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import BY_DCGM_NAME, spec_of
from tocsin.domain.reading import Gpu, Missing, Reading

XID = "gpu_xid_last_code"
USED_RATIO = "gpu_memory_used_ratio"
PAUSE_MS = 6 * HOUR
"""A longer pause of everything that is recorded of a host parts the recording: what came in between has no instant."""


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

    def xids(self, observed: Instants | None = None) -> list[Event]:
        """Transitions of the latched XID gauge into a code. `observed` int64[k], rising, are the instants at which
        anything was recorded of the host; without it the GPU's own are taken.

        The gauge holds the last code and is never cleared, so a level says nothing about when. The first sample is
        no transition, nor is the first after a pause of the recording: the code may be days old. One and the same code
        twice in a row cannot be seen.
        """
        if XID not in self.metrics:
            return []
        column = self.values[:, self.metrics.index(XID)]
        rows = np.flatnonzero(np.isfinite(column))
        codes = column[rows].astype(np.int64)
        stretch = _stretch(self.at_ms[rows], self.at_ms if observed is None else observed)
        into = np.flatnonzero((codes[1:] != codes[:-1]) & (codes[1:] > 0) & (stretch[1:] == stretch[:-1])) + 1
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


def _stretch(at_ms: Instants, observed: Instants) -> npt.NDArray[np.int64]:
    """How many pauses of `observed` lie before each of `at_ms`."""
    resumed = observed[1:][np.diff(observed) > PAUSE_MS]
    return np.searchsorted(resumed, at_ms, side="right")


@dataclass(frozen=True, slots=True)
class ReplayRecording:
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
        found = (e for track in self.tracks for e in track.xids(self.observed.get(track.gpu.host)))
        return sorted(found, key=lambda e: (e.at_ms, e.gpu))

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
        if (spec := spec_of(name)) is not None:
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


# DCGM's blank sentinels over whole columns, which older exporters print as if they were values.


def is_blank(raw: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which raw values, before any scaling, stand for nothing: a sentinel, a NaN or an infinity."""
    small = ((raw >= FP64_BLANK) & (raw <= FP64_BLANK + 3)) | ((raw >= INT32_BLANK) & (raw <= INT32_BLANK + 3))
    return small | (raw >= float(INT64_BLANK)) | ~np.isfinite(raw)


Ints = npt.NDArray[np.int64]


class Samples:
    """Grows while files are read; `recording` turns it into tracks.

    `add` takes columns of equal length: GPU and metric as the numbers that `gpu` and `metric` gave, instants, and raw
    values as DCGM prints them.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._gpus: list[Gpu] = []
        self._gpu_numbers: dict[tuple[str, str], int] = {}
        self._metrics: list[str] = []
        self._scales: list[float] = []
        self._metric_numbers: dict[tuple[str, float], int] = {}
        self._parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        self._observed: dict[str, set[int]] = {}
        self._problems: list[InputError] = []

    def gpu(self, gpu: Gpu) -> int:
        """The number of `gpu`; one UUID on two hosts is two GPUs, as a moved board has two histories."""
        key = (gpu.host, gpu.uuid)
        if key not in self._gpu_numbers:
            self._gpu_numbers[key] = len(self._gpus)
            self._gpus.append(gpu)
        return self._gpu_numbers[key]

    def metric(self, name: str, scale: float) -> int:
        """The number of canonical metric or variant `name` whose raw values are to be multiplied by `scale`."""
        key = (name, scale)
        if key not in self._metric_numbers:
            self._metric_numbers[key] = len(self._metrics)
            self._metrics.append(name)
            self._scales.append(scale)
        return self._metric_numbers[key]

    def dcgm_metrics(self) -> dict[str, int]:
        """Number of every metric that DCGM has, by DCGM's field name, old or new."""
        return {name: self.metric(spec.name, spec.dcgm_scale) for name, spec in BY_DCGM_NAME.items()}

    def add(self, gpu: Ints, metric: Ints, at_ms: Ints, raw: Floats) -> int:
        """Keep samples; returns how many are blank (these are kept as such)."""
        blank = is_blank(raw)
        scaled = np.where(blank, np.nan, raw) * np.array(self._scales)[metric]
        self._parts.append((gpu.astype(np.int32), metric.astype(np.int32), at_ms, scaled))
        return int(blank.sum())

    def see(self, host: str, at_ms: int) -> None:
        self._observed.setdefault(host, set()).add(at_ms)

    def report(self, path: Path, counts: Counter[str]) -> None:
        """Note what was lost in `path`: one problem for each kind, with its number of lines."""
        for problem, count in sorted(counts.items()):
            self._problems.append(InputError(str(path), f"{count} lines", problem, "all other lines are kept"))

    def fail(self, error: InputError) -> None:
        self._problems.append(error)

    def recording(self) -> ReplayRecording:
        observed = {host: np.array(sorted(times), np.int64) for host, times in sorted(self._observed.items())}
        return ReplayRecording(tuple(self._tracks()), observed, self.rows, tuple(self._problems))

    def _tracks(self) -> list[Track]:
        if not self._parts:
            return []
        gpu, metric, at_ms, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        names = sorted(set(self._metrics))
        places = np.array([names.index(name) for name in self._metrics], np.int64)
        order = np.argsort(gpu, kind="stable")
        numbers, starts = np.unique(gpu[order], return_index=True)
        parts = np.split(order, starts[1:])
        tracks = [
            build_track(self._gpus[number], names, at_ms[part], places[metric[part]], values[part])
            for number, part in zip(numbers, parts, strict=True)
        ]
        return sorted(tracks, key=lambda track: (track.gpu.host, track.gpu.uuid))


Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
