"""Device memory: MIG instances, and the caching allocator inside the process that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.fragmentation import SEVEN_SLICE, Placement
from tocsin.sim.inventory import Floats, Inventory
from tocsin.sim.load import LoadDemand
from tocsin.sim.scenario import MemoryNoise
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


def _usual(state: SimState, inventory: Inventory, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """Share of the memory that a sound job holds: its level, still warming up, with ripples."""
    minutes = np.maximum(state.now_ms - state.work.since_ms[inventory.gang], 0.0) / MINUTE
    warm = 1.0 - numbers.warm_up * np.exp(-minutes / numbers.warm_up_minutes)
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / RIPPLE_MINUTES + fraction))
    return np.asarray((0.55 + 0.27 * fraction) * warm + numbers.ripple * wave + numbers.noise * noise.clip(-3, 3))


def _holes(state: SimState, numbers: MemoryNoise, fraction: Floats, noise: Floats) -> Floats:
    """External fragmentation of each allocator."""
    wave = np.sin(2.0 * np.pi * (state.now_ms / MINUTE / HOLES_MINUTES + fraction))
    moved = numbers.fragmentation_ripple * wave + numbers.fragmentation_noise * noise.clip(-3, 3)
    return (np.maximum(0.05 + 0.10 * fraction, state.effects.fragmentation) + moved).clip(0.0, 0.99)


def measure(
    state: SimState, inventory: Inventory, total: Floats, load: LoadDemand, numbers: MemoryNoise, noise: Floats
) -> Memory:
    """Memory of each GPU under its present work and faults; `noise` is standard normal, [2, n]."""
    fraction = job_fraction(inventory, load)
    leak = state.effects.leak
    normal = _usual(state, inventory, numbers, fraction, noise[0])
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
