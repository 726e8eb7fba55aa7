"""Device memory, and the caching allocator inside the process that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.sim import mig
from tocsin.sim.arrays import Floats
from tocsin.sim.inventory import Inventory
from tocsin.sim.load import Demand
from tocsin.sim.scenario import MemoryNoise
from tocsin.sim.state import State

RESERVED_SHARE = 0.008
"""Of the memory, for the driver and firmware (own choice)."""
CONTEXT_BYTES = 600.0 * 1024 * 1024
"""What a process holds beside its allocator's reserve (own choice)."""
CACHE_SLACK = 0.12
"""Share of the reserve that no tensor holds (own choice)."""
FULL = 0.995
"""Share of the usable memory at which the next allocation fails."""


RIPPLE_MINUTES, HOLES_MINUTES = 41.0, 53.0
"""Periods in which evaluation and changing batches move memory and the allocator's holes (own choices)."""


@dataclass(frozen=True)
class Memory:
    """Bytes per GPU; `instances` has the used share of each MIG instance, in the order of the layout."""

    total: Floats
    reserved: Floats
    used: Floats
    allocator_reserved: Floats
    allocator_allocated: Floats
    allocator_largest_free: Floats
    allocator_fragmentation: Floats
    instances: list[tuple[float, ...]]

    @property
    def used_ratio(self) -> Floats:
        """Used over what is usable."""
        return self.used / (self.total - self.reserved)


def job_fraction(inventory: Inventory, load: Demand) -> Floats:
    """A number in [0, 1) that belongs to the job on each GPU: golden-ratio steps spread successive jobs."""
    return np.asarray((load.pid * 0.6180339887 + inventory.phase) % 1.0)


def _usual(state: State, inventory: Inventory, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """Share of the memory that a sound job holds: its level, still warming up, with ripples."""
    minutes = np.maximum(state.now_ms - state.work.since_ms[inventory.gang], 0.0) / MINUTE
    warm = 1.0 - numbers.warm_up * np.exp(-minutes / numbers.warm_up_minutes)
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / RIPPLE_MINUTES + fraction))
    return np.asarray((0.55 + 0.27 * fraction) * warm + numbers.ripple * wave + numbers.noise * noise.clip(-3, 3))


def _holes(state: State, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """External fragmentation of each allocator."""
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / HOLES_MINUTES + fraction))
    moved = numbers.fragmentation_ripple * wave + numbers.fragmentation_noise * noise.clip(-3, 3)
    return (np.maximum(0.05 + 0.10 * fraction, state.effects.fragmentation) + moved).clip(0.0, 0.99)


def measure(
    state: State, inventory: Inventory, total: Floats, load: Demand, numbers: MemoryNoise, noise: Floats
) -> Memory:
    """Memory of each GPU under its present work and faults; `noise` is standard normal, [2, n]."""
    fraction = job_fraction(inventory, load)
    leak = state.effects.leak
    normal = _usual(state, inventory, numbers, fraction, noise[0])
    ratio = np.where(load.busy, (normal + leak * (FULL - normal)).clip(0.0, FULL), 0.004)
    instances: list[tuple[float, ...]] = [()] * len(inventory)
    for gpu in np.flatnonzero(inventory.mig):
        shares = mig.instance_use(state.layouts[gpu], float(fraction[gpu]), float(leak[gpu]), bool(load.busy[gpu]))
        instances[gpu] = shares
        ratio[gpu] = mig.whole_use(state.layouts[gpu], shares)
    reserved = np.round(total * RESERVED_SHARE)
    used = np.round(ratio * (total - reserved))
    held = np.where(load.busy, np.maximum(used - CONTEXT_BYTES, 0.0), 0.0)
    free = np.round(held * CACHE_SLACK)
    fragmentation = _holes(state, numbers, fraction, noise[1])
    largest = np.round((1.0 - fragmentation) * free)
    return Memory(
        total=total,
        reserved=reserved,
        used=used,
        allocator_reserved=held,
        allocator_allocated=held - free,
        allocator_largest_free=largest,
        allocator_fragmentation=1.0 - np.divide(largest, free, out=np.ones_like(free), where=free > 0),
        instances=instances,
    )
