"""Giving back: the inverse of an action, and when it is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.scope import affected, base_key, same_kind
from tocsin.actions.model.sentences import joined, named
from tocsin.actions.model.throttling import kind_of
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.follow_power import LIMIT_WATTS, WAS_WATTS
from tocsin.domain.decision import Decision
from tocsin.domain.finding import Category, Severity

Inverse = Callable[[Decision], Decision | None]

ASKED_BY = "asked_by"
"""Parameter of a recovery that a person asked for: its cause may be there still."""


def is_asked(decision: Decision) -> bool:
    """Whether a person asked for this recovery."""
    return ASKED_BY in decision.parameters


def inverse_of(decision: Decision) -> Decision | None:
    """The decision that undoes `decision`; None where nothing does.

    It keeps rule, subject and causes, so that the guards can see that the causes are gone. Mode, `at_ms` and
    `expires_ms` are those of the original; they are set anew when the inverse falls due.
    """
    action = ACTIONS[decision.action].inverse
    if action is None:
        return None
    key = f"{decision.key}|{action}"
    before = decision.parameters.get(WAS_WATTS)
    limit = {} if before is None else {LIMIT_WATTS: before}
    return replace(
        decision,
        action=action,
        severity=Severity.INFO,
        key=key,
        sentence=joined(
            f"{ACTIONS[action].verb} {named(decision.subject)}: the cause of its {decision.action} is gone"
        ),
        parameters={**decision.parameters, **limit, "cause": key, "undoes": decision.key},
    )


def due_recoveries(view: FleetView, inverse: Inverse) -> list[Decision]:
    """Inverses of lasting effects whose causes are all gone, where nothing else keeps the GPUs as they are.

    Nothing falls due while this brain only watches, for its rules may not have seen the causes yet. What was done
    about failing hardware stays until a person gives it back: the end of an error burst does not repair a GPU.
    """
    if view.now_ms < view.started_ms + view.policy.boot_grace_ms:
        return []
    lasting = [effect for effect in view.controls.effects.values() if ACTIONS[effect.action].inverse is not None]
    due: dict[str, Decision] = {}
    for effect in lasting:
        if any(_stays(other, view) and _related(effect, other, view) for other in lasting):
            continue
        undo = inverse(effect)
        if undo is not None:
            due.setdefault(f"{base_key(undo.subject)}|{undo.action}|{kind_of(undo.parameters)}", _dated(undo, view))
    return list(due.values())


def _stays(effect: Decision, view: FleetView) -> bool:
    live = any(identity in view.findings for identity in effect.findings)
    return live or effect.category is Category.HARDWARE or base_key(effect.subject) in view.controls.busy


def _related(one: Decision, other: Decision, view: FleetView) -> bool:
    """Whether undoing `one` would undo `other` as well."""
    if ACTIONS[one.action].inverse is not ACTIONS[other.action].inverse or not same_kind(one, other):
        return False
    if base_key(one.subject) == base_key(other.subject):
        return True
    mine = {member.gpu.uuid for member in affected(one, view)}
    return any(member.gpu.uuid in mine for member in affected(other, view))


def _dated(undo: Decision, view: FleetView) -> Decision:
    renewals = view.controls.renewals.get(undo.key, 0)
    return replace(
        undo,
        mode=view.policy.mode_of(undo.rule),
        at_ms=view.now_ms,
        expires_ms=view.now_ms + view.policy.time_box_ms,
        key=f"{undo.key}|{renewals + 1}" if renewals else undo.key,
    )
