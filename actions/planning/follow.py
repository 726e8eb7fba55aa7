"""From plans to what ought to be done next: one step of each plan that is worth it, as long as a new look wants it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.actions.planning.defragment import defragment, repack_mig
from tocsin.actions.planning.plan import RULES, Intent, Plan, Step, StepKind, subject_of_gpu, work_of
from tocsin.actions.planning.power import Cap, PowerBudget, follow_power
from tocsin.actions.planning.scaling import PoolDemand, ScalingPolicy, follow_demand, scale_in
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetState, Pool
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.decision import (
    DecisionContext,
    GpuPlace,
    MigrateParameters,
    ScaleInParameters,
    ScaleOutParameters,
    ScaleParameters,
)
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.phrase import Phrase, say, say_count
from tocsin.domain.words import counted

SOON_S = 60.0
"""A step that waits longer than this for a checkpoint is left to a later look."""


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """What earlier looks and decisions left behind.

    `before` are the intents of the last look. `running` names the rules of which a step is under way: no other step of
    theirs begins. `caps` are the power limits that stand, `held` GPUs that other rules throttle. `scaled_ms` says by
    pool when it was last scaled.
    """

    before: tuple[Intent, ...] = ()
    running: frozenset[str] = frozenset()
    caps: tuple[Cap, ...] = ()
    held: frozenset[str] = frozenset()
    scaled_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanDependencies:
    """What the planners count with."""

    limits: PlanLimits = field(default_factory=PlanLimits)
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    power: PowerBudget = field(default_factory=PowerBudget)
    demands: tuple[PoolDemand, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowedPlans:
    """What the plans of one look ask for, and the plans themselves by planner."""

    intents: tuple[Intent, ...]
    plans: Mapping[str, Plan]


def follow(
    state: FleetState, planners: Iterable[str], dependencies: PlanDependencies, past: PlanHistory
) -> FollowedPlans:
    """Make the plans of `planners` anew and take from each what is to be done now.

    A plan is worth it where it gains more than it costs. Of a plan that moves work one step is taken, the one that the
    last look took where it is still part of the plan and can still come first. While a step of a planner is under way
    it takes no other.
    """
    wanted = [name for name in RULES if name in set(planners)]
    plans: dict[str, Plan] = {}
    intents: list[Intent] = []
    state = _with_scaling(state, past.scaled_ms)
    for name in wanted:
        plan, found = _FOLLOWERS[name](state, dependencies, past)
        plans[name] = plan
        intents += found
    return FollowedPlans(_one_each(intents), plans)


def _one_each(intents: Sequence[Intent]) -> tuple[Intent, ...]:
    """One intent for each subject and rule, and no work that two plans would move."""
    kept: dict[tuple[str, str], Intent] = {}
    moved: set[str] = set()
    for one in intents:
        if one.key in kept or (one.work and one.work in moved):
            continue
        kept[one.key] = one
        moved |= {one.work} - {""}
    return tuple(kept.values())


def _with_scaling(state: FleetState, scaled_ms: Mapping[str, int]) -> FleetState:
    changed = {
        name: replace(pool, changed_ms=max(filter(None, (pool.changed_ms, scaled_ms.get(name))), default=None))
        for name, pool in state.pools.items()
    }
    return replace(state, pools=changed)


def _moves(planner: str) -> Callable[[FleetState, PlanDependencies, PlanHistory], tuple[Plan, list[Intent]]]:
    def made(state: FleetState, dependencies: PlanDependencies, past: PlanHistory) -> tuple[Plan, list[Intent]]:
        plan = (defragment if planner == "defragment" else repack_mig)(state, dependencies.limits)
        rule = RULES[planner]
        if rule in past.running or plan.gain_gpu_hours <= plan.cost_gpu_hours:
            return plan, []
        step = _first(state, plan.steps, dependencies.limits, rule, past)
        steps = say_count(len(plan.steps), "step")
        figures = {"gain": f"{plan.gain_gpu_hours:.2f}", "cost": f"{plan.cost_gpu_hours:.2f}"}
        why = say("{steps} of this plan gain {gain} GPU-hours and cost {cost}", steps=steps, **figures)
        return plan, [] if step is None else _migrations(rule, state, step, why, plan)

    return made


def _first(state: FleetState, steps: Sequence[Step], limits: PlanLimits, rule: str, past: PlanHistory) -> Step | None:
    """The step that is to be taken now: that of the last look while it holds, else the first that need not wait."""
    able = [step for step in steps if step.moves and step.wait_s <= SOON_S and _can_begin(state, step, limits)]
    known = {one.subject.detail for one in past.before if one.rule == rule and one.work}
    kept = (step for step in able if _detail(state, step) in known)
    return next(kept, able[0] if able else None)


def _can_begin(state: FleetState, step: Step, limits: PlanLimits) -> bool:
    try:
        Simulation(state, limits.most_risk).do(step)
    except PlanBroken:
        return False
    return True


def _detail(state: FleetState, step: Step) -> str:
    moved = [move for move in step.moves if move.source != move.target]
    hosts = sorted({state.gpus[hold.gpu].host for move in moved for hold in move.target})
    places = sorted({f"{hold.gpu}@{hold.start}" for move in moved for hold in move.target if hold.start is not None})
    return f"{step.subject} to {', '.join(places or hosts)}"


def _migrations(rule: str, state: FleetState, step: Step, why: Phrase, plan: Plan) -> list[Intent]:
    """One step as an intent on the first GPU that its work leaves: managers move a job or a pod as a whole."""
    moved = [move for move in step.moves if move.source and move.source != move.target]
    if not moved:
        return []
    first, work = moved[0], state.works[moved[0].work]
    parameters = MigrateParameters(
        work=(work_of(work),),
        source=tuple(GpuPlace(hold.gpu, hold.start) for hold in first.source),
        target=tuple(GpuPlace(hold.gpu, hold.start) for hold in first.target),
        to_host=((state.gpus[first.target[0].gpu].host,),),
        gain_gpu_hours=round(step.gain_gpu_hours, 2),
        cost_gpu_hours=round(step.cost_gpu_hours, 2),
        plan_gain_gpu_hours=round(plan.gain_gpu_hours, 2),
        plan_cost_gpu_hours=round(plan.cost_gpu_hours, 2),
    )
    said = say("{step} {why}.", step=step.said, why=why)
    subject = subject_of_gpu(state, first.source[0].gpu, _detail(state, step))
    return [Intent(rule, subject, ActionKind.MIGRATE, said, parameters, work_of(work), state.simulated)]


def _scale_in(state: FleetState, dependencies: PlanDependencies, past: PlanHistory) -> tuple[Plan, list[Intent]]:
    plan = scale_in(state, dependencies.scaling, dependencies.limits)
    return plan, _scaling(RULES["scale_in"], state, plan, dependencies, past)


def _demand(state: FleetState, dependencies: PlanDependencies, past: PlanHistory) -> tuple[Plan, list[Intent]]:
    """Nodes that were asked for count only once they are there: until then a pool that has grown rests."""
    slow = max((pool.provision_s for pool in state.pools.values()), default=0.0)
    policy = replace(dependencies.scaling, out_rest_s=max(dependencies.scaling.out_rest_s, slow))
    plan = follow_demand(state, dependencies.demands, policy, dependencies.limits)
    return plan, _scaling(RULES["demand"], state, plan, dependencies, past)


def _scaling(
    rule: str, state: FleetState, plan: Plan, dependencies: PlanDependencies, past: PlanHistory
) -> list[Intent]:
    found: list[Intent] = []
    for pool, steps in _by_pool(state, plan.steps).items():
        last = steps[-1]
        if last.kind is StepKind.SCALE_OUT:
            found.append(_size(rule, ActionKind.SCALE_OUT, state, pool, last, int(last.amount)))
        elif last.kind is StepKind.SCALE_IN and _pays(state.pools[pool], steps, dependencies.limits):
            found += _emptied(rule, state, pool, steps, dependencies.limits, past)
    return found


def _by_pool(state: FleetState, steps: Iterable[Step]) -> dict[str, list[Step]]:
    """The steps of each pool in order: each ends with the change of its size."""
    found: dict[str, list[Step]] = {}
    open_: list[Step] = []
    for step in steps:
        open_.append(step)
        if step.kind in (StepKind.SCALE_OUT, StepKind.SCALE_IN):
            pool = step.subject if step.kind is StepKind.SCALE_OUT else state.nodes[step.subject].pool
            found.setdefault(pool, open_)
            open_ = []
    return found


def _pays(pool: Pool, steps: Sequence[Step], limits: PlanLimits) -> bool:
    """Whether a node less saves more GPU-hours over the horizon than its work loses by moving."""
    return pool.node_gpus * limits.horizon_h > math.fsum(step.cost_gpu_hours for step in steps)


def _emptied(
    rule: str, state: FleetState, pool: str, steps: Sequence[Step], limits: PlanLimits, past: PlanHistory
) -> list[Intent]:
    """The next move off the node that is to go, or the pool's change of size once nothing runs there."""
    if rule in past.running:
        return []
    last = steps[-1]
    moves = [step for step in steps if step.kind is StepKind.MOVE]
    if not moves:
        return [_size(rule, ActionKind.SCALE_IN, state, pool, last, 1)]
    step = _first(state, moves, limits, rule, past)
    if step is None:
        return []
    saved = state.pools[pool].node_gpus * limits.horizon_h
    template = "It empties {host}, which pool {pool} can do without: {saved} GPU-hours are saved"
    why = say(template, host=last.subject, pool=pool, saved=f"{saved:.0f}")
    whole = Plan("scale", "", tuple(steps), gain_gpu_hours=saved, cost_gpu_hours=sum(s.cost_gpu_hours for s in steps))
    return _migrations(rule, state, step, why, whole)


def _size(rule: str, action: ActionKind, state: FleetState, pool: str, step: Step, nodes: int) -> Intent:
    sign = "+" if action is ActionKind.SCALE_OUT else "-"
    context, gpus = DecisionContext(pool=pool), nodes * state.pools[pool].node_gpus
    parameters: ScaleParameters = ScaleOutParameters(context=context, nodes=nodes, gpus=gpus)
    if action is ActionKind.SCALE_IN:
        parameters = ScaleInParameters(context=context, nodes=nodes, gpus=gpus, node=step.subject)
    subject = Subject(SubjectKind.POOL, pool, pool=pool, detail=f"{sign}{counted(nodes, 'node')}")
    return Intent(rule, subject, action, step.said, parameters, simulated=state.simulated)


_FOLLOWERS: Mapping[str, Callable[[FleetState, PlanDependencies, PlanHistory], tuple[Plan, list[Intent]]]] = {
    "defragment": _moves("defragment"),
    "mig": _moves("mig"),
    "demand": _demand,
    "scale_in": _scale_in,
    "power": lambda state, dependencies, past: follow_power(state, dependencies.power, past.caps, past.held),
}
