"""Which jobs may come, told by those that run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tocsin.domain.fragmentation_fleet import Task, mix_of_sizes
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading


def running_mix(readings: Iterable[Reading]) -> tuple[Task, ...]:
    """The mix of the jobs on `readings`, each counted once per node by its GPUs there; empty where no owner is known.

    A job is a Slurm job, a pod, a container, or a process that is in none of these. MIG instances are left out: they
    are no whole GPUs.
    """
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for reading in readings:
        if not reading.gpu.is_mig:
            for owner in reading.owners:
                held[reading.gpu.host, _job(owner)].add(reading.gpu.uuid)
    return mix_of_sizes(len(gpus) for gpus in held.values())


def _job(owner: Owner) -> str:
    """What holds a GPU together with others; a step of a Slurm job belongs to its job."""
    if owner.slurm_job:
        return f"slurm {owner.slurm_job.partition('.')[0]}"
    return owner.pod_uid or (f"{owner.namespace}/{owner.pod}" if owner.pod else owner.container) or f"pid {owner.pid}"
