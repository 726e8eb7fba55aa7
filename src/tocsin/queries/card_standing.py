"""How near a decision is to doing something, by which cards choose the one that they are about."""

from __future__ import annotations

from tocsin.actions.model.ledger_entry import SELECTION, WAITING, DecisionStatus
from tocsin.domain.decision import DecisionState
from tocsin.queries.card_words import against

RUNS = (DecisionState.EXECUTING, DecisionState.VERIFYING)
BLOCKED, ENDED, PASSED_OVER = 3, 4, 5
"""Standing of a decision that is wanted and that something else than a person's yes holds; of one that has ended; of
one that the state does not ask for any more."""


def standing(status: DecisionStatus) -> int:
    """How near a decision is to doing something: 0 runs, 1 waits for a yes alone, 2 starts, then `BLOCKED` and on."""
    if status.state in RUNS:
        return 0
    if status.waits_for_person:
        return 1
    if status.state not in WAITING:
        return ENDED
    stopped = against(status.verdicts)
    if any(verdict.guard == SELECTION for verdict in stopped):
        return PASSED_OVER
    return BLOCKED if stopped else 2
