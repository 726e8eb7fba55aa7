"""Fragmentation of the fleet as its newest readings show it: free GPUs by host, and MIG layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tocsin.actions.planning.measures import mig_unusable
from tocsin.client.models_fragmentation import (
    FragmentationOut,
    FragmentOut,
    HostFragment,
    MigGpuOut,
    MigInstanceOut,
    PoolFragment,
    TaskOut,
)
from tocsin.domain.clock import to_iso
from tocsin.domain.fragmentation import MigTemplate, Placement, free_slices, mig_capacity, mig_ideal
from tocsin.domain.fragmentation_fleet import Task
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import split_variant
from tocsin.domain.mig_layout import Layouts, by_profile, layouts, profile_of, template_of
from tocsin.domain.reading import Reading
from tocsin.rules.fleet import GANG, fleet_fragmentation
from tocsin.runtime.idle_gpus import free_now

INSTANCES, CAPACITY, FRAGMENTATION = "gpu_mig_instances", "gpu_mig_remaining_capacity", "gpu_mig_fragmentation_ratio"
MixFrom = Literal["settings", "running", "node"]


@dataclass(frozen=True, slots=True)
class _Host:
    """Whole GPUs of one host, and how many are free."""

    host: str
    pool: str
    gpus: int
    free: int


def fragmentation_out(
    readings: Sequence[Reading], mix: Sequence[Task], mix_from: MixFrom, now_ms: int, limit: int
) -> FragmentationOut:
    """The fleet as `readings`, the newest of each GPU, show it; lists hold `limit` entries at most.

    A GPU is free that does nearly nothing and has no process, as the rules take it.
    """
    hosts = _hosts(readings)
    told, mix = mix, mix or whole_node(readings)
    pools = sorted({one.pool for one in hosts})
    worst = sorted(
        (_host_out(one, mix) for one in hosts if one.free), key=lambda one: (-one.stranded, -one.fragmented, one.host)
    )
    broken = [one for one in worst if one.fragmented > 0]
    migs = sorted((_mig_out(one) for one in readings if _in_parts(one)), key=_worst_first)
    known = [one for one in migs if one.free is not None]
    by_pool = [
        PoolFragment(pool=name, hosts=len(mine), **_figures(mine, mix).model_dump())
        for name in pools
        for mine in ([one for one in hosts if one.pool == name],)
    ]
    by_pool.sort(key=lambda one: (-one.fragmented, -one.free, one.pool))
    weight = sum(task.share for task in mix)
    return FragmentationOut(
        now=to_iso(now_ms),
        simulated=any(one.gpu.simulated for one in readings),
        fleet=_figures(hosts, mix),
        mix=[TaskOut(gpus=task.gpus, share=task.share / weight) for task in mix if weight > 0],
        mix_from=mix_from if told else "node",
        pools=by_pool[:limit],
        pools_total=len(pools),
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


def whole_node(readings: Sequence[Reading]) -> tuple[Task, ...]:
    """What stands for the mix where no job is known, as the rules take it."""
    sizes = Counter(one.gpu.host for one in readings if not one.gpu.is_mig)
    return (Task(float(min(GANG, max(sizes.values(), default=1)))),)


def _hosts(readings: Sequence[Reading]) -> list[_Host]:
    whole = [one for one in readings if not one.gpu.is_mig]
    open_: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    pools: dict[str, str] = {}
    for one, is_free in zip(whole, free_now(whole).tolist(), strict=True):
        sizes[one.gpu.host] += 1
        open_[one.gpu.host] += is_free
        pools.setdefault(one.gpu.host, one.gpu.pool)
    return [_Host(host, pools[host], size, open_[host]) for host, size in sorted(sizes.items())]


def _figures(hosts: Sequence[_Host], mix: Sequence[Task]) -> FragmentOut:
    free = np.array([one.free for one in hosts], np.int64)
    sizes = np.array([one.gpus for one in hosts], np.int64)
    found = fleet_fragmentation(free, sizes, mix)
    return FragmentOut(
        gpus=int(sizes.sum()),
        free=found.free,
        fragmented=found.fragmented,
        stranded=found.stranded,
        largest=int(free.max(initial=0)),
    )


def _host_out(one: _Host, mix: Sequence[Task]) -> HostFragment:
    found = _figures([one], mix)
    return HostFragment(
        host=one.host,
        pool=one.pool,
        gpus=one.gpus,
        free=one.free,
        fragmented=found.fragmented,
        stranded=found.stranded,
    )


# ---------------------------------------------------------------------- MIG


def _in_parts(reading: Reading) -> bool:
    return not reading.gpu.is_mig and reading.values.get("gpu_mig_mode") == 1.0


def _variants(reading: Reading, metric: str) -> dict[str, float]:
    split = ((split_variant(key), value) for key, value in reading.values.items() if key.startswith(f"{metric}{{"))
    return {name: value for (_, _, name), value in split}


def layout_of(reading: Reading) -> Layouts:
    """Where the instances of a GPU in MIG mode may begin, by their numbers and by what still fits."""
    template = template_of(reading.gpu.model)
    counts = by_profile(_variants(reading, INSTANCES), template)
    capacity = by_profile(_variants(reading, CAPACITY), template)
    if not counts and not capacity:
        return Layouts(None, 0)
    found = layouts(counts, capacity, template)
    # Layouts of the same numbers differ in what still fits: without the driver's word, one of several is a guess.
    return found if capacity or found.count == 1 else Layouts(None, found.count)


def _mig_out(reading: Reading) -> MigGpuOut:
    gpu, template = reading.gpu, template_of(reading.gpu.model)
    found, names = layout_of(reading), _names(reading, template)
    fitting = _fitting(gpu, template, found)
    counts = {name: round(value) for name, value in _variants(reading, INSTANCES).items()}
    return fitting.model_copy(
        update={
            "instances": _placed(found.layout, names, template)
            if found.layout is not None
            else _unplaced(counts, names, template),
            "fragmentation": reading.values.get(FRAGMENTATION),
            "creatable": {name: round(value) for name, value in _variants(reading, CAPACITY).items()},
        }
    )


def _fitting(gpu: Gpu, template: MigTemplate, found: Layouts) -> MigGpuOut:
    """All that follows from the layout."""
    bare = MigGpuOut(
        gpu=gpu.uuid,
        host=gpu.host,
        index=gpu.index,
        model=gpu.model,
        pool=gpu.pool,
        slices=template.memory_slices,
        layouts=found.count,
    )
    if found.layout is None:
        return bare
    free = sorted(free_slices(found.layout, template)[0])
    able, ideal = mig_capacity(found.layout, template), mig_ideal(found.layout, template)
    return bare.model_copy(
        update={
            "free": free,
            "free_slices": len(free),
            "stranded": mig_unusable(found.layout, dict.fromkeys(template.profiles, 1.0), template),
            "ruled_out": {name: ideal[name] - able[name] for name in ideal if ideal[name] > able[name]},
        }
    )


def _names(reading: Reading, template: MigTemplate) -> dict[str, str]:
    """The driver's name of each profile."""
    named = {**_variants(reading, CAPACITY), **_variants(reading, INSTANCES)}
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


def _worst_first(one: MigGpuOut) -> tuple[float, str, int]:
    return -(one.fragmentation or 0.0), one.host, one.index or 0
