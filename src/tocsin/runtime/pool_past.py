"""The hourly past of every pool, kept while the brain runs and read back from the store at its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.identity import Gpu
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Reading
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.store.port import Store

KEPT_MS = 35 * DAY
"""Five weeks: the week's course needs four."""
SAMPLE_MS = 2 * MINUTE
SAMPLE_AT_MS = 30 * MINUTE
"""At the start an hour is known by the readings of two minutes in its middle."""
UTILISATION = "gpu_utilization_ratio"


@dataclass
class _Hours:
    """Sums by hour; keys are starts of hours."""

    busy: dict[int, tuple[float, int]] = field(default_factory=dict)
    pending: dict[int, tuple[float, int]] = field(default_factory=dict)
    simulated: bool = False


def _add(sums: dict[int, tuple[float, int]], hour: int, value: float) -> None:
    total, count = sums.get(hour, (0.0, 0))
    sums[hour] = total + value, count + 1


class PoolPasts:
    """Means of utilisation and waiting GPUs by pool and hour. Whole GPUs count; MIG instances are parts of them."""

    def __init__(self) -> None:
        self._pools: dict[str, _Hours] = {}

    def observe(self, readings: Sequence[Reading], pools: Sequence[PoolState], now_ms: int) -> None:
        """Take in the present: the newest reading of each GPU, and what the scheduler says."""
        self._put([(one.gpu, one.values.get(UTILISATION)) for one in readings], now_ms)
        for pool in pools:
            if pool.pending_gpus is not None:
                _add(self._pools.setdefault(pool.name, _Hours()).pending, now_ms // HOUR * HOUR, pool.pending_gpus)
        self._forget(now_ms)

    def recall(self, store: Store, now_ms: int) -> None:
        """Read the past back from `store`; hours without readings stay unknown. Raises StoreUnavailable."""
        gpus = {gpu.uuid: gpu for gpu in store.gpus()}
        for hour in range((now_ms - KEPT_MS) // HOUR * HOUR, now_ms // HOUR * HOUR, HOUR):
            start = hour + SAMPLE_AT_MS
            found = store.columns([UTILISATION], start, start + SAMPLE_MS)
            newest = dict(zip(found.gpu.tolist(), found.values[:, 0].tolist(), strict=True))
            known = [(gpus[found.gpus[place]], value) for place, value in newest.items() if found.gpus[place] in gpus]
            self._put(known, hour)

    def _put(self, values: Sequence[tuple[Gpu, float | None]], at_ms: int) -> None:
        busy: dict[str, list[float]] = {}
        for gpu, value in values:
            if not gpu.is_mig and value is not None and np.isfinite(value):
                busy.setdefault(gpu.pool, []).append(value)
                self._pools.setdefault(gpu.pool, _Hours()).simulated |= gpu.simulated
        for pool, found in busy.items():
            _add(self._pools[pool].busy, at_ms // HOUR * HOUR, sum(found) / len(found))

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - KEPT_MS
        for hours in self._pools.values():
            hours.busy = {hour: value for hour, value in hours.busy.items() if hour >= oldest}
            hours.pending = {hour: value for hour, value in hours.pending.items() if hour >= oldest}
        self._pools = {name: hours for name, hours in self._pools.items() if hours.busy or hours.pending}

    def take(self) -> list[PoolPast]:
        """What is known, by pool."""
        return [_past(name, hours) for name, hours in sorted(self._pools.items())]


def _past(name: str, hours: _Hours) -> PoolPast:
    first = min([*hours.busy, *hours.pending])
    last = max([*hours.busy, *hours.pending])
    at_ms = np.arange(first, last + 1, HOUR, dtype=np.int64)
    return PoolPast(
        name, at_ms, _means(hours.busy, at_ms.tolist()), _means(hours.pending, at_ms.tolist()), hours.simulated
    )


def _means(sums: Mapping[int, tuple[float, int]], hours: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = [sums[hour][0] / sums[hour][1] if hour in sums else np.nan for hour in hours]
    return np.array(found, dtype=np.float64)
