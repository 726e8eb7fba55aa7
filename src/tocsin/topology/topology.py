"""The places of the fleet: where each GPU and host is, and what each place holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import Gpu
from tocsin.topology.claims import (
    BY_AGENTS,
    Claim,
    Disagreement,
    Unconfirmed,
    believed_first,
    disagreement_of,
    settle,
)
from tocsin.topology.labels import claims_of_gpu

_NO_CLAIMS = (PlaceKind.GPU, PlaceKind.LINK, PlaceKind.HOST, PlaceKind.JOB, PlaceKind.POOL)
_WIDER = tuple(kind for kind in PlaceKind if kind not in _NO_CLAIMS)
_OF_HOSTS = frozenset(
    {PlaceKind.CHASSIS, PlaceKind.RACK, PlaceKind.POWER_ZONE, PlaceKind.COOLING_ZONE, PlaceKind.SWITCH}
)
"""Places that a host is in as a whole."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a place holds."""

    gpus: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()


_NOTHING = Contents()


class Topology:
    """An unchanging view; ask it from any thread.

    `hosts` has the host of every GPU by UUID (MIG instances count as their GPU, by `parents`), `claims` what sources
    say of GPUs and hosts, `jobs` the job on a GPU or MIG instance where one is known. A place that nobody named is
    an empty string.
    """

    def __init__(
        self,
        hosts: Mapping[str, str] | None = None,
        claims: Iterable[Claim] = (),
        *,
        parents: Mapping[str, str] | None = None,
        jobs: Mapping[str, str] | None = None,
    ) -> None:
        said = list(claims)
        self._confirmed = frozenset(claim.place for claim in said if claim.source not in BY_AGENTS)
        settled = settle(said)
        self._host = dict(hosts or {})
        self._parent = dict(parents or {})
        self._claimed = settled.places
        self._links = settled.links
        self._jobs = dict(jobs or {})
        self._by_host: dict[tuple[PlaceKind, str], str] = {}
        self._by_gpu: dict[tuple[PlaceKind, str], str] = {}
        found = [*settled.disagreements, *self._index()]
        self.disagreements: tuple[Disagreement | Unconfirmed, ...] = tuple(sorted(found, key=str))
        self._contents = self._held()
        self._jobs_held = _held_by(self._jobs)

    def _index(self) -> list[Disagreement | Unconfirmed]:
        found: list[Disagreement | Unconfirmed] = []
        for (subject, kind), claim in self._claimed.items():
            if subject.kind is PlaceKind.HOST:
                self._by_host[kind, subject.name] = claim.place.name
        for (subject, kind), claim in self._claimed.items():
            if subject.kind is not PlaceKind.GPU:
                continue
            of_host = self._claimed.get((Place(PlaceKind.HOST, self._host.get(subject.name, "")), kind))
            counts = claim
            if of_host is not None:
                counts = claim if claim.source is of_host.source else min(claim, of_host, key=believed_first)
                against = disagreement_of(subject, claim, of_host)
                found += [against] if against is not None else []
            if counts.source in BY_AGENTS and counts.place in self._confirmed:
                # Who knows a place knows what is in it: an agent's word puts nothing into it.
                found.append(Unconfirmed(counts, self._host.get(subject.name, "")))
                continue
            self._by_gpu[kind, subject.name] = counts.place.name
        found += self._drop_contradictions()
        self._fill_hosts()
        return found

    def _drop_contradictions(self) -> list[Unconfirmed]:
        """A host is in one rack: one whose GPUs say more than one says nothing, and swells no other host's rack."""
        named: dict[tuple[PlaceKind, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for (kind, gpu), name in self._by_gpu.items():
            if kind in _OF_HOSTS and gpu in self._host and Place(kind, name) not in self._confirmed:
                named[kind, self._host[gpu]][name].append(gpu)
        found = []
        for (kind, host), names in named.items():
            for gpu in [gpu for gpus in names.values() for gpu in gpus] if len(names) > 1 else ():
                claim = self._claimed[Place(PlaceKind.GPU, gpu), kind]
                found.append(Unconfirmed(claim, host, several=True))
                del self._by_gpu[kind, gpu]
        return found

    def _fill_hosts(self) -> None:
        """A host of which nobody speaks is where all of its GPUs are, if they are in one place."""
        seen: dict[tuple[PlaceKind, str], set[str]] = defaultdict(set)
        for (kind, gpu), name in self._by_gpu.items():
            if gpu in self._host:
                seen[kind, self._host[gpu]].add(name)
        for key, names in seen.items():
            if len(names) == 1:
                self._by_host.setdefault(key, *names)

    def _held(self) -> dict[Place, Contents]:
        gpus: dict[Place, set[str]] = defaultdict(set)
        hosts: dict[Place, set[str]] = defaultdict(set)
        for (kind, host), name in self._by_host.items():
            hosts[Place(kind, name)].add(host)
        for gpu, host in self._host.items():
            for kind in _WIDER:
                name = self.name(kind, gpu, host)
                if name:
                    gpus[Place(kind, name)].add(gpu)
                    hosts[Place(kind, name)].add(host)
            gpus[Place(PlaceKind.HOST, host)].add(gpu)
            hosts[Place(PlaceKind.HOST, host)].add(host)
            for link in self._links.get(gpu, ()):
                gpus[Place(PlaceKind.LINK, link)].add(gpu)
        return {
            place: Contents(frozenset(gpus.get(place, ())), frozenset(hosts.get(place, ())))
            for place in gpus.keys() | hosts.keys()
        }

    def gpu(self, uuid: str) -> str:
        """The physical GPU of a UUID, which may be a MIG instance's."""
        return self._parent.get(uuid, uuid)

    def host(self, gpu: str) -> str:
        """The host of a GPU, empty where it is not known."""
        return self._host.get(self.gpu(gpu), "")

    def name(self, kind: PlaceKind, gpu: str = "", host: str = "") -> str:
        """The place of `kind` that a GPU, or else a host, is in; empty where nobody said."""
        if kind is PlaceKind.JOB:
            # Each MIG instance has a job of its own; what its GPU as a whole runs says nothing about it.
            return self._jobs.get(gpu, "")
        gpu = self.gpu(gpu)
        if kind is PlaceKind.GPU:
            return gpu
        host = host or self._host.get(gpu, "")
        if kind is PlaceKind.HOST:
            return host
        return self._by_gpu.get((kind, gpu)) or self._by_host.get((kind, host), "")

    def links(self, gpu: str) -> frozenset[str]:
        """The links whose end a GPU is, as far as they were named."""
        return self._links.get(self.gpu(gpu), frozenset())

    def held(self, place: Place) -> Contents:
        """The GPUs and hosts of a place; nothing where it is not known."""
        held = self._jobs_held.get(place.name) if place.kind is PlaceKind.JOB else self._contents.get(place)
        return held or _NOTHING

    def confirmed(self, place: Place) -> bool:
        """Whether the site or one of its managers names `place`; else it is the word of agents on their own hosts."""
        return place in self._confirmed

    def places(self, kind: PlaceKind) -> dict[str, Contents]:
        """All places of `kind` by name."""
        if kind is PlaceKind.JOB:
            return dict(self._jobs_held)
        return {place.name: held for place, held in self._contents.items() if place.kind is kind}

    def with_jobs(self, jobs: Mapping[str, str]) -> Topology:
        """The same places with other jobs; what their jobs hold is worked out where it is something else."""
        other = Topology.__new__(Topology)
        other._host, other._parent, other._links = self._host, self._parent, self._links
        other._claimed, other._by_host, other._by_gpu = self._claimed, self._by_host, self._by_gpu
        other.disagreements, other._confirmed = self.disagreements, self._confirmed
        other._contents = self._contents
        other._jobs, other._jobs_held = dict(jobs), _held_after(self._jobs_held, self._jobs, jobs)
        return other


def _held_by(jobs: Mapping[str, str]) -> dict[str, Contents]:
    held: dict[str, set[str]] = defaultdict(set)
    for gpu, job in jobs.items():
        held[job].add(gpu)
    return {job: Contents(frozenset(gpus)) for job, gpus in held.items()}


def _held_after(
    held: Mapping[str, Contents], before: Mapping[str, str], jobs: Mapping[str, str]
) -> dict[str, Contents]:
    """`_held_by` of `jobs`, where `held` is that of `before`: few of a fleet's jobs change at a time."""
    came = [(gpu, job) for gpu, job in jobs.items() if before.get(gpu) != job]
    left = [(gpu, before[gpu]) for gpu in {gpu for gpu, _ in came} | (before.keys() - jobs.keys()) if gpu in before]
    changed = {job: set(held[job].gpus) if job in held else set() for _, job in (*left, *came)}
    for gpu, job in left:
        changed[job].discard(gpu)
    for gpu, job in came:
        changed[job].add(gpu)
    kept = {job: one for job, one in held.items() if job not in changed}
    return kept | {job: Contents(frozenset(gpus)) for job, gpus in changed.items() if gpus}


def topology_of(gpus: Iterable[Gpu], claims: Iterable[Claim] = ()) -> Topology:
    """The topology of `gpus` with what they say of themselves (see `tocsin.topology.labels`) and further `claims`."""
    known = list(gpus)
    hosts = {one.uuid: one.host for one in known if not one.is_mig and one.uuid}
    parents = {one.uuid: one.parent for one in known if one.is_mig}
    own = [claim for one in known for claim in claims_of_gpu(one)]
    return Topology(hosts, [*claims, *own], parents=parents)


NO_TOPOLOGY = Topology()
"""Nothing is known: every host is alone."""
