"""Figures of pools and of the whole fleet that no single reading holds."""

from __future__ import annotations

import numpy as np

from tocsin.rules.table import Bools, Floats, Ints

GANG = 8
"""GPUs of the reference job: a whole node of the usual size, one NVLink domain."""

IDLE_UTILIZATION = 0.05
"""A GPU below this utilisation runs no work worth counting (ratio)."""

IDLE_MEMORY = 0.02
"""Where no process list is given, a GPU with less of its memory used than this counts as without process (ratio)."""


def gang_fragmentation(free: Ints, sizes: Ints, gang: int = GANG) -> float:
    """Share of the free GPUs that jobs of `gang` GPUs cannot use where they are, 0 to 1.

    `free` counts the free GPUs of each host and `sizes` all of them, both of shape (hosts,). A host that is smaller
    than the gang counts as whole when all of it is free. The index is 1 - sum(floor(free / k) * k) / sum(free), the
    gang form of stranded capacity, and 0 where packing all free GPUs together would still make no gang.
    """
    total = int(free.sum())
    unit = np.minimum(sizes, gang)
    if total == 0 or total < int(unit.min(initial=gang, where=unit > 0)):
        return 0.0
    usable = (free // np.maximum(unit, 1)) * unit
    return 1.0 - float(usable.sum()) / total


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
