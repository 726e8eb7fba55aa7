"""Groups of findings that one cause shows: what is near in time on one GPU. All times are starts of findings."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.domain.finding import Finding, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.engine import RACK_EVIDENCE
from tocsin.rules.episodes import BURST_EVIDENCE, QUIET_MS
from tocsin.rules.symptoms import Symptom, code_of, is_standing, root_order, symptom_of
from tocsin.topology.topology import Topology

OWN = frozenset(Symptom) - {
    Symptom.NVLINK_ECHO,
    Symptom.CLEANUP,
    Symptom.RESET,
    Symptom.VERDICT,
    Symptom.STALE,
    Symptom.DARK,
    Symptom.FORECAST,
    Symptom.ALONE,
    Symptom.DRIFT,
}
"""Symptoms that can be a cause on their own GPU."""
_BY_ITSELF = frozenset({Symptom.FORECAST, Symptom.ALONE, Symptom.DRIFT})
_TOLD_BY_OTHERS = frozenset({Symptom.DARK, Symptom.NVLINK_SIDE})
_BRIDGE = -1


@dataclass(slots=True, eq=False)
class CauseGroup:
    """Findings of one cause, by their positions. `members` show the cause itself, `effects` follow from it.

    `kind` is that of the member nearest to the cause, `rule` tells groups of kind ``other`` apart. `place` is what the
    members share.
    """

    kind: Symptom
    members: list[int]
    start_ms: int
    end_ms: int
    gpus: set[str]
    hosts: set[str]
    place: Place
    rule: str = ""
    effects: list[int] = field(default_factory=list)
    into: CauseGroup | None = None

    def final(self) -> CauseGroup:
        """The group that this one has become a part of."""
        group = self
        while group.into is not None:
            group = group.into
        return group

    def absorb(self, other: CauseGroup) -> None:
        """Take up another group of the same cause."""
        self.members += other.members
        self.effects += other.effects
        self.start_ms, self.end_ms = min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms)
        self.gpus |= other.gpus
        self.hosts |= other.hosts
        other.into = self

    def explain(self, other: CauseGroup) -> None:
        """Take up another group as what follows from this one."""
        self.effects += [*other.members, *other.effects]
        other.into = self


class Symptoms:
    """The findings with what grouping asks of them: `ordered` by start, `kind`, physical `gpu`, `host` by position."""

    def __init__(
        self, ordered: Sequence[Finding], topology: Topology, first_ms: Mapping[tuple[str, int], Sequence[int]]
    ) -> None:
        self.ordered = ordered
        self._first_ms = first_ms
        self.topology = topology
        self.kind = [symptom_of(finding) for finding in ordered]
        self.gpu = [self._gpu(finding) for finding in ordered]
        self.host = [finding.subject.host or self._own_host(finding) for finding in ordered]
        self._rack: dict[str, str] = {}
        self._domain: dict[tuple[str, str], str] = {}
        self._job: dict[int, str] = {}
        for finding, host in zip(ordered, self.host, strict=True):
            for item in finding.evidence:
                if item.name == RACK_EVIDENCE and host:
                    self._rack[host] = item.text

    def _gpu(self, finding: Finding) -> str:
        return self.topology.gpu(finding.subject.name) if finding.subject.kind is SubjectKind.GPU else ""

    def _own_host(self, finding: Finding) -> str:
        subject = finding.subject
        if subject.kind is SubjectKind.HOST:
            return subject.name
        return self.topology.host(subject.name) if subject.kind is SubjectKind.GPU else ""

    def start(self, i: int) -> int:
        return self.ordered[i].started_ms

    def onset(self, i: int) -> int:
        """When what speaks for a finding was first reported: an XID finding may have begun with the echo of another."""
        finding = self.ordered[i]
        code = code_of(finding)
        times = self._first_ms.get((finding.subject.name, code), ()) if code is not None else ()
        at = bisect_left(times, finding.started_ms)
        return times[at] if at < len(times) else finding.started_ms

    def domain(self, i: int) -> str:
        """The NVLink domain of a finding; its host where no domain is known, for a fabric is at least the host's."""
        key = self.gpu[i], self.host[i]
        found = self._domain.get(key)
        if found is None:
            name = self.topology.name(PlaceKind.NVLINK_DOMAIN, *key)
            alone = f"{PlaceKind.HOST}:{self.host[i] or self.gpu[i]}"
            found = self._domain[key] = f"{PlaceKind.NVLINK_DOMAIN}:{name}" if name else alone
        return found

    def job(self, i: int) -> str:
        """The job of a finding: the topology's of its GPU or MIG instance, else what its owners name; else empty."""
        found = self._job.get(i)
        if found is None:
            found = self._job[i] = self.topology.name(PlaceKind.JOB, self.part(i)) or _job_of(self.ordered[i])
        return found

    def part(self, i: int) -> str:
        """The GPU or MIG instance of a finding as it reports itself; empty where it is about neither."""
        subject = self.ordered[i].subject
        return subject.name if subject.kind is SubjectKind.GPU else ""

    def name(self, kind: PlaceKind, host: str) -> str:
        """The place of `kind` of a host; its rack by what its findings carry where the topology does not know it."""
        if kind is PlaceKind.RACK and not self.topology.held(Place(PlaceKind.HOST, host)).gpus:
            return self.topology.name(kind, host=host) or self._rack.get(host, "")
        return self.topology.name(kind, host=host)


def _job_of(finding: Finding) -> str:
    jobs = {owner.slurm_job.partition(".")[0] for owner in finding.owners if owner.slurm_job}
    return min(jobs) if len(jobs) == 1 else ""


def own_groups(symptoms: Symptoms, instants: Mapping[str, Sequence[int]]) -> list[CauseGroup]:
    """What is near in time on one GPU or other subject; XIDs at `instants` of a GPU bridge gaps.

    Silence and NVLink errors of either end are groups by themselves: what they belong to is told by other GPUs. A
    program that crashed again and again before a fault of another kind is a group by itself, however its XIDs bridge.
    What stands, such as memory in use, is one group for each rule and pool, however far apart in time; versions that
    differ are one for each component and each group of like hosts.
    """
    keyed: dict[Hashable, list[int]] = defaultdict(list)
    standing: dict[Hashable, list[int]] = defaultdict(list)
    for i, finding in enumerate(symptoms.ordered):
        kind, subject = symptoms.kind[i], finding.subject
        name = symptoms.gpu[i] or subject.name
        if is_standing(finding):
            standing[finding.rule, subject.kind, _shared(subject)].append(i)
        elif kind in OWN and kind not in _TOLD_BY_OTHERS:
            keyed[subject.kind, name].append(i)
        elif kind in _BY_ITSELF:
            keyed[subject.kind, subject.name, kind, finding.category].append(i)
        elif kind in _TOLD_BY_OTHERS:
            keyed[subject.kind, name, kind].append(i)
    groups: list[CauseGroup] = []
    for positions in keyed.values():
        bridges = instants.get(symptoms.ordered[positions[0]].subject.name, ())
        for chain in _chains(symptoms.ordered, positions, bridges):
            groups += [group_of(symptoms, part) for part in _crashes_apart(symptoms, chain)]
    return groups + [_standing_group(symptoms, positions) for positions in standing.values()]


def _shared(subject: Subject) -> str:
    """What standing findings of one rule share: the pool of a GPU, else the subject itself, with the part of it."""
    return subject.pool if subject.kind is SubjectKind.GPU else subject.key


def _standing_group(symptoms: Symptoms, positions: list[int]) -> CauseGroup:
    group = group_of(symptoms, positions)
    subject = symptoms.ordered[positions[0]].subject
    if subject.kind is SubjectKind.GPU:
        group.place = Place(PlaceKind.POOL, subject.pool)
    return group


def _crashes_apart(symptoms: Symptoms, chain: list[int]) -> list[list[int]]:
    """`chain` without the programs that ended long before its first fault of another kind, and these."""
    others = [symptoms.start(i) for i in chain if symptoms.kind[i] is not Symptom.PROGRAM]
    crashes = [i for i in chain if others and symptoms.start(i) <= min(others) - QUIET_MS]
    return [crashes, [i for i in chain if i not in crashes]] if crashes else [chain]


def group_of(symptoms: Symptoms, positions: list[int]) -> CauseGroup:
    """A group of findings, placed on their GPU, else on their host."""
    root = min(positions, key=lambda i: root_order(symptoms.ordered[i]))
    starts = [symptoms.onset(i) for i in positions]
    gpus = {symptoms.gpu[i] for i in positions if symptoms.gpu[i]}
    hosts = {symptoms.host[i] for i in positions if symptoms.host[i]}
    gpu, host = symptoms.gpu[root], symptoms.host[root]
    if gpu:
        place = Place(PlaceKind.GPU, gpu)
    else:
        place = Place(PlaceKind.HOST, host or symptoms.ordered[root].subject.name)
    kind = symptoms.kind[root]
    rule = symptoms.ordered[root].rule if kind is Symptom.OTHER else ""
    return CauseGroup(kind, positions, min(starts), max(starts), gpus, hosts, place, rule)


def _chains(ordered: Sequence[Finding], positions: Sequence[int], bridges: Sequence[int]) -> Iterable[list[int]]:
    """Parts of `positions` with at least QUIET_MS of silence between them."""
    if len(positions) == 1:
        return [list(positions)]
    spans = [(ordered[i].started_ms, _burst_end(ordered[i]), i) for i in positions]
    spans += [(at_ms, at_ms, _BRIDGE) for at_ms in bridges]
    chains: list[list[int]] = []
    reach, joined = 0, False
    for start, end, position in sorted(spans):
        if start - reach >= QUIET_MS:
            joined = False
        if position != _BRIDGE:
            if joined:
                chains[-1].append(position)
            else:
                chains.append([position])
            joined = True
        reach = max(reach, end)
    return chains


def _burst_end(finding: Finding) -> int:
    ends = [item.at_ms for item in finding.evidence if item.name == BURST_EVIDENCE]
    return max([finding.started_ms, *ends])
