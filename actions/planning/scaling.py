"""How large a pool should be: more nodes before a bad one is drained, fewer where it idles, and ahead of demand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.planning.placement import evacuate
from tocsin.actions.planning.plan import Plan, Refusal, Step, StepKind
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetNode, FleetState, Pool
from tocsin.actions.planning.units import PlanLimits, price
from tocsin.domain.clock import SECOND
from tocsin.domain.finding import SubjectKind
from tocsin.domain.phrase import Phrase, say, say_count
from tocsin.domain.prediction import Prediction, PredictionStatus

MOST_NEW = 4
"""Nodes that one failing node may call for at most (own choice)."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """When pools grow and shrink.

    A pool whose utilisation is below `scale_in_below` loses a node if the rest would stay below `most_after`. Nodes
    are wanted so that the demand ahead fills them to `fill_to`. After a change nothing is added for `out_rest_s` and
    nothing removed for `in_rest_s` seconds; one is removed only if demand stays low for `in_window_s`.
    """

    scale_in_below: float = 0.3
    most_after: float = 0.6
    fill_to: float = 0.8
    out_rest_s: float = 300.0
    in_rest_s: float = 1800.0
    in_window_s: float = 7200.0


def replace_before_drain(state: FleetState, hosts: Sequence[str], limits: PlanLimits) -> Plan:
    """Empty and drain `hosts`, in order, each only once its pool keeps its floor without it and its work has a place.

    Where that is not so now, nodes are added first and waited for. What cannot be done within the laws is refused; a
    host from which not all work can leave is cordoned and not drained.
    """
    steps: list[Step] = []
    refused: list[Refusal] = []
    # Nothing that leaves one of them may come to another.
    now = state.with_nodes([replace(state.nodes[host], risk=1.0) for host in hosts if host in state.nodes])
    for host in hosts:
        if host not in now.nodes:
            refused.append(Refusal(host, say("there is no such node")))
            continue
        found, reasons = _replace_one(now, host, state.nodes[host].risk, limits)
        refused += reasons
        if found:
            now = Simulation(now, 1.0).run(found)
            steps += found
    cost = math.fsum(step.cost_gpu_hours for step in steps)
    drained = sum(step.kind is StepKind.DRAIN for step in steps)
    added = sum(int(step.amount) for step in steps if step.kind is StepKind.SCALE_OUT)
    return Plan(
        "scale",
        say(
            "Add {added} and drain {n} of {hosts}; {cost} GPU-hours of work are lost.",
            added=say_count(added, "node"),
            n=drained,
            hosts=say_count(len(hosts), "node"),
            cost=f"{cost:.2f}",
        ),
        tuple(steps),
        tuple(refused),
        ready_figures(state),
        ready_figures(now),
        cost_gpu_hours=cost,
        horizon_h=limits.horizon_h,
        simulated=state.simulated,
    )


def ready_figures(state: FleetState) -> dict[str, float]:
    """GPUs that are ready, by pool."""
    pools = sorted({node.pool for node in state.nodes.values()} | set(state.pools))
    return {f"ready_gpus {pool}": float(state.ready_gpus(pool)) for pool in pools}


def _replace_one(
    state: FleetState, host: str, risk: float, limits: PlanLimits
) -> tuple[list[Step], tuple[Refusal, ...]]:
    pool = state.pools.get(state.nodes[host].pool)
    best: tuple[list[Step], tuple[Refusal, ...]] | None = None
    reason: Phrase | str = say("its pool may not grow")
    for added in range(MOST_NEW + 1 if pool is not None else 1):
        ahead = _grow(pool, added, state) if pool is not None and added else []
        cordon = _cordon(host, risk)
        try:
            ready = Simulation(state, 1.0).run([*ahead, cordon])
        except PlanBroken as broken:
            reason = broken.said
            continue
        moves, left = evacuate(ready, host, limits)
        steps = [*ahead, cordon, *moves]
        if not left:
            return [*steps, Step(StepKind.DRAIN, host, say("Drain {host}: all its work has left.", host=host))], ()
        if best is None or len(left) < len(best[1]):
            best = steps, left
    if best is not None:
        return best
    return [], (Refusal(host, reason),)


def _grow(pool: Pool, added: int, state: FleetState) -> list[Step]:
    hosts = new_names(state, pool, added)
    minutes = f"{pool.provision_s / 60:.0f}"
    one, several = "Wait until it is ready (about {n} min).", "Wait until they are ready (about {n} min)."
    wait = say(one if added == 1 else several, n=minutes)
    more = say("Add {nodes} to pool {pool}.", nodes=say_count(added, "node"), pool=pool.name)
    return [
        Step(StepKind.SCALE_OUT, pool.name, more, amount=float(added), hosts=hosts),
        Step(StepKind.WAIT_READY, pool.name, wait, amount=float(added), hosts=hosts),
    ]


def new_names(state: FleetState, pool: Pool, count: int) -> tuple[str, ...]:
    """Placeholders for `count` nodes that a pool is to get."""
    free = (name for number in itertools.count(1) if (name := f"new-{pool.name}-{number}") not in state.nodes)
    return tuple(itertools.islice(free, count))


def scale_in(state: FleetState, policy: ScalingPolicy, limits: PlanLimits) -> Plan:
    """One node less for each pool that idles: the one whose removal loses least. Never below a pool's floor."""
    steps: list[Step] = []
    refused: list[Refusal] = []
    now = state
    for name, pool in sorted(state.pools.items()):
        reason = _keep(now, pool, policy)
        found = None if reason else _dispensable(now, pool, limits)
        if found is None:
            refused.append(Refusal(name, reason or say("no node can be emptied within the laws")))
            continue
        steps += found
        now = Simulation(now, 1.0).run(found)
    removed = sum(step.kind is StepKind.SCALE_IN for step in steps)
    return Plan(
        "scale",
        say("Remove {nodes}.", nodes=say_count(removed, "node")) if removed else say("No pool gives a node back."),
        tuple(steps),
        tuple(refused),
        ready_figures(state),
        ready_figures(now),
        cost_gpu_hours=math.fsum(step.cost_gpu_hours for step in steps),
        horizon_h=limits.horizon_h,
        simulated=state.simulated,
    )


def _keep(state: FleetState, pool: Pool, policy: ScalingPolicy) -> Phrase | None:
    """Why the pool keeps its size; None where it may shrink."""
    if pool.utilisation is None:
        return say("its utilisation is unknown")
    if pool.utilisation >= policy.scale_in_below:
        busy, below = f"{pool.utilisation:.0%}", f"{policy.scale_in_below:.0%}"
        return say("{busy} busy, not below {below}", busy=busy, below=below)
    if pool.waiting_gpus:
        return say("work waits for {n} GPUs", n=f"{pool.waiting_gpus:g}")
    if pool.changed_ms is not None and state.at_ms - pool.changed_ms < policy.in_rest_s * SECOND:
        return say("it was scaled a short while ago")
    ready = state.ready_gpus(pool.name)
    if ready - pool.node_gpus < pool.floor_gpus:
        return _at_floor(ready, pool)
    after = pool.utilisation * ready / (ready - pool.node_gpus) if ready > pool.node_gpus else math.inf
    return say("the rest would be {busy} busy", busy=f"{after:.0%}") if after > policy.most_after else None


def _at_floor(ready: int, pool: Pool) -> Phrase:
    return say("{n} GPUs are ready, and its floor is {floor}", n=ready, floor=pool.floor_gpus)


def _cordon(host: str, risk: float = 0.0) -> Step:
    said = say("Stop new work on {host}.", host=host)
    if risk > 0:
        said = say("Stop new work on {host} ({risk} likely to fail).", host=host, risk=f"{risk:.0%}")
    return Step(StepKind.CORDON, host, said)


def _dispensable(state: FleetState, pool: Pool, limits: PlanLimits) -> list[Step] | None:
    nodes = [node for node in state.nodes.values() if node.pool == pool.name and node.schedulable]
    for node in sorted(nodes, key=lambda one: (_loss(state, one, limits), -one.risk, one.host)):
        if state.staying(node.host) or any(not work.movable for work in state.on_host.get(node.host, ())):
            continue
        cordon = _cordon(node.host)
        try:
            closed = Simulation(state, 1.0).run([cordon])
        except PlanBroken:
            continue
        moves, left = evacuate(closed, node.host, limits)
        if left:
            continue
        loss = math.fsum(step.cost_gpu_hours for step in moves)
        load = say("of unknown load")
        if pool.utilisation is not None:
            load = say("{busy} busy", busy=f"{pool.utilisation:.0%}")
        template = "Remove {host} from pool {pool}, {load}: {cost} GPU-hours are lost."
        said = say(template, host=node.host, pool=pool.name, load=load, cost=f"{loss:.2f}")
        return [cordon, *moves, Step(StepKind.SCALE_IN, node.host, said, amount=1.0)]
    return None


def _loss(state: FleetState, node: FleetNode, limits: PlanLimits) -> float:
    prices = [price(state, work, limits) for work in state.on_host.get(node.host, ())]
    return math.inf if None in prices else math.fsum(one.gpu_hours for one in prices if one is not None)


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """GPUs that a pool's work will use: (instant in milliseconds, most likely, at most likely enough), in order."""

    pool: str
    points: tuple[tuple[int, float, float], ...]

    def most(self, from_ms: int, to_ms: int) -> float | None:
        """The highest of the upper values between two instants, both included; None where nothing is known."""
        return max((high for at_ms, _, high in self.points if from_ms <= at_ms <= to_ms), default=None)


def demand_of(predictions: Iterable[Prediction], state: FleetState) -> list[PoolDemand]:
    """The demand that forecasts of pools tell: a pool that is to be too busy, or to have work waiting, and when.

    Of each forecast the extreme that it names as evidence counts from the expected instant on, or from the early end of
    its interval; a forecast that expects no crossing gives that extreme at its own instant.
    """
    made: dict[str, list[tuple[int, float, float]]] = {}
    for one in predictions:
        if one.subject.kind is not SubjectKind.POOL or one.status is PredictionStatus.NOT_ENOUGH_DATA:
            continue
        extreme = next((found for found in one.evidence if found.value is not None), None)
        if extreme is None or extreme.value is None or one.target.startswith("time_below"):
            continue
        ready = state.ready_gpus(one.subject.name)
        waiting = one.metric == "pool_pending_gpus"
        gpus = ready + extreme.value if waiting else extreme.value * ready
        at_ms = one.eta_low_ms or one.eta_ms or extreme.at_ms
        made.setdefault(one.subject.name, []).append((at_ms, gpus, gpus))
    return [PoolDemand(pool, tuple(sorted(points))) for pool, points in sorted(made.items())]


def follow_demand(state: FleetState, demands: Iterable[PoolDemand], policy: ScalingPolicy, limits: PlanLimits) -> Plan:
    """Nodes to add ahead of demand, or one to give back, with rest after a change and a gap between both limits.

    A pool grows for the demand within its provisioning time and the rest after a change. It shrinks only by what demand
    over the whole window leaves idle even without the node.
    """
    steps: list[Step] = []
    refused: list[Refusal] = []
    now = state
    for demand in demands:
        pool = state.pools.get(demand.pool)
        if pool is None:
            refused.append(Refusal(demand.pool, say("nothing is known of this pool")))
            continue
        found, reason = _follow(now, pool, demand, policy, limits)
        if reason is not None:
            refused.append(Refusal(pool.name, reason))
        now = Simulation(now, 1.0).run(found)
        steps += found
    return Plan(
        "scale",
        say("{steps} for the demand ahead.", steps=say_count(len(steps), "step")),
        tuple(steps),
        tuple(refused),
        ready_figures(state),
        ready_figures(now),
        cost_gpu_hours=math.fsum(step.cost_gpu_hours for step in steps),
        simulated=state.simulated,
    )


def _follow(
    state: FleetState, pool: Pool, demand: PoolDemand, policy: ScalingPolicy, limits: PlanLimits
) -> tuple[list[Step], Phrase | None]:
    """Steps, or why there are none."""
    now_ms, size, ready = state.at_ms, pool.node_gpus, state.ready_gpus(pool.name)
    rest_s = math.inf if pool.changed_ms is None else (now_ms - pool.changed_ms) / SECOND
    rested = say("it was scaled {n} min ago", n=f"{rest_s / 60:.0f}")
    soon = demand.most(now_ms, now_ms + int((pool.provision_s + policy.out_rest_s) * SECOND))
    if soon is not None and soon > policy.fill_to * ready:
        if rest_s < policy.out_rest_s:
            return [], rested
        return _more(state, pool, math.ceil((soon / policy.fill_to - ready) / size - 1e-9), soon)
    later = demand.most(now_ms, now_ms + int(policy.in_window_s * SECOND))
    if later is None:
        return [], say("nothing is known of the demand")
    if later > policy.most_after * (ready - size):
        template = "{n} GPUs are wanted of {ready}: neither too many nor too few"
        return [], say(template, n=f"{later:.0f}", ready=ready)
    if ready - size < pool.floor_gpus:
        return [], _at_floor(ready, pool)
    if rest_s < policy.in_rest_s:
        return [], rested
    found = _dispensable(state, pool, limits)
    return (found, None) if found else ([], say("no node can be emptied within the laws"))


def _more(state: FleetState, pool: Pool, wanted: int, soon: float) -> tuple[list[Step], Phrase | None]:
    have = sum(node.pool == pool.name for node in state.nodes.values())
    if pool.most_nodes is not None:
        wanted = min(wanted, pool.most_nodes - have)
    if wanted < 1:
        return [], say("it has {nodes} and may have no more", nodes=say_count(have, "node"))
    template = "Add {nodes} to pool {pool}: {n} GPUs are wanted within the time that takes."
    said = say(template, nodes=say_count(wanted, "node"), pool=pool.name, n=f"{soon:.0f}")
    hosts = new_names(state, pool, wanted)
    return [Step(StepKind.SCALE_OUT, pool.name, said, amount=float(wanted), hosts=hosts)], None
