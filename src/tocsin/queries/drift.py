"""Versions of hosts that are meant to be equal, as the rules about drift see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tocsin.client.models_drift import (
    MOST_NAMES,
    MOST_ODD,
    ComponentOut,
    DriftOut,
    VersionGroupOut,
    VersionOut,
)
from tocsin.domain.clock import to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.version_standing import LEAST_HOSTS, MOST_SHARE
from tocsin.domain.versions import COMPONENTS, WORST_FIRST, Standing, VersionBefore, missing_of
from tocsin.queries.live import LiveBrain
from tocsin.rules.conditions.drift import Drift
from tocsin.rules.schema import RuleSet
from tocsin.rules.version_groups import (
    Group,
    HostVersions,
    Judged,
    group_of,
    host_versions,
    judge_group,
)
from tocsin.rules.version_sheet import GONE_MS

Limits = tuple[int, float]
"""Least hosts of a group, and the largest share of hosts that is small."""


def limits_of(ruleset: RuleSet) -> dict[str, Limits]:
    """What the rules in force go by for each component; where none compares it, the usual."""
    found: dict[str, Limits] = {}
    for rule in ruleset:
        for condition in rule.conditions:
            if isinstance(condition, Drift):
                for component in condition.components:
                    found.setdefault(component, (condition.hosts, condition.share))
    return {component: found.get(component, (LEAST_HOSTS, MOST_SHARE)) for component in COMPONENTS}


def drift_now(brain: LiveBrain, pool: str = "", components: Sequence[str] = ()) -> DriftOut:
    """The versions of a running brain's fleet; raises InputError for a component that there is not."""
    for one in components:
        if one not in COMPONENTS:
            raise InputError("component", one, "has no version", f"use one of {', '.join(COMPONENTS)}")
    now_ms = brain.clock.now_ms()
    readings = [one for one in brain.memory.latest() if now_ms - one.at_ms < GONE_MS]
    limits = limits_of(brain.ruleset)
    groups = drift_groups(readings, brain.versions.before, limits, pool, components or list(COMPONENTS))
    shown = [one for group in groups for one in group.components]
    return DriftOut(
        at=to_iso(now_ms),
        simulated=any(one.gpu.simulated for one in readings),
        drifting=sum(one.standing is Standing.DRIFT and not one.because for one in shown),
        rolling_out=sum(one.standing is Standing.ROLLOUT for one in shown),
        least_hosts=min(least for least, _ in limits.values()),
        groups=groups,
    )


def drift_groups(
    readings: Iterable[Reading],
    before: Sequence[VersionBefore],
    limits: Mapping[str, Limits],
    pool: str,
    components: Sequence[str],
) -> list[VersionGroupOut]:
    """The groups of one pool, or of all where `pool` is empty, those with something that differs first."""
    gpus = [one.gpu for one in readings if not one.gpu.is_mig and one.gpu.uuid and (not pool or one.gpu.pool == pool)]
    reasons = _reasons(gpus)
    made = []
    for group, hosts in sorted(host_versions(gpus).items()):
        judged = _judged(group, hosts, before, limits)
        wanted = [key for key in COMPONENTS if key in components]
        shown = [_component(key, judged.get(key), hosts, reasons[group], limits[key]) for key in wanted]
        told = [one for one in shown if one.told or one.untold.keys() - {""}]
        made.append(
            VersionGroupOut(pool=group.pool, model=group.model, role=group.role, hosts=len(hosts), components=told)
        )
    return sorted(made, key=_urgency)


def _judged(
    group: Group, hosts: HostVersions, before: Sequence[VersionBefore], limits: Mapping[str, Limits]
) -> dict[str, Judged]:
    """Each component by the limits of its own rule."""
    by_limits = {
        each: {one.component: one for one in judge_group(group, hosts, before, *each)} for each in set(limits.values())
    }
    return {key: found for key, each in limits.items() if (found := by_limits[each].get(key)) is not None}


def _urgency(group: VersionGroupOut) -> tuple[int, str, str, str]:
    ranks = [WORST_FIRST.index(one.standing) for one in group.components]
    return min(ranks, default=len(WORST_FIRST)), group.pool, group.model, group.role


def _reasons(gpus: Iterable[Gpu]) -> dict[Group, dict[str, dict[str, str]]]:
    """Why hosts do not tell components, by group and host."""
    found: dict[Group, dict[str, dict[str, str]]] = {}
    for gpu in gpus:
        found.setdefault(group_of(gpu), {}).setdefault(gpu.host, {}).update(missing_of(gpu.labels))
    return found


def _component(
    key: str,
    judged: Judged | None,
    hosts: HostVersions,
    reasons: Mapping[str, Mapping[str, str]],
    limits: Limits,
) -> ComponentOut:
    component = COMPONENTS[key]
    silent = [host for host, versions in hosts.items() if key not in versions]
    untold = Counter(reasons.get(host, {}).get(key, "") for host in silent)
    if judged is None:
        judged = Judged(key, Standing.FEW, ())
    odd = {one.version for one in judged.odd}
    return ComponentOut(
        component=key,
        name=component.name,
        name_zh=component.chinese,
        standing=judged.standing,
        because=judged.because,
        told=judged.total,
        gone=dict(judged.gone),
        least_hosts=limits[0],
        most_share=limits[1],
        versions=[
            VersionOut(
                version=one.version,
                hosts=len(one.hosts),
                share=len(one.hosts) / judged.total,
                ago=one.ago,
                names=list(one.hosts[: MOST_ODD if one.version in odd else MOST_NAMES]),
                odd=one.version in odd,
            )
            for one in judged.shares
        ],
        untold=dict(untold),
    )
