"""Simulated series of memory, temperature and fragmentation, cut into windows of one past and several outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, MINUTE
from tocsin.forecaster.deep.quantiles import Windows
from tocsin.forecaster.features.examples import Ints, Singles
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec

TARGETS = ("gpu_memory_used_ratio", "gpu_temperature_celsius", "gpu_allocator_external_fragmentation_ratio")
METRICS = (*TARGETS, "gpu_power_watts", "gpu_utilization_ratio")
STEP_MS = 10 * MINUTE
PAST = 144
"""Steps of past: one day."""
AHEAD = (1, 3, 6, 36, 144)
"""10 min, 30 min, 1 h, 6 h and 24 h."""
LEAST_SEEN = 0.5
"""A window needs this share of known values of the target, else no model is asked about it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What to simulate; `faults` multiplies the rates of spontaneous faults."""

    gpus: int
    days: int
    seed: int
    start_ms: int
    faults: float


def series(fleet: Fleet) -> Singles:
    """float32[gpus, instants, metrics] every ten minutes, NaN where a reading has no value."""
    spec = FleetSpec(
        gpus=fleet.gpus,
        seed=fleet.seed,
        start_ms=fleet.start_ms,
        interval_ms=STEP_MS,
        fault_rate_scale=fleet.faults,
    )
    simulated = SimulatedFleet(spec)
    rows = [simulated.step_columns(METRICS)[0].values for _ in range(fleet.days * DAY // STEP_MS)]
    return np.stack(rows, axis=1).astype(np.float32)


def windows(values: Singles, start_ms: int, every: int, offset: int = 0) -> tuple[Windows, Singles]:
    """A window of each GPU every `every` steps, with its outcomes float32[n, targets, ahead]; NaN where the target has
    too few values in the past or none at the instant."""
    gpus, instants, _ = values.shape
    ends = np.arange(PAST + offset, instants - max(AHEAD) + 1, every)
    device, end = (part.ravel() for part in np.meshgrid(np.arange(gpus), ends, indexing="ij"))
    past = values[device[:, None], end[:, None] + np.arange(-PAST, 0)]
    truth = (
        values[device[:, None], end[:, None] + np.asarray(AHEAD) - 1][:, :, : len(TARGETS)].transpose(0, 2, 1).copy()
    )
    thin = np.isfinite(past[:, :, : len(TARGETS)]).mean(axis=1) < LEAST_SEEN
    truth[thin] = np.nan
    at_ms: Ints = start_ms + end.astype(np.int64) * STEP_MS
    return Windows(METRICS, past, at_ms, device.astype(np.int32)), truth
