"""Which versions the hosts of a group have, and what to make of a few that differ: pure, for rules and for the API.

A group is what is meant to be equal: the hosts of one pool with one GPU model and one role. A version that a small part
of it has is drift; while more hosts take up a version than a day ago it is a roll-out, and neither the first hosts that
have it nor the last that do not are drift. All thresholds are own choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tocsin.domain.reading import Gpu
from tocsin.domain.version_standing import BROUGHT_BY, LEAST_HOSTS, MOST_SHARE, Held, standing_of
from tocsin.domain.versions import COMPONENTS, ROLE_LABEL, Standing, VersionBefore, clean, versions_of

BACK_HOURS = 24
"""How far back the counts are looked at by which a roll-out is told."""
_BETWEEN = " / "


class Group(NamedTuple):
    """What is meant to be equal; an empty `role` where hosts have no such label."""

    pool: str
    model: str
    role: str

    @property
    def label(self) -> str:
        """Model and role in a few words."""
        return f"{self.model or 'GPUs of unknown model'}{f', role {self.role}' if self.role else ''}"


@dataclass(frozen=True, slots=True)
class Share:
    """One version: the hosts that have it, in order, and how many hosts had it a day ago."""

    version: str
    hosts: tuple[str, ...]
    ago: int

    @property
    def count(self) -> Held:
        """The same without the names of hosts."""
        return Held(self.version, len(self.hosts), self.ago)


@dataclass(frozen=True, slots=True)
class Judged:
    """One component in one group: `shares`, the most hosts first, and `odd`, those of them that drift."""

    component: str
    standing: Standing
    shares: tuple[Share, ...]
    odd: tuple[Share, ...] = ()
    because: str = ""
    """Another component that drifts on the same hosts and brings this one with it."""
    gone: tuple[tuple[str, int], ...] = ()
    """Versions that no host has any more, with how many had each a day ago."""

    @property
    def total(self) -> int:
        """Hosts that tell the component's version."""
        return sum(len(one.hosts) for one in self.shares)


HostVersions = dict[str, dict[str, str]]
"""Versions by component by host."""


def group_of(gpu: Gpu) -> Group:
    """The group that the host of `gpu` belongs to by this GPU."""
    return Group(gpu.pool, gpu.model, clean(gpu.labels.get(ROLE_LABEL, "")))


def host_versions(gpus: Iterable[Gpu]) -> dict[Group, HostVersions]:
    """Versions of each host in each group. A host whose GPUs of one model have several has them all, as ``a / b``.

    MIG instances are left out: what they are part of is there itself.
    """
    seen: dict[Group, dict[str, dict[str, set[str]]]] = {}
    for gpu in gpus:
        if gpu.is_mig or not gpu.uuid:
            continue
        mine = seen.setdefault(group_of(gpu), {}).setdefault(gpu.host, {})
        for component, version in versions_of(gpu.labels).items():
            mine.setdefault(component, set()).add(version)
    return {group: {host: _joined(each) for host, each in hosts.items()} for group, hosts in seen.items()}


def _joined(versions: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {component: _BETWEEN.join(sorted(found)) for component, found in versions.items()}


def of_component(hosts: Mapping[str, Mapping[str, str]], component: str) -> dict[str, str]:
    """The version of one component by host; a host that does not tell it is left out."""
    return {host: versions[component] for host, versions in hosts.items() if component in versions}


def a_day_ago(now: Mapping[str, str], before: Iterable[VersionBefore], group: Group, component: str) -> dict[str, str]:
    """What the hosts of `now` had; a host that was not there is left out, and so is one whose version was not known."""
    ago = dict(now)
    for one in before:
        if one.component == component and one.model == group.model and one.host in ago:
            if one.version:
                ago[one.host] = one.version
            else:
                del ago[one.host]
    return ago


def judge(
    component: str,
    now: Mapping[str, str],
    ago: Mapping[str, str],
    least_hosts: int = LEAST_HOSTS,
    most_share: float = MOST_SHARE,
) -> Judged:
    """How one component stands in a group, by its version on each host now and a day ago."""
    held: dict[str, list[str]] = {}
    for host, version in now.items():
        held.setdefault(version, []).append(host)
    counts = Counter(ago.values())
    shares = tuple(
        Share(version, tuple(sorted(hosts)), counts[version])
        for version, hosts in sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    standing, odd = standing_of([one.count for one in shares], len(ago), least_hosts, most_share)
    drifting = tuple(one for one in shares if one.version in odd)
    gone = tuple(sorted((version, count) for version, count in counts.items() if version not in held))
    return Judged(component, standing, shares, drifting, gone=gone)


def judge_group(
    group: Group,
    hosts: HostVersions,
    before: Iterable[VersionBefore],
    least_hosts: int = LEAST_HOSTS,
    most_share: float = MOST_SHARE,
) -> list[Judged]:
    """How each component stands in a group of which any host tells it, in the order of COMPONENTS."""
    mine = [one for one in before if one.model == group.model and one.host in hosts]
    made: dict[str, Judged] = {}
    for component in COMPONENTS:
        now = of_component(hosts, component)
        if now:
            ago = a_day_ago(now, mine, group, component)
            made[component] = judge(component, now, ago, least_hosts, most_share)
    return [_explained(one, made.get(BROUGHT_BY.get(one.component, ""))) for one in made.values()]


def _explained(judged: Judged, by: Judged | None) -> Judged:
    if by is None or by.standing is not Standing.DRIFT or judged.standing is not Standing.DRIFT:
        return judged
    theirs = {host for share in by.odd for host in share.hosts}
    mine = {host for share in judged.odd for host in share.hosts}
    return replace(judged, because=by.component) if mine <= theirs else judged
