"""What throttles bought in degrees, and whether their GPUs would be too hot without them."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.model.controls import Cooled
from tocsin.actions.model.goals import BegunAction, measure
from tocsin.actions.model.scope import base_key, gpus_of, same_kind
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import DAY
from tocsin.domain.decision import Decision, GoalSense
from tocsin.domain.finding import ActionKind

TEMPERATURE, MEMORY_TEMPERATURE = "gpu_temperature_celsius", "gpu_memory_temperature_celsius"
LOAD = "gpu_utilization_ratio"
HEAT = {
    TEMPERATURE: TEMPERATURE,
    MEMORY_TEMPERATURE: MEMORY_TEMPERATURE,
    "gpu_thermal_margin_celsius": TEMPERATURE,
}
"""Measures of goals that are temperatures, and the metric whose change says what was bought."""
BELIEVED_MS = DAY
"""For so long what a throttle bought is believed (own choice): air that came back beside it looks like its doing, and a
restore tells."""


def is_for_heat(decision: Decision) -> bool:
    """Whether a throttle is to bring a temperature down."""
    return decision.action is ActionKind.THROTTLE and decision.goal is not None and decision.goal.measure in HEAT


def cooled_by(decision: Decision, before: Mapping[str, float], effect: Mapping[str, float]) -> Cooled | None:
    """What a throttle bought, by the readings at its start and the changes that its post-check measured; None where it
    bought nothing or nothing tells."""
    if decision.goal is None or not is_for_heat(decision):
        return None
    change = effect.get(f"{HEAT[decision.goal.measure]}_change", 0.0)
    return Cooled(-change, before.get(LOAD)) if change < 0.0 else None


def too_hot_without(effect: Decision, view: FleetView) -> float | None:
    """What the goal of a throttle in effect would measure without it, in the goal's unit, where that would miss it.

    None where the goal would be reached, is no temperature, nothing shows it now, or the throttle has stood for
    `BELIEVED_MS`. What all throttles of its kind on the subject bought comes back with it. Heat goes with the work (own
    model, a straight line): of what was bought as much comes back as there is load now against the load then. More
    load than then counts as much: how much more heat it would be was never seen.
    """
    goal, started_ms = effect.goal, view.controls.started.get(effect.key)
    if goal is None or not is_for_heat(effect) or (started_ms is not None and view.now_ms - started_ms >= BELIEVED_MS):
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
