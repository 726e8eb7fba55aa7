"""Which jobs may come: as settings say, as those that run tell, or else those of a whole node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from tocsin.config.settings import TaskShare
from tocsin.domain.fragmentation_fleet import Task, mix_of_sizes
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading
from tocsin.rules.fleet import GANG

MixFrom = Literal["settings", "running", "node"]


def mix_of(configured: Sequence[TaskShare], readings: Sequence[Reading]) -> tuple[tuple[Task, ...], MixFrom]:
    """The jobs that free GPUs are measured by, and where they are from.

    Where none are `configured` and no job is known on `readings`, one of a whole node stands for them.
    """
    if configured:
        return tuple(Task(task.gpus, task.share) for task in configured), "settings"
    running = running_mix(readings)
    return (running, "running") if running else (whole_node(readings), "node")


def running_mix(readings: Iterable[Reading]) -> tuple[Task, ...]:
    """The mix of the jobs on `readings`, each counted once per node by its GPUs there; empty where no owner is known.

    A job is a Slurm job, a pod, a container, or a process that is in none of these. MIG instances, and GPUs in MIG
    mode, are left out: their jobs take no whole GPUs.
    """
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for reading in readings:
        if not reading.gpu.is_mig and reading.values.get("gpu_mig_mode") != 1.0:
            for owner in reading.owners:
                held[reading.gpu.host, _job(owner)].add(reading.gpu.uuid)
    return mix_of_sizes(len(gpus) for gpus in held.values())


def whole_node(readings: Sequence[Reading]) -> tuple[Task, ...]:
    """What stands for the mix where no job is known, as the rules take it."""
    sizes = Counter(one.gpu.host for one in readings if not one.gpu.is_mig)
    return (Task(float(min(GANG, max(sizes.values(), default=1)))),)


def _job(owner: Owner) -> str:
    """What holds a GPU together with others; a step of a Slurm job belongs to its job."""
    if owner.slurm_job:
        return f"slurm {owner.slurm_job.partition('.')[0]}"
    return owner.pod_uid or (f"{owner.namespace}/{owner.pod}" if owner.pod else owner.container) or f"pid {owner.pid}"
