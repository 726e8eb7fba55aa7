"""Series of single metrics over a whole span: many statements ask for the same, of many GPUs in one request."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.domain.grouping import in_parts
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu
from tocsin.store.grid import by_gpu, within
from tocsin.store.port import Series, Store

READ_TOGETHER = 64
"""GPUs whose series of a whole span are read at once: some 40 MB for a fortnight by the minute."""
FEW_TOGETHER = 8
"""The same where some of the span is read every 10 s, and a brain has more to do."""
KEPT = 2
"""Answers of the store that are kept, the newest."""


class SeriesCache:
    """Series within [`start_ms`, `end_ms`]. Each is read once where those who ask go through the metrics one by one,
    and through the GPUs of each by host, then UUID.

    What has a label of its own, such as a process, is of one GPU and for some hours of the span: only these are read.
    """

    def __init__(
        self, store: Store, gpus: Iterable[Gpu], start_ms: int, end_ms: int, together: int = READ_TOGETHER
    ) -> None:
        self._store, self._start_ms, self._end_ms = store, start_ms, end_ms
        ordered = [gpu.uuid for gpu in sorted(gpus, key=lambda one: (one.host, one.uuid))]
        self._mates = {uuid: frozenset(part) for part in in_parts(ordered, together) for uuid in part}
        self._known: dict[tuple[str, frozenset[str]], dict[str, Series]] = {}

    def between(self, gpu: str, metric: str, start_ms: int, end_ms: int) -> Series:
        """Values of `metric` in [`start_ms`, `end_ms`), as far as they lie in the span. Raises StoreUnavailable."""
        if metric not in METRICS:
            end_ms = min(end_ms, self._end_ms + 1)
            return by_gpu(self._store.columns([metric], start_ms, end_ms, {gpu}), {gpu})[gpu]
        uuids = self._mates.get(gpu, frozenset({gpu}))
        if (metric, uuids) not in self._known:
            for oldest in [*self._known][: len(self._known) - KEPT + 1]:
                del self._known[oldest]
            columns = self._store.columns([metric], self._start_ms, self._end_ms + 1, uuids)
            self._known[metric, uuids] = by_gpu(columns, uuids)
        return within(self._known[metric, uuids][gpu], start_ms, end_ms)
