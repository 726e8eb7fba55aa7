"""What an action changed, as far as readings show it: material for the next choice."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.model.scope import gpus_of
from tocsin.actions.model.view import FleetView
from tocsin.domain.subject import Subject

TEMPERATURE, POWER = "gpu_temperature_celsius", "gpu_power_watts"
LOOKED_AT = (TEMPERATURE, POWER, "gpu_utilization_ratio", "gpu_memory_used_ratio", "gpu_sm_clock_hertz")
PER_WATT = "celsius_bought_per_watt"
LEAST_WATTS = 1.0
"""A smaller change of power is noise (own choice)."""


def look(subject: Subject, view: FleetView) -> dict[str, float]:
    """The mean of each of `LOOKED_AT` over the subject's GPUs; what none of them has is left out."""
    found: dict[str, float] = {}
    members = gpus_of(subject, view)
    for name in LOOKED_AT:
        values = [member.values[name] for member in members if name in member.values]
        if values:
            found[name] = sum(values) / len(values)
    return found


def change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Difference `after` - `before` of what both have, as ``<metric>_change``, and degrees lost per watt given up."""
    found = {f"{name}_change": after[name] - value for name, value in before.items() if name in after}
    watts = -found.get(f"{POWER}_change", 0.0)
    if f"{TEMPERATURE}_change" in found and watts >= LEAST_WATTS:
        found[PER_WATT] = -found[f"{TEMPERATURE}_change"] / watts
    return found
