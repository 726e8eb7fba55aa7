"""Whose work is on which GPU: what agents read of processes, put together with what managers know of pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tocsin.actions.model.ranks import NodeRanks, work_on
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.reading import Reading
from tocsin.runtime.managers import Managers


def works(readings: Iterable[Reading], nodes: Mapping[str, NodeState], *, blind: bool) -> dict[str, NodeRanks]:
    """The work on each GPU by UUID; `nodes` as their managers show them, `blind` where one has not answered lately."""
    return {
        reading.gpu.uuid: work_on(reading.gpu.host, reading.owners, nodes.get(reading.gpu.host), blind=blind)
        for reading in readings
    }


def same_jobs(readings: Iterable[Reading], managers: Managers, gpus: Collection[str]) -> set[str]:
    """UUIDs of the GPUs that the jobs on `gpus` hold, `gpus` among them."""
    work = works(readings, managers.nodes(), blind=managers.blind())
    jobs = {work[uuid].job for uuid in gpus if uuid in work} - {""}
    return set(gpus) | {uuid for uuid, one in work.items() if one.job in jobs}
