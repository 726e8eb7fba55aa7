"""What the last evaluation saw of the fleet, for judging events alone until the next: what they touch alone.

Everything else is as old as that evaluation, `rules.evaluate_seconds` at most: guards see readings as older than they
are, so that they hold where they might allow, and never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.model.ranks import JobOnGpu
from tocsin.actions.model.view import GpuGroups
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident, SubjectKind
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.action_state import Counts, Recalled, gpu_views
from tocsin.topology.topology import Topology

Newest = Callable[[Collection[str], Collection[str]], Sequence[Reading]]
"""The newest readings of GPUs by UUID, and of all on some hosts."""


@dataclass(frozen=True)
class SeenFleet:
    """The fleet as it was seen last. `faulty` are the names of the subjects with a fault of their hardware."""

    at_ms: int
    predictions: Sequence[Prediction]
    topology: Topology
    workloads: Mapping[str, JobOnGpu]
    nodes: Mapping[str, NodeState]
    faulty: frozenset[str]
    groups: GpuGroups

    def after(
        self,
        events: Sequence[Event],
        active: Sequence[Finding],
        nodes: Mapping[str, NodeState],
        newest: Newest,
        *,
        recalled: Recalled,
        counts: Counts,
    ) -> SeenFleet:
        """The fleet with what `events`, the findings that hold now and the managers have changed of it."""
        faulty = faulty_in(active)
        hosts = {event.host for event in events} | _turned(self.nodes, nodes)
        readings = newest(faulty ^ self.faulty, hosts - {""})
        new = work_on_unseen(readings, self.workloads)
        workloads = {**self.workloads, **new} if new else self.workloads
        views = gpu_views(readings, active, nodes, workloads, recalled=recalled, counts=counts)
        groups = self.groups.changed(views) if views else self.groups
        return replace(self, workloads=workloads, nodes=nodes, faulty=faulty, groups=groups)


def work_on_unseen(readings: Sequence[Reading], seen: Mapping[str, JobOnGpu]) -> dict[str, JobOnGpu]:
    """The work on GPUs that are not among those `seen`: whether its job is elsewhere too shows the next evaluation."""
    new = (one for one in readings if one.gpu.uuid not in seen)
    return {one.gpu.uuid: JobOnGpu(known=not one.owners) for one in new}


def _turned(before: Mapping[str, NodeState], now: Mapping[str, NodeState]) -> set[str]:
    """Hosts that a manager has taken out of service, or back, meanwhile."""

    def takes(nodes: Mapping[str, NodeState], host: str) -> bool:
        return host not in nodes or nodes[host].schedulable

    return {host for host in {*before, *now} if takes(before, host) is not takes(now, host)}


def faulty_in(active: Sequence[Finding]) -> frozenset[str]:
    """Names of the subjects that are unhealthy by what holds."""
    return frozenset(finding.subject.name for finding in active if finding.is_hardware_fault)


def touched_by(events: Sequence[Event], incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents about the hosts of `events`, in their order."""
    hosts = {event.host for event in events}
    return [one for one in incidents if any(_host_of(member) in hosts for member in one.members)]


def _host_of(finding: Finding) -> str:
    return finding.subject.name if finding.subject.kind is SubjectKind.HOST else finding.subject.host
