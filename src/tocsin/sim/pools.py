"""Pools as a scheduler sees them: how many GPUs the waiting work wants."""

from __future__ import annotations

import numpy as np

from tocsin.domain.pool import PoolState
from tocsin.sim.inventory import Inventory
from tocsin.sim.load import daylight
from tocsin.sim.state import State

POOLS = ("training", "inference", "batch")
ELASTIC = frozenset({"inference"})


def demand_share(pool: str, at_ms: int) -> float:
    """GPUs asked for, as a share of the pool's own: training all day, inference by day, batch by night (own choice)."""
    day = daylight(at_ms)
    if pool == "training":
        return 0.92 + 0.22 * day
    if pool == "inference":
        return 0.35 + 0.85 * day
    return 0.45 + 0.75 * (1.0 - day)


def states(state: State, inventory: Inventory) -> list[PoolState]:
    """One state per pool that has GPUs. Pending counts whole GPUs, less those that scaling out has added."""
    closed = state.unschedulable | state.drained | state.lost | state.frozen
    found = []
    for pool in POOLS:
        members = np.asarray(getattr(inventory, pool))
        size = int(members.sum())
        if not size:
            continue
        able = float((members & ~closed).sum()) + state.extra_capacity.get(pool, 0.0)
        wanted = np.ceil(demand_share(pool, state.now_ms) * size - 1e-9)
        found.append(PoolState(pool, pending_gpus=max(0.0, float(wanted) - able), elastic=pool in ELASTIC))
    return found
