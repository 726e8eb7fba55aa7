"""What sources say of where hosts and GPUs are, and which of them counts where they disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.place import Place, PlaceKind


class ClaimSource(StrEnum):
    """Who says so. The order of definition is the order in which they are believed: what the site and its managers say
    comes before what an agent sends, since one node's word must not move another node's incidents."""

    SITE_FILE = "site file"
    NODE_LABEL = "node label"
    SLURM = "Slurm's topology"
    DRIVER = "driver"
    """NVML's fabric information, as an agent sends it."""
    AGENT = "agent's settings"
    ZONE_LABEL = "zone label"
    """``topology.kubernetes.io/zone``, which is wider than a power or cooling zone: used where nobody says more, and
    never in disagreement with anything."""
    AGENT_ZONE = "agent's zone label"


_RANKS = {source: rank for rank, source in enumerate(ClaimSource)}
_SAYS_NO_MORE = frozenset({ClaimSource.ZONE_LABEL, ClaimSource.AGENT_ZONE})
BY_AGENTS = frozenset({ClaimSource.DRIVER, ClaimSource.AGENT, ClaimSource.AGENT_ZONE})
"""What an agent says of its own host, and nobody else."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`source` says that `subject`, a GPU or a host, is in `place`."""

    subject: Place
    place: Place
    source: ClaimSource


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two sources name different places of one kind for `subject`: `used` counts, `other` does not."""

    subject: Place
    used: Claim
    other: Claim

    def __str__(self) -> str:
        kind = self.used.place.kind.replace("_", " ")
        return (
            f"{self.subject.kind} {self.subject.name}: {kind} is {self.used.place.name} by the {self.used.source} and "
            f"{self.other.place.name} by the {self.other.source}; the {self.used.source} counts"
        )


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """An agent names a place that the site, or one of its managers, names for others and not for it; or the agents'
    word on one host names several of which it can be in one alone. The claim does not count."""

    claim: Claim
    host: str
    several: bool = False

    def __str__(self) -> str:
        place, subject, source = self.claim.place, self.claim.subject, self.claim.source
        kind = place.kind.replace("_", " ")
        why = "GPUs of that host name others" if self.several else "the site names it for other hosts, not for this one"
        return f"{subject.kind} {subject.name} of {self.host}: {kind} {place.name} by the {source} alone; {why}"


def believed_first(claim: Claim) -> tuple[int, str]:
    """Sort key: the source that counts first; of equals the smaller name, so that the order of arrival is nothing."""
    return _RANKS[claim.source], claim.place.name


@dataclass(frozen=True, slots=True)
class Settled:
    """The claims that count by subject and kind, links by GPU, and where sources disagree."""

    places: dict[tuple[Place, PlaceKind], Claim]
    links: dict[str, frozenset[str]]
    disagreements: tuple[Disagreement, ...]


def settle(claims: Iterable[Claim]) -> Settled:
    """One place of each kind for each subject. Links add up: a GPU has many."""
    by_subject: dict[tuple[Place, PlaceKind], list[Claim]] = {}
    links: dict[str, set[str]] = {}
    for claim in claims:
        if claim.place.kind is PlaceKind.LINK:
            links.setdefault(claim.subject.name, set()).add(claim.place.name)
        else:
            by_subject.setdefault((claim.subject, claim.place.kind), []).append(claim)
    places: dict[tuple[Place, PlaceKind], Claim] = {}
    disagreements: list[Disagreement] = []
    for key, said in by_subject.items():
        first, *others = sorted(said, key=believed_first) if len(said) > 1 else said
        places[key] = first
        disagreements += _against(key[0], first, others)
    return Settled(places, {gpu: frozenset(names) for gpu, names in links.items()}, tuple(disagreements))


def _against(subject: Place, used: Claim, others: Iterable[Claim]) -> list[Disagreement]:
    return [
        Disagreement(subject, used, other)
        for other in others
        if other.place != used.place and other.source not in _SAYS_NO_MORE
    ]


def disagreement_of(subject: Place, own: Claim, hosts: Claim) -> Disagreement | None:
    """Where what is said of a GPU differs from what is said of its host; None where it does not or may."""
    if own.place == hosts.place or not _SAYS_NO_MORE.isdisjoint({own.source, hosts.source}):
        return None
    if own.source is hosts.source:
        return None
    used, other = sorted((own, hosts), key=believed_first)
    return Disagreement(subject, used, other)
