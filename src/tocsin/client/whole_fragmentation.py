"""Free GPUs and MIG layouts of all cells as one: counts added up, the worst of all lists, hosts and pools by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tocsin.client.models_capacity import FragmentationOut, FragmentOut, HostFragment, MigGpuOut, PoolFragment

T = TypeVar("T", HostFragment, MigGpuOut, PoolFragment)

_FIGURES = ("gpus", "free", "fragmented", "unusable", "stranded")
_MIG = ("mig_gpus", "mig_slices", "mig_free_slices", "mig_stranded_slices", "mig_unknown")


def worst_first(one: HostFragment) -> tuple[float, float, float, str]:
    """By which hosts are sorted: what no job can use first, what the next one cannot, what is stranded."""
    return -one.unusable, -one.fragmented, -one.stranded, one.host


def whole_fragmentation(answers: Mapping[str, FragmentationOut], most: int) -> FragmentationOut:
    """Fragmentation of all cells, the worst `most` of each list; `answers` has at least one.

    What a cell cannot use it measures by the jobs that come to it, and the sum is of these. Where cells have different
    jobs `mix` is empty. Of several cells hosts, and the pools of `pools`, are named
    ``cell/host``: each is listed by its own cell.
    """
    every = [answers[name] for name in sorted(answers)]
    pools = _named({name: one.pools for name, one in answers.items()}, "pool")
    hosts = _named({name: one.hosts for name, one in answers.items()}, "host")
    migs = _named({name: one.mig for name, one in answers.items()}, "host")
    holes = Counter[int]()
    for one in every:
        holes.update(dict(one.holes))
    alike = all((one.mix, one.mix_from) == (every[0].mix, every[0].mix_from) for one in every)
    return FragmentationOut(
        now=max(one.now for one in every),
        simulated=any(one.simulated for one in every),
        fleet=_added([one.fleet for one in every]),
        mix=every[0].mix if alike else [],
        mix_from=every[0].mix_from if alike else "node",
        pools=sorted(pools, key=lambda one: (-one.fragmented, -one.free, one.pool))[:most],
        pools_total=sum(one.pools_total for one in every),
        hosts=sorted(hosts, key=worst_first)[:most],
        hosts_total=sum(one.hosts_total for one in every),
        holes=sorted(holes.items()),
        mig=sorted(migs, key=lambda one: (-(one.fragmentation or 0.0), one.host, one.index or 0))[:most],
        **{name: sum(getattr(one, name) for one in every) for name in _MIG},
    )


def _added(every: Sequence[FragmentOut]) -> FragmentOut:
    sums = {name: sum(getattr(one, name) for one in every) for name in _FIGURES}
    return FragmentOut(**sums, largest=max(one.largest for one in every))


def _named(lists: Mapping[str, Sequence[T]], field: str) -> list[T]:
    """The entries of a list of all cells, with the cell before their `field` where there are several cells."""
    if len(lists) == 1:
        return [row for rows in lists.values() for row in rows]
    return [
        row.model_copy(update={field: f"{name}/{getattr(row, field)}"}) for name in sorted(lists) for row in lists[name]
    ]
