"""Power limits step by step: which are to be lowered now, which must stay, which can be given back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tocsin.actions.planning.intent import RULES, Intent, subject_of_gpu
from tocsin.actions.planning.plan import Plan, Step
from tocsin.actions.planning.power import PowerBudget, power_caps
from tocsin.actions.planning.state import FleetState
from tocsin.domain.action_parameters import ThrottleParameters
from tocsin.domain.finding import ActionKind
from tocsin.domain.subject import Subject

GRAIN_W = 10
"""Limits are asked for in steps of so many watts, so that small shifts of the plan change no decision (own choice)."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A power limit that a decision has set: on `gpus` (all ranks of a job), to be given back up to `was_watts`."""

    subject: Subject
    gpus: tuple[str, ...]
    was_watts: float
    parameters: ThrottleParameters = field(default_factory=ThrottleParameters)


def follow_power(
    state: FleetState, budget: PowerBudget, caps: Sequence[Cap], held: Iterable[str] = ()
) -> tuple[Plan, list[Intent]]:
    """The plan as if nothing had been limited yet, and what it asks for now.

    A limit that stands stays while that plan wants one on any of its GPUs, and as long as the budgets would not hold
    without it; so nothing swings. While a GPU is lost, none is given back: what it draws is in no sum. Where the
    present limits break a budget others give way: a GPU takes one order at a time, so a limit that stands is lowered no
    further, nor are the GPUs that are `held` by orders of other rules.
    """
    plan = power_caps(_uncapped(state, caps), budget)
    lowered = {step.subject for step in plan.steps}
    kept = [cap for cap in caps if not lowered.isdisjoint(cap.gpus)]
    given_back = [cap for cap in caps if cap not in kept]
    lost = any(not slot.healthy and slot.limit_watts is None for slot in state.gpus.values())
    if lost or not _holds(_uncapped(state, given_back), budget):
        kept = list(caps)
    intents = [_keep(cap, state) for cap in kept]
    present = power_caps(_pinned(state, [*held, *(uuid for cap in kept for uuid in cap.gpus)]), budget)
    return plan, [*intents, *_lower(state, present.steps)]


def _uncapped(state: FleetState, caps: Iterable[Cap]) -> FleetState:
    was: dict[str, float] = {}
    for cap in caps:
        for uuid in cap.gpus:
            was[uuid] = max(was.get(uuid, 0.0), cap.was_watts)
    slots = [state.gpus[uuid] for uuid in was if uuid in state.gpus]
    raised = [replace(one, limit_watts=max(was[one.uuid], one.limit_watts or 0.0)) for one in slots]
    return state.with_nodes([], raised)


def _pinned(state: FleetState, gpus: Iterable[str]) -> FleetState:
    """The state in which the limits of `gpus` can fall no further."""
    slots = [state.gpus[uuid] for uuid in gpus if uuid in state.gpus]
    return state.with_nodes([], [replace(slot, least_watts=slot.limit_watts) for slot in slots])


def _holds(state: FleetState, budget: PowerBudget) -> bool:
    watts: dict[str, float] = {}
    for slot in state.gpus.values():
        if slot.limit_watts is not None and slot.least_watts is not None:
            for name in {"", state.nodes[slot.host].rack}:
                watts[name] = watts.get(name, 0.0) + slot.limit_watts
    limits = {**budget.racks, "": budget.facility}
    return all(value <= limits.get(name, math.inf) + 1e-6 for name, value in watts.items())


def _keep(cap: Cap, state: FleetState) -> Intent:
    watts = f"{cap.parameters.power_limit_watts or 0.0:.0f} W"
    sentence = f"Keep the power limit of {cap.subject.name} at {watts}: the power budget would not hold without it."
    return Intent(RULES["power"], cap.subject, ActionKind.THROTTLE, sentence, cap.parameters, simulated=state.simulated)


def _lower(state: FleetState, steps: Sequence[Step]) -> list[Intent]:
    """One intent for each job, since all ranks of a job are limited alike, and for each GPU without one."""
    seen: set[str] = set()
    made = []
    for step in sorted(steps, key=lambda one: one.subject):
        jobs = {work.gang or work.id for work in state.on_gpu.get(step.subject, ())} or {step.subject}
        name = min(jobs)
        if len(jobs) == 1 and name in seen:
            continue
        seen.add(name)
        made.append(_limit(state, step))
    return made


def _limit(state: FleetState, step: Step) -> Intent:
    slot = state.gpus[step.subject]
    assert slot.limit_watts is not None
    assert slot.least_watts is not None
    watts = max(math.ceil(slot.least_watts), int(step.amount) // GRAIN_W * GRAIN_W)
    sentence = (
        f"Lower the power limit of {slot.uuid} on {slot.host} from {slot.limit_watts:.0f} to {watts} W: the limits "
        "together are above the power budget."
    )
    return Intent(
        RULES["power"],
        subject_of_gpu(state, slot.uuid, f"{watts} W"),
        ActionKind.THROTTLE,
        sentence,
        ThrottleParameters(power_limit_watts=watts, was_watts=round(slot.limit_watts)),
        simulated=state.simulated,
    )
