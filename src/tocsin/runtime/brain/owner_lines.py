"""What a host may say of who uses its GPUs: names of pods and jobs that their manager has there.

Owners decide whose job an action slows, checkpoints or requeues. A host that could name work of another one would have
that work requeued for a fault of its own GPU. What no manager shows stays: `workloads_of` keeps it to its host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.reading import MOST_OWNERS, Owner, Reading

OTHER_HOST = "other_host"
"""Why names of an owner are left out, as ``tocsin_dropped_total`` names it."""
TOO_MANY = "owners_per_gpu"
"""Why an owner is left out with all that it says."""
Places = Mapping[str, Collection[str]]
"""Hosts by the names of the work that managers show on them."""


def places_of(nodes: Mapping[str, NodeState]) -> Places:
    """Where the pods (by UID and by ``namespace/name``) and Slurm jobs (``slurm N``) are, as their managers show it."""
    found: dict[str, set[str]] = {}
    for host, node in nodes.items():
        for name in _work_on(node):
            found.setdefault(name, set()).add(host)
    return found


def _work_on(node: NodeState) -> set[str]:
    return {*(node.jobs or ()), *node.held_by, *(f"slurm {name}" for name in node.work if name.isdecimal())}


def believed(reading: Reading, node: NodeState | None, places: Callable[[], Places]) -> tuple[Reading, int]:
    """`reading` with owners whose work is on other hosts alone as processes without a name, and how many they are.

    `node` is what managers show of the reading's host. `places` is asked for only where that does not have a name: it
    goes through all that runs anywhere.
    """
    own = _work_on(node) if node is not None else set()
    strange = {owner: names for owner in reading.owners if (names := _names(owner) - own)}
    wrong = {owner for owner, names in strange.items() if any(name in places() for name in names)}
    if not wrong:
        return reading, 0
    nameless = {owner: Owner(owner.pid, owner.process, user=owner.user) for owner in wrong}
    return replace(reading, owners=tuple(nameless.get(owner, owner) for owner in reading.owners)), len(wrong)


def bounded(reading: Reading) -> tuple[Reading, int]:
    """`reading` with as many owners as a GPU can have at most, and how many are left out."""
    more = max(0, len(reading.owners) - MOST_OWNERS)
    return (replace(reading, owners=reading.owners[:MOST_OWNERS]) if more else reading), more


def _names(owner: Owner) -> set[str]:
    pod = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
    job = f"slurm {owner.slurm_job.partition('.')[0]}" if owner.slurm_job else ""
    return {owner.pod_uid, pod, job} - {""}
