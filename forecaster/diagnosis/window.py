"""What a diagnosis looks at: means over a short window for each GPU of a job, and who the job is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.fragmentation import stranded
from tocsin.domain.grouping import grouped
from tocsin.domain.reading import Gpu, Owner
from tocsin.store.port import Columns

Floats = npt.NDArray[np.float64]


_UNOWNED = "work on "
"""How the name of work begins whose owner nobody knows; its host follows."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """GPUs that one owner works on. `name` is the owner's, or the node's where nobody knows the owner."""

    name: str
    gpus: tuple[Gpu, ...]
    owners: tuple[Owner, ...] = ()

    @property
    def name_zh(self) -> str:
        """`name` in Chinese, where it is no owner's."""
        host = self.name.removeprefix(_UNOWNED)
        return self.name if host == self.name else f"{host} 上的任务"

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({gpu.host for gpu in self.gpus}))

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)


def jobs(gpus: Sequence[Gpu], owners: Mapping[str, Sequence[Owner]], busy: frozenset[str]) -> list[ObservedJob]:
    """GPUs by the owner of their processes, by name.

    A GPU of several owners belongs to each. Those in `busy` (UUIDs) without a known owner make up one job per node:
    work is seen there, whose it is is not. `owners` is by UUID.
    """
    members: dict[str, list[Gpu]] = defaultdict(list)
    people: dict[str, dict[Owner, None]] = defaultdict(dict)
    for gpu in gpus:
        known = owners.get(gpu.uuid, ())
        names = {owner.label if not owner.slurm_job else _slurm(owner): owner for owner in known}
        if not names and gpu.uuid in busy:
            members[f"{_UNOWNED}{gpu.host}"].append(gpu)
        for name, owner in names.items():
            members[name].append(gpu)
            people[name][owner] = None
    order = {uuid: place for place, uuid in enumerate(sorted(gpu.uuid for gpu in gpus))}
    return [
        ObservedJob(name, tuple(sorted(found, key=lambda gpu: (gpu.host, order[gpu.uuid]))), tuple(people[name]))
        for name, found in sorted(members.items())
    ]


def _slurm(owner: Owner) -> str:
    """Steps of one Slurm job are one job."""
    return f"Slurm job {owner.slurm_job.partition('.')[0]}"


@dataclass(frozen=True, slots=True)
class WindowMeans:
    """Mean of each metric for each GPU over the window: `values` is float64[g, m], NaN where it has none."""

    gpus: tuple[Gpu, ...]
    metrics: tuple[str, ...]
    values: Floats
    readings: npt.NDArray[np.int64]
    """int64[g]: how many readings are behind it."""

    def of(self, metric: str) -> Floats:
        """float64[g]; NaN where the metric has no value, or is not among those looked at."""
        if metric not in self.metrics:
            return np.full(len(self.gpus), np.nan)
        return self.values[:, self.metrics.index(metric)]

    def take(self, gpus: Sequence[Gpu]) -> WindowMeans:
        place = {gpu.uuid: row for row, gpu in enumerate(self.gpus)}
        rows = [place[gpu.uuid] for gpu in gpus]
        return WindowMeans(tuple(gpus), self.metrics, self.values[rows], self.readings[rows])


def mean(values: Floats) -> float:
    """Of the values that are there; NaN where none is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def means(columns: Columns, gpus: Sequence[Gpu]) -> WindowMeans:
    """Means of all of `columns` for `gpus`; a GPU that is not in it has none."""
    place = {gpu.uuid: row for row, gpu in enumerate(gpus)}
    wanted = np.array([place.get(uuid, -1) for uuid in columns.gpus], dtype=np.int64)
    row = wanted[columns.gpu] if columns.gpus else np.empty(0, np.int64)
    mine = row >= 0
    row, values = row[mine], columns.values[mine]
    table = np.full((len(gpus), len(columns.metrics)), np.nan)
    for number in range(len(columns.metrics)):
        known = np.isfinite(values[:, number])
        count = np.bincount(row[known], minlength=len(gpus))
        total = np.bincount(row[known], weights=values[known, number], minlength=len(gpus))
        np.divide(total, count, out=table[:, number], where=count > 0)
    readings = np.bincount(row, minlength=len(gpus))
    return WindowMeans(tuple(gpus), columns.metrics, table, readings)


# GPUs that somebody holds without using them, and free ones that no large job can use where they are.

IDLE_UTILIZATION = 0.05
HELD_MEMORY = 0.02
"""Share of its memory from which on a GPU is held, where no process list is given."""

Mask = npt.NDArray[np.bool_]


def held_idle(found: WindowMeans) -> Mask:
    """Which GPUs did no work over the window while a process held them; bool[g], False where not known."""
    processes, memory = found.of("gpu_processes"), found.of("gpu_memory_used_ratio")
    held = np.where(np.isfinite(processes), processes > 0, memory >= HELD_MEMORY)
    return np.asarray((found.of("gpu_utilization_ratio") < IDLE_UTILIZATION) & held, dtype=np.bool_)


def free(found: WindowMeans) -> Mask:
    """Which GPUs nobody holds and that do no work; bool[g], False where not known."""
    processes, memory = found.of("gpu_processes"), found.of("gpu_memory_used_ratio")
    empty = np.where(np.isfinite(processes), processes == 0, memory < HELD_MEMORY)
    return np.asarray((found.of("gpu_utilization_ratio") < IDLE_UTILIZATION) & empty, dtype=np.bool_)


def stranded_by_host(gpus: Sequence[Gpu], is_free: Mask) -> dict[str, tuple[Gpu, ...]]:
    """The stranded GPUs of each node that has any; `is_free` is bool[g]. MIG instances are left out."""
    whole = [(gpu, open_) for gpu, open_ in zip(gpus, is_free.tolist(), strict=True) if not gpu.is_mig]
    sizes = Counter(gpu.host for gpu, _ in whole)
    by_host = grouped((gpu.host, gpu) for gpu, open_ in whole if open_)
    return {host: by_host[host] for host in sorted(by_host) if stranded(len(by_host[host]), sizes[host])}
