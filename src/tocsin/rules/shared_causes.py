"""Like symptoms collapse upward to the place that they share; unlike ones do not.

Most GPUs of a host, most hosts of a rack or zone, the two ends of a link, the parts of a job: what covers a place has
its cause in that place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial

from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.grouping import grouped
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.cause_groups import OWN, CauseGroup, Symptoms
from tocsin.rules.episodes import QUIET_MS
from tocsin.rules.symptoms import Symptom
from tocsin.topology.topology import Topology

AT_ONCE_MS = 5 * SECOND
"""Faults of several GPUs of a host within seconds point at a switch, a supply or the host also where they are few (the
figure is an own choice)."""
JOB_MS = MINUTE
"""Span within which the parts of one job fail together (own choice: one polling interval)."""
_SPANS = {Symptom.HEAT: 15 * MINUTE, Symptom.POWER: 5 * MINUTE, Symptom.DARK: 5 * MINUTE, Symptom.STALE: 5 * MINUTE}
"""Span within which groups of one kind may become one, QUIET_MS where none is given. Heat spreads over minutes; what is
polled is seen a minute apart, and may be late (own choice)."""
UNCOUNTED = 3
"""How many speak for a place of which nobody knows how many there are (own choice)."""

LASTING = frozenset({Symptom.HEAT, Symptom.POWER})
"""What goes on for as long as its cause does: findings of one GPU that overlap are one."""
_OF_JOBS = frozenset({Symptom.PROGRAM, Symptom.HANG})
_OF_NODE = frozenset({Symptom.NETWORK, Symptom.HEAT, Symptom.POWER})
_AT_ONCE = frozenset({Symptom.BUS, Symptom.POWER, Symptom.FIRMWARE, Symptom.PROGRAM})
_OF_HOSTS = (OWN | {Symptom.DARK}) - {Symptom.NVLINK, Symptom.NVLINK_SIDE, Symptom.SWITCH}

_WIDER: dict[Symptom, tuple[PlaceKind, ...]] = {
    Symptom.HEAT: (PlaceKind.CHASSIS, PlaceKind.RACK, PlaceKind.COOLING_ZONE),
    Symptom.POWER: (PlaceKind.CHASSIS, PlaceKind.RACK, PlaceKind.POWER_ZONE),
    Symptom.BUS: (PlaceKind.CHASSIS, PlaceKind.RACK, PlaceKind.POWER_ZONE),
    Symptom.DARK: (PlaceKind.CHASSIS, PlaceKind.RACK, PlaceKind.SWITCH, PlaceKind.POWER_ZONE),
    Symptom.NETWORK: (PlaceKind.SWITCH,),
}
"""Places above the host that can make all in them show one kind of symptom."""
_NARROWEST_FIRST = (
    PlaceKind.CHASSIS,
    PlaceKind.RACK,
    PlaceKind.SWITCH,
    PlaceKind.COOLING_ZONE,
    PlaceKind.POWER_ZONE,
)

Key = Callable[[CauseGroup], Hashable | None]
Join = Callable[[list[CauseGroup]], None]


def collapse_upward(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """`groups` with those of one kind joined that share a place and cover it."""
    topology = symptoms.topology
    groups = _joined(groups, _lasting_key, partial(_join_overlapping, symptoms))
    groups = _joined(groups, partial(_job_key, symptoms), partial(_join_job, symptoms))
    groups = _joined(groups, partial(_rail_key, symptoms), partial(_join_rail, topology))
    groups = _joined(groups, partial(_host_key, symptoms), partial(_join_host, topology))
    groups = _joined(groups, _node_key, partial(_join_node, symptoms))
    groups = _joined(groups, partial(_fabric_key, symptoms), partial(_join_fabric, topology))
    for kind in _NARROWEST_FIRST:
        groups = _joined(groups, partial(_wide_key, symptoms, kind), partial(_join_hosts, symptoms, kind))
    return groups


def collapse_words(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """`groups` with repeated values and lost metrics, where nothing else explains them, joined to the host that has
    them on most of its GPUs. They last as long as their cause does: what overlaps in one place is one."""
    stale = [one for one in groups if one.kind is Symptom.STALE]
    others = [one for one in groups if one.kind is not Symptom.STALE]
    stale = _joined(stale, lambda one: min(one.hosts, default=None), partial(_join_host, symptoms.topology))
    return others + _joined(stale, lambda one: one.place, partial(_join_overlapping, symptoms))


def covers(seen: int, total: int) -> bool:
    """Whether `seen` parts of a place speak for all of its `total`, 0 where nobody knows how many there are."""
    return seen >= 2 and 2 * seen > total if total else seen >= UNCOUNTED


def _joined(groups: list[CauseGroup], key: Key, join: Join) -> list[CauseGroup]:
    """`groups` after `join` has looked at those of one key, by start."""
    keyed: dict[Hashable, list[CauseGroup]] = defaultdict(list)
    for group in groups:
        name = key(group)
        if name is not None:
            keyed[name].append(group)
    for same in keyed.values():
        if len(same) > 1:
            same.sort(key=lambda one: (one.start_ms, one.members[0]))
            join(same)
    return [group for group in groups if group.into is None]


def _runs(same: Sequence[CauseGroup], span_ms: int) -> Iterator[list[CauseGroup]]:
    """For each group that is not joined yet, it and those that start less than `span_ms` after it."""
    starts = [one.start_ms for one in same]
    for i, first in enumerate(same):
        if first.into is None:
            yield [one for one in same[i : bisect_left(starts, starts[i] + span_ms)] if one.into is None]


def _absorb_all(run: Sequence[CauseGroup], place: Place) -> None:
    first, *others = run
    for other in others:
        first.absorb(other)
    first.place = place


def _span(kind: Symptom) -> int:
    return _SPANS.get(kind, QUIET_MS)


def _lasting_key(group: CauseGroup) -> Hashable | None:
    return (group.kind, group.place) if group.kind in LASTING else None


def _join_overlapping(symptoms: Symptoms, same: list[CauseGroup]) -> None:
    def last(group: CauseGroup) -> int:
        return max(symptoms.ordered[i].last_ms for i in group.members)

    first, last_ms = same[0], last(same[0])
    for other in same[1:]:
        over_ms = last(other)
        if other.start_ms <= last_ms:
            first.absorb(other)
        else:
            first = other
        last_ms = max(last_ms, over_ms)


def _job_key(symptoms: Symptoms, group: CauseGroup) -> Hashable | None:
    job = symptoms.job(group.members[0]) if group.kind in _OF_JOBS else ""
    return (group.kind, job) if job else None


def _join_job(symptoms: Symptoms, same: list[CauseGroup]) -> None:
    """One program ends on all ranks; ranks that hang do so for one cause where most of them do.

    A rank is a GPU or a MIG instance.
    """
    place = Place(PlaceKind.JOB, symptoms.job(same[0].members[0]))
    total = len(symptoms.topology.held(place).gpus)
    for run in _runs(same, JOB_MS):
        ranks = {symptoms.part(i) for one in run for i in one.members}
        if len(run) > 1 and (same[0].kind is Symptom.PROGRAM or covers(len(ranks), total)):
            _absorb_all(run, place)


def _rail_key(symptoms: Symptoms, group: CauseGroup) -> Hashable | None:
    if group.kind is not Symptom.NETWORK or group.place.kind is not PlaceKind.GPU:
        return None
    return symptoms.topology.name(PlaceKind.RAIL, group.place.name, min(group.hosts, default="")) or None


def _join_rail(topology: Topology, same: list[CauseGroup]) -> None:
    """Ports of most GPUs of a rail, on several hosts: the rail comes before the hosts that it serves."""
    first = same[0]
    rail = topology.name(PlaceKind.RAIL, first.place.name, min(first.hosts, default=""))
    place = Place(PlaceKind.RAIL, rail)
    total = len(topology.held(place).gpus)
    for run in _runs(same, _span(Symptom.NETWORK)):
        if _hosts(run) > 1 and covers(_gpus(run), total) and _borne_out(topology, place, run):
            _absorb_all(run, place)


def _host_key(symptoms: Symptoms, group: CauseGroup) -> Hashable | None:
    if group.kind not in _OF_HOSTS or group.place.kind is not PlaceKind.GPU or len(group.hosts) != 1:
        return None
    if group.kind in _OF_JOBS and symptoms.job(group.members[0]):
        return None
    return group.kind, group.rule, *group.hosts


def _join_host(topology: Topology, same: list[CauseGroup]) -> None:
    """Most GPUs of a host, or a few of them at once."""
    kind, (host,) = same[0].kind, same[0].hosts
    place = Place(PlaceKind.HOST, host)
    total = len(topology.held(place).gpus)
    if covers(_gpus(same), total):
        for run in _runs(same, _span(kind)):
            if covers(_gpus(run), total):
                _absorb_all(run, place)
    if kind in _AT_ONCE:
        for run in _runs(same, AT_ONCE_MS):
            if len(run) > 1:
                _absorb_all(run, place)


def _node_key(group: CauseGroup) -> Hashable | None:
    return (group.kind, *group.hosts) if group.kind in _OF_NODE and len(group.hosts) == 1 else None


def _join_node(symptoms: Symptoms, same: list[CauseGroup]) -> None:
    """What a host's network cards, cooling or power supplies are found with, and what its GPUs show of it."""
    for run in _runs(same, _span(same[0].kind)):
        whole = next((one for one in run if any(not symptoms.gpu[i] for i in one.members)), None)
        if whole is not None and len(run) > 1:
            _absorb_all(run, whole.place)


def _gpus(groups: Sequence[CauseGroup]) -> int:
    return len({gpu for one in groups for gpu in one.gpus})


def _fabric_key(symptoms: Symptoms, group: CauseGroup) -> Hashable | None:
    return symptoms.domain(group.members[0]) if group.kind is Symptom.NVLINK else None


def _join_fabric(topology: Topology, same: list[CauseGroup]) -> None:
    """Links that failed at most GPUs of a domain at once, which its switches explain, or at both of their ends."""
    for run in _runs(same, AT_ONCE_MS):
        if not _fails_whole(topology, run, _domain_of(topology, run[0])):
            by_host = grouped((min(one.hosts, default=""), one) for one in run)
            for host, mine in by_host.items() if len(by_host) > 1 else ():
                _fails_whole(topology, mine, Place(PlaceKind.HOST, host))
            _join_ends(topology, [one for one in run if one.into is None])


def _fails_whole(topology: Topology, run: Sequence[CauseGroup], place: Place) -> bool:
    """Join `run` where it covers `place`."""
    gpus = _gpus(run)
    whole = gpus >= UNCOUNTED and covers(gpus, len(topology.held(place).gpus)) and _borne_out(topology, place, run)
    if whole:
        _absorb_all(run, place)
    return whole


def _borne_out(topology: Topology, place: Place, groups: Iterable[CauseGroup]) -> bool:
    """Whether a cause may be put in `place`: one that only agents name needs three hosts that show it, so that no host
    joins another's findings, or has a whole place blamed, by its own word."""
    if place.kind is PlaceKind.HOST or topology.confirmed(place) or len(topology.held(place).hosts) <= 1:
        return True
    return _hosts(groups) >= UNCOUNTED


def _domain_of(topology: Topology, group: CauseGroup) -> Place:
    host = min(group.hosts, default="")
    name = topology.name(PlaceKind.NVLINK_DOMAIN, min(group.gpus, default=""), host)
    return Place(PlaceKind.NVLINK_DOMAIN, name) if name else Place(PlaceKind.HOST, host)


def _join_ends(topology: Topology, run: Sequence[CauseGroup]) -> None:
    by_link: dict[str, CauseGroup] = {}
    for one in run:
        for link in sorted({link for gpu in one.gpus for link in topology.links(gpu)}):
            other, mine = by_link.setdefault(link, one).final(), one.final()
            if other is not mine:
                _absorb_all([other, mine], Place(PlaceKind.LINK, link))


def _wide_key(symptoms: Symptoms, kind: PlaceKind, group: CauseGroup) -> Hashable | None:
    if kind not in _WIDER.get(group.kind, ()):
        return None
    names = {symptoms.name(kind, host) for host in group.hosts}
    return (group.kind, *names) if len(names) == 1 and "" not in names else None


def _join_hosts(symptoms: Symptoms, kind: PlaceKind, same: list[CauseGroup]) -> None:
    """Most hosts of a place, or whole hosts of a small one at once.

    Only hosts that show it as a whole count; others come along. Of a place that agents alone name two are too few.
    """
    topology, symptom = symptoms.topology, same[0].kind
    place = Place(kind, symptoms.name(kind, min(same[0].hosts)))
    total = len(topology.held(place).hosts)
    whole = {one for one in same if _is_whole(topology, one)}
    if covers(_hosts(whole), total):
        for run in _runs(same, _span(symptom)):
            shown = whole.intersection(run)
            if covers(_hosts(shown), total) and _borne_out(topology, place, shown):
                _absorb_all(run, place)
    if symptom in _AT_ONCE and 0 < total <= AT_ONCE_HOSTS and topology.confirmed(place):
        for run in _runs([one for one in same if one in whole], AT_ONCE_MS):
            if len(run) > 1:
                _absorb_all(run, place)


def _hosts(groups: Iterable[CauseGroup]) -> int:
    return len({host for one in groups for host in one.hosts})


def _is_whole(topology: Topology, group: CauseGroup) -> bool:
    """Whether a group speaks for all of its hosts: it covers them, or nobody knows of more GPUs there."""
    if group.place.kind is not PlaceKind.GPU:
        return True
    return all(len(topology.held(Place(PlaceKind.HOST, host)).gpus) <= 1 for host in group.hosts)


AT_ONCE_HOSTS = 64
"""Hosts of the widest place in which two that fail at once have one cause: a row on one feed has fewer, a zone of a
cloud has hundreds, where two failures at once are chance (own choice)."""
