"""Giving back: the inverse of an action, and when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.cooling import too_hot_without
from tocsin.actions.model.scope import affected, base_key
from tocsin.actions.model.sentences import deed, joined
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import (
    ActionParameters,
    Decision,
    RecoveryParameters,
    RestoreParameters,
    ThrottleKind,
    asked_by,
    parameters_of,
)
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.parameters import encode

Inverse = Callable[[Decision], Decision | None]


def is_asked(decision: Decision) -> bool:
    """Whether a person asked for this recovery."""
    return bool(asked_by(decision.parameters))


def inverse_of(decision: Decision) -> Decision | None:
    """The decision that undoes `decision`; None where nothing does.

    It keeps rule, subject and causes, so that the guards can see that the causes are gone. Mode, `at_ms` and
    `expires_ms` are those of the original; they are set anew when the inverse falls due.
    """
    action = ACTIONS[decision.action].inverse
    if action is None:
        return None
    key = f"{decision.key}|{action}"
    undo = deed(action, decision.subject, decision.sentence.removeprefix(f"{ACTIONS[decision.action].verb} "))
    return replace(
        decision,
        action=action,
        severity=Severity.INFO,
        key=key,
        sentence=joined(f"{undo[0].upper()}{undo[1:]}: the cause of its {decision.action} is gone"),
        parameters=_inverse_parameters(decision.parameters, action, key, decision.key),
        goal=None,
    )


def _inverse_parameters(done: ActionParameters, action: ActionKind, cause: str, undoes: str) -> ActionParameters:
    """What was known of the action and of its cause is known of its inverse."""
    made = parameters_of(action, encode(done))
    if not isinstance(made, RecoveryParameters):
        return replace(made, cause=cause)
    made = replace(made, cause=cause, undoes=undoes)
    if isinstance(made, RestoreParameters) and made.was_watts is not None:
        made = replace(made, power_limit_watts=made.was_watts)
    return made


def due_recoveries(view: FleetView, inverse: Inverse) -> list[Decision]:
    """Inverses of lasting effects whose causes are all gone, where nothing else keeps the GPUs as they are.

    A throttle takes its own cause away: it stays while its GPUs would be too hot again without it.
    Nothing falls due while this brain only watches, for its rules may not have seen the causes yet. What was done
    about failing hardware stays until a person gives it back: the end of an error burst does not repair a GPU.
    """
    if view.now_ms < view.started_ms + view.policy.boot_grace_ms:
        return []
    lasting = [effect for effect in view.controls.effects.values() if ACTIONS[effect.action].inverse is not None]
    held = _held(lasting, view)
    due: dict[str, Decision] = {}
    for effect in lasting:
        if not held.get(_way_back(effect), frozenset()).isdisjoint(_touched(effect, view)):
            continue
        undo = inverse(effect)
        if undo is not None:
            due.setdefault(
                f"{base_key(undo.subject)}|{undo.action}|{undo.parameters.throttle_kind}", _dated(undo, view)
            )
    return list(due.values())


def _held(lasting: Iterable[Decision], view: FleetView) -> dict[tuple[ActionKind | None, ThrottleKind], set[str]]:
    """What the effects that stay hold, by their way back: undoing another effect of that way on it would undo them."""
    held: dict[tuple[ActionKind | None, ThrottleKind], set[str]] = {}
    for effect in lasting:
        if _stays(effect, view):
            held.setdefault(_way_back(effect), set()).update(_touched(effect, view))
    return held


def _stays(effect: Decision, view: FleetView) -> bool:
    live = any(identity in view.findings for identity in effect.findings) or too_hot_without(effect, view) is not None
    return live or effect.category is Category.HARDWARE or base_key(effect.subject) in view.controls.busy


def _way_back(effect: Decision) -> tuple[ActionKind | None, ThrottleKind]:
    return ACTIONS[effect.action].inverse, effect.parameters.throttle_kind


def _touched(effect: Decision, view: FleetView) -> set[str]:
    """The subject's key, which has a colon, and the UUIDs of the whole GPUs that it touches."""
    return {base_key(effect.subject), *(member.gpu.uuid for member in affected(effect, view))}


def _dated(undo: Decision, view: FleetView) -> Decision:
    renewals = view.controls.renewals.get(undo.key, 0)
    return replace(
        undo,
        mode=view.policy.mode_of(undo.rule, undo.action, simulated=undo.simulated),
        at_ms=view.now_ms,
        expires_ms=view.now_ms + view.policy.time_box_ms,
        key=f"{undo.key}|{renewals + 1}" if renewals else undo.key,
    )
