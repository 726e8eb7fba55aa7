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
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.words import counted

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
            refused.append(Refusal(host, "there is no such node"))
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
        f"Add {counted(added, 'node')} and drain {drained} of {counted(len(hosts), 'node')}; "
        f"{cost:.2f} GPU-hours of work are lost.",
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
    reason = "its pool may not grow" if pool is None else ""
    for added in range(MOST_NEW + 1 if pool is not None else 1):
        ahead = _grow(pool, added, state) if pool is not None and added else []
        why = f" ({risk:.0%} likely to fail)" if risk > 0 else ""
        cordon = Step(StepKind.CORDON, host, f"Stop new work on {host}{why}.")
        try:
            ready = Simulation(state, 1.0).run([*ahead, cordon])
        except PlanBroken as broken:
            reason = broken.reason
            continue
        moves, left = evacuate(ready, host, limits)
        steps = [*ahead, cordon, *moves]
        if not left:
            return [*steps, Step(StepKind.DRAIN, host, f"Drain {host}: all its work has left.")], ()
        if best is None or len(left) < len(best[1]):
            best = steps, left
    if best is not None:
        return best
    return [], (Refusal(host, reason),)


def _grow(pool: Pool, added: int, state: FleetState) -> list[Step]:
    hosts = new_names(state, pool, added)
    what, are = counted(added, "node"), "it is" if added == 1 else "they are"
    wait = f"Wait until {are} ready (about {pool.provision_s / 60:.0f} min)."
    return [
        Step(StepKind.SCALE_OUT, pool.name, f"Add {what} to pool {pool.name}.", amount=float(added), hosts=hosts),
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
            refused.append(Refusal(name, reason or "no node can be emptied within the laws"))
            continue
        steps += found
        now = Simulation(now, 1.0).run(found)
    removed = sum(step.kind is StepKind.SCALE_IN for step in steps)
    return Plan(
        "scale",
        f"Remove {counted(removed, 'node')}." if removed else "No pool gives a node back.",
        tuple(steps),
        tuple(refused),
        ready_figures(state),
        ready_figures(now),
        cost_gpu_hours=math.fsum(step.cost_gpu_hours for step in steps),
        horizon_h=limits.horizon_h,
        simulated=state.simulated,
    )


def _keep(state: FleetState, pool: Pool, policy: ScalingPolicy) -> str:
    """Why the pool keeps its size; empty where it may shrink."""
    if pool.utilisation is None:
        return "its utilisation is unknown"
    if pool.utilisation >= policy.scale_in_below:
        return f"{pool.utilisation:.0%} busy, not below {policy.scale_in_below:.0%}"
    if pool.waiting_gpus:
        return f"work waits for {pool.waiting_gpus:g} GPUs"
    if pool.changed_ms is not None and state.at_ms - pool.changed_ms < policy.in_rest_s * SECOND:
        return "it was scaled a short while ago"
    ready = state.ready_gpus(pool.name)
    if ready - pool.node_gpus < pool.floor_gpus:
        return f"{ready} GPUs are ready, and its floor is {pool.floor_gpus}"
    after = pool.utilisation * ready / (ready - pool.node_gpus) if ready > pool.node_gpus else math.inf
    return f"the rest would be {after:.0%} busy" if after > policy.most_after else ""


def _dispensable(state: FleetState, pool: Pool, limits: PlanLimits) -> list[Step] | None:
    nodes = [node for node in state.nodes.values() if node.pool == pool.name and node.schedulable]
    for node in sorted(nodes, key=lambda one: (_loss(state, one, limits), -one.risk, one.host)):
        if state.staying(node.host) or any(not work.movable for work in state.on_host.get(node.host, ())):
            continue
        cordon = Step(StepKind.CORDON, node.host, f"Stop new work on {node.host}.")
        try:
            closed = Simulation(state, 1.0).run([cordon])
        except PlanBroken:
            continue
        moves, left = evacuate(closed, node.host, limits)
        if left:
            continue
        loss = math.fsum(step.cost_gpu_hours for step in moves)
        busy = "of unknown load" if pool.utilisation is None else f"{pool.utilisation:.0%} busy"
        sentence = f"Remove {node.host} from pool {pool.name}, {busy}: {loss:.2f} GPU-hours are lost."
        return [cordon, *moves, Step(StepKind.SCALE_IN, node.host, sentence, amount=1.0)]
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
            refused.append(Refusal(demand.pool, "nothing is known of this pool"))
            continue
        found, reason = _follow(now, pool, demand, policy, limits)
        if reason:
            refused.append(Refusal(pool.name, reason))
        now = Simulation(now, 1.0).run(found)
        steps += found
    return Plan(
        "scale",
        f"{counted(len(steps), 'step')} for the demand ahead.",
        tuple(steps),
        tuple(refused),
        ready_figures(state),
        ready_figures(now),
        cost_gpu_hours=math.fsum(step.cost_gpu_hours for step in steps),
        simulated=state.simulated,
    )


def _follow(
    state: FleetState, pool: Pool, demand: PoolDemand, policy: ScalingPolicy, limits: PlanLimits
) -> tuple[list[Step], str]:
    """Steps, or why there are none."""
    now_ms, size, ready = state.at_ms, pool.node_gpus, state.ready_gpus(pool.name)
    rest_s = math.inf if pool.changed_ms is None else (now_ms - pool.changed_ms) / SECOND
    rested = f"it was scaled {rest_s / 60:.0f} min ago"
    soon = demand.most(now_ms, now_ms + int((pool.provision_s + policy.out_rest_s) * SECOND))
    if soon is not None and soon > policy.fill_to * ready:
        if rest_s < policy.out_rest_s:
            return [], rested
        return _more(state, pool, math.ceil((soon / policy.fill_to - ready) / size - 1e-9), soon)
    later = demand.most(now_ms, now_ms + int(policy.in_window_s * SECOND))
    if later is None:
        return [], "nothing is known of the demand"
    if later > policy.most_after * (ready - size):
        return [], f"{later:.0f} GPUs are wanted of {ready}: neither too many nor too few"
    if ready - size < pool.floor_gpus:
        return [], f"{ready} GPUs are ready, and its floor is {pool.floor_gpus}"
    if rest_s < policy.in_rest_s:
        return [], rested
    found = _dispensable(state, pool, limits)
    return (found, "") if found else ([], "no node can be emptied within the laws")


def _more(state: FleetState, pool: Pool, wanted: int, soon: float) -> tuple[list[Step], str]:
    have = sum(node.pool == pool.name for node in state.nodes.values())
    if pool.most_nodes is not None:
        wanted = min(wanted, pool.most_nodes - have)
    if wanted < 1:
        return [], f"it has {counted(have, 'node')} and may have no more"
    sentence = (
        f"Add {counted(wanted, 'node')} to pool {pool.name}: {soon:.0f} GPUs are wanted within the time that takes."
    )
    hosts = new_names(state, pool, wanted)
    return [Step(StepKind.SCALE_OUT, pool.name, sentence, amount=float(wanted), hosts=hosts)], ""
