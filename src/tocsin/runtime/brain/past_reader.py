"""Reads for the rules what they need of more of the past than a start goes through, while the brain runs already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.rules.past import Past, Wanted
from tocsin.store.port import Columns, Store

PAST_SECONDS = 1.0
"""Between two samples: a week of them is there within two minutes, sooner than findings of before the start are given
up, and the store has little to do for it beside what comes in."""
SAMPLE_MS = 2 * HOUR
"""Between the instants of two samples, as of those that a start reads of the last day."""
SAMPLE_SPAN_MS = 2 * MINUTE
"""How long a sample is: at least one interval of any agent."""


class PastReader:
    """Hands `wanted` over to `tell` once, all of it; what is newer than a day before `started_ms` a start has read."""

    def __init__(self, store: Store, wanted: Wanted, started_ms: int, tell: Callable[[Past], None]) -> None:
        self._store = store
        self._wanted = wanted
        self._tell = tell
        oldest = wanted.span_ms - wanted.span_ms % SAMPLE_MS
        self._instants = [started_ms - back for back in range(oldest, DAY - 1, -SAMPLE_MS)] if wanted.metrics else []
        self._samples: list[Columns] = []

    def look(self) -> None:
        """Read one sample more; does nothing once all are read. Raises StoreUnavailable: the next call tries again."""
        read = len(self._samples)
        if read == len(self._instants):
            return
        start = self._instants[read]
        found = self._store.columns(self._wanted.metrics, start, start + SAMPLE_SPAN_MS)
        self._samples.append(_first_of_each(found))
        if read + 1 == len(self._instants):
            self._tell(_joined(self._instants, self._samples))
            self._instants, self._samples = [], []


def _first_of_each(found: Columns) -> Columns:
    """The first row of each GPU, in the order of `gpus`."""
    _, first = np.unique(found.gpu, return_index=True)
    return Columns(found.gpus, found.metrics, found.gpu[first], found.at_ms[first], found.values[first])


def _joined(instants: list[int], samples: list[Columns]) -> Past:
    gpus = sorted({uuid for sample in samples for uuid in sample.gpus})
    place = {uuid: number for number, uuid in enumerate(gpus)}
    metrics = samples[0].metrics
    values = np.full((len(metrics), len(samples), len(gpus)), np.nan)
    for number, sample in enumerate(samples):
        values[:, number, [place[uuid] for uuid in sample.gpus]] = sample.values.T
    return Past(np.array(instants, dtype=np.int64), gpus, dict(zip(metrics, values, strict=True)))
