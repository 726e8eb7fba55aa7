"""Replay of recorded telemetry: which reader a file needs, and a source that lives through a recording again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tocsin.collector.replay.formats import PACKED, pieces, read_csv, read_prometheus
from tocsin.collector.replay.recording import ReplayRecording, Samples
from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.progress import track
from tocsin.domain.reading import Gpu, Reading


def _is_csv(path: Path) -> bool:
    """By name, and by its first line where the name says nothing."""
    suffixes = path.suffixes[:-1] if path.suffix in PACKED else path.suffixes
    if ".csv" in suffixes:
        return True
    if {".prom", ".metrics"} & set(suffixes):
        return False
    first = next(pieces(path), b"").split(b"\n", 1)[0]
    return not first.startswith((b"#", b"DCGM_")) and b"," in first


def read_recording(paths: Sequence[Path]) -> ReplayRecording:
    """All of `paths` as one recording.

    A file that is cut short, damaged or lacks a column costs only itself, from that point on, and is one problem of the
    recording. Raises InputError, the first problem, where nothing at all could be read.
    """
    samples = Samples()
    problems: list[InputError] = []
    for path in track(paths, "reading files"):
        try:
            (read_csv if _is_csv(path) else read_prometheus)(path, samples)
        except InputError as error:
            problems.append(error)
            samples.fail(error)
    recording = samples.recording()
    if not recording.tracks:
        raise (
            problems[0]
            if problems
            else InputError(
                "paths", [str(path) for path in paths], "hold no GPU telemetry", "name tidy CSV or dcgm-exporter dumps"
            )
        )
    return recording


class ReplaySource:
    """A source that gives what a recording had, as time passes.

    Without `origin_ms` the instants given to `read` are the recording's own. With it, the recording's first instant
    happens at `origin_ms` and its time runs `speed` times as fast; readings and events are dated on the reader's
    scale. All are given in order, after a long pause all that was missed; a GPU without anything new gives its newest
    reading again. Events are given once.
    """

    name = "replay"

    def __init__(self, recording: ReplayRecording, *, origin_ms: int | None = None, speed: float = 1.0) -> None:
        if speed <= 0:
            raise InputError("speed", speed, "is not above 0", "name how many recorded seconds pass in one")
        self._recording = recording
        self._origin_ms = origin_ms
        self._speed = speed
        self._instants = recording.instants()
        self._events = iter(recording.events())
        self._next: tuple[int, list[Reading]] | None = next(self._instants, None)
        self._event: Event | None = next(self._events, None)
        self._newest: dict[Gpu, Reading] = {}
        self._position_ms = recording.start_ms

    @property
    def finished(self) -> bool:
        return self._next is None and self._event is None

    def gpus(self) -> list[Gpu]:
        """The GPUs whose recording has begun and not ended."""
        now = self._position_ms
        return [track.gpu for track in self._recording.tracks if track.at_ms[0] <= now <= track.at_ms[-1]]

    def read(self, now_ms: int) -> Batch:
        self._position_ms = max(self._position_ms, self._recorded(now_ms))
        readings: list[Reading] = []
        while self._next is not None and self._next[0] <= self._position_ms:
            readings += (replace(one, at_ms=self._dated(one.at_ms)) for one in self._next[1])
            self._next = next(self._instants, None)
        fresh = {one.gpu: one for one in readings}
        readings += (self._newest[gpu] for gpu in self.gpus() if gpu not in fresh and gpu in self._newest)
        self._newest.update(fresh)
        events: list[Event] = []
        while self._event is not None and self._event.at_ms <= self._position_ms:
            events.append(replace(self._event, at_ms=self._dated(self._event.at_ms)))
            self._event = next(self._events, None)
        return Batch(readings, events)

    def close(self) -> None:
        """Nothing is held open."""

    def _recorded(self, now_ms: int) -> int:
        if self._origin_ms is None:
            return now_ms
        return self._recording.start_ms + int((now_ms - self._origin_ms) * self._speed)

    def _dated(self, at_ms: int) -> int:
        if self._origin_ms is None:
            return at_ms
        return self._origin_ms + round((at_ms - self._recording.start_ms) / self._speed)
