"""What the last evaluation saw of the fleet, for judging events alone until the next: what they touch alone.

Everything else is as old as that evaluation, `rules.evaluate_seconds` at most: guards see readings as older than they
are, so that they hold where they might allow, and never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.actions.model.ranks import JobOnGpu
from tocsin.actions.model.view import GpuGroups, GpuView
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident, SubjectKind
from tocsin.domain.grouping import in_parts
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.action_state import Counts, Recalled, gpu_views
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.topology.topology import Topology

VIEWED = 2_000
"""GPUs of which guards get a view at a time."""
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
    faulty: frozenset[str] = frozenset()
    groups: GpuGroups = field(default_factory=lambda: GpuGroups({}))

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


class FleetSight:
    """Keeps what is `seen` of the fleet: whole by evaluations, and what events change of it in between."""

    def __init__(self, memory: FleetMemory, counting: Counting) -> None:
        self._memory = memory
        self._counting = counting
        self._judged: list[Event] = []
        self._readings: tuple[Reading, ...] = ()
        self._looked_at: Mapping[str, object] = {}
        self.seen: SeenFleet | None = None

    def look(
        self,
        fleet: SeenFleet,
        active: Callable[[], Sequence[Finding]],
        nodes: Callable[[], Mapping[str, NodeState]],
        pause: Callable[[], object],
    ) -> SeenFleet:
        """See all GPUs with what `fleet` has beside them, also those that came since its work was looked up.

        Between its parts `pause` may judge events: it is part of what is seen what they, and managers meanwhile, change
        of the findings `active`, of the `nodes` and of the GPUs.
        """
        before, readings, self._judged = active(), self._memory.latest(), []
        fleet, looked_at = replace(fleet, faulty=faulty_in(before)), self._counting.looked_at
        known, new = self._known(fleet, readings, looked_at)
        if known is None:
            fleet = replace(fleet, workloads={**work_on_unseen(readings, fleet.workloads), **fleet.workloads})
            self._counting.look_at_new([reading.gpu for reading in readings], fleet.nodes, fleet.at_ms)
        recalled, views = self._memory.recalled().__contains__, dict[str, GpuView]()
        for part in in_parts(new, VIEWED):
            views |= gpu_views(part, before, fleet.nodes, fleet.workloads, recalled=recalled, counts=self._counting.of)
            pause()
        groups = (GpuGroups(views) if known is None else known.changed(views)).prepared()
        groups.taken.clear()
        pause()
        self._readings, self._looked_at, self.seen = readings, looked_at, replace(fleet, groups=groups)
        return self.after(self._judged, active(), nodes())

    def _known(
        self, fleet: SeenFleet, readings: Sequence[Reading], looked_at: Mapping[str, object]
    ) -> tuple[GpuGroups | None, Sequence[Reading]]:
        """The groups of the last look, and the readings of what is to be viewed anew; None and all `readings` where
        most of them are others, or a GPU has come or gone."""
        seen, last = self.seen, self._readings
        if seen is None or not len(readings) == len(last) == len(seen.groups.gpus):
            return None, readings
        pairs = [(one, other) for one, other in zip(readings, last, strict=True) if one is not other]
        same = all(one.gpu.uuid == other.gpu.uuid for one, other in pairs)
        if not same or 2 * len(pairs) > len(readings) or [*fleet.workloads] != [*seen.workloads]:
            return None, readings
        changed = [one for one, _ in pairs]
        works = zip(fleet.workloads.items(), seen.workloads.values(), strict=True)
        gpus = seen.faulty ^ fleet.faulty | {uuid for (uuid, one), other in works if one is not other and one != other}
        hosts = _turned(seen.nodes, fleet.nodes)
        hosts |= {host for host, one in looked_at.items() if self._looked_at.get(host) is not one}
        if gpus or hosts:
            also = (one for one in readings if one.gpu.uuid in gpus or one.gpu.host in hosts)
            changed = [*{one.gpu.uuid: one for one in (*changed, *also)}.values()]
        return seen.groups, changed

    def after(self, events: Sequence[Event], active: Sequence[Finding], nodes: Mapping[str, NodeState]) -> SeenFleet:
        """See what `events`, which were judged, the findings that hold now and the managers have changed."""
        assert self.seen is not None
        recalled, counts = self._memory.is_recalled, self._counting.of
        self.seen = self.seen.after(events, active, nodes, self._memory.newest, recalled=recalled, counts=counts)
        self._judged = [*self._judged, *events]
        return self.seen


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
