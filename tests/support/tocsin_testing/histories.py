"""Made-up pasts of one GPU for the tests of forecasters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import MINUTE
from tocsin.domain.reading import Gpu
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.store.port import Series
from tocsin_testing.builders import T0, gpu

Floats = npt.NDArray[np.float64]

TEMPERATURE = "gpu_temperature_celsius"
MEMORY = "gpu_memory_used_ratio"
REMAP = "gpu_row_remap_uncorrectable_total"
MARGIN = "gpu_thermal_margin_celsius"
SLOWDOWN = "gpu_temperature_slowdown_celsius"
POWER = "gpu_power_watts"


def noise(n: int, scale: float, seed: int = 0) -> Floats:
    """White noise."""
    return np.random.default_rng(seed).normal(0.0, scale, n)


def history(
    columns: Mapping[str, Floats], *, end_ms: int = T0, step_ms: int = MINUTE, which: Gpu | None = None
) -> GpuHistory:
    """A past whose last sample is at `end_ms`; power moves as on a live GPU unless `columns` has it."""
    which = which or gpu()
    n = len(next(iter(columns.values())))
    columns = {POWER: 300 + noise(n, 5.0, seed=99), **columns}
    at_ms = end_ms - step_ms * np.arange(n, dtype=np.int64)[::-1]
    return GpuHistory(which, Series(which.uuid, tuple(columns), at_ms, np.column_stack(list(columns.values()))))


def thinned(past: GpuHistory, keep: npt.NDArray[np.bool_]) -> GpuHistory:
    """`past` without the samples that `keep` marks False."""
    series = past.series
    return GpuHistory(past.gpu, Series(series.gpu, series.metrics, series.at_ms[keep], series.values[keep]))
