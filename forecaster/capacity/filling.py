"""Growth without a plateau: when will memory be full, or free memory lie in pieces?

Many series at once, on an even grid of time. A straight line is fitted to the newest part of each, of several lengths;
it speaks where it rises by more than noise and ripples do, and still rises in its newer half. What filled up after a
start and stays has a plateau, and a jump is a new job, not a trend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import MINUTE

Floats = npt.NDArray[np.float64]

STEP_MS = MINUTE
WINDOWS = (8, 12, 20, 40, 80, 160)
"""Steps looked at (own choice): leaks take 2 to 12 hours, holes between tensors open within the hour."""
PAST = max(WINDOWS)
"""Steps that are looked at at most."""
JUMP = 0.08
"""Change of a share within a step that no growth makes: another job, another process."""
GAP = 3
"""Steps without a value that end what was: another process may have begun meanwhile."""
LEAST_RISE = 0.012
"""Rise over a window, as a share of the whole, below which nothing is said."""
SIGNIFICANCE = 6.0
"""Slope over its standard error: tens of thousands of windows are looked at every day."""
LEAST_NOISE = 0.0005
"""Standard deviation about the line that is believed at least."""
STILL = 0.5
"""Share of its slope that a line must keep in its newer half."""
LEAST_FILLED = 0.75
"""Share of a window's steps that must have a value."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`limit` is where it hurts, `ahead_steps` how far ahead a crossing is said to come."""

    metric: str
    limit: float
    ahead_steps: int


MEMORY = Limit("gpu_memory_used_ratio", 0.985, 20)
"""An allocation fails before the last hundredth is used (own choice)."""
INSTANCE = Limit("gpu_mig_instance_memory_used_ratio", 0.985, 20)
HOLES = Limit("gpu_allocator_external_fragmentation_ratio", 0.30, 30)
"""The product's limit of fragmentation."""
LAYOUT = Limit("gpu_mig_fragmentation_ratio", 0.30, 0)
STEP_UP = 0.01
"""Rise of a layout's index above the least of its past: layouts change in steps, so that there is no line to fit."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of each series: steps until the limit is reached (infinite: no such growth), fitted level, rise a step."""

    steps: Floats
    level: Floats
    slope: Floats


def outlook(values: Floats, limit: float) -> Outlook:
    """`values` float64[n, t] on an even grid, the newest last, NaN where missing: shares of a whole."""
    count = len(values)
    newest = _since_jump(values[:, -PAST:])
    steps, level, slope = np.full(count, np.inf), np.full(count, np.nan), np.zeros(count)
    for window in WINDOWS:
        if window > newest.shape[1]:
            break
        found = _line(newest[:, -window:], window)
        ahead = np.where(found.rises, (limit - found.level) / np.where(found.rises, found.slope, 1.0), np.inf)
        nearer = np.maximum(ahead, 0.0) < steps
        steps = np.where(nearer, np.maximum(ahead, 0.0), steps)
        level, slope = np.where(nearer, found.level, level), np.where(nearer, found.slope, slope)
    return Outlook(steps, level, slope)


def stepped_up(values: Floats) -> npt.NDArray[np.bool_]:
    """Which series [n, t] stand above the least of their past, at the newest step."""
    known = np.isfinite(values)
    least = np.where(known, values, np.inf).min(axis=1)
    return np.asarray(known[:, -1] & (values[:, -1] - least >= STEP_UP))


def _since_jump(values: Floats) -> Floats:
    """The same without what lies before the last jump or gap."""
    missing = np.isnan(values)
    broken = np.zeros(values.shape, np.bool_)
    broken[:, :-1] = np.nan_to_num(np.abs(np.diff(values, axis=1)), nan=0.0) > JUMP
    gap = np.ones_like(missing[:, GAP - 1 :])
    for back in range(GAP):
        gap &= missing[:, back : back + gap.shape[1]]
    broken[:, GAP - 1 :] |= gap
    after = np.cumsum(broken[:, ::-1], axis=1)[:, ::-1] > 0
    return np.where(after, np.nan, values)


@dataclass(frozen=True, slots=True)
class _Line:
    level: Floats
    slope: Floats
    rises: npt.NDArray[np.bool_]


def _line(values: Floats, window: int) -> _Line:
    slope, level, error, filled = _fit(values)
    newer = _fit(values[:, window // 2 :])[0]
    rises = (
        (filled >= LEAST_FILLED * window)
        & np.isfinite(values[:, -1])
        & (slope * window >= LEAST_RISE)
        & (slope >= SIGNIFICANCE * error)
        & (newer >= STILL * slope)
    )
    return _Line(level, slope, rises)


def _fit(values: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Least squares over the values there are: slope a step, level at the newest step, the slope's standard error, and
    how many values there are."""
    window = values.shape[1]
    at = np.arange(window) - (window - 1.0)
    here = np.isfinite(values)
    known = np.where(here, values, 0.0)
    weight = here.astype(np.float64)
    count = np.maximum(weight.sum(axis=1), 1.0)
    mean_at, mean = weight @ at / count, known.sum(axis=1) / count
    spread = np.maximum(weight @ at**2 - count * mean_at**2, 1e-9)
    slope = (known @ at - count * mean_at * mean) / spread
    total = np.maximum((known**2).sum(axis=1) - count * mean**2, 0.0)
    rest = np.sqrt(np.maximum(total - slope**2 * spread, 0.0) / np.maximum(count - 2.0, 1.0))
    return slope, mean - slope * mean_at, np.maximum(rest, LEAST_NOISE) / np.sqrt(spread), weight.sum(axis=1)
