"""How well incidents tell the causes of a storm apart: merges across domains, members under the right root."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology.topology import Topology
from tocsin_testing.storms import Storm, make_storm

MOST_MERGES = 0
LEAST_RIGHT = 0.95

Collapse = Callable[[Sequence[Finding], Sequence[Event], Topology], list[Incident]]


@dataclass
class Score:
    """`merges` are incidents that hold findings of causes in different NVLink domains, `by_kind` members by kind of
    cause: all, and those under the right root."""

    storms: int = 0
    merges: int = 0
    members: int = 0
    right: int = 0
    incidents: int = 0
    parts: int = 0
    by_kind: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    worst: list[tuple[float, int]] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.right / self.members if self.members else 1.0

    @property
    def passes(self) -> bool:
        return self.merges <= MOST_MERGES and self.share >= LEAST_RIGHT

    def line(self) -> str:
        return (
            f"{self.storms} storms, {self.merges} merges across domains, {self.share:.4f} of {self.members} members "
            f"under the right root, {self.incidents} incidents for {self.parts} causes as they can be told apart"
        )


def parts_of(storm: Storm) -> dict[str, tuple[int, Hashable]]:
    """The part of its cause that each finding belongs to: the cause, or where nothing tells that hosts belong together
    the cause on one host."""
    hosts = {node.uuid: node.host for node in storm.site.nodes}
    found: dict[str, tuple[int, Hashable]] = {}
    for finding in storm.findings:
        cause = storm.causes[storm.truth[finding.id]]
        host = finding.subject.host or hosts.get(finding.subject.name, finding.subject.name)
        apart = not storm.jobs_known if cause.by_job else storm.blind
        if cause.kind == "program" and not cause.by_job:
            apart = True
        found[finding.id] = (cause.number, host if apart else "")
    return found


def score(storm: Storm, incidents: Iterable[Incident], into: Score) -> None:
    """Add what `incidents` make of `storm`."""
    found = list(incidents)
    parts = parts_of(storm)
    roots = right_roots(storm, found, parts)
    right_here = all_here = 0
    for incident in found:
        causes = {storm.truth[member.id] for member in incident.members}
        domains = [storm.causes[number].domains for number in causes]
        into.merges += any(not (a & b) for a in domains for b in domains)
        into.incidents += 1
        for member in incident.members:
            part = parts[member.id]
            kind = storm.causes[part[0]].kind
            good = incident.root.id in roots[part] and is_placed(storm, incident, part)
            into.by_kind[kind]["all"] += 1
            into.by_kind[kind]["right"] += good
            right_here, all_here = right_here + good, all_here + 1
    into.storms += 1
    into.parts += len(roots)
    into.members += all_here
    into.right += right_here
    if right_here < all_here:
        into.worst.append((right_here / all_here, all_here))


def right_roots(
    storm: Storm, incidents: Sequence[Incident], parts: dict[str, tuple[int, Hashable]]
) -> dict[tuple[int, Hashable], set[str]]:
    """The findings that may stand as the root of each part: the one that shows its cause, where it was not lost, else
    the root, of that part itself, of the one incident that holds most of it."""
    shows: dict[tuple[int, Hashable], set[str]] = defaultdict(set)
    for finding in storm.findings:
        part = parts[finding.id]
        if (finding.rule, finding.subject.name) == storm.causes[part[0]].root:
            shows[part].add(finding.id)
    held: dict[tuple[int, Hashable], Counter[str]] = defaultdict(Counter)
    for incident in incidents:
        for member in incident.members:
            held[parts[member.id]][incident.root.id] += 1
    roots = {}
    for part, counted in held.items():
        most = max(counted, key=lambda name: (counted[name], name))
        roots[part] = shows[part] or ({most} if parts[most] == part else set())
    return roots


def is_placed(storm: Storm, incident: Incident, part: tuple[int, Hashable]) -> bool:
    """Whether `incident` names the place of a cause that sits in one, where enough of it was seen to tell."""
    whole = storm.causes[part[0]].shared
    if whole is None or incident.place is None:
        return True
    if part[1]:
        whole = Place(PlaceKind.HOST, str(part[1]))
    speaks = {one.subject.name for one in incident.members if one.rule == incident.root.rule}
    return not covered(storm, whole, speaks) or incident.place == whole


def covered(storm: Storm, place: Place, speaks: set[str]) -> bool:
    """Whether most GPUs of a place speak: less is no evidence of the place."""
    column = {
        PlaceKind.HOST: "host",
        PlaceKind.RACK: "rack",
        PlaceKind.COOLING_ZONE: "cooling",
    }[place.kind]
    inside = storm.site.of(column, place.name)
    return sum(node.uuid in speaks for node in inside) * 3 > len(inside) * 2


def run(seeds: Iterable[int], collapse: Collapse) -> Score:
    """The score of `collapse` over the storms of `seeds`."""
    found = Score()
    for seed in seeds:
        storm = make_storm(seed)
        score(storm, collapse(storm.findings, storm.events, storm.topology), found)
    return found


def per_host(findings: Sequence[Finding], events: Sequence[Event], topology: Topology) -> list[Incident]:
    """Null: one incident for each host."""
    return _grouped(findings, lambda one: one.subject.host or one.subject.name)


def per_domain(findings: Sequence[Finding], events: Sequence[Event], topology: Topology) -> list[Incident]:
    """Null: one incident for each NVLink domain, or host where none is known."""

    def domain(one: Finding) -> Hashable:
        host = one.subject.host or one.subject.name
        gpu = one.subject.name if one.subject.kind is SubjectKind.GPU else ""
        return topology.name(PlaceKind.NVLINK_DOMAIN, gpu, host) or host

    return _grouped(findings, domain)


def _grouped(findings: Sequence[Finding], key: Callable[[Finding], Hashable]) -> list[Incident]:
    groups: dict[Hashable, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[key(finding)].append(finding)
    made = []
    for members in groups.values():
        root = min(members, key=lambda one: (-one.severity.rank, one.started_ms, one.subject.key, one.rule))
        last = max(one.last_ms for one in members)
        made.append(Incident(root, tuple(members), root.started_ms, last, root.sentence))
    return made
