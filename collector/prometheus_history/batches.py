"""Windows of a site's history as batches: readings at the instants of the scrapes, and XID and SXID onsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tocsin.collector.dcgm.exposition import Use
from tocsin.collector.dcgm.fields import SXID_FATAL
from tocsin.collector.dcgm.readings import FATAL, NON_FATAL, Counted, SxidOnsets, XidOnsets, XidState
from tocsin.collector.prometheus_history.history import QueryWindow, SeriesSamples
from tocsin.collector.replay.recording import ReplayRecording, Samples, Track
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.reading import Gpu, Owner, Reading

SOURCE = "prometheus"
BATCH_READINGS = 2_000
"""Most readings of one write."""
GAP_MS = 5 * MINUTE
"""A silence of a host that counts as a gap: longer than any scrape interval in use."""
MAX_GAPS = 1_000

_GpuKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a host had no GPU telemetry, between two in which it had."""

    host: str
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class ImportTally:
    """What was found, for the summary."""

    gpus: dict[_GpuKey, Gpu] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    samples: int = 0
    blank: int = 0
    readings: int = 0
    start_ms: int | None = None
    end_ms: int | None = None
    gaps: list[Gap] = field(default_factory=list)
    more_gaps: int = 0
    xids: Counter[int] = field(default_factory=Counter)
    sxids: Counter[int] = field(default_factory=Counter)
    unsettled: Counter[int] = field(default_factory=Counter)
    restarts: int = 0


class Batches:
    """Carries latched codes, counters and the last instant of each host from window to window."""

    def __init__(self) -> None:
        self.tally = ImportTally()
        self._xids = XidOnsets(SOURCE)
        self._sxids = SxidOnsets(SOURCE)
        self._last_ms: dict[str, int] = {}
        self._counters: dict[tuple[_GpuKey, str], float] = {}

    def prime(self, window: QueryWindow) -> None:
        """Learn the codes before the first window; they are no events."""
        for at_ms, look in _looks(window.runs):
            self._xids.note(look, at_ms)
        self._switches(window.runs)

    def count(self, window: QueryWindow) -> None:
        """Count what is in one window without making readings of it."""
        recording, _ = self._look(window)
        self.tally.readings += sum(track.at_ms.size for track in recording.tracks)

    def batches(self, window: QueryWindow) -> Iterator[Batch]:
        """Everything of one window; its events come first."""
        recording, events = self._look(window)
        owners = _owners(window.runs)
        ready: list[Reading] = []
        if events:
            yield Batch(events=events)
        for _, readings in recording.instants():
            ready += (_owned(one, owners) for one in readings)
            if len(ready) >= BATCH_READINGS:
                yield self._batch(ready)
                ready = []
        if ready:
            yield self._batch(ready)

    def _look(self, window: QueryWindow) -> tuple[ReplayRecording, list[Event]]:
        recording, blank = _recording(window.runs)
        self.tally.samples += window.samples
        self.tally.blank += blank
        self._count(recording)
        return recording, self._events(window.runs, recording)

    def _batch(self, readings: list[Reading]) -> Batch:
        self.tally.readings += len(readings)
        return Batch(readings=readings)

    def _count(self, recording: ReplayRecording) -> None:
        tally = self.tally
        seen: dict[str, list[npt.NDArray[np.int64]]] = {}
        for track in recording.tracks:
            seen.setdefault(track.gpu.host, []).append(track.at_ms)
            tally.gpus[track.gpu.host, track.gpu.uuid] = track.gpu
            tally.metrics.update(track.metrics)
            first, last = int(track.at_ms[0]), int(track.at_ms[-1])
            tally.start_ms = first if tally.start_ms is None else min(first, tally.start_ms)
            tally.end_ms = last if tally.end_ms is None else max(last, tally.end_ms)
        for host, parts in seen.items():
            before = self._last_ms.get(host)
            times = np.unique(np.concatenate(parts if before is None else [np.array([before]), *parts]))
            for place in np.flatnonzero(np.diff(times) > GAP_MS):
                self._gap(Gap(host, int(times[place]), int(times[place + 1])))
            self._last_ms[host] = int(times[-1])

    def _gap(self, gap: Gap) -> None:
        if len(self.tally.gaps) < MAX_GAPS:
            self.tally.gaps.append(gap)
        else:
            self.tally.more_gaps += 1

    def _events(self, runs: Iterable[SeriesSamples], recording: ReplayRecording) -> list[Event]:
        events: list[Event] = []
        restarts = {(t.gpu.host, t.gpu.uuid): _restarts(t, self._counters) for t in recording.tracks}
        self.tally.restarts += sum(len(times) for times in restarts.values())
        for at_ms, look in _looks(runs):
            fell = at_ms in restarts.get((look.gpu.host, look.gpu.uuid), ())
            events += self._xids.note(look, at_ms, settled=not fell)
        self.tally.unsettled.update(code for _, code in self._xids.unsettled)
        self._xids.unsettled.clear()
        self.tally.xids.update(event.code for event in events)
        sxids = self._switches(runs)
        self.tally.sxids.update(event.code for event in sxids)
        return sorted((*events, *sxids), key=lambda event: (event.at_ms, event.gpu))

    def _switches(self, runs: Iterable[SeriesSamples]) -> list[Event]:
        found: dict[tuple[int, str], list[tuple[str, str, int]]] = {}
        for run in runs:
            if run.head.use is Use.SXID:
                severity = FATAL if run.head.name in SXID_FATAL else NON_FATAL
                for at_ms, code in zip(run.at_ms.tolist(), run.raw.tolist(), strict=True):
                    found.setdefault((at_ms, run.head.host), []).append((run.head.part, severity, int(code)))
        return [e for (at_ms, host), codes in sorted(found.items()) for e in self._sxids.note(host, codes, at_ms)]


def _recording(runs: Iterable[SeriesSamples]) -> tuple[ReplayRecording, int]:
    """The metrics as tracks, and how many samples are blank."""
    samples, blank = Samples(), 0
    for run in runs:
        gpu, which = run.head.gpu, run.head.field
        if gpu is None or which is None:
            continue
        number, metric = samples.gpu(gpu), samples.metric(run.head.key, which.spec.dcgm_scale)
        size = run.at_ms.size
        raw = np.array([which.plain(one) for one in run.raw]) if which.of_states() else run.raw
        blank += samples.add(np.full(size, number, np.int32), np.full(size, metric, np.int32), run.at_ms, raw)
    return samples.recording(), blank


def _looks(runs: Iterable[SeriesSamples]) -> list[tuple[int, XidState]]:
    """What each scrape says of each GPU's last XID, by instant."""
    latched: dict[_GpuKey, dict[int, int]] = {}
    counts: dict[_GpuKey, dict[int, dict[int, Counted]]] = {}
    gpus: dict[_GpuKey, Gpu] = {}
    for run in runs:
        head, gpu = run.head, run.head.gpu
        if gpu is None or head.use not in (Use.XID, Use.XID_COUNT):
            continue
        key = (gpu.host, gpu.uuid)
        gpus.setdefault(key, gpu)
        for at_ms, raw in zip(run.at_ms.tolist(), run.raw.tolist(), strict=True):
            if head.use is Use.XID:
                if 0 <= raw <= 0xFFFF:
                    latched.setdefault(key, {})[at_ms] = int(raw)
            elif raw == raw:
                counts.setdefault(key, {}).setdefault(at_ms, {})[head.code] = Counted(int(raw), head.window_ms)
    looks = [
        (at_ms, XidState(gpu, latched.get(key, {}).get(at_ms), counts.get(key, {}).get(at_ms, {})))
        for key, gpu in gpus.items()
        for at_ms in {*latched.get(key, {}), *counts.get(key, {})}
    ]
    return sorted(looks, key=lambda look: look[0])


def _restarts(track: Track, last: dict[tuple[_GpuKey, str], float]) -> set[int]:
    """Instants at which any counter of a GPU is lower than before; `last` has them from the window before."""
    found: set[int] = set()
    gpu = (track.gpu.host, track.gpu.uuid)
    for place, name in enumerate(track.metrics):
        if (spec := spec_of(name)) is None or spec.kind is not MetricKind.COUNTER:
            continue
        rows = np.flatnonzero(np.isfinite(track.values[:, place]))
        if not rows.size:
            continue
        values = track.values[rows, place]
        before = last.get((gpu, name), values[0])
        last[gpu, name] = float(values[-1])
        fell: npt.NDArray[np.intp] = rows[np.diff(values, prepend=before) < 0]
        found.update(track.at_ms[fell].tolist())
    return found


def _owners(runs: Iterable[SeriesSamples]) -> Mapping[_GpuKey, Mapping[int, set[Owner]]]:
    times: dict[tuple[_GpuKey, Owner], list[npt.NDArray[np.int64]]] = {}
    for run in runs:
        gpu, owner = run.head.gpu, run.head.owner
        if gpu is not None and owner is not None:
            times.setdefault(((gpu.host, gpu.uuid), owner), []).append(run.at_ms)
    found: dict[_GpuKey, dict[int, set[Owner]]] = {}
    for (key, owner), parts in times.items():
        of_gpu = found.setdefault(key, {})
        for at_ms in np.unique(np.concatenate(parts)).tolist():
            of_gpu.setdefault(at_ms, set()).add(owner)
    return found


def _owned(reading: Reading, owners: Mapping[_GpuKey, Mapping[int, set[Owner]]]) -> Reading:
    found = owners.get((reading.gpu.host, reading.gpu.uuid), {}).get(reading.at_ms)
    return replace(reading, owners=tuple(sorted(found))) if found else reading
