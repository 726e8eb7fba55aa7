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
    """bool[n]: whether each GPU does next to nothing and has no process; False where its utilisation is not known.

    Where a GPU in MIG mode has no utilisation the activity of its engine stands for it.
    """
    busy, engine, processes, memory = (
        np.array([one.values.get(name, np.nan) for one in readings], np.float64)
        for name in (UTILIZATION, ENGINE, PROCESSES, MEMORY)
    )
    return idle(np.where(np.isnan(busy), engine, busy), processes, memory)
