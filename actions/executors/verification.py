"""The post-check that executors without eyes of their own share."""

from __future__ import annotations

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.scope import affected, gpus_of
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.follow_power import LIMIT_WATTS
from tocsin.actions.planning.foresight import PLANNED
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind

_LIMIT = "gpu_power_limit_watts"
_TOLERANCE_W = 1.0
"""Boards round limits (own choice)."""


def seen_in(decision: Decision, view: FleetView) -> bool | None:
    """Whether `view` shows that the decision took effect.

    A cure is seen by its cause being gone, a removal from service by all its GPUs being out of service. What can be
    seen neither way gives None: the end of the cause proves nothing about a cordon. A power limit that a plan wants is
    seen in the limit itself: the plan goes on wanting it.
    """
    spec = ACTIONS[decision.action]
    if "before" in decision.parameters:
        # A pool that grows before something is taken away: the cause stays until that has happened.
        return None
    root = decision.findings[0] if decision.findings else ""
    if decision.rule in PLANNED and decision.action is ActionKind.THROTTLE:
        return _is_limited(decision, view)
    if spec.cures:
        return root not in view.findings
    members = affected(decision, view)
    if spec.scope is Scope.HOST and members and all(member.under_action for member in members):
        return True
    return None


def _is_limited(decision: Decision, view: FleetView) -> bool | None:
    wanted = float(decision.parameters.get(LIMIT_WATTS, "inf"))
    limits = [found for one in gpus_of(decision.subject, view) if (found := one.values.get(_LIMIT)) is not None]
    return all(limit <= wanted + _TOLERANCE_W for limit in limits) if limits else None
