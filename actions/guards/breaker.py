"""The breaker: many different causes at once are not many faults but one mistake of ours, or of the fleet."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision


@guard("breaker", 180, Applies.FORWARD)
def breaker(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is the breaker closed; restore and uncordon may run also while it is tripped."""
    tripped = view.controls.breaker
    if tripped is None:
        return None
    return Hold(
        f"the breaker tripped at {to_iso(tripped.at_ms)} on {len(tripped.causes)} root causes; "
        "a person closes it with tocsin breaker reset"
    )
