"""What a host may say of who uses its GPUs: names of pods and jobs that their manager has there.

Owners decide whose job an action slows, checkpoints or requeues. A host that could name work of another one would have
that work requeued for a fault of its own GPU. What no manager shows stays: `workloads_of` keeps it to its host.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.reading import MOST_OWNERS, Gpu, Owner, Reading

OTHER_HOST = "other_host"
"""Why names of an owner are left out, as ``tocsin_dropped_total`` names it."""
TOO_MANY = "owners_per_gpu"
"""Why an owner is left out with all that it says."""
NO_ROOM = "owner_bytes_per_host"
"""The same, of a host that has as much in memory as it may."""
MOST_BYTES = 1 << 20
"""What owners of the GPUs of one host may take in memory (own choice: some 4,000 processes with usual names)."""
_OWNER_BYTES = 150
"""What an owner takes beside its texts."""
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


class OwnerRoom:
    """What the owners that are remembered of each host take; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_gpu: dict[str, tuple[str, int, int]] = {}
        self._of_host = Counter[str]()

    def fitted(self, reading: Reading) -> tuple[Reading, int]:
        """`reading` with as many of its owners as its host has room for, and how many are left out."""
        host, uuid = reading.gpu.host, reading.gpu.uuid
        with self._lock:
            before, at_ms, size = self._of_gpu.get(uuid, (host, reading.at_ms, 0))
            if not reading.owners and not size:
                return reading, 0
            room = MOST_BYTES - self._of_host[host] + (size if before == host else 0)
            kept, taken = 0, 0
            for owner in reading.owners:
                if (more := taken + _bytes_of(owner)) > room:
                    break
                kept, taken = kept + 1, more
            if reading.at_ms >= at_ms or before != host:
                # What is older than the newest of a GPU is not remembered, and makes no room.
                self._leave(uuid)
                self._of_gpu[uuid] = host, reading.at_ms, taken
                self._of_host[host] += taken
        more = len(reading.owners) - kept
        return (replace(reading, owners=reading.owners[:kept]) if more else reading), more

    def forget(self, gpus: Iterable[Gpu]) -> None:
        """These GPUs are remembered no longer."""
        with self._lock:
            for gpu in gpus:
                self._leave(gpu.uuid)

    def _leave(self, uuid: str) -> None:
        host, _, size = self._of_gpu.pop(uuid, ("", 0, 0))
        self._of_host[host] -= size
        if not self._of_host[host]:
            del self._of_host[host]


_texts = attrgetter(*(one.name for one in fields(Owner) if one.name != "pid"))


def _bytes_of(owner: Owner) -> int:
    return _OWNER_BYTES + len("".join(_texts(owner)).encode("utf-8", "surrogatepass"))


def _names(owner: Owner) -> set[str]:
    pod = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
    job = f"slurm {owner.slurm_job.partition('.')[0]}" if owner.slurm_job else ""
    return {owner.pod_uid, pod, job} - {""}
