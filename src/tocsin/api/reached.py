"""Which pools something reaches: who decides about it needs a scope in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.api.service import Service
from tocsin.client.models import GpuSummary, SubjectOut
from tocsin.domain.action_parameters import (
    ActionParameters,
    DefragmentParameters,
    MigrateParameters,
    ScaleInParameters,
    parameters_of,
    ranks_in,
)
from tocsin.domain.finding import ActionKind
from tocsin.domain.subject import SubjectKind

NODE_WIDE = frozenset(
    {
        ActionKind.CORDON,
        ActionKind.UNCORDON,
        ActionKind.DRAIN,
        ActionKind.REBOOT_NODE,
        ActionKind.MIGRATE,
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.DEFRAGMENT,
        ActionKind.CHECKPOINT,
        ActionKind.RESET_GPU,
    }
)
"""Actions that reach every GPU of the host also where one GPU is their subject: work is kept off the node, or the node
is partitioned anew, its pods are asked, its NVLink peers are reset as well."""
_OF_ITS_JOB = frozenset({ActionKind.THROTTLE, ActionKind.RESTORE, ActionKind.CHECKPOINT, ActionKind.MIGRATE})
"""Actions that slow or stop all of the job on their GPU, wherever its other GPUs are."""
_OF_ALL_JOBS = frozenset({ActionKind.DRAIN, ActionKind.REBOOT_NODE})
"""Actions that stop every job on the host."""


def pools_of(
    service: Service, subject: SubjectOut, action: ActionKind | None = None, parameters: Mapping[str, str] | None = None
) -> Sequence[str]:
    """Pools that `action` on `subject` reaches, sorted; none where it is the fleet, "" where a pool is not known."""
    if subject.kind is SubjectKind.FLEET:
        return ()
    gpus = service.gpus()
    own, host = _own(subject, gpus)
    reached = set(own)
    on_host = {gpu.uuid for gpu in gpus if host and gpu.host == host}
    if action in NODE_WIDE:
        reached |= on_host
    if action in _OF_ITS_JOB:
        reached |= service.same_jobs(own)
    if action in _OF_ALL_JOBS:
        reached |= service.same_jobs(own | on_host)
    if action is not None:
        reached |= _named(parameters_of(action, parameters or {}), gpus)
    pools = {gpu.uuid: gpu.pool for gpu in gpus}
    found = {pools.get(uuid, "") for uuid in reached if uuid != subject.name or uuid in pools}
    if subject.kind is SubjectKind.POOL:
        found.add(subject.name)
    elif not own & pools.keys() or (subject.kind is SubjectKind.GPU and subject.pool):
        # What the GPUs say outranks what a decision says of its host.
        found.add(subject.pool)
    return sorted(found)


def _own(subject: SubjectOut, gpus: Sequence[GpuSummary]) -> tuple[set[str], str]:
    """UUIDs of the subject itself, and its host."""
    if subject.kind is SubjectKind.GPU:
        itself = next((gpu for gpu in gpus if gpu.uuid == subject.name), None)
        return {subject.name}, subject.host or (itself.host if itself else "")
    if subject.kind is SubjectKind.HOST:
        return {gpu.uuid for gpu in gpus if gpu.host == subject.name}, subject.name
    return set(), ""


def _named(parameters: ActionParameters, gpus: Sequence[GpuSummary]) -> set[str]:
    """UUIDs of the GPUs that the parameters of a decision name, also such as are not known."""
    found = {rank.gpu for rank in ranks_in(parameters)}
    hosts = {parameters.context.host}
    if isinstance(parameters, MigrateParameters):
        found |= {place.gpu for place in (*parameters.source, *parameters.target)}
    if isinstance(parameters, MigrateParameters | DefragmentParameters):
        hosts |= {host for piece in parameters.to_host for host in piece}
    if isinstance(parameters, ScaleInParameters):
        hosts.add(parameters.node)
    return found | {gpu.uuid for gpu in gpus if gpu.host and gpu.host in hosts}
