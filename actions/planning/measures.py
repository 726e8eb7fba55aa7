"""Figures of a state that plans are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.actions.planning.state import TEMPLATES, FleetState, GpuMode
from tocsin.domain.fragmentation import (
    SEVEN_SLICE,
    MigTemplate,
    Placement,
    free_slices,
    mig_capacity,
    mig_fleet_fragmentation,
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
    by_template: dict[str, list[tuple[Placement, ...]]] = {}
    for slot in state.gpus.values():
        if slot.mode is GpuMode.MIG and slot.healthy and state.nodes[slot.host].schedulable:
            by_template.setdefault(slot.template, []).append(state.layout(slot.uuid))
    free = fragmented = index = 0.0
    creatable: dict[str, float] = {}
    for name, layouts in sorted(by_template.items()):
        template = TEMPLATES[name]
        slices = sum(len(free_slices(layout, template)[0]) for layout in layouts) / template.memory_slices
        free += slices
        fragmented += sum(mig_unusable(one, state.demand, template) for one in layouts) / template.memory_slices
        index += slices * mig_fleet_fragmentation(layouts, state.demand, template)
        for layout in layouts:
            for profile, count in mig_capacity(layout, template).items():
                key = f"creatable_{profile}"
                creatable[key] = creatable.get(key, 0.0) + count
    figures = {"free_gpus": free, "fragmented_gpus": fragmented, "index": index / free if free > 0 else 0.0}
    return figures | creatable
