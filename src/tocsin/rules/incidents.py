"""Bursts collapsed to their root cause: what belongs together is one incident, in the place that it shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.cause_groups import CauseGroup, Symptoms, own_groups
from tocsin.rules.consequences import attach
from tocsin.rules.episodes import QUIET_MS
from tocsin.rules.shared_causes import collapse_upward
from tocsin.rules.symptoms import Symptom, cause_rank, code_of, is_verdict, root_order
from tocsin.rules.units import show_duration
from tocsin.rules.xid_explain import sequences
from tocsin.topology.topology import NO_TOPOLOGY, Topology

__all__ = ["QUIET_MS", "cause_rank", "collapse"]


def collapse(
    findings: Iterable[Finding], events: Iterable[Event] = (), topology: Topology = NO_TOPOLOGY
) -> list[Incident]:
    """The incidents that `findings` make, most severe first, then oldest.

    Findings belong together on one GPU with less than QUIET_MS between their starts, XID `events` of that GPU bridging
    gaps. Findings of one kind on several GPUs become one incident where they cover what those share by `topology`: a
    host, rack, zone, link or job. What follows from a cause elsewhere, such as echoes on the NVLinks, goes to the cause
    that explains it best, within one NVLink domain; where none is known a host is its own. A silent or frozen GPU and
    the driver's verdict join the fault before them however long ago it was. Forecasts, load, memory and fragmentation
    stand alone.

    The root is the finding nearest to the cause among those that show the cause itself and started within QUIET_MS of
    the first; where the driver has given a verdict on the root's GPU, that is the root's action. The order of the
    arguments does not matter.
    """
    instants, by_code = _xid_instants(events)
    symptoms = Symptoms(_ordered(findings), topology, by_code)
    groups = attach(symptoms, collapse_upward(symptoms, own_groups(symptoms, instants)))
    incidents = [_incident(symptoms, group) for group in groups]
    return sorted(incidents, key=lambda one: (-one.root.severity.rank, one.opened_ms, one.root.subject.key, one.id))


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    # A finding is told from others by its rule, subject and start, as its id is; to hash all of it costs far more.
    unique = {(one.started_ms, one.subject.key, one.rule): one for one in findings}
    return [unique[key] for key in sorted(unique)]


def _xid_instants(events: Iterable[Event]) -> tuple[dict[str, list[int]], dict[tuple[str, int], list[int]]]:
    """When each GPU reported XIDs, and when each number of them, in order."""
    instants: dict[str, list[int]] = defaultdict(list)
    by_code: dict[tuple[str, int], list[int]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.XID and event.gpu:
            instants[event.gpu].append(event.at_ms)
            by_code[event.gpu, event.code].append(event.at_ms)
    for times in by_code.values():
        times.sort()
    return instants, by_code


def _incident(symptoms: Symptoms, group: CauseGroup) -> Incident:
    positions = sorted((*group.members, *group.effects))
    members = [symptoms.ordered[i] for i in positions]
    first = members[0].started_ms
    early = [i for i in group.members if symptoms.start(i) - first < QUIET_MS]
    early = early or [i for i in positions if symptoms.start(i) - first < QUIET_MS]
    root = symptoms.ordered[_root(symptoms, early)]
    decided = _with_verdict(root, members)
    members = [decided if finding is root else finding for finding in members]
    last = max(finding.last_ms for finding in members)
    sentence = _sentence(decided, members, group, len(group.members))
    somewhere = root.subject.kind in (SubjectKind.GPU, SubjectKind.HOST)
    return Incident(decided, tuple(members), first, last, sentence, group.place if somewhere else None)


def _root(symptoms: Symptoms, early: Sequence[int]) -> int:
    """The member nearest to the cause; on one GPU an XID that is known to lead to another stands before it."""
    ranked = sorted(early, key=lambda i: root_order(symptoms.ordered[i]))
    first = ranked[0]
    code = code_of(symptoms.ordered[first])
    for i in ranked[1:] if code is not None else ():
        same = symptoms.gpu[i] == symptoms.gpu[first] and symptoms.start(i) < symptoms.start(first)
        if same and (code_of(symptoms.ordered[i]), code) in _leads_to():
            return i
    return first


@cache
def _leads_to() -> frozenset[tuple[int | None, int]]:
    """Pairs of XIDs of which the first leads to the second, and not the other way round."""
    pairs = {(code, then) for one in sequences() for code in one.codes for then in one.then}
    return frozenset((code, then) for code, then in pairs if (then, code) not in pairs)


def _with_verdict(root: Finding, members: Sequence[Finding]) -> Finding:
    """`root` with the action that the driver asks for on its GPU, which outranks any table."""
    verdicts = [
        finding
        for finding in members
        if is_verdict(finding) and finding.subject.name == root.subject.name and finding.action is not ActionKind.NOTIFY
    ]
    if not verdicts or root.category is Category.APPLICATION:
        return root
    return replace(root, action=max(verdicts, key=lambda finding: (finding.last_ms, finding.id)).action)


_LOOK_AT: dict[tuple[Symptom, PlaceKind], str] = {
    (Symptom.HEAT, PlaceKind.HOST): "its air flow: fans, filters, inlet temperature",
    (Symptom.HEAT, PlaceKind.CHASSIS): "its cooling: fans, coolant, inlet temperature",
    (Symptom.HEAT, PlaceKind.RACK): "its cooling: coolant or air supply, inlet temperature",
    (Symptom.HEAT, PlaceKind.COOLING_ZONE): "its cooling: air handler or coolant distribution unit",
    (Symptom.POWER, PlaceKind.HOST): "its power supplies and cables",
    (Symptom.POWER, PlaceKind.CHASSIS): "its power shelf",
    (Symptom.POWER, PlaceKind.RACK): "its power feed and power shelves",
    (Symptom.POWER, PlaceKind.POWER_ZONE): "its feed: breaker, busbar or distribution unit",
    (Symptom.BUS, PlaceKind.HOST): "its PCIe switches, risers and power supplies",
    (Symptom.BUS, PlaceKind.CHASSIS): "its power shelf",
    (Symptom.BUS, PlaceKind.RACK): "its power",
    (Symptom.BUS, PlaceKind.POWER_ZONE): "its feed: breaker, busbar or distribution unit",
    (Symptom.DARK, PlaceKind.HOST): "whether it is up, its network link and its agent",
    (Symptom.DARK, PlaceKind.CHASSIS): "its power shelf and its network link",
    (Symptom.DARK, PlaceKind.RACK): "its power or its network switch",
    (Symptom.DARK, PlaceKind.SWITCH): "the switch and its uplinks",
    (Symptom.DARK, PlaceKind.POWER_ZONE): "its feed: breaker, busbar or distribution unit",
    (Symptom.NVLINK, PlaceKind.GPU): "its NVLinks: cable, connector or port",
    (Symptom.NVLINK, PlaceKind.LINK): "the link: cable, connector and ports at both ends",
    (Symptom.NVLINK, PlaceKind.HOST): "its NVSwitches and the fabric manager",
    (Symptom.NVLINK, PlaceKind.NVLINK_DOMAIN): "its NVSwitches and the fabric manager",
    (Symptom.NVLINK_SIDE, PlaceKind.HOST): "its NVLinks and NVSwitches",
    (Symptom.NVLINK_SIDE, PlaceKind.NVLINK_DOMAIN): "its NVLinks and NVSwitches",
    (Symptom.NVLINK_ECHO, PlaceKind.HOST): "its NVLinks and NVSwitches; no GPU reported the failed end",
    (Symptom.NVLINK_ECHO, PlaceKind.NVLINK_DOMAIN): "its NVLinks and NVSwitches; no GPU reported the failed end",
    (Symptom.SWITCH, PlaceKind.HOST): "its NVSwitches and the fabric manager",
    (Symptom.FIRMWARE, PlaceKind.HOST): "its driver and GPU firmware",
    (Symptom.HANG, PlaceKind.HOST): "its driver, and the program that ran there",
    (Symptom.HANG, PlaceKind.JOB): "the job's program and its slowest rank",
    (Symptom.PROGRAM, PlaceKind.HOST): "the program that ran there",
    (Symptom.PROGRAM, PlaceKind.JOB): "the job's program",
    (Symptom.CLEANUP, PlaceKind.HOST): "the programs that ended there, and the fabric manager",
    (Symptom.MEMORY, PlaceKind.HOST): "its power and temperature: memory of several GPUs seldom fails at once",
}
"""What to look at, by the kind of symptom and of place."""


def _sentence(root: Finding, members: Sequence[Finding], group: CauseGroup, shown: int) -> str:
    if len(members) == 1:
        return root.sentence
    subjects = len({finding.subject.key for finding in members})
    hosts = len({finding.subject.host for finding in members if finding.subject.host})
    starts = [finding.started_ms for finding in members]
    others = sorted({f"XID {code}" for finding in members if (code := code_of(finding)) not in (None, code_of(root))})
    also = f", also {', '.join(others)}" if others else ""
    span = show_duration(max(starts) - min(starts))
    explained = (
        f"It explains {len(members)} findings on {subjects} subject{'s' if subjects != 1 else ''} of "
        f"{hosts} host{'s' if hosts != 1 else ''} within {span}{also}."
    )
    wide = group.place.kind is not PlaceKind.GPU and shown > 1
    head = f"{_named(group.place)}: {len(group.gpus) or shown} GPUs show the same. First: " if wide else ""
    look = _LOOK_AT.get((group.kind, group.place.kind), "")
    where = "this GPU" if group.place.kind is PlaceKind.GPU else _named(group.place, start=False)
    tail = f" Look at {where}: {look}." if look else ""
    return f"{head}{root.sentence} {explained}{tail}"


def _named(place: Place, *, start: bool = True) -> str:
    words = place.kind.replace("_", " ").replace("nvlink", "NVLink")
    return f"{words[:1].upper() + words[1:] if start else words} {place.name}"
