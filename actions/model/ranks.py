"""The ranks of a job: a synchronous job runs at the pace of its slowest GPU, so that all are limited or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.decision import Rank
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.reading import Owner


class JobOnGpu(NamedTuple):
    """The one job on a GPU: empty where there is none, or several. `known` is False where its pod's manager has not
    shown that pod yet, so that other pods of the same job may exist unseen."""

    job: str = ""
    known: bool = True


NO_JOB = JobOnGpu()
"""Of a GPU that nobody holds, or several do."""


def work_on(host: str, owners: Sequence[Owner], node: NodeState | None = None, *, blind: bool = False) -> JobOnGpu:
    """The work of `owners` on a GPU of `host`, which its manager shows as `node`, None where none does.

    A Slurm job spans hosts, and so does a job of several pods that the manager knows. Any other pod, a container, and a
    process in none of these stand for themselves. `blind` says that a manager has not answered lately.
    """
    if len(owners) == 1:
        return _work(host, owners[0], node, blind)
    found = {_work(host, owner, node, blind) for owner in owners}
    return found.pop() if len(found) == 1 else NO_JOB


def _work(host: str, owner: Owner, node: NodeState | None, blind: bool) -> JobOnGpu:
    if owner.slurm_job:
        return JobOnGpu(f"slurm {owner.slurm_job.partition('.')[0]}")
    title = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
    if owner.pod_uid or title:
        known = None if node is None else node.jobs
        job = None if known is None else known.get(owner.pod_uid or title)
        if job:
            return JobOnGpu(named_job(job))
        unseen = job is None and (known is not None or (node is None and blind))
        return JobOnGpu(f"pod {owner.pod_uid or title}", not unseen)
    return JobOnGpu(f"{host} container {owner.container}" if owner.container else f"{host} process {owner.pid}")


def named_job(job: str) -> str:
    """A job of several pods as `GpuView.job` has it."""
    return f"pods {job}"


def ranks_of(subject: Subject, view: FleetView) -> tuple[Rank, ...]:
    """The GPUs of the jobs on `subject`, its own first; those of the subject alone where no job is known.

    Empty where the subject is neither a GPU nor a host, or is unknown.
    """
    own = own_ranks(subject, view)
    jobs = _jobs_on(own, view)
    if not jobs:
        return own
    others = {Rank(m.gpu.host, m.gpu.uuid) for m in view.physical.values() if m.job in jobs}
    return (*own, *sorted(others - set(own)))


def own_ranks(subject: Subject, view: FleetView) -> tuple[Rank, ...]:
    """The GPUs of `subject` itself, a GPU or a host."""
    if subject.kind is SubjectKind.HOST:
        return tuple(Rank(member.gpu.host, member.gpu.uuid) for member in view.by_host.get(subject.name, ()))
    own = view.whole(subject.name) if subject.kind is SubjectKind.GPU else None
    return () if own is None else (Rank(own.gpu.host, own.gpu.uuid),)


def _jobs_on(ranks: Sequence[Rank], view: FleetView) -> frozenset[str]:
    return frozenset(view.gpus[rank.gpu].job for rank in ranks) - {""}


def job_unknown(subject: Subject, view: FleetView) -> bool:
    """Whether a pod on `subject` has not been shown by its manager yet."""
    return not all(view.gpus[rank.gpu].job_known for rank in own_ranks(subject, view))


def unseen_hosts(subject: Subject, view: FleetView) -> list[str]:
    """Hosts on which the jobs on `subject` hold GPUs, as their manager says, and no reading shows it."""
    jobs = _jobs_on(own_ranks(subject, view), view)
    if not jobs:
        return []
    seen = {rank.host for rank in ranks_of(subject, view)}
    return sorted(host for host, node in view.nodes.items() if jobs & node.held_by and host not in seen)
