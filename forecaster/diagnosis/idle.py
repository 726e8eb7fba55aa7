"""GPUs that somebody holds without using them, and free ones that no large job can use where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.domain.identity import Gpu
from tocsin.forecaster.diagnosis.window import WindowMeans

IDLE_UTILIZATION = 0.05
HELD_MEMORY = 0.02
"""Share of its memory from which on a GPU is held, where no process list is given."""
WHOLE_NODE = 8
"""GPUs of the job of which stranded GPUs are stranded from."""

Mask = npt.NDArray[np.bool_]


def held_idle(found: WindowMeans) -> Mask:
    """Which GPUs did no work over the window while a process held them; bool[g], False where not known."""
    processes, memory = found.of("gpu_processes"), found.of("gpu_memory_used_ratio")
    held = np.where(np.isfinite(processes), processes > 0, memory >= HELD_MEMORY)
    return np.asarray((found.of("gpu_utilization_ratio") < IDLE_UTILIZATION) & held, dtype=np.bool_)


def free(found: WindowMeans) -> Mask:
    """Which GPUs nobody holds and that do no work; bool[g], False where not known."""
    processes, memory = found.of("gpu_processes"), found.of("gpu_memory_used_ratio")
    empty = np.where(np.isfinite(processes), processes == 0, memory < HELD_MEMORY)
    return np.asarray((found.of("gpu_utilization_ratio") < IDLE_UTILIZATION) & empty, dtype=np.bool_)


def stranded(gpus: Sequence[Gpu], is_free: Mask) -> dict[str, list[Gpu]]:
    """Free GPUs by node where they are too few for a job of a whole node, while the pool has enough of them in all.

    A node is whole with `WHOLE_NODE` GPUs, or with as many as it has where that is less. MIG instances are left out.
    """
    whole = [(gpu, open_) for gpu, open_ in zip(gpus, is_free.tolist(), strict=True) if not gpu.is_mig]
    sizes = Counter(gpu.host for gpu, _ in whole)
    pools: Counter[str] = Counter(gpu.pool for gpu, open_ in whole if open_)
    by_host: dict[str, list[Gpu]] = {}
    for gpu, open_ in whole:
        if open_:
            by_host.setdefault(gpu.host, []).append(gpu)
    return {
        host: members
        for host, members in sorted(by_host.items())
        if len(members) < min(WHOLE_NODE, sizes[host]) <= pools[members[0].pool]
    }
