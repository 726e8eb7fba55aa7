"""Jobs and pools as a scheduler shows them: who is on which GPU, and how many GPUs the waiting work wants.

Training and batch jobs go by numbers as Slurm gives them, inference by pods. All GPUs of a gang have one job, each with
a process of its own. Nothing is drawn here: a job is its number in `SimState`, wherever it runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import SECOND
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Owner
from tocsin.sim.inventory import Ints, Inventory
from tocsin.sim.load import CHECKPOINT_EVERY_MS, CHECKPOINT_MS, LoadDemand, daylight
from tocsin.sim.state import SimState

POOLS = ("training", "inference", "batch")
ELASTIC = frozenset({"inference"})


def demand_share(pool: str, at_ms: int) -> float:
    """GPUs asked for, as a share of the pool's own: training all day, inference by day, batch by night (own choice)."""
    day = daylight(at_ms)
    if pool == "training":
        return 0.92 + 0.22 * day
    return 0.35 + 0.85 * day if pool == "inference" else 0.45 + 0.75 * (1.0 - day)


def asked_for(pool: str, size: int, at_ms: int) -> float:
    """Whole GPUs that are asked for of a pool that was built with `size`."""
    return math.ceil(demand_share(pool, at_ms) * size - 1e-9)


def states(state: SimState, inventory: Inventory) -> list[PoolState]:
    """One state per pool that has GPUs. Pending counts whole GPUs, less those that scaling out has added."""
    closed = state.unschedulable | state.drained | state.lost | state.frozen
    found = []
    for pool in POOLS:
        members = np.asarray(getattr(inventory, pool))
        if not (size := int(members.sum())):
            continue
        able = float((members & ~closed).sum()) + state.extra_capacity.get(pool, 0.0)
        pending, gpus = max(0.0, asked_for(pool, size, state.now_ms) - able), size + state.extra_capacity.get(pool, 0.0)
        found.append(PoolState(pool, pending_gpus=pending, elastic=pool in ELASTIC, gpus=gpus))
    return found


FIRST_JOB = 10_000
TRAINING_LIMIT_S, BATCH_LIMIT_S = 13 * 3600.0, 4 * 3600.0
"""Time limits that jobs ask for: an hour more than the longest of their pool takes (own choice)."""
NAMESPACE = "inference"
_IDLE = -1


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What is known of a job beside its processes; `owner` is one of them. All times in seconds.

    `lost_s` is its work since its last checkpoint, 0 for one without state; `checkpoint_every_s` is None where it
    writes none. `ends_in_s` is what is left of its time limit, None for a service.
    """

    owner: Owner
    lost_s: float
    checkpoint_every_s: float | None = None
    ends_in_s: float | None = None


def owner_of(inventory: Inventory, gpu: int, job: int, pid: int) -> Owner:
    """The process `pid` on GPU number `gpu`, whose gang slot runs the job with number `job`."""
    number = FIRST_JOB + job
    if inventory.inference[gpu]:
        return Owner(pid, "serve", pod=f"serve-{number}", namespace=NAMESPACE)
    return Owner(pid, "train" if inventory.training[gpu] else "batch", slurm_job=str(number))


class Owners:
    """The owners of each GPU from step to step; only those that changed are made anew."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._pids: Ints = np.full(len(inventory), _IDLE)
        self._owners: list[tuple[Owner, ...]] = [()] * len(inventory)

    def now(self, state: SimState, asked: LoadDemand) -> list[tuple[Owner, ...]]:
        """One entry for each GPU; empty where nothing runs. Good until the next call."""
        pids = np.where(asked.busy, asked.pid, _IDLE)
        jobs = state.work.number[self._inventory.gang]
        for gpu in np.flatnonzero(pids != self._pids).tolist():
            pid = int(pids[gpu])
            self._owners[gpu] = () if pid == _IDLE else (owner_of(self._inventory, gpu, int(jobs[gpu]), pid),)
        self._pids = pids
        return self._owners


def jobs(state: SimState, inventory: Inventory) -> list[SimulatedJob]:
    """The jobs that run now, in the order of their first GPUs."""
    work, now_ms = state.work, state.now_ms
    slots, first = np.unique(inventory.gang, return_index=True)
    found = []
    for slot, gpu in zip(slots.tolist(), first.tolist(), strict=True):
        if not work.busy[slot]:
            continue
        owner = owner_of(inventory, gpu, int(work.number[slot]), int(state.pids[gpu]))
        ran_s = (now_ms - float(work.since_ms[slot])) / SECOND
        if inventory.inference[gpu]:
            found.append(SimulatedJob(owner, 0.0))
        elif inventory.training[gpu]:
            lost_s = min(ran_s, _since_checkpoint_ms(inventory, slot, now_ms) / SECOND)
            found.append(SimulatedJob(owner, lost_s, CHECKPOINT_EVERY_MS / SECOND, max(0.0, TRAINING_LIMIT_S - ran_s)))
        else:
            found.append(SimulatedJob(owner, ran_s, ends_in_s=max(0.0, BATCH_LIMIT_S - ran_s)))
    return found


def _since_checkpoint_ms(inventory: Inventory, slot: int, now_ms: int) -> float:
    """Age of what the last whole checkpoint of a gang has saved: one that is still being written saves nothing."""
    into = (now_ms + float(inventory.phase[slot]) * CHECKPOINT_EVERY_MS) % CHECKPOINT_EVERY_MS
    return into + CHECKPOINT_EVERY_MS if into < CHECKPOINT_MS else into
