"""What is forecast: which metric, towards which threshold, in which direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.trend.resample import Floats
from tocsin.store.port import Series

TEMPERATURE_LIMIT = 85.0
"""Degrees Celsius; the project's own temperature threshold."""
SLOWDOWN_RESERVE = 7.0
"""Degrees below the slowdown threshold at which load should already leave a GPU."""
MEMORY_LIMIT = 0.9
"""Share of the frame buffer in use; the project's own memory threshold."""
REMAP_LIMIT = 512.0
"""Rows: DCGM's health check warns from 512 uncorrectable remapped rows on (DcgmHealthWatch, Ampere and newer)."""
MARGIN_LIMIT = 5.0
"""Degrees left to the maximum operating temperature, for parts that report a margin (Ada and newer). Throttling starts
at zero and the reported value can lag, hence the reserve."""

_SLOWDOWN = "gpu_temperature_slowdown_celsius"
LIVELY = ("gpu_power_watts", "gpu_energy_joules_total")
"""Metrics that always move on a live GPU: where they stand still, so does the telemetry."""


@dataclass(frozen=True, slots=True)
class Target:
    """`metric` going to `limit`, from below where `rising`. A `cumulative` metric only grows between resets.

    An `optional` metric is spoken of only where the GPU has it.
    """

    metric: str
    limit: float
    rising: bool = True
    cumulative: bool = False
    optional: bool = False

    @property
    def name(self) -> str:
        """The prediction's target."""
        return f"time_to_threshold:{self.metric}"


_TARGETS = (
    Target("gpu_temperature_celsius", TEMPERATURE_LIMIT),
    Target("gpu_thermal_margin_celsius", MARGIN_LIMIT, rising=False, optional=True),
    Target("gpu_memory_used_ratio", MEMORY_LIMIT),
    Target("gpu_row_remap_uncorrectable_total", REMAP_LIMIT, cumulative=True),
)

METRICS = (*(target.metric for target in _TARGETS), _SLOWDOWN, *LIVELY)
"""Everything that the forecast reads."""


def column(series: Series, metric: str) -> Floats | None:
    """Values of `metric`, float64[n] with NaN where absent; None where the series has no such metric."""
    if metric not in series.metrics:
        return None
    return np.asarray(series.values[:, series.metrics.index(metric)], np.float64)


def targets(series: Series) -> list[Target]:
    """The targets of one GPU: temperature stops at its slowdown threshold less the reserve where that is lower."""
    chosen = []
    for target in _TARGETS:
        if target.optional:
            values = column(series, target.metric)
            if values is None or not np.isfinite(values).any():
                continue
        if target.metric == "gpu_temperature_celsius":
            target = Target(target.metric, _temperature_limit(series))
        chosen.append(target)
    return chosen


def _temperature_limit(series: Series) -> float:
    slowdown = column(series, _SLOWDOWN)
    known = slowdown[np.isfinite(slowdown)] if slowdown is not None else np.empty(0)
    return min(TEMPERATURE_LIMIT, float(known[-1]) - SLOWDOWN_RESERVE) if known.size else TEMPERATURE_LIMIT
