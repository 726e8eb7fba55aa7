"""Plans for people who look: made of the live state, shown, and never carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.actions.planning.defragment import defragment, repack_mig
from tocsin.actions.planning.placement import place
from tocsin.actions.planning.plan import Plan, Refusal, Step
from tocsin.actions.planning.power import PowerBudget, power_caps
from tocsin.actions.planning.scaling import ScalingPolicy, replace_before_drain, scale_in
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import TEMPLATES, FleetState, GpuMode
from tocsin.actions.planning.units import PlanLimits
from tocsin.client.models_capacity import HostChange, MigChange, Planner, PlanOut, PlansOut, RefusalOut, StepOut
from tocsin.domain.clock import to_iso
from tocsin.domain.grouping import grouped
from tocsin.queries.background import BackgroundTasks
from tocsin.queries.fleet_state import limits_of, planned_state, policy_of
from tocsin.queries.live import LiveBrain

STEPS, REASONS, CHANGES = 100, 20, 40
"""Most steps, reasons, and hosts or GPUs that one plan shows."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a planner is asked, fit to be sent to another process."""

    planner: Planner
    state: FleetState
    limits: PlanLimits
    policy: ScalingPolicy
    power: PowerBudget


def make_plans(ask: PlanRequest) -> list[PlanOut]:
    """The plans of one planner; the same as `tocsin plan` makes."""
    return [plan_out(plan, ask.state, ask.limits) for plan in _plans(ask)]


_MOVES = {"defragment": defragment, "mig": repack_mig, "place": place}


def _plans(ask: PlanRequest) -> list[Plan]:
    state, limits = ask.state, ask.limits
    if ask.planner in _MOVES:
        return [_MOVES[ask.planner](state, limits)]
    if ask.planner == "power":
        return [power_caps(state, ask.power)]
    risky = [node for node in state.nodes.values() if node.schedulable and node.risk > limits.most_risk]
    hosts = tuple(node.host for node in sorted(risky, key=lambda node: (-node.risk, node.host)))
    drained = [replace_before_drain(state, hosts, limits)] if hosts else []
    return [*drained, scale_in(state, ask.policy, limits)]


def plans_now(brain: LiveBrain, tasks: BackgroundTasks, planner: Planner) -> PlansOut:
    """What a planner would do now, worked out in the background. Raises Unavailable until it is."""
    made = tasks.ask(f"the plan of {planner}", _answer, lambda: _ask(brain, planner))
    at_ms, plans = made.value
    return PlansOut(
        planner=planner, now=to_iso(brain.clock.now_ms()), at=to_iso(at_ms), took_s=made.took_s, plans=plans
    )


def _ask(brain: LiveBrain, planner: Planner) -> PlanRequest:
    settings = brain.settings.planning
    budget = PowerBudget(settings.facility_watts or float("inf"), settings.rack_watts)
    state = planned_state(brain, brain.clock.now_ms())
    return PlanRequest(planner, state, limits_of(settings), policy_of(settings), budget)


def _answer(ask: PlanRequest) -> tuple[int, list[PlanOut]]:
    return ask.state.at_ms, make_plans(ask)


def plan_out(plan: Plan, state: FleetState, limits: PlanLimits) -> PlanOut:
    """A plan as the API shows it, with what it changes on hosts and MIG GPUs."""
    after = Simulation(state, limits.most_risk).run(plan.steps)
    touched = _touched(plan.steps)
    return PlanOut(
        kind=plan.kind,
        sentence=plan.sentence,
        sentence_zh=plan.sentence_zh,
        steps=[_step_out(step) for step in plan.steps[:STEPS]],
        steps_total=len(plan.steps),
        refused=refusals(plan.refused),
        before=_finite(plan.before),
        after=_finite(plan.after),
        gain_gpu_hours=plan.gain_gpu_hours,
        cost_gpu_hours=plan.cost_gpu_hours,
        horizon_h=plan.horizon_h,
        hosts=_hosts(touched, state, after),
        mig=_mig(touched, state, after),
        simulated=plan.simulated,
    )


def _step_out(step: Step) -> StepOut:
    return StepOut(
        kind=step.kind.value,
        subject=step.subject,
        sentence=step.sentence,
        sentence_zh=step.sentence_zh,
        wait_s=step.wait_s,
        asks=step.asks,
        gain_gpu_hours=step.gain_gpu_hours,
        cost_gpu_hours=step.cost_gpu_hours,
    )


def refusals(refused: Iterable[Refusal]) -> list[RefusalOut]:
    """By reason, the commonest first."""
    by_reason = grouped((one.reason, one) for one in refused)
    commonest = sorted(by_reason.items(), key=lambda item: -len(item[1]))[:REASONS]
    return [
        RefusalOut(reason=why, reason_zh=alike[0].reason_zh, first=alike[0].subject, count=len(alike))
        for why, alike in commonest
    ]


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if abs(value) != float("inf")}


def _touched(steps: Sequence[Step]) -> list[str]:
    """GPUs that work leaves or comes to, in order."""
    moves = [move for step in steps for move in step.moves]
    return list(dict.fromkeys(hold.gpu for move in moves for hold in (*move.source, *move.target)))


def _hosts(touched: Iterable[str], state: FleetState, after: FleetState) -> list[HostChange]:
    both = [uuid for uuid in touched if uuid in state.gpus and uuid in after.gpus]
    hosts = dict.fromkeys(state.gpus[uuid].host for uuid in both if state.gpus[uuid].mode is not GpuMode.MIG)
    return [
        HostChange(
            host=host,
            gpus=len(state.by_host[host]),
            free_before=sum(state.free_node(host).free),
            free_after=sum(after.free_node(host).free),
        )
        for host in list(hosts)[:CHANGES]
    ]


def _mig(touched: Iterable[str], state: FleetState, after: FleetState) -> list[MigChange]:
    gpus = [uuid for uuid in touched if uuid in state.gpus and state.gpus[uuid].mode is GpuMode.MIG]
    return [
        MigChange(
            gpu=uuid,
            host=state.gpus[uuid].host,
            slices=TEMPLATES[state.gpus[uuid].template].memory_slices,
            before=list(state.layout(uuid)),
            after=list(after.layout(uuid)),
        )
        for uuid in gpus[:CHANGES]
    ]
