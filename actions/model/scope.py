"""Which GPUs a subject or an action touches, how many are left, and how many more or fewer a decision asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tocsin.actions.model.catalogue import ACTIONS, Scope, is_disruptive
from tocsin.actions.model.view import FleetView, GpuView, Taken
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.decision import (
    Decision,
    DefragmentParameters,
    MigrateParameters,
    ScaleInParameters,
    ScaleParameters,
    ThrottleKind,
)
from tocsin.domain.finding import ActionKind, Category, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.place import Place, PlaceKind

T = TypeVar("T")


def gpus_of(subject: Subject, view: FleetView) -> tuple[GpuView, ...]:
    """The whole GPUs that `subject` consists of; empty where none is known."""
    if subject.kind is SubjectKind.GPU:
        found = view.whole(subject.name)
        return () if found is None else (found,)
    if subject.kind is SubjectKind.HOST:
        return view.by_host.get(subject.name, ())
    if subject.kind is SubjectKind.POOL:
        return view.by_pool.get(subject.name, ())
    return tuple(view.physical.values())


def hosts_of(subject: Subject, view: FleetView) -> frozenset[str]:
    """The host of a GPU or host subject; empty for pools and the fleet, whose size other limits bound."""
    if subject.kind is SubjectKind.HOST:
        return frozenset({subject.name})
    if subject.kind is not SubjectKind.GPU:
        return frozenset()
    hosts = {view.gpu.host for view in gpus_of(subject, view)} or {subject.host}
    return frozenset(hosts - {""})


def misplaced(subject: Subject, view: FleetView) -> str:
    """Why the host that a GPU subject names is not the one that guards judge it by; empty where it is, or is unknown.

    Guards judge the host that the readings of the whole GPU name, executors change the one that the decision names: an
    action in which they differ would change a node that no guard has looked at.
    """
    part, whole = view.gpus.get(subject.name), view.whole(subject.name)
    if subject.kind is not SubjectKind.GPU or part is None or whole is None:
        return ""
    if part.gpu.host != whole.gpu.host:
        return f"{subject.name} is said to be on {part.gpu.host}, and its GPU {whole.gpu.uuid} is on {whole.gpu.host}"
    if subject.host and subject.host != whole.gpu.host:
        return f"{subject.name} is on {whole.gpu.host} by its readings, and the action is for {subject.host}"
    return ""


def racks_of(subject: Subject, view: FleetView) -> frozenset[str]:
    """The known racks of a GPU or host subject."""
    hosts = hosts_of(subject, view)
    members = [member for host in hosts for member in view.by_host.get(host, ()) if not member.surplus]
    return frozenset({member.gpu.rack for member in members} - {""})


def affected(decision: Decision, view: FleetView) -> tuple[GpuView, ...]:
    """The whole GPUs that somebody would notice: the subject's, and those of its host for an action on the host."""
    members = gpus_of(decision.subject, view)
    if ACTIONS[decision.action].scope is Scope.HOST or decision.action is ActionKind.UNCORDON:
        hosts = hosts_of(decision.subject, view) or {member.gpu.host for member in members}
        return tuple(member for host in sorted(hosts) for member in view.by_host.get(host, ()))
    return members


def taken_out(decision: Decision, view: FleetView) -> frozenset[str]:
    """UUIDs that the decision takes out of service when it is carried out.

    Where work is moved, the GPUs that it leaves; where a decision about a pool or the fleet names none, all of them. A
    pool that is scaled in loses one node. Where the decision names none, the largest that is still in service stands
    for it.
    """
    if not is_disruptive(decision.action):
        return frozenset()
    known = view.groups.taken.get(decision.key)
    if known is not None and known.decision is decision:
        return known.gpus
    found = _taken_out(decision, view)
    if decision.subject.kind in _SMALL and not isinstance(decision.parameters, MigrateParameters):
        view.groups.taken[decision.key] = Taken(decision, hosts_of(decision.subject, view), found)
    return found


def moves_nothing(decision: Decision) -> bool:
    """Whether it is to defragment a pool or the fleet, and names no work to move: the guard `place` holds it."""
    wanted = decision.parameters
    of_many = decision.subject.kind in (SubjectKind.POOL, SubjectKind.FLEET)
    return of_many and isinstance(wanted, DefragmentParameters) and not wanted.work


def _taken_out(decision: Decision, view: FleetView) -> frozenset[str]:
    members = _left(decision, view) or affected(decision, view)
    if decision.action is ActionKind.SCALE_IN and decision.subject.kind is not SubjectKind.GPU:
        going = named_host(decision)
        members = view.by_host.get(going, ()) if going else _largest_host(members, view)
    return frozenset(member.gpu.uuid for member in members if not member.surplus)


def _left(decision: Decision, view: FleetView) -> tuple[GpuView, ...]:
    """The whole GPUs that the named work leaves; empty where no work is named, or nobody knows where it runs."""
    parameters = decision.parameters
    if isinstance(parameters, MigrateParameters) and parameters.source:
        found = [view.whole(place.gpu) for place in parameters.source]
    elif isinstance(parameters, DefragmentParameters) and decision.subject.kind not in _SMALL:
        ran = [view.foresight.gpus_with(name) for name in parameters.work]
        if not all(ran):
            return ()
        names = {uuid for uuids in ran for uuid in uuids}
        found = [view.whole(uuid) for uuid in sorted(names | {rank.gpu for rank in parameters.ranks})]
    else:
        return ()
    return () if None in found else tuple(one for one in found if one is not None)


_SMALL = frozenset({SubjectKind.GPU, SubjectKind.HOST})


def named_host(decision: Decision) -> str:
    """The host that is to go when a pool is scaled in; empty where the decision leaves that to the manager."""
    return decision.parameters.node if isinstance(decision.parameters, ScaleInParameters) else ""


def _largest_host(members: Iterable[GpuView], view: FleetView) -> tuple[GpuView, ...]:
    there = (member for member in members if member.gpu.uuid not in view.flagged and not member.surplus)
    hosts = grouped((member.gpu.host, member) for member in there)
    return max(hosts.items(), key=lambda item: (len(item[1]), item[0]))[1] if hosts else ()


def base_key(subject: Subject) -> str:
    """Key of the subject without its detail: two processes of one GPU are one subject to an action."""
    return f"{subject.kind}:{subject.name}"


_OF_USE = frozenset({Category.CAPACITY, Category.FRAGMENTATION, Category.VERSIONS})
_OF_ONE_HOST = frozenset({PlaceKind.GPU, PlaceKind.HOST})


def breaker_cause(decision: Decision, view: FleetView) -> str:
    """The root cause that the breaker counts: kind and place. All that one host alone reports is one, whatever it is.

    Empty for a forecast, for a note, and for load, fragmentation and versions: what is only expected, worth no more
    than a line on record, or how the fleet is used and kept, is no sign that the fleet, or Tocsin, has gone wrong.
    """
    if decision.category in _OF_USE:
        return ""
    incident = view.incident_of.get(decision.incident)
    seen = [view.findings[name] for name in decision.findings if name in view.findings]
    root = incident.root if incident is not None else next(iter(seen), None)
    if root is not None and (root.expected or (incident or root).alert_level is AlertLevel.NOTE):
        return ""
    place = None if incident is None else incident.place
    hosts = hosts_of(decision.subject, view)
    if len(hosts) == 1 and (place is None or place.kind in _OF_ONE_HOST):
        return str(Place(PlaceKind.HOST, min(hosts)))
    return f"{decision.category}|{place if place is not None else base_key(decision.subject)}"


def same_kind(one: Decision, other: Decision) -> bool:
    """Whether neither or both are about a fixed cap: the cap of a budget and the throttle of a hot GPU stand side by
    side, and each is given back for itself."""
    return one.parameters.throttle_kind is other.parameters.throttle_kind


def slot_of(decision: Decision) -> tuple[str, ActionKind]:
    """Under which subject and action the tries of a decision are counted: those of a fixed cap for themselves, so that
    a budget uses up no try of the heat."""
    key = base_key(decision.subject)
    capped = decision.parameters.throttle_kind is ThrottleKind.CAP
    return (f"{key}|{ThrottleKind.CAP}" if capped else key, decision.action)


def effects(view: FleetView) -> list[Decision]:
    """Disruptive decisions that run now or whose effect lasts."""
    return [decision for decision in view.controls.effects.values() if is_disruptive(decision.action)]


def out_of_service(view: FleetView) -> frozenset[str]:
    """UUIDs that are out of service now, by Tocsin's doing or by anybody's."""
    return _once(view, "out_of_service", lambda: view.flagged.union(*_taken_by(effects(view), view)))


def surely_out(view: FleetView) -> frozenset[str]:
    """`out_of_service` without what an undoing that was begun, and never seen to work, may have given back."""
    return _once(view, "surely_out", lambda: _surely_out(view))


def _surely_out(view: FleetView) -> frozenset[str]:
    controls = view.controls
    sure = [decision for key, decision in controls.effects.items() if key not in controls.doubtful]
    return view.flagged.union(*_taken_by(sure, view))


def occupied(view: FleetView) -> Mapping[str, Subject]:
    """Subjects under a disruptive action now, by key.

    A GPU that others have taken out of service counts as a subject of its own, unless an action of Tocsin covers it.
    """
    return _once(view, "occupied", lambda: _occupied(view))


def _occupied(view: FleetView) -> dict[str, Subject]:
    own = effects(view)
    covered = frozenset[str]().union(*_taken_by(own, view))
    subjects = {base_key(decision.subject): decision.subject for decision in own}
    for uuid in view.flagged - covered:
        gpu = view.gpus[uuid].gpu
        subjects[f"gpu:{uuid}"] = Subject(SubjectKind.GPU, uuid, gpu.host, gpu.pool)
    return subjects


def _taken_by(decisions: Iterable[Decision], view: FleetView) -> Iterable[frozenset[str]]:
    return (taken_out(decision, view) for decision in decisions)


def _once(view: FleetView, name: str, make: Callable[[], T]) -> T:
    if name not in view.derived:
        view.derived[name] = make()
    made: T = view.derived[name]
    return made


def counted_in(pool: str, view: FleetView) -> int:
    """GPUs of `pool` that count in shares."""
    return view.groups.counted_in.get(pool, 0)


def available(pool: str, view: FleetView, now_ms: int, without: frozenset[str]) -> int:
    """GPUs of `pool` that count, are healthy and freshly read, and are not among `without`."""
    members, fresh_ms = view.groups.pool(pool), view.policy.fresh_ms
    left_out = (members.sound[uuid] for uuid in without if uuid in members.sound)
    return members.fresh(now_ms, fresh_ms) - sum(one.is_fresh(now_ms, fresh_ms) for one in left_out)


def usable_in(pool: str, view: FleetView, now_ms: int, without: frozenset[str]) -> list[GpuView]:
    """The GPUs that `available` counts."""
    sound, fresh_ms = view.groups.pool(pool).sound, view.policy.fresh_ms
    return [one for uuid, one in sound.items() if uuid not in without and one.is_fresh(now_ms, fresh_ms)]


def pool_of(decision: Decision) -> str:
    """The pool that a decision is about, that of its GPU where the subject is one; empty for none."""
    subject = decision.subject
    return subject.name if subject.kind is SubjectKind.POOL else subject.pool


def scale_parameters(decision: Decision) -> ScaleParameters:
    """The parameters of a decision to scale; raises TypeError for one that is about something else."""
    if not isinstance(decision.parameters, ScaleParameters):
        raise TypeError(f"{decision.action} does not scale")
    return decision.parameters


def nodes_wanted(parameters: ScaleParameters, gpus_per_node: int) -> int:
    """Nodes to add or take: ``nodes``, or as many as hold ``gpus``; else one."""
    if parameters.nodes:
        return parameters.nodes
    gpus = parameters.gpus
    return math.ceil(gpus / gpus_per_node) if gpus and gpus_per_node else 1


def gpus_wanted(parameters: ScaleParameters, gpus_per_node: int) -> int:
    """GPUs to add or take: ``gpus``, or those of ``nodes``; else those of one node."""
    return parameters.gpus or nodes_wanted(parameters, gpus_per_node) * gpus_per_node
