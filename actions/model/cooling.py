"""What throttles bought in degrees, and whether their GPUs would be too hot without them."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.model.controls import Cooled
from tocsin.actions.model.goals import BegunAction, measure
from tocsin.actions.model.scope import base_key, gpus_of, same_kind
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, GoalSense
from tocsin.domain.finding import ActionKind

TEMPERATURE, THERMAL_MARGIN, LOAD = "gpu_temperature_celsius", "gpu_thermal_margin_celsius", "gpu_utilization_ratio"
HEAT = (TEMPERATURE, THERMAL_MARGIN)


def cooled_by(decision: Decision, before: Mapping[str, float], effect: Mapping[str, float]) -> Cooled | None:
    """What a throttle bought, by the readings at its start and the changes that its post-check measured; None where it
    bought nothing or nothing tells."""
    change = effect.get(f"{TEMPERATURE}_change", 0.0)
    return Cooled(-change, before.get(LOAD)) if decision.action is ActionKind.THROTTLE and change < 0.0 else None


def too_hot_without(effect: Decision, view: FleetView) -> float | None:
    """What the goal of a throttle in effect would measure without it, in the goal's unit, where that would miss it.

    None where the goal would be reached, is no temperature, or nothing shows it now. What all throttles of its kind on
    the subject bought comes back with it. Heat goes with the work (own model, a straight line): of what was bought as
    much comes back as there is load now against the load then.
    """
    goal = effect.goal
    if goal is None or goal.measure not in HEAT:
        return None
    now, back = measure(effect, goal, view, BegunAction()), _comes_back(effect, view)
    if now is None or not back:
        return None
    without = now + back if goal.sense is GoalSense.AT_MOST else now - back
    return None if goal.met(without) else without


def _comes_back(effect: Decision, view: FleetView) -> float:
    """Degrees Celsius that giving back `effect` would bring at the load that there is."""
    loads = [one.values[LOAD] for one in gpus_of(effect.subject, view) if LOAD in one.values]
    load = sum(loads) / len(loads) if loads else None
    effects, subject = view.controls.effects, base_key(effect.subject)
    bought = (
        cooled
        for key, cooled in view.controls.cooled.items()
        if key in effects and base_key(effects[key].subject) == subject and same_kind(effects[key], effect)
    )
    return sum(one.celsius * (1.0 if load is None or not one.load else min(1.0, load / one.load)) for one in bought)
