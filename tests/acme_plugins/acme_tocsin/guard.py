"""Guard ``acme_freeze``: no disruptive action of a rule that the change board has frozen."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision

FROZEN_RULE_PREFIX = "acme_"


@guard("acme_freeze", 900, Applies.DISRUPTIVE)
def acme_freeze(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is the rule none of those that the site has frozen."""
    if decision.rule.startswith(FROZEN_RULE_PREFIX):
        return Hold(f"rule {decision.rule} is frozen by the change board")
    return None
