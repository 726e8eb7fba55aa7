"""Figures of pools and of the whole fleet that no single reading holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.domain.fragmentation import WHOLE_NODE, FleetFragmentation, TaskClass, gang_fragmentation, stranded
from tocsin.rules.table import Bools, Floats, Ints

GANG = WHOLE_NODE
"""GPUs of the reference job."""

IDLE_UTILIZATION = 0.05
"""A GPU below this utilisation runs no work worth counting (ratio)."""

IDLE_MEMORY = 0.02
"""Where no process list is given, a GPU with less of its memory used than this counts as without process (ratio)."""


def gang_ratio(free: Ints, sizes: Ints) -> float:
    """Share of the free GPUs that jobs of the reference size cannot use where they are, 0 to 1.

    `free` counts the free GPUs of each host and `sizes` all of them, both of shape (hosts,). The job has GANG GPUs, or
    as many as the largest host where that is less. 0 where all free GPUs together would not make one such job:
    moving work would gain nothing.
    """
    gang = min(GANG, int(sizes.max(initial=0)))
    if gang == 0 or int(free.sum()) < gang:
        return 0.0
    return gang_fragmentation(free.tolist(), gang)


def fleet_fragmentation(free: Ints, sizes: Ints, mix: Sequence[TaskClass]) -> FleetFragmentation:
    """FGD over whole GPUs, as `tocsin.domain.fragmentation` defines it: CPUs unknown, every host usable.

    `free` counts the free GPUs of each host and `sizes` all of them, both of shape (hosts,). An empty `mix`, or one
    that weighs nothing, stands for one job of GANG GPUs, or as many as the largest host where that is less.
    """
    wanted = [task for task in mix if task.share > 0] or [TaskClass(float(min(GANG, int(sizes.max(initial=1)))))]
    weight = sum(task.share for task in wanted)
    total = int(free.sum())

    def short_of(gpus: float) -> int:
        return total if gpus <= 0 else int(free[free < gpus].sum())

    fragmented = sum(task.share * short_of(task.gpus) for task in wanted) / weight
    apart = sum(map(stranded, free.tolist(), sizes.tolist()))
    return FleetFragmentation(total, fragmented, min(short_of(task.gpus) for task in wanted), apart)


def idle(utilization: Floats, processes: Floats, memory_used_ratio: Floats) -> Bools:
    """Which GPUs do no work: nearly no utilisation, and no process or, where none are listed, nearly no memory used.

    All of shape (gpus,), NaN where absent; a GPU of unknown utilisation is not idle.
    """
    alone = np.where(np.isnan(processes), ~(memory_used_ratio >= IDLE_MEMORY), processes == 0)
    return np.asarray((utilization < IDLE_UTILIZATION) & alone, dtype=np.bool_)


def group_means(values: Floats, groups: Ints, members: Ints, count: int) -> Floats:
    """Mean of the known `values` in each of `count` groups; NaN where less than half of a group's `members` is known.

    `values` and `groups` have shape (gpus,), `members` (count,); values of a negative group are left out.
    """
    known = ~np.isnan(values) & (groups >= 0)
    number = np.bincount(groups[known], minlength=count)[:count]
    total = np.bincount(groups[known], weights=values[known], minlength=count)[:count]
    enough = (number > 0) & (2 * number >= members)
    return np.asarray(np.divide(total, number, out=np.full(count, np.nan), where=enough), dtype=np.float64)
