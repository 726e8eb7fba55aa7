"""MIG in the simulation: which profiles are asked for, how full the instances are, and layouts gone bad."""

from __future__ import annotations

from tocsin.domain.fragmentation import SEVEN_SLICE, Placement

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
