"""The topology of the fleet as it is known now: built anew where something changed, with disagreements said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

import structlog

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.reading import Gpu
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.claims import Claim
from tocsin.topology.topology import NO_TOPOLOGY, Topology, topology_of

log = structlog.get_logger()

MOST_SAID = 20
"""Disagreements that one change of the topology logs; all of them are counted."""


class TopologyWatch:
    """Keeps the topology of GPUs, managers' nodes and `site`, the claims of the site's file. For one thread."""

    def __init__(self, site: Sequence[Claim], metrics: OwnMetrics) -> None:
        self._site = tuple(site)
        self._metrics = metrics
        self._gpus: tuple[Gpu, ...] = ()
        self._places: dict[str, tuple[Claim, ...]] | None = None
        self._topology = NO_TOPOLOGY
        self._jobs: dict[str, str] = {}
        self._said: frozenset[str] = frozenset()

    def now(self, gpus: Sequence[Gpu], nodes: Mapping[str, NodeState], jobs: Mapping[str, str]) -> Topology:
        """The topology of `gpus` and `nodes`, with the job on each GPU and MIG instance by UUID."""
        places = {host: node.places for host, node in nodes.items() if node.places}
        if changed := places != self._places or not _alike(gpus, self._gpus):
            claims = [*self._site, *(claim for node in nodes.values() for claim in node.places)]
            self._topology = topology_of(gpus, claims)
            self._places = places
            self._say()
        if changed or jobs != self._jobs:
            self._topology, self._jobs = self._topology.with_jobs(jobs), dict(jobs)
        self._gpus = tuple(gpus)
        return self._topology

    def _say(self) -> None:
        found = self._topology.disagreements
        self._metrics.set("tocsin_topology_disagreements", len(found))
        said = frozenset(str(one) for one in found)
        for text in sorted(said - self._said)[:MOST_SAID]:
            log.warning("sources disagree about a place", said=text)
        self._said = said


def _alike(gpus: Sequence[Gpu], others: Sequence[Gpu]) -> bool:
    """Whether what the topology is made of is the same of both. What an agent says of a GPU is the same object for as
    long as it says the same, so that few have to be compared."""
    if len(gpus) != len(others):
        return False
    if all(map(is_, gpus, others)):
        return True
    changed = ((one, other) for one, other in zip(gpus, others, strict=True) if one is not other)
    return all(_placed(one) == _placed(other) for one, other in changed)


def _placed(gpu: Gpu) -> tuple[object, ...]:
    return gpu.uuid, gpu.host, gpu.parent, gpu.rack, gpu.labels
