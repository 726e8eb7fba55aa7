"""Figures of a state that plans are judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tocsin.actions.planning.state import TEMPLATES, FleetState, GpuMode
from tocsin.domain.fragmentation import (
    SEVEN_SLICE,
    MigTemplate,
    Placement,
    free_slices,
    mig_capacity,
    mig_fragmentation,
    mig_ideal,
)
from tocsin.domain.fragmentation_fleet import fleet_fragmentation

NODE_GPUS = 8
"""GPUs of the job that takes a whole node of the usual size."""


def mig_unusable(
    layout: Sequence[Placement], demand: Mapping[str, float], template: MigTemplate = SEVEN_SLICE
) -> float:
    """Free memory slices of a GPU that the next instance is expected to be unable to use: FGD's F over slices.

    For a profile that fits nowhere that is all that is free, else the free slices times the share of the profile's
    instances that the layout prevents (1 - feasible / ideal); the mean over profiles weighted by `demand`, which need
    not sum to 1. 0 for a demand that weighs nothing.
    """
    slices = len(free_slices(layout, template)[0])
    weight = sum(demand.get(name, 0.0) for name in template.profiles)
    if not slices or weight <= 0:
        return 0.0
    feasible, ideal = mig_capacity(layout, template), mig_ideal(layout, template)
    lost = sum(
        demand.get(name, 0.0) * (1.0 - feasible[name] / ideal[name] if feasible[name] else 1.0)
        for name in template.profiles
    )
    return slices * lost / weight


def fleet_figures(state: FleetState) -> dict[str, float]:
    """Free, fragmented (F) and stranded GPUs, how many jobs of a whole node fit, and the most free on one host."""
    nodes = {host: state.free_node(host) for host in state.nodes}
    found = fleet_fragmentation(nodes.values(), state.mix)
    whole = [sum(part >= 1.0 for part in node.free) if node.usable else 0 for node in nodes.values()]
    return {
        "free_gpus": found.free,
        "fragmented_gpus": found.fragmented,
        "stranded_gpus": found.stranded,
        "node_jobs_that_fit": float(sum(count // NODE_GPUS for count in whole)),
        "largest_on_one_host": float(max(whole, default=0)),
    }


def mig_figures(state: FleetState) -> dict[str, float]:
    """Free GPUs in slices, what of them is fragmented, the index of the fleet, and instances that can be created."""
    counts: Counter[tuple[str, tuple[Placement, ...]]] = Counter()
    for slot in state.gpus.values():
        if slot.mode is GpuMode.MIG and slot.healthy and state.nodes[slot.host].schedulable:
            counts[slot.template, state.layout(slot.uuid)] += 1
    free = fragmented = index = 0.0
    creatable: dict[str, float] = {}
    for (name, layout), count in sorted(counts.items()):
        template = TEMPLATES[name]
        slices = len(free_slices(layout, template)[0])
        free += count * slices / template.memory_slices
        fragmented += count * mig_unusable(layout, state.demand, template) / template.memory_slices
        index += count * slices / template.memory_slices * mig_fragmentation(layout, state.demand, template)
        for profile, able in mig_capacity(layout, template).items():
            key = f"creatable_{profile}"
            creatable[key] = creatable.get(key, 0.0) + count * able
    figures = {"free_gpus": free, "fragmented_gpus": fragmented, "index": index / free if free > 0 else 0.0}
    return figures | creatable
