"""The ranks of a job: a synchronous job runs at the pace of its slowest GPU, so that all are limited or none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.actions.view import FleetView
from tocsin.domain.owner import Owner
from tocsin.domain.subject import Subject, SubjectKind

RANKS = "ranks"
"""Parameter of a decision: the GPUs that it is for, as `written` puts them; kept in the journal with the decision."""


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """One GPU of a job and the host whose agent has it."""

    host: str
    gpu: str


def job_of(host: str, owners: Sequence[Owner]) -> str:
    """Name of the one job whose processes are on a GPU of `host`; empty where there is none, or several.

    A Slurm job spans hosts. A pod, a container and a process in none of these are known on their own host alone, so
    that ranks of a job of several pods are not known as such.
    """
    found = {_job(host, owner) for owner in owners}
    return found.pop() if len(found) == 1 else ""


def _job(host: str, owner: Owner) -> str:
    if owner.slurm_job:
        return f"slurm {owner.slurm_job.partition('.')[0]}"
    if owner.pod_uid:
        return f"pod {owner.pod_uid}"
    return f"{host} container {owner.container}" if owner.container else f"{host} process {owner.pid}"


def ranks_of(subject: Subject, view: FleetView) -> tuple[Rank, ...]:
    """The GPUs of the job on `subject`, its own first; those of the subject alone where no job is known.

    Empty where the subject is neither a GPU nor a host, or is unknown.
    """
    if subject.kind is SubjectKind.HOST:
        return tuple(Rank(member.gpu.host, member.gpu.uuid) for member in view.by_host.get(subject.name, ()))
    own = view.whole(subject.name) if subject.kind is SubjectKind.GPU else None
    if own is None:
        return ()
    first = Rank(own.gpu.host, own.gpu.uuid)
    if not own.job:
        return (first,)
    others = {Rank(m.gpu.host, m.gpu.uuid) for m in view.physical.values() if m.job == own.job}
    return (first, *sorted(others - {first}))


def written(ranks: tuple[Rank, ...]) -> str:
    """`ranks` as the value of a parameter."""
    return json.dumps([[rank.host, rank.gpu] for rank in ranks], separators=(",", ":"))


def read(text: str) -> tuple[Rank, ...]:
    """Inverse of `written`; empty where the text holds no ranks."""
    try:
        return tuple(Rank(str(host), str(gpu)) for host, gpu in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()
