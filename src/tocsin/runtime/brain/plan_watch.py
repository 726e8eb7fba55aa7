"""The planners' look at the running fleet, beside the loop: a plan that takes seconds holds up no decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.scope import base_key
from tocsin.actions.planning.build import work_id
from tocsin.actions.planning.follow import PlanDependencies, PlanHistory, follow
from tocsin.actions.planning.foresight import PLANNED, Foresight
from tocsin.actions.planning.plan import RULES, Intent
from tocsin.actions.planning.power import Cap, PowerBudget
from tocsin.actions.planning.scaling import PoolDemand, demand_of
from tocsin.actions.planning.state import FleetState
from tocsin.config.planning import PlanningSettings
from tocsin.domain.decision import Decision, ThrottleParameters, ranks_in
from tocsin.domain.finding import ActionKind, Finding, SubjectKind
from tocsin.domain.reading import Owner
from tocsin.queries.fleet_state import limits_of, planned_state, policy_of
from tocsin.runtime.brain.brain import Brain

_REPACKING = frozenset({"defragment", "mig"})


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What planners go by beside the state: forecasts, what was decided before, what is found, who runs what."""

    demands: tuple[PoolDemand, ...] = ()
    controls: Controls = field(default_factory=Controls)
    active: Sequence[Finding] = ()
    owners: Mapping[str, tuple[Owner, ...]] = field(default_factory=dict)


class Planner:
    """Plans anew at each look. A step is proposed once two looks running want it, and no longer than looks want it."""

    def __init__(self, settings: PlanningSettings) -> None:
        self._settings = settings
        self._last: tuple[Intent, ...] = ()
        self._since: dict[tuple[str, str], int] = {}

    def look(self, state: FleetState, inputs: PlanInputs, now_ms: int) -> tuple[list[Finding], Foresight]:
        """What is to be done now, as causes that guards can look for, and what decisions are told."""
        settings, wanted = self._settings, frozenset(self._settings.follow)
        facility = settings.facility_watts or math.inf
        power = PowerBudget(facility, settings.rack_watts)
        dependencies = PlanDependencies(limits_of(settings), policy_of(settings), power, inputs.demands)
        past = _past(self._last, inputs.controls)
        # A rule that wants GPUs defragmented is told what the plan would move.
        asked = any(one.action is ActionKind.DEFRAGMENT and one.rule not in PLANNED for one in inputs.active)
        made = follow(state, wanted | _REPACKING if asked else wanted, dependencies, past)
        intents = tuple(one for one in made.intents if one.rule in {RULES[name] for name in wanted})
        standing = {(one.rule, one.subject.key) for one in inputs.active}
        # A limit that stands is no news: a new brain would give it back before its second look.
        known = {one.key for one in self._last} | standing | {(RULES["power"], cap.subject.key) for cap in past.caps}
        agreed = [one for one in intents if one.key in known]
        self._since = {one.key: self._since.get(one.key, now_ms) for one in agreed}
        self._last = intents
        found = [one.as_finding(self._since[one.key], now_ms, inputs.owners.get(one.work, ())) for one in agreed]
        return found, Foresight({one.key: one.parameters for one in agreed}, state, made.plans, dependencies.limits)


class PlanWatch:
    """The planner's looks at a running brain."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._planner = Planner(brain.settings.planning)

    def look(self) -> None:
        """One look: from now on the brain's proposals are what it found."""
        brain = self._brain
        brain.managers.look_at_work()
        now_ms = brain.clock.now_ms()
        state = planned_state(brain, now_ms)
        demands = tuple(demand_of(brain.forecasts.current(now_ms), state))
        inputs = PlanInputs(demands, brain.actions.controls(), tuple(brain.active), _owners(brain))
        brain.proposals.findings, brain.proposals.foresight = self._planner.look(state, inputs, now_ms)


def _owners(brain: Brain) -> Mapping[str, tuple[Owner, ...]]:
    """Processes by the id of their work, and by that of the gang which it is a part of."""
    facts = brain.managers.work().facts
    found: dict[str, list[Owner]] = {}
    for reading in brain.memory.latest():
        for owner in reading.owners:
            name = work_id(owner)
            gang = facts[name].gang if name in facts else ""
            for one in {name, gang} - {""}:
                found.setdefault(one, []).append(owner)
    return {name: tuple(owners) for name, owners in found.items()}


def _past(last: tuple[Intent, ...], controls: Controls) -> PlanHistory:
    effects = [one for one in controls.effects.values() if one.rule in PLANNED]
    throttles = [one for one in controls.effects.values() if one.action is ActionKind.THROTTLE]
    held = frozenset(gpu for one in throttles if one.rule not in PLANNED for gpu in _gpus(one))
    scaled: dict[str, int] = {}
    for (subject, action), starts in controls.attempts.items():
        kind, _, pool = subject.partition(":")
        if kind == SubjectKind.POOL and starts and action in (ActionKind.SCALE_OUT, ActionKind.SCALE_IN):
            scaled[pool] = max(scaled.get(pool, 0), *starts)
    running = frozenset(one.rule for one in effects if base_key(one.subject) in controls.busy)
    return PlanHistory(last, running, tuple(_cap(one) for one in throttles if one.rule in PLANNED), held, scaled)


def _cap(effect: Decision) -> Cap:
    asked = effect.parameters if isinstance(effect.parameters, ThrottleParameters) else ThrottleParameters()
    return Cap(effect.subject, _gpus(effect), asked.was_watts or 0.0, asked)


def _gpus(throttle: Decision) -> tuple[str, ...]:
    return tuple(rank.gpu for rank in ranks_in(throttle.parameters)) or (throttle.subject.name,)
