"""Workloads: what each GPU is asked to do, by pool and hour of the day.

Training runs gangs of a whole host for hours, with a dip at each checkpoint and a short gap between jobs. Inference
follows the day. Batch jobs are short, run one per GPU, and mostly at night. All durations and levels are own choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.sim.inventory import Bools, Floats, Ints, Inventory, Stream, generator
from tocsin.sim.scenario import Load, Throughput
from tocsin.sim.state import SimState

PEAK_HOUR = 14.0
CHECKPOINT_EVERY_MS = 30 * MINUTE
CHECKPOINT_MS = 90_000

_TRAINING = {"util": 0.98, "sm": 0.84, "tensor": 0.52, "dram": 0.45, "fp16": 0.30, "fp32": 0.08, "heat": 0.86}
_INFERENCE = {"util": 1.0, "sm": 0.72, "tensor": 0.30, "dram": 0.62, "fp16": 0.25, "fp32": 0.05, "heat": 0.74}
_BATCH = {"util": 0.82, "sm": 0.55, "tensor": 0.10, "dram": 0.35, "fp16": 0.08, "fp32": 0.40, "heat": 0.62}


@dataclass(frozen=True)
class LoadDemand:
    """What is asked of each GPU, all shares 0 to 1; `heat` is that of the dynamic power at full clocks."""

    busy: Bools
    util: Floats
    sm: Floats
    tensor: Floats
    dram: Floats
    fp16: Floats
    fp32: Floats
    heat: Floats
    pid: Ints


def daylight(at_ms: int) -> float:
    """0 at the quietest hour of the day (02:00 UTC), 1 at the busiest (14:00 UTC), a cosine between."""
    hour = at_ms % DAY / HOUR
    return 0.5 * (1.0 + float(np.cos(2.0 * np.pi * (hour - PEAK_HOUR) / 24.0)))


def advance(state: SimState, inventory: Inventory, numbers: Load, seed: int, step: int, at_ms: int) -> None:
    """End and begin jobs up to `at_ms`. Where a fault of the step before holds work running, it goes on, or begins."""
    work = state.work
    size = inventory.gangs
    rng = generator(seed, Stream.LOAD, step)
    length, gap, level, chance = (rng.uniform(size=size) for _ in range(4))
    due = (work.until_ms <= at_ms) & ~(_gangs_with(state.effects.pinned, inventory) & work.busy)
    ends, begins = due & work.busy, due & ~work.busy
    day = daylight(at_ms)
    job_ms = np.where(inventory.training, (3.0 + 9.0 * length) * HOUR, (0.5 + 2.5 * length) * HOUR)
    gap_ms = np.where(inventory.training, (5.0 + 15.0 * gap) * MINUTE, (5.0 + 60.0 * gap * (0.3 + day)) * MINUTE)
    gap_ms = np.where(inventory.inference, MINUTE, gap_ms)
    starts = (
        begins & ~_blocked(state, inventory) & (inventory.inference | inventory.training | (chance < 0.9 - 0.4 * day))
    )
    work.job[starts] += 1
    work.number[starts] = (work.job * size + np.arange(size))[starts]
    work.level[starts] = numbers.level_from + (numbers.level_to - numbers.level_from) * level[starts]
    # A fleet is found in the middle of its work: the first jobs have run for a while.
    left = 1.0 - gap if step == 1 else np.ones(size)
    work.since_ms[starts] = at_ms - ((1.0 - left) * job_ms)[starts]
    work.until_ms[starts] = at_ms + (job_ms * left)[starts]
    resting = ends | (begins & ~starts)
    work.until_ms[resting] = at_ms + gap_ms[resting]
    work.busy = (work.busy & ~ends) | starts


def _blocked(state: SimState, inventory: Inventory) -> Bools:
    """Which gang slots take no new work: one of their GPUs is gone, not trusted or closed to the scheduler."""
    closed = state.unschedulable | state.drained | state.lost | state.frozen
    return _gangs_with(closed, inventory)


def throughput(curve: Throughput, inventory: Inventory, limit_share: Floats) -> Floats:
    """Share of its throughput that each GPU has at `limit_share` of its default limit: straight between the points."""
    made = [np.interp(limit_share, curve.limit_share, row) for row in (curve.training, curve.inference, curve.batch)]
    return np.where(inventory.training, made[0], np.where(inventory.inference, made[1], made[2]))


def _gangs_with(marked: Bools, inventory: Inventory) -> Bools:
    """Which gang slots have a marked GPU."""
    return np.asarray(np.bincount(inventory.gang, weights=marked, minlength=inventory.gangs) > 0, dtype=np.bool_)


def demand(state: SimState, inventory: Inventory, numbers: Load, seed: int, step: int, at_ms: int) -> LoadDemand:
    """What is asked of each GPU at `at_ms`."""
    size = len(inventory)
    work, gang = state.work, inventory.gang
    busy = (work.busy[gang] | state.effects.pinned) & ~(state.drained | state.lost)
    wobble = 1.0 + numbers.wobble * generator(seed, Stream.NOISE, step).standard_normal(size)
    intensity = np.where(inventory.training, _training_level(inventory, at_ms), 1.0)
    intensity = np.where(inventory.inference, _inference_level(inventory, at_ms), intensity)
    scale = np.where(busy, work.level[gang] * intensity * wobble, 0.0)

    def share(name: str) -> Floats:
        by_pool = np.where(inventory.inference, _INFERENCE[name], _BATCH[name])
        return (np.where(inventory.training, _TRAINING[name], by_pool) * scale).clip(0.0, 1.0)

    pid = 10_000 + (work.job[gang] * 10_007 + np.arange(size) * 13) % 900_000
    # An even number in [0, 1) of the gang's job, as normal as twelve of them would be.
    hotter = np.exp(
        numbers.heat_spread * np.sqrt(12.0) * ((work.job[gang] * 0.6180339887 + inventory.phase[gang]) % 1.0 - 0.5)
    )
    return LoadDemand(
        busy=busy,
        util=share("util"),
        sm=share("sm"),
        tensor=share("tensor"),
        dram=share("dram"),
        fp16=share("fp16"),
        fp32=share("fp32"),
        heat=(share("heat") * hotter).clip(0.0, 1.0),
        pid=pid,
    )


def _training_level(inventory: Inventory, at_ms: int) -> Floats:
    offset = inventory.phase[inventory.gang] * CHECKPOINT_EVERY_MS
    return np.where((at_ms + offset) % CHECKPOINT_EVERY_MS < CHECKPOINT_MS, 0.25, 1.0)


def _inference_level(inventory: Inventory, at_ms: int) -> Floats:
    ripple = 0.05 * np.sin(2.0 * np.pi * (at_ms / (23.0 * MINUTE) + inventory.phase))
    return (0.20 + 0.75 * daylight(at_ms) + ripple).clip(0.02, 1.0)


REST_MS = 20 * MINUTE
"""How long a slot rests from which work was taken (own choice)."""


def is_free(state: SimState, inventory: Inventory) -> Bools:
    """Which gang slots could take a job now."""
    return ~state.work.busy & ~_blocked(state, inventory)


def move_job(state: SimState, source: int, target: int, at_ms: int) -> None:
    """The job of gang slot `source` goes on in `target`, which is free, under its name; its process is another."""
    work = state.work
    for column in (work.since_ms, work.until_ms, work.level, work.number):
        column[target] = column[source]
    work.job[target] += 1
    work.busy[target] = True
    work.busy[source] = False
    work.until_ms[source] = at_ms + REST_MS


def end_job(state: SimState, inventory: Inventory, gpu: int, at_ms: int) -> None:
    """The job on `gpu`, with its whole gang, dies; the slot rests for 20 minutes."""
    slot = int(inventory.gang[gpu])
    state.work.busy[slot] = False
    state.work.until_ms[slot] = at_ms + REST_MS
