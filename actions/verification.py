"""The post-check that executors without eyes of their own share."""

from __future__ import annotations

from tocsin.actions.catalogue import ACTIONS, Scope
from tocsin.actions.reach import affected
from tocsin.actions.view import FleetView
from tocsin.domain.decision import Decision


def seen_in(decision: Decision, view: FleetView) -> bool | None:
    """Whether `view` shows that the decision took effect.

    A cure is seen by its cause being gone, a removal from service by all its GPUs being out of service. What can be
    seen neither way gives None: the end of the cause proves nothing about a cordon.
    """
    spec = ACTIONS[decision.action]
    if "before" in decision.parameters:
        # A pool that grows before something is taken away: the cause stays until that has happened.
        return None
    root = decision.findings[0] if decision.findings else ""
    if spec.cures:
        return root not in view.findings
    members = affected(decision, view)
    if spec.scope is Scope.HOST and members and all(member.under_action for member in members):
        return True
    return None
