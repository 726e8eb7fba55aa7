"""Device memory: MIG instances, and the caching allocator inside the process that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.fragmentation import SEVEN_SLICE, Placement
from tocsin.sim.inventory import Bools, Floats, Inventory
from tocsin.sim.load import LoadDemand
from tocsin.sim.scenario import POOLS, MemoryNoise, Normal, Plateaus
from tocsin.sim.state import SimState

DEMAND = {"1g": 0.40, "1g.double": 0.05, "2g": 0.25, "3g": 0.20, "4g": 0.05, "7g": 0.05}
"""Share of each profile in the requests (own choice)."""

NAMES_80GB = {
    "1g": "1g.10gb",
    "1g.double": "1g.20gb",
    "2g": "2g.20gb",
    "3g": "3g.40gb",
    "4g": "4g.40gb",
    "7g": "7g.80gb",
}
"""Template profile to the driver's name on an 80 GB part, the only parts with MIG on in the simulated fleet."""

DECAY: tuple[tuple[Placement, ...], ...] = (
    (("1g", 6), ("1g", 4)),
    (("1g", 4), ("1g", 0)),
    (("1g", 1), ("1g", 2), ("1g", 4)),
)
"""Layouts that churn leaves behind when nobody chooses the start: from harmless to an index above one half."""


def instance_use(layout: tuple[Placement, ...], fraction: float, leak: float, busy: bool) -> tuple[float, ...]:
    """Used share of each instance's memory; a leak fills the first."""
    if not busy:
        return tuple(0.01 for _ in layout)
    normal = [0.35 + 0.35 * ((fraction + 0.381966 * place) % 1.0) for place in range(len(layout))]
    return tuple(use + (leak * (0.99 - use) if place == 0 else 0.0) for place, use in enumerate(normal))


def whole_use(layout: tuple[Placement, ...], shares: tuple[float, ...]) -> float:
    """Used share of the whole GPU's memory, each instance weighing its memory slices."""
    slices = (SEVEN_SLICE.profiles[name].memory_slices for name, _ in layout)
    return sum(use * count for use, count in zip(shares, slices, strict=True)) / SEVEN_SLICE.memory_slices


def instance_id(uuid: str, placement: Placement) -> str:
    """A stable name for an instance of the GPU `uuid`."""
    name, start = placement
    return f"MIG-{uuid.removeprefix('GPU-')[:8]}-{NAMES_80GB[name]}@{start}"


RESERVED_SHARE = 0.008
"""Of the memory, for the driver and firmware (own choice)."""
CONTEXT_BYTES = 600.0 * 1024 * 1024
"""What a process holds beside its allocator's reserve (own choice)."""
CACHE_SLACK = 0.12
"""Share of the reserve that no tensor holds (own choice)."""
FULL = 0.995
"""Share of the usable memory at which the next allocation fails."""


_STEPS = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""Powers of 1 / g with g**4 = g + 1: what the golden ratio is on a line, for a cube."""
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


def job_fraction(inventory: Inventory, load: LoadDemand) -> Floats:
    """A number in [0, 1) that belongs to the job on each GPU: golden-ratio steps spread successive jobs."""
    return np.asarray((load.pid * 0.6180339887 + inventory.phase) % 1.0)


@dataclass(frozen=True)
class PlateauJobs:
    """Which jobs fill their memory and stay there; each GPU's own number in [0, 1) decides, as `job_fraction` does."""

    reserved: Bools
    filled: Bools
    level: Floats
    fill_minutes: Floats


def plateau_jobs(inventory: Inventory, load: LoadDemand, numbers: Plateaus) -> PlateauJobs:
    """Which jobs, how high and how long do not depend on each other, nor on `job_fraction`."""
    which, height, time = ((load.pid * step + (2 + k) * inventory.phase) % 1.0 for k, step in enumerate(_STEPS))
    masks = (inventory.training, inventory.inference, inventory.batch)
    reserved = np.select(masks, [getattr(numbers.reserved, pool) for pool in POOLS])
    filled = reserved + np.select(masks, [getattr(numbers.filled, pool) for pool in POOLS])
    shortest, longest = numbers.fill_hours
    return PlateauJobs(
        reserved=which < reserved,
        filled=(which >= reserved) & (which < filled),
        level=numbers.level_from + (numbers.level_to - numbers.level_from) * height,
        fill_minutes=60.0 * (shortest + (longest - shortest) * time),
    )


def _plateaus(usual: Floats, jobs: PlateauJobs, numbers: Plateaus, minutes: Floats, noise: Floats) -> Floats:
    """`usual`, with the jobs that fill their memory in its place."""
    grown = np.minimum(minutes / jobs.fill_minutes, 1.0)
    filling = jobs.level * (numbers.fill_from + (1.0 - numbers.fill_from) * grown)
    held = np.where(jobs.reserved, jobs.level, filling) + numbers.noise * noise.clip(-3, 3)
    return np.where(jobs.reserved | jobs.filled, held, usual)


def _usual(state: SimState, inventory: Inventory, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """Share of the memory that a sound job holds: its level, still warming up, with ripples."""
    minutes = _age_minutes(state, inventory)
    warm = 1.0 - numbers.warm_up * np.exp(-minutes / numbers.warm_up_minutes)
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / RIPPLE_MINUTES + fraction))
    return np.asarray((0.55 + 0.27 * fraction) * warm + numbers.ripple * wave + numbers.noise * noise.clip(-3, 3))


def _age_minutes(state: SimState, inventory: Inventory) -> Floats:
    return np.asarray(np.maximum(state.now_ms - state.work.since_ms[inventory.gang], 0.0) / MINUTE)


def _holes(state: SimState, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """External fragmentation of each allocator."""
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / HOLES_MINUTES + fraction))
    moved = numbers.fragmentation_ripple * wave + numbers.fragmentation_noise * noise.clip(-3, 3)
    return (np.maximum(0.05 + 0.10 * fraction, state.effects.fragmentation) + moved).clip(0.0, 0.99)


def measure(
    state: SimState, inventory: Inventory, total: Floats, load: LoadDemand, healthy: Normal, noise: Floats
) -> Memory:
    """Memory of each GPU under its present work and faults; `noise` is standard normal, [2, n]."""
    fraction, numbers = job_fraction(inventory, load), healthy.memory
    leak = state.effects.leak
    normal = _usual(state, inventory, numbers, fraction, noise[0])
    if healthy.plateaus is not None:
        jobs = plateau_jobs(inventory, load, healthy.plateaus)
        normal = _plateaus(normal, jobs, healthy.plateaus, _age_minutes(state, inventory), noise[0])
    ratio = np.where(load.busy, (normal + leak * (FULL - normal)).clip(0.0, FULL), 0.004)
    instances: list[tuple[float, ...]] = [()] * len(inventory)
    for gpu in np.flatnonzero(inventory.mig):
        shares = instance_use(state.layouts[gpu], float(fraction[gpu]), float(leak[gpu]), bool(load.busy[gpu]))
        instances[gpu] = shares
        ratio[gpu] = whole_use(state.layouts[gpu], shares)
    reserved = np.round(total * RESERVED_SHARE)
    used = np.round(ratio * (total - reserved))
    held = np.where(load.busy, np.maximum(used - CONTEXT_BYTES, 0.0), 0.0)
    free = np.round(held * CACHE_SLACK)
    largest = np.round((1.0 - _holes(state, numbers, fraction, noise[1])) * free)
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
