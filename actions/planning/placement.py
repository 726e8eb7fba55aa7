"""Where work goes: work that waits, and work that must leave a node. Every reason is counted in GPU-hours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.actions.planning.bins import fleet_figures, mig_unusable
from tocsin.actions.planning.plan import Move, Plan, Refusal, Step, StepKind
from tocsin.actions.planning.simulation import Simulation, misfit
from tocsin.actions.planning.state import (
    SHARE_EPSILON,
    TEMPLATES,
    FleetNode,
    FleetState,
    GpuHold,
    GpuMode,
    Slot,
    Workload,
    share_of,
)
from tocsin.actions.planning.units import HOUR_S, PlanLimits, budgets_of, pinned, price, say_gpus
from tocsin.domain.fragmentation import FreeNode, expected_unusable, fits_together
from tocsin.domain.grouping import grouped
from tocsin.domain.phrase import Phrase, say, say_all, say_count

LOSS_S = 3600.0
"""Work lost by a failure where nobody knows how often checkpoints are written (own choice)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What makes a place worse, in hours of each GPU that the work holds (own choices).

    `rack_fetch_s` and `far_fetch_s` are how long the work's data takes to come from another host of the rack and from
    elsewhere. `load_h` is what a host in full use costs work that has GPUs to itself, `shared_load_h` work that shares.
    """

    rack_fetch_s: float = 120.0
    far_fetch_s: float = 600.0
    load_h: float = 0.02
    shared_load_h: float = 0.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place: what the work would hold, and what that costs in GPU-hours, by reason."""

    host: str
    holds: tuple[GpuHold, ...]
    terms: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        return math.fsum(self.terms.values())


def candidates(
    state: FleetState, work: Workload, limits: PlanLimits, weights: Weights | None = None
) -> list[Candidate]:
    """Every host on which `work` can start now, the best first."""
    weights = weights or Weights()
    found = []
    for host, node in state.nodes.items():
        risky = node.leaving or node.risk > limits.most_risk
        if not node.schedulable or risky or (work.pool and work.pool != node.pool):
            continue
        # Room on the GPUs is asked first: most hosts of a busy fleet have none.
        roomy = state.by_host[host] if work.profile else _roomy(state, work, host)
        if not roomy or state.cpus_left(host) < work.cpus - SHARE_EPSILON:
            continue
        if state.memory_left(host) < work.memory_bytes:
            continue
        able = [slot for slot in roomy if not misfit(work, node, (slot,), limits.most_risk)]
        holds = _holds(state, work, able)
        if holds:
            found.append(Candidate(host, holds, _terms(state, work, node, holds, limits, weights)))
    return sorted(found, key=lambda one: (one.cost, one.host))


def _roomy(state: FleetState, work: Workload, host: str) -> list[Slot]:
    """The GPUs of `host` with room for a part of `work`; none where they are too few."""
    least, room = min(work.gpus, 1.0) - SHARE_EPSILON, state.room[host]
    if max(room, default=0.0) < least:
        return []
    slots = [slot for slot, free in zip(state.by_host[host], room, strict=True) if free >= least]
    return slots if len(slots) >= work.gpus else []


def _holds(state: FleetState, work: Workload, able: Sequence[Slot]) -> tuple[GpuHold, ...]:
    if work.profile:
        return _instance(state, work, able)
    if work.gpus < 1:
        return (GpuHold(min((state.free(slot.uuid), slot.uuid) for slot in able)[1], work.gpus),) if able else ()
    return tuple(GpuHold(slot.uuid) for slot in able[: int(work.gpus)]) if len(able) >= work.gpus else ()


def _instance(state: FleetState, work: Workload, able: Sequence[Slot]) -> tuple[GpuHold, ...]:
    best: tuple[float, str, int] | None = None
    for slot in able:
        template = TEMPLATES[slot.template]
        profile = template.profiles.get(work.profile)
        layout = state.layout(slot.uuid)
        for start in profile.starts if profile else ():
            after = (*layout, (work.profile, start))
            if not fits_together(after, template):
                continue
            change = mig_unusable(after, state.demand, template) - mig_unusable(layout, state.demand, template)
            if best is None or (change, slot.uuid, -start) < (best[0], best[1], -best[2]):
                best = change, slot.uuid, start
    return (GpuHold(best[1], 1.0, best[2]),) if best else ()


def _terms(
    state: FleetState, work: Workload, node: FleetNode, holds: tuple[GpuHold, ...], limits: PlanLimits, weights: Weights
) -> dict[str, float]:
    held = math.fsum(share_of(state.gpus[hold.gpu], work, hold) for hold in holds)
    lost_s = work.checkpoint_every_s / 2 if work.checkpoint_every_s else LOSS_S
    slots = state.by_host[node.host]
    load = math.fsum(state.taken.get(slot.uuid, 0.0) for slot in slots) / len(slots)
    shared = work.mode is not GpuMode.EXCLUSIVE
    return {
        "fragmentation": _fragmentation(state, work, node.host, holds) * limits.horizon_h,
        "risk": node.risk * held * (lost_s + work.restart_s) / HOUR_S,
        "data": held * _fetch_s(state, work, node, weights) / HOUR_S,
        "load": held * load * (weights.shared_load_h if shared else weights.load_h),
    }


def _fragmentation(state: FleetState, work: Workload, host: str, holds: tuple[GpuHold, ...]) -> float:
    """How much F rises, in GPUs, if `work` starts with `holds`."""
    if work.profile:
        slot = state.gpus[holds[0].gpu]
        template = TEMPLATES[slot.template]
        layout = state.layout(slot.uuid)
        assert holds[0].start is not None
        after = (*layout, (work.profile, holds[0].start))
        change = mig_unusable(after, state.demand, template) - mig_unusable(layout, state.demand, template)
        return change / template.memory_slices
    before = state.free_node(host)
    shares = {hold.gpu: hold.share for hold in holds}
    slots = [slot.uuid for slot in state.by_host[host] if slot.mode is not GpuMode.MIG]
    free = tuple(max(0.0, part - shares.get(uuid, 0.0)) for part, uuid in zip(before.free, slots, strict=True))
    cpus = None if before.cpus is None else before.cpus - work.cpus
    after_node = FreeNode(free, cpus, before.usable)
    return expected_unusable(after_node, state.mix) - expected_unusable(before, state.mix)


def _fetch_s(state: FleetState, work: Workload, node: FleetNode, weights: Weights) -> float:
    if not work.data_hosts or node.host in work.data_hosts:
        return 0.0
    racks = {state.nodes[host].rack for host in work.data_hosts if host in state.nodes} - {""}
    return weights.rack_fetch_s if node.rack in racks else weights.far_fetch_s


def place(state: FleetState, limits: PlanLimits, weights: Weights | None = None) -> Plan:
    """A place for all work that waits: the highest priority first, then the largest; a gang whole or not at all."""
    waiting = grouped((work.unit, work) for work in state.works.values() if not work.holds)
    steps: list[Step] = []
    refused: list[Refusal] = []
    now = state
    for name in sorted(waiting, key=lambda one: _urgency(one, waiting[one])):
        works = waiting[name]
        if len(works) < len(state.gangs.get(works[0].gang, works)):
            refused.append(Refusal(name, say("some of its gang runs already")))
            continue
        found = together(now, works, limits, weights)
        if found is None:
            refused.append(Refusal(name, _why_not(now, works[0], limits)))
            continue
        now = now.with_works([replace(work, holds=one.holds) for work, one in found])
        steps.append(_placing(name, found))
    after = Simulation(state, limits.most_risk).run(steps)
    placed = say_count(sum(len(step.moves) for step in steps), "piece")
    return Plan(
        "place",
        say("Start {pieces} of work; {n} must wait on.", pieces=placed, n=len(refused)),
        tuple(steps),
        tuple(refused),
        fleet_figures(state),
        fleet_figures(after),
        horizon_h=limits.horizon_h,
        simulated=state.simulated,
    )


def _urgency(name: str, works: Sequence[Workload]) -> tuple[float, float, str]:
    return -max(work.priority for work in works), -sum(work.gpus for work in works), name


Found = list[tuple[Workload, Candidate]]


def together(
    state: FleetState, works: Sequence[Workload], limits: PlanLimits, weights: Weights | None = None
) -> Found | None:
    """Places for all of `works`: in one fabric where one has room, else in one rack, else anywhere; None: nowhere."""
    if len(works) == 1:
        found = candidates(state, works[0], limits, weights)
        return [(works[0], found[0])] if found else None
    for narrow in (_fabric, lambda node: node.rack or node.host, lambda _: ""):
        best = _in_one(state, works, narrow, limits, weights)
        if best is not None:
            return best
    return None


def _fabric(node: FleetNode) -> str:
    return node.fabric


def _in_one(
    state: FleetState,
    works: Sequence[Workload],
    narrow: Callable[[FleetNode], str],
    limits: PlanLimits,
    weights: Weights | None,
) -> Found | None:
    best: Found | None = None
    for group in sorted({narrow(node) for node in state.nodes.values()}):
        inside = frozenset(host for host, node in state.nodes.items() if narrow(node) == group)
        found = assign(state, works, limits, weights, inside)
        if found is not None and (best is None or _sum(found) < _sum(best)):
            best = found
    return best


def _sum(found: Found) -> float:
    return math.fsum(one.cost for _, one in found)


def assign(
    state: FleetState,
    works: Iterable[Workload],
    limits: PlanLimits,
    weights: Weights | None = None,
    hosts: frozenset[str] | None = None,
) -> Found | None:
    """A place for each of `works`, one after another, on `hosts` (None: all); None where one of them has none."""
    found: Found = []
    for work in works:
        options = candidates(state, work, limits, weights)
        chosen = next((one for one in options if hosts is None or one.host in hosts), None)
        if chosen is None:
            return None
        found.append((work, chosen))
        state = state.with_works([replace(work, holds=chosen.holds)])
    return found


def _placing(name: str, found: Found) -> Step:
    hosts = sorted({one.host for _, one in found})
    terms: dict[str, float] = {}
    for _, one in found:
        for term, value in one.terms.items():
            terms[term] = terms.get(term, 0.0) + value
    costs = {term: f"{value:+.2f}" for term, value in terms.items()}
    template = (
        "Start {work} on {hosts} (GPU-hours: fragmentation {fragmentation}, risk {risk}, data {data}, load {load})."
    )
    return Step(
        StepKind.PLACE,
        name,
        say(template, work=name, hosts=", ".join(hosts), **costs),
        tuple(Move(work.id, work.holds, one.holds) for work, one in found),
    )


def _why_not(state: FleetState, work: Workload, limits: PlanLimits) -> Phrase:
    reasons: dict[str, int] = {}
    for host, node in state.nodes.items():
        problems = [misfit(work, node, (slot,), limits.most_risk) for slot in state.by_host[host]]
        if not problems or all(problems):
            reason = "other pool, model or mode, or out of service"
            if problems and node.risk > limits.most_risk:
                reason = "likely to fail"
        elif state.cpus_left(host) < work.cpus:
            reason = "too few CPUs"
        elif state.memory_left(host) < work.memory_bytes:
            reason = "too little memory"
        else:
            reason = "too few free GPUs, or in the wrong places"
        reasons[reason] = reasons.get(reason, 0) + 1
    each = [
        say("{hosts}: {reason}", hosts=say_count(count, "host"), reason=reason)
        for reason, count in sorted(reasons.items())
    ]
    return say("it fits nowhere now ({reasons})", reasons=say_all(each)) if each else say("there is no host")


def evacuate(state: FleetState, host: str, limits: PlanLimits) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """Steps that bring all work of `host`, which takes none any more, elsewhere, and what has to stay and why.

    Work that can be asked writes a checkpoint first. A gang moves whole: its members on other hosts restart in place.
    """
    steps: list[Step] = []
    refused = [Refusal(name, say("{said}", said=reason)) for name, reason in sorted(state.staying(host).items())]
    left = Counter({name: budget.allowed for name, budget in state.budgets.items()})
    now = state
    for name, works in _leaving(state, host).items():
        reason = _must_stay(state, works, limits, left)
        found = None if reason else _elsewhere(now, works, host, limits)
        if found is None:
            refused.append(Refusal(name, reason or _why_not(now, works[0], limits)))
            continue
        left.subtract(budgets_of(works))
        now = now.with_works([replace(work, holds=one.holds) for work, one in found])
        steps += _moving(state, name, works, found, host, limits)
    return tuple(steps), tuple(refused)


def _leaving(state: FleetState, host: str) -> dict[str, Sequence[Workload]]:
    found: dict[str, Sequence[Workload]] = {}
    for work in sorted(state.on_host.get(host, ()), key=lambda one: (-one.priority, -one.gpus, one.id)):
        if work.movable and not work.stays:
            found.setdefault(work.unit, state.gangs.get(work.gang, (work,)))
    return found


def _must_stay(
    state: FleetState, works: Sequence[Workload], limits: PlanLimits, left: Mapping[str, int]
) -> Phrase | None:
    for work in works:
        alone = replace(work, gang="", lost_s=work.lost_s or 0.0)
        open_state = state.with_nodes([replace(state.nodes[state.host_of(work)], schedulable=True)])
        reason = pinned(open_state.with_works([alone]), [alone], replace(limits, patience_s=-1.0))
        if reason:
            return reason
    short = [name for name, count in budgets_of(works).items() if left[name] < count]
    return say("disruption budget {budget} has nothing left", budget=short[0]) if short else None


def _elsewhere(state: FleetState, works: Sequence[Workload], host: str, limits: PlanLimits) -> Found | None:
    """Places for the works of a unit that cannot restart where they are; the others restart in place."""
    staying = [work for work in works if _can_restart(state, work, host, limits)]
    leaving = [replace(work, holds=()) for work in works if work not in staying]
    without = state.with_works(leaving)
    if len(works) == 1:
        return assign(without, leaving, limits)
    if staying:
        fabrics = {state.nodes[state.host_of(work)].fabric for work in works}
        inside = frozenset(name for name, node in state.nodes.items() if node.fabric in fabrics)
        found = assign(without, leaving, limits, hosts=inside)
    else:
        found = _in_one(without, leaving, _fabric, limits, None)
    if found is None:
        return None
    return found + [(work, Candidate(state.host_of(work), work.holds)) for work in staying]


def _can_restart(state: FleetState, work: Workload, host: str, limits: PlanLimits) -> bool:
    node = state.nodes[state.host_of(work)]
    slots = [state.gpus[hold.gpu] for hold in work.holds]
    return node.host != host and not misfit(work, node, slots, limits.most_risk)


def _moving(
    state: FleetState, name: str, works: Sequence[Workload], found: Found, host: str, limits: PlanLimits
) -> list[Step]:
    held = math.fsum(state.held_gpus(work) for work in works)
    asked = [work for work in works if work.checkpoint_s is not None and work.lost_s]
    prices = [price(state, work, replace(limits, patience_s=-1.0)) for work in works]
    cost = math.fsum(one.gpu_hours for one in prices if one is not None)
    hosts = ", ".join(sorted({one.host for _, one in found}))
    steps = [
        Step(
            StepKind.CHECKPOINT,
            work.id,
            say("Ask {work} for a checkpoint and wait {n} s.", work=work.id, n=f"{work.checkpoint_s:.0f}"),
        )
        for work in asked
    ]
    lost = say("{cost} GPU-hours of work lost", cost=f"{cost:.2f}")
    if None in prices:
        lost = say("an unknown amount of work lost")
    moved = {"work": name, "gpus": say_gpus(held), "source": host, "hosts": hosts, "lost": lost}
    sources = {work.id: work.holds for work in works}
    return [
        *steps,
        Step(
            StepKind.MOVE,
            name,
            say("Move {work} ({gpus}) from {source} to {hosts}: {lost}.", **moved),
            tuple(Move(work.id, sources[work.id], one.holds) for work, one in found),
            cost_gpu_hours=cost,
        ),
    ]
