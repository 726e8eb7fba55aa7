"""Fragmentation of the fleet as its newest readings show it: free GPUs by host, and MIG layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.actions.planning.bins import mig_unusable
from tocsin.actions.planning.layouts import MigLayout, layouts_of
from tocsin.actions.planning.state import FleetState
from tocsin.client.models_capacity import (
    FragmentationOut,
    FragmentOut,
    HostFragment,
    MigGpuOut,
    MigInstanceOut,
    PoolFragment,
    TaskOut,
)
from tocsin.client.whole_fragmentation import worst_first
from tocsin.domain.clock import to_iso
from tocsin.domain.fragmentation import MigTemplate, Placement, TaskClass, free_slices, mig_capacity, mig_ideal
from tocsin.domain.grouping import grouped
from tocsin.domain.mig_layout import CAPACITY, INSTANCES, by_label, profile_of, template_of
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.fleet_state import MixFrom, free_now, live_state, mix_of
from tocsin.queries.live import LiveBrain
from tocsin.rules.fleet import fleet_fragmentation

FRAGMENTATION = "gpu_mig_fragmentation_ratio"


@dataclass(frozen=True, slots=True)
class _Host:
    """Whole GPUs of one host, and how many are free."""

    host: str
    pool: str
    gpus: int
    free: int


def fragmentation(brain: LiveBrain, limit: int) -> FragmentationOut:
    """Free GPUs and MIG layouts now, the worst `limit` of each list."""
    readings = brain.memory.latest()
    _, mix_from = mix_of(brain.settings.fragmentation.task_mix, readings)
    return fragmentation_out(readings, live_state(brain, brain.clock.now_ms(), readings), mix_from, limit)


def fragmentation_out(
    readings: Sequence[Reading], state: FleetState, mix_from: MixFrom, limit: int
) -> FragmentationOut:
    """The fleet as `readings`, the newest of each GPU, and the planners' `state` of them show it.

    Lists hold `limit` entries at most. A GPU is free that does nearly nothing and has no process, as the rules take it,
    and that no work of the state holds.
    """
    mix, found = state.mix, layouts_of(readings)
    hosts = _hosts(readings, state)
    worst = sorted((_host_out(one, mix) for one in hosts if one.free), key=worst_first)
    broken = [one for one in worst if one.fragmented > 0 or one.stranded > 0]
    migs = [_mig_out(one, found[one.gpu.uuid]) for one in readings if one.gpu.uuid in found]
    migs.sort(key=lambda one: (-(one.fragmentation or 0.0), one.host, one.index or 0))
    known = [one for one in migs if one.free is not None]
    by_pool = _by_pool(hosts, mix)
    weight = sum(task.share for task in mix)
    return FragmentationOut(
        now=to_iso(state.at_ms),
        simulated=any(one.gpu.simulated for one in readings),
        fleet=_figures(hosts, mix),
        mix=[TaskOut(gpus=task.gpus, share=task.share / weight) for task in mix if weight > 0],
        mix_from=mix_from,
        pools=by_pool[:limit],
        pools_total=len(by_pool),
        hosts=broken[:limit],
        hosts_total=len(broken),
        holes=sorted(Counter(one.free for one in hosts).items()),
        mig=migs[:limit],
        mig_gpus=len(migs),
        mig_slices=sum(one.slices for one in known),
        mig_free_slices=sum(one.free_slices or 0 for one in known),
        mig_stranded_slices=sum(one.stranded or 0.0 for one in known),
        mig_unknown=len(migs) - len(known),
    )


def _by_pool(hosts: Sequence[_Host], mix: Sequence[TaskClass]) -> list[PoolFragment]:
    by_pool = grouped((one.pool, one) for one in hosts)
    return sorted(
        (PoolFragment(pool=name, hosts=len(mine), **dict(_figures(mine, mix))) for name, mine in by_pool.items()),
        key=lambda one: (-one.fragmented, -one.free, one.pool),
    )


def _hosts(readings: Sequence[Reading], state: FleetState) -> list[_Host]:
    whole = [one for one in readings if not one.gpu.is_mig]
    by_host = grouped(
        (one.gpu.host, (one.gpu.pool, is_free and one.gpu.uuid not in state.on_gpu))
        for one, is_free in zip(whole, free_now(whole).tolist(), strict=True)
    )
    return [
        _Host(host, gpus[0][0], len(gpus), sum(is_free for _, is_free in gpus))
        for host, gpus in sorted(by_host.items())
    ]


def _figures(hosts: Sequence[_Host], mix: Sequence[TaskClass]) -> FragmentOut:
    free = np.array([one.free for one in hosts], np.int64)
    sizes = np.array([one.gpus for one in hosts], np.int64)
    found = fleet_fragmentation(free, sizes, mix)
    return FragmentOut(
        gpus=int(sizes.sum()),
        free=found.free,
        fragmented=found.fragmented,
        unusable=found.unusable,
        stranded=found.stranded,
        largest=int(free.max(initial=0)),
    )


def _host_out(one: _Host, mix: Sequence[TaskClass]) -> HostFragment:
    found = _figures([one], mix)
    return HostFragment(
        host=one.host,
        pool=one.pool,
        gpus=one.gpus,
        free=one.free,
        fragmented=found.fragmented,
        unusable=found.unusable,
        stranded=found.stranded,
    )


# ---------------------------------------------------------------------- MIG


def _mig_out(reading: Reading, found: MigLayout) -> MigGpuOut:
    gpu, template = reading.gpu, template_of(reading.gpu.model)
    names = _names(reading, template)
    layout = None if found.placed is None else tuple(sorted(found.placed.values(), key=lambda one: one[1]))
    fitting = _fitting(gpu, template, layout, found.count)
    counts = {name: round(value) for name, value in by_label(reading.values, INSTANCES).items()}
    return fitting.model_copy(
        update={
            "instances": _placed(layout, names, template) if layout is not None else _unplaced(counts, names, template),
            "fragmentation": reading.values.get(FRAGMENTATION),
            "creatable": {name: round(value) for name, value in by_label(reading.values, CAPACITY).items()},
        }
    )


def _fitting(gpu: Gpu, template: MigTemplate, layout: tuple[Placement, ...] | None, count: int) -> MigGpuOut:
    """All that follows from the layout."""
    bare = MigGpuOut(
        gpu=gpu.uuid,
        host=gpu.host,
        index=gpu.index,
        model=gpu.model,
        pool=gpu.pool,
        slices=template.memory_slices,
        layouts=count,
    )
    if layout is None:
        return bare
    free = sorted(free_slices(layout, template)[0])
    able, ideal = mig_capacity(layout, template), mig_ideal(layout, template)
    return bare.model_copy(
        update={
            "free": free,
            "free_slices": len(free),
            "stranded": mig_unusable(layout, dict.fromkeys(template.profiles, 1.0), template),
            "ruled_out": {name: ideal[name] - able[name] for name in ideal if ideal[name] > able[name]},
        }
    )


def _names(reading: Reading, template: MigTemplate) -> dict[str, str]:
    """The driver's name of each profile."""
    named = {**by_label(reading.values, CAPACITY), **by_label(reading.values, INSTANCES)}
    sizes = [int(name.split(".")[1][:-2]) for name in named if name.startswith("1g.") and name.endswith("gb")]
    smallest = min(sizes, default=None)
    return {profile_of(name, smallest, template): name for name in sorted(named, reverse=True)}


def _placed(layout: Sequence[Placement], names: Mapping[str, str], template: MigTemplate) -> list[MigInstanceOut]:
    return [
        MigInstanceOut(
            profile=profile,
            name=names.get(profile, profile),
            start=start,
            slices=template.profiles[profile].memory_slices,
        )
        for profile, start in layout
    ]


def _unplaced(counts: Mapping[str, int], names: Mapping[str, str], template: MigTemplate) -> list[MigInstanceOut]:
    short = {name: profile for profile, name in names.items() if profile}
    return [
        MigInstanceOut(profile=profile, name=name, slices=template.profiles[profile].memory_slices)
        for name, count in sorted(counts.items())
        for profile in [short.get(name, "")] * count
        if profile
    ]
