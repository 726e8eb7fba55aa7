"""Whether memory leaks: it grows without a plateau, or is held where no process is left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE

Instants = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PARTS = 12
"""Parts of the window of which the lowest value counts: what a step needs for a moment is no growth."""
MIN_SPAN_MS = 20 * MINUTE
MIN_SAMPLES = 3 * PARTS
AGREE = 0.8
"""Least Kendall's tau between time and the parts' lows."""
GROWN = 0.01
"""Least growth over the window, as a share of the GPU's memory."""
STILL = 0.5
"""Growth in the last third of the window must be at least this share of its fair part; less is a plateau."""
ORPHAN_BYTES = 1 << 30
"""Memory above what idle GPUs of the model hold, with no process, from which on something was left behind."""


class Growth(StrEnum):
    """How memory behaves."""

    GROWING = "growing"
    PLATEAU = "plateau"
    """It grew and stopped: caches that filled up."""
    STEADY = "steady"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Trend:
    """`bytes_per_hour` is the growth over the window; `full_ms` how long until `total` is reached at that pace, None
    where it does not grow; `reason` says why nothing is known."""

    growth: Growth
    bytes_per_hour: float = 0.0
    full_ms: int | None = None
    reason: str = ""


def memory_trend(at_ms: Instants, used: Floats, total: float) -> Trend:
    """The trend of `used` bytes (float64[n], NaN where missing) of a GPU with `total` bytes.

    Mann's test on the lows of `PARTS` equal parts of the window: robust against what comes and goes within a part.
    """
    known = np.isfinite(used)
    at_ms, used = at_ms[known], used[known]
    if used.size < MIN_SAMPLES or at_ms[-1] - at_ms[0] < MIN_SPAN_MS:
        span = 0 if used.size == 0 else int(at_ms[-1] - at_ms[0])
        needed = f"{MIN_SAMPLES} samples over {MIN_SPAN_MS // MINUTE} min needed"
        return Trend(Growth.UNKNOWN, reason=f"{used.size} samples over {span // MINUTE} min, {needed}")
    lows = _lows(at_ms, used)
    if lows.size < PARTS:
        return Trend(Growth.UNKNOWN, reason=f"gaps: {lows.size} of {PARTS} parts of the window have samples")
    steps = np.sign(lows[None, :] - lows[:, None])[np.triu_indices(PARTS, 1)]
    tau = float(steps.mean())
    grown = float(lows[-1] - lows[0])
    if tau < AGREE or grown < GROWN * total:
        return Trend(Growth.STEADY)
    third = PARTS // 3
    late = float(lows[-1] - lows[-1 - third]) * (PARTS - 1) / third
    pace = grown / (float(at_ms[-1] - at_ms[0]) * (PARTS - 1) / PARTS)
    if late < STILL * grown:
        return Trend(Growth.PLATEAU, pace * HOUR)
    left = max(0.0, total - float(used[-1]))
    return Trend(Growth.GROWING, pace * HOUR, int(left / pace))


def _lows(at_ms: Instants, used: Floats) -> Floats:
    edges = np.linspace(at_ms[0], at_ms[-1], PARTS + 1)
    part = np.clip(np.searchsorted(edges, at_ms, side="right") - 1, 0, PARTS - 1)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    return np.minimum.reduceat(used, starts)


def orphaned(used: Floats, processes: Floats, models: npt.NDArray[np.str_]) -> Floats:
    """Bytes that each GPU holds without any process beyond what such a GPU holds at rest; 0 where that is little.

    All of shape (gpus,); NaN where unknown. "At rest" is the least that a GPU of the model holds; a model of which
    there is only one GPU in use or at rest says nothing of itself. Processes must be those of the whole host: an agent
    in a container without the host's process namespace sees none.
    """
    found = np.zeros(used.size)
    for model in np.unique(models):
        mine = (models == model) & np.isfinite(used)
        if mine.sum() < 2:
            continue
        excess = used - used[mine].min()
        found = np.where(mine & (processes == 0) & (excess >= ORPHAN_BYTES), excess, found)
    return found
