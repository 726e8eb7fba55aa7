"""Giving back: the inverse of an action, and when it is due."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.actions.catalogue import ACTIONS, is_recovery
from tocsin.actions.sentences import joined, named
from tocsin.actions.view import FleetView
from tocsin.domain.decision import Decision
from tocsin.domain.finding import Category, Severity

Inverse = Callable[[Decision], Decision | None]


def inverse_of(decision: Decision) -> Decision | None:
    """The decision that undoes `decision`; None where nothing does.

    It keeps rule, mode, time box and causes, so that the guards can see that the causes are gone. `at_ms` and
    `expires_ms` are those of the original and are set anew when the inverse falls due.
    """
    action = ACTIONS[decision.action].inverse
    if action is None:
        return None
    return Decision(
        rule=decision.rule,
        subject=decision.subject,
        action=action,
        mode=decision.mode,
        severity=Severity.INFO,
        category=decision.category,
        at_ms=decision.at_ms,
        expires_ms=decision.expires_ms,
        key=f"{decision.key}|{action}",
        sentence=joined(f"{ACTIONS[action].verb} {named(decision.subject)}: the cause of its {decision.action} is gone"),
        findings=decision.findings,
        incident=decision.incident,
        parameters={**decision.parameters, "cause": f"{decision.key}|{action}", "undoes": decision.key},
        simulated=decision.simulated,
    )


def due_recoveries(view: FleetView, inverse: Inverse) -> list[Decision]:
    """Inverses of lasting effects whose causes are all gone.

    Nothing falls due while this brain only watches, for its rules may not have seen the causes yet. What was done
    about failing hardware stays until a person gives it back: the end of an error burst does not repair a GPU.
    """
    if view.now_ms < view.started_ms + view.policy.boot_grace_ms:
        return []
    busy = set(view.controls.busy)
    due = []
    for effect in view.controls.effects.values():
        over = not any(identity in view.findings for identity in effect.findings)
        if not over or is_recovery(effect.action) or effect.category is Category.HARDWARE:
            continue
        undo = inverse(effect)
        if undo is not None and f"{undo.subject.kind}:{undo.subject.name}" not in busy:
            due.append(_dated(undo, view))
    return due


def _dated(undo: Decision, view: FleetView) -> Decision:
    renewals = view.controls.renewals.get(undo.key, 0)
    return Decision(
        rule=undo.rule,
        subject=undo.subject,
        action=undo.action,
        mode=view.policy.mode_of(undo.rule),
        severity=undo.severity,
        category=undo.category,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + view.policy.time_box_ms,
        key=f"{undo.key}|{renewals + 1}" if renewals else undo.key,
        sentence=undo.sentence,
        findings=undo.findings,
        incident=undo.incident,
        parameters=undo.parameters,
        simulated=undo.simulated,
    )
