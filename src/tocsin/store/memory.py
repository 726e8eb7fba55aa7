"""A store in memory: for tests, for replay, and as the plainest statement of the laws."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.grid import columns_of
from tocsin.store.identity import KnownGpu
from tocsin.store.port import Columns, Series

T = TypeVar("T")


class MemoryStore:
    """Implements `tocsin.store.port.Store`; what it holds ends with the process."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[tuple[int, str], Reading] = {}
        self._gpus: dict[str, KnownGpu] = {}
        self._events: dict[str, Event] = {}
        self._findings: dict[str, Finding] = {}
        self._predictions: dict[str, Prediction] = {}

    def init(self) -> None:
        """Nothing to create."""

    def write(self, batch: Batch) -> None:
        with self._lock:
            for reading in batch.readings:
                key = (reading.at_ms, reading.gpu.uuid)
                self._readings[key] = _merged(self._readings.get(key), reading)
                self._gpus.setdefault(reading.gpu.uuid, KnownGpu(reading.gpu)).learn(reading.gpu, reading.at_ms)
            self._events.update((event.id, event) for event in batch.events)
            self._findings.update((finding.id, finding) for finding in batch.findings)
            self._predictions.update((prediction.id, prediction) for prediction in batch.predictions)

    def gpus(self) -> list[Gpu]:
        with self._lock:
            return [self._gpus[uuid].gpu for uuid in sorted({uuid for _, uuid in self._readings})]

    def latest(self, since_ms: int) -> list[Reading]:
        newest = {reading.gpu.uuid: reading for reading in self._select(since_ms, None)}
        return [newest[uuid] for uuid in sorted(newest)]

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        yield from (reading for reading in self._select(start_ms, end_ms) if gpus is None or reading.gpu.uuid in gpus)

    def _select(self, start_ms: int, end_ms: int | None) -> list[Reading]:
        with self._lock:
            keys = sorted(key for key in self._readings if start_ms <= key[0] and (end_ms is None or key[0] < end_ms))
            found = [self._readings[key] for key in keys]
            return [
                Reading(self._gpus[r.gpu.uuid].gpu, r.at_ms, dict(r.values), dict(r.missing), r.owners) for r in found
            ]

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        found = [reading for reading in self._select(start_ms, end_ms) if reading.gpu.uuid == gpu]
        rows = [[reading.values.get(name, np.nan) for name in metrics] for reading in found]
        values = np.array(rows, dtype=np.float64).reshape(len(found), len(metrics))
        return Series(gpu, tuple(metrics), np.array([r.at_ms for r in found], dtype=np.int64), values)

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        return columns_of(metrics, self.readings(start_ms, end_ms, gpus))

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        return columns_of(metrics, self.latest(since_ms))

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        with self._lock:
            found = [e for e in self._events.values() if start_ms <= e.at_ms < end_ms and gpu in (None, e.gpu)]
        return sorted(found, key=lambda event: (event.at_ms, event.id))

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        with self._lock:
            found = [f for f in self._findings.values() if start_ms <= f.last_ms < end_ms]
        return sorted(found, key=lambda finding: (finding.last_ms, finding.id))

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        with self._lock:
            every = list(self._predictions.values())
        found = [p for p in every if start_ms <= p.at_ms < end_ms and gpu in (None, p.subject.name)]
        return sorted(found, key=lambda prediction: (prediction.at_ms, prediction.id))

    def prune(self, before_ms: int) -> int:
        with self._lock:
            old = [key for key in self._readings if key[0] < before_ms]
            for key in old:
                del self._readings[key]
            return (
                len(old)
                + _prune(self._events, lambda event: event.at_ms < before_ms)
                + _prune(self._findings, lambda finding: finding.last_ms < before_ms)
                + _prune(self._predictions, lambda prediction: prediction.at_ms < before_ms)
            )

    def close(self) -> None:
        """Nothing to let go of."""


def _prune(kept: dict[str, T], old: Callable[[T], bool]) -> int:
    names = [name for name, item in kept.items() if old(item)]
    for name in names:
        del kept[name]
    return len(names)


def _merged(old: Reading | None, new: Reading) -> Reading:
    values = {**old.values, **new.values} if old is not None else dict(new.values)
    missing = {**old.missing, **new.missing} if old is not None else dict(new.missing)
    reasons = {name: why for name, why in missing.items() if name not in values}
    return Reading(new.gpu, new.at_ms, values, reasons, new.owners or (old.owners if old is not None else ()))
