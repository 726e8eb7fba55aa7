"""Whether the work that would leave has somewhere to go."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.scope import moves_nothing
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.foresight import PLANNED
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind, Subject
from tocsin.domain.phrase import Phrase, say


def obstacle(
    action: ActionKind, rule: str, subject: Subject, deadline_ms: int | None, view: FleetView
) -> Phrase | None:
    """Why the work on `subject` cannot leave now; None where it can, or nobody knows.

    Planners look for a place before they ask for a move. A machine that is taken away at `deadline_ms` takes its work
    with it: what leaves without a place loses nothing by it.
    """
    if action is not ActionKind.MIGRATE or rule in PLANNED or deadline_ms is not None:
        return None
    return view.foresight.leaving(subject).obstacle


def nothing_to_move(decision: Decision, view: FleetView) -> Phrase | None:
    """Why a pool or the fleet cannot be defragmented: its decision names no work to move; None where it does."""
    if not moves_nothing(decision):
        return None
    plan = view.foresight.plans.get("defragment")
    if plan is None:
        return say("no plan has been made yet")
    if plan.steps:
        return say("it names no work to move yet; the plan now: {plan}", plan=plan.said)
    return say("no move gains more than it costs")


@guard("place", 115, Applies.DISRUPTIVE)
def place(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has the work that would be moved a place to go to, and may it leave; and is there any."""
    context = decision.parameters.context
    why = obstacle(decision.action, decision.rule, decision.subject, context.deadline_ms, view)
    why = why or nothing_to_move(decision, view)
    return Hold(why) if why else None
