"""Versions of all cells as those of one fleet: hosts that are meant to be equal are one group, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tocsin.client.models_drift import MOST_NAMES, MOST_ODD, ComponentOut, DriftOut, VersionGroupOut, VersionOut
from tocsin.domain.version_standing import BROUGHT_BY, LEAST_HOSTS, MOST_SHARE, Held, standing_of
from tocsin.domain.versions import COMPONENTS, WORST_FIRST, Standing


def whole_drift(answers: Mapping[str, DriftOut]) -> DriftOut:
    """The groups of all cells, those with something that differs first; `answers` has at least one.

    A group that several cells have is judged anew over all its hosts, by the strictest of their limits: that may differ
    from what the rules of each cell say of its part. A host that two cells know, which has moved, counts twice.
    """
    every = [answers[name] for name in sorted(answers)]
    found: dict[tuple[str, str, str], list[VersionGroupOut]] = {}
    for group in (group for one in every for group in one.groups):
        found.setdefault((group.pool, group.model, group.role), []).append(group)
    groups = sorted(map(_group, found.values()), key=_urgency)
    shown = [one for group in groups for one in group.components]
    return DriftOut(
        at=min(one.at for one in every),
        simulated=any(one.simulated for one in every),
        drifting=sum(one.standing is Standing.DRIFT and not one.because for one in shown),
        rolling_out=sum(one.standing is Standing.ROLLOUT for one in shown),
        least_hosts=min(one.least_hosts for one in every),
        groups=groups,
    )


def _urgency(group: VersionGroupOut) -> tuple[int, str, str, str]:
    ranks = [WORST_FIRST.index(one.standing) for one in group.components]
    return min(ranks, default=len(WORST_FIRST)), group.pool, group.model, group.role


def _group(members: Sequence[VersionGroupOut]) -> VersionGroupOut:
    if len(members) == 1:
        return members[0]
    known = {one.component for group in members for one in group.components}
    keys = [key for key in COMPONENTS if key in known] + sorted(known - COMPONENTS.keys())
    judged = {key: _component(key, members) for key in keys}
    told = [_explained(one, judged.get(BROUGHT_BY.get(key, ""))) for key, one in judged.items()]
    return members[0].model_copy(update={"hosts": sum(group.hosts for group in members), "components": told})


def _component(key: str, members: Sequence[VersionGroupOut]) -> ComponentOut:
    parts, untold = list[ComponentOut](), Counter[str]()
    for group in members:
        part = next((one for one in group.components if one.component == key), None)
        if part is None:
            # Nobody there tells it, or says why not.
            untold[""] += group.hosts
        else:
            parts.append(part)
            untold.update(part.untold)
    told = sum(one.told for one in parts)
    least = max(LEAST_HOSTS if one.least_hosts is None else one.least_hosts for one in parts)
    share = min(MOST_SHARE if one.most_share is None else one.most_share for one in parts)
    held, gone = _held(parts)
    told_ago = sum(one.ago for one in held) + sum(gone.values())
    standing, odd = standing_of(held, told_ago, least, share)
    names = {one.version: _names(one.version, parts) for one in held}
    return parts[0].model_copy(
        update={
            "standing": standing,
            "because": "",
            "told": told,
            "gone": gone,
            "least_hosts": least,
            "most_share": share,
            "versions": [_version(one, names[one.version], told, odd=one.version in odd) for one in held],
            "untold": dict(untold),
        }
    )


def _held(parts: Iterable[ComponentOut]) -> tuple[list[Held], dict[str, int]]:
    """The versions that hosts have, that of most first, and how many had each that nobody has any more. What one cell
    no longer has another may."""
    hosts, ago = Counter[str](), Counter[str]()
    for part in parts:
        ago.update(part.gone)
        for one in part.versions:
            hosts[one.version] += one.hosts
            ago[one.version] += one.ago
    held = [Held(version, hosts[version], ago[version]) for version in sorted(hosts, key=lambda v: (-hosts[v], v))]
    return held, {version: count for version, count in sorted(ago.items()) if version not in hosts}


def _names(version: str, parts: Iterable[ComponentOut]) -> list[str]:
    return sorted(name for part in parts for one in part.versions if one.version == version for name in one.names)


def _version(one: Held, names: Sequence[str], told: int, *, odd: bool) -> VersionOut:
    kept = list(names[: MOST_ODD if odd else MOST_NAMES])
    return VersionOut(version=one.version, hosts=one.hosts, share=one.hosts / told, ago=one.ago, names=kept, odd=odd)


def _explained(one: ComponentOut, by: ComponentOut | None) -> ComponentOut:
    """`one` with the component that brings it; where not all hosts are named nobody can tell, and it stands alone."""
    if by is None or one.standing is not Standing.DRIFT or by.standing is not Standing.DRIFT:
        return one
    mine, theirs = (_odd_hosts(each) for each in (one, by))
    brought = mine is not None and theirs is not None and mine <= theirs
    return one.model_copy(update={"because": by.component}) if brought else one


def _odd_hosts(one: ComponentOut) -> set[str] | None:
    odd = [version for version in one.versions if version.odd]
    if any(len(version.names) < version.hosts for version in odd):
        return None
    return {name for version in odd for name in version.names}
