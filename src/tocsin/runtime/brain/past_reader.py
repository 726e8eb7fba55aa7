"""Reads for the rules what they need of more of the past than a start goes through, while the brain runs already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, MINUTE
from tocsin.rules.past import Past, Wanted, instants
from tocsin.rules.table import Floats, Ints
from tocsin.runtime.brain.periodic import Rests
from tocsin.store.port import Columns, Store

PAST_SECONDS = 1.0
"""Between two samples: a week of them is there within two minutes, and the store has little to do for it beside what
comes in."""
SAMPLE_SPAN_MS = 2 * MINUTE
"""How long a sample is: at least one interval of any agent."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The first values of GPUs, [metrics, k], and which GPUs they are, in the order in which they were first seen."""

    gpus: Ints
    values: Floats


class PastReader:
    """Hands `wanted` over to `tell` once, all of it; what is newer than a day before `started_ms` a start has read."""

    def __init__(self, store: Store, wanted: Wanted, started_ms: int, tell: Callable[[Past], None]) -> None:
        self._store = store
        self._wanted = wanted
        self._tell = tell
        # The first sample of what a start reads is read here too: what was counted up to it is known by the one before.
        slots = instants(started_ms - wanted.span_ms, started_ms)
        until_ms = instants(started_ms - DAY, started_ms).start
        self._instants = [at_ms for at_ms in slots if at_ms <= until_ms] if wanted.metrics else []
        self._samples: list[_Sample] = []
        self._places: dict[str, int] = {}
        self._rests = Rests()

    def look(self) -> None:
        """Read one sample more; does nothing once all are read. Raises StoreUnavailable: later calls try again, the
        fewer the oftener it failed."""
        if len(self._samples) < len(self._instants):
            self._rests.look(self._read)

    def _read(self) -> None:
        start = self._instants[len(self._samples)]
        found = self._store.columns(self._wanted.metrics, start, start + SAMPLE_SPAN_MS)
        self._samples.append(self._first_of_each(found))
        if len(self._samples) == len(self._instants):
            self._tell(self._joined())
            self._instants, self._samples, self._places = [], [], {}

    def _first_of_each(self, found: Columns) -> _Sample:
        """The first known value of each metric of each GPU."""
        values = np.full((len(self._wanted.metrics), len(found.gpus)), np.nan)
        for metric, seen in enumerate(found.values.T):
            known = np.flatnonzero(np.isfinite(seen))[::-1]
            # Of several values the last that is put in stays: the oldest.
            values[metric, found.gpu[known]] = seen[known]
        gpus = [self._places.setdefault(uuid, len(self._places)) for uuid in found.gpus]
        return _Sample(np.array(gpus, dtype=np.int64), values)

    def _joined(self) -> Past:
        metrics, gpus = self._wanted.metrics, list(self._places)
        values = np.full((len(metrics), len(self._samples), len(gpus)), np.nan)
        for number, sample in enumerate(self._samples):
            values[:, number, sample.gpus] = sample.values
        return Past(np.array(self._instants, dtype=np.int64), gpus, dict(zip(metrics, values, strict=True)))
