"""Which GPUs are free now, as the rules take it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.domain.reading import Reading
from tocsin.rules.fleet import idle

UTILIZATION, ENGINE = "gpu_utilization_ratio", "gpu_graphics_engine_active_ratio"
PROCESSES, MEMORY = "gpu_processes", "gpu_memory_used_ratio"


def free_now(readings: Sequence[Reading]) -> npt.NDArray[np.bool_]:
    """bool[n]: whether each GPU or MIG instance does next to nothing and has no process; False where that is not known.

    Where a GPU in MIG mode has no utilisation the activity of its engine stands for it. Drivers tell none of an
    instance: one of which the processes or the memory in use are known is judged by these alone.
    """
    busy, engine, processes, memory = (
        np.array([one.values.get(name, np.nan) for one in readings], np.float64)
        for name in (UTILIZATION, ENGINE, PROCESSES, MEMORY)
    )
    busy = np.where(np.isnan(busy), engine, busy)
    told = np.array([one.gpu.is_mig for one in readings], np.bool_) & ~(np.isnan(processes) & np.isnan(memory))
    return idle(np.where(np.isnan(busy) & told, 0.0, busy), processes, memory)


def at_work(readings: Sequence[Reading]) -> frozenset[str]:
    """UUIDs of the GPUs and MIG instances that are not free."""
    return frozenset(one.gpu.uuid for one, free in zip(readings, free_now(readings).tolist(), strict=True) if not free)
