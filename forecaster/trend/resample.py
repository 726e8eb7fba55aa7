"""From irregular samples to a coarse even grid: frozen stretches out, gaps bridged or left, at most 200 points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE, SECOND

Floats = npt.NDArray[np.float64]
Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_POINTS = 200
FROZEN_MS = 30 * MINUTE
"""Power read to the milliwatt and the energy counter never stand still this long on a live GPU."""
FROZEN_SAMPLES = 4
_STEPS = tuple(
    n * unit
    for unit, counts in (
        (SECOND, (1, 2, 5, 10, 15, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 20, 30)),
        (HOUR, (1, 2, 3, 6, 12, 24)),
    )
    for n in counts
)


@dataclass(frozen=True, slots=True)
class EvenGrid:
    """Even samples: `values` float64[n] without NaN, the last dated `end_ms`, `step_ms` apart."""

    end_ms: int
    step_ms: int
    values: Floats

    @property
    def span_ms(self) -> int:
        return (self.values.size - 1) * self.step_ms


def frozen(at_ms: Instants, lively: Floats) -> Mask:
    """Which samples only repeat older ones.

    `lively` is float64[n, k]: metrics that always move on a live GPU. A run in which every present value equals the
    one before, over at least `FROZEN_SAMPLES` samples and `FROZEN_MS`, is frozen from its second sample on. Samples
    where none of the metrics is present count as neither moving nor frozen.
    """
    mask = np.zeros(at_ms.size, np.bool_)
    usable = np.flatnonzero(np.isfinite(lively).any(axis=1)) if lively.size else np.empty(0, np.int64)
    if usable.size < FROZEN_SAMPLES:
        return mask
    rows = np.where(np.isfinite(lively[usable]), lively[usable], -1.0)
    starts = np.flatnonzero(np.concatenate(([True], (rows[1:] != rows[:-1]).any(axis=1))))
    ends = np.append(starts[1:], usable.size) - 1
    long = (at_ms[usable[ends]] - at_ms[usable[starts]] >= FROZEN_MS) & (ends - starts + 1 >= FROZEN_SAMPLES)
    for first, last in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
        mask[usable[first] + 1 : usable[last] + 1] = True
    return mask


def since_reset(values: Floats) -> int:
    """Index of the first sample after the last decrease of a counter (`values` without NaN)."""
    drops = np.flatnonzero(np.diff(values) < 0)
    return int(drops[-1]) + 1 if drops.size else 0


def median(values: Floats | Instants) -> float:
    """`numpy.median` of one-dimensional `values` without NaN, without its overhead: a turn asks for millions."""
    half = values.size // 2
    if values.size % 2:
        return float(np.partition(values, half)[half])
    low, high = np.partition(values, (half - 1, half))[half - 1 : half + 1].tolist()
    return float((low + high) / 2)


def cadence(at_ms: Instants) -> int:
    """The usual time between two of the instants `at_ms`, of which there are at least two."""
    return _cadence_of(np.ascontiguousarray(at_ms, np.int64).tobytes())


@lru_cache(maxsize=128)
def _cadence_of(instants: bytes) -> int:
    at_ms: Instants = np.frombuffer(instants, np.int64)
    return int(median(np.diff(at_ms)))


def grid_step(at_ms: Instants) -> int:
    """The finest step of the ladder that keeps the span in `MAX_POINTS` and is no finer than the usual cadence."""
    span = int(at_ms[-1] - at_ms[0])
    wanted = max(cadence(at_ms), -(-span // (MAX_POINTS - 1)), 1)
    return next((step for step in _STEPS if step >= wanted), wanted)


def resample(at_ms: Instants, values: Floats) -> EvenGrid:
    """Mean of each step's samples, empty steps bridged by a straight line. Needs two samples or more, without NaN.

    Steps are counted back from the last sample, so that the newest are whole, and dated at the mean instant of their
    samples, so that a mean does not lag behind a trend.
    """
    steps = _steps_of(np.ascontiguousarray(at_ms, np.int64).tobytes())
    count = steps.filled.size
    sums = np.bincount(steps.place, weights=values, minlength=count)
    if steps.known.size == count:
        bridged = sums / steps.filled
    else:
        bridged = np.interp(np.arange(count), steps.known, sums[steps.known] / steps.filled[steps.known])
    return EvenGrid(int(at_ms[-1]) - steps.lag_ms, steps.step_ms, bridged[::-1].copy())


@dataclass(frozen=True, slots=True)
class _GridSteps:
    """Which step each sample falls in, counted back from the last, how many samples each has, and which has any."""

    step_ms: int
    place: Instants
    filled: Instants
    known: Instants
    lag_ms: int


@lru_cache(maxsize=128)
def _steps_of(instants: bytes) -> _GridSteps:
    """By the instants alone: metrics of one GPU share them, and so do the GPUs of one host."""
    at_ms = np.frombuffer(instants, np.int64)
    step, since = grid_step(at_ms), at_ms[-1] - at_ms
    place = since // step
    filled = np.bincount(place, minlength=int(place[0]) + 1)
    return _GridSteps(step, place, filled, np.flatnonzero(filled), round(float((since - place * step).mean())))
