"""Executor ``acme_ticket``: opens a ticket for a reboot, once a decision."""

from __future__ import annotations

from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind


class Ticket:
    """`done` has the keys of the tickets that were opened."""

    name = "acme_ticket"
    resumable = True

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self.done: dict[str, str] = {}

    def supports(self, action: ActionKind) -> bool:
        return action in (ActionKind.DRAIN, ActionKind.REBOOT_NODE, ActionKind.UNCORDON)

    def serves(self, decision: Decision) -> bool:
        return True

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        if decision.simulated:
            return Verdict(PRE_CHECK, Ruling.DENY, "no ticket for a simulated GPU")
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        if self._dry_run:
            return ExecutionResult(True, f"dry run: would open a ticket: {decision.sentence}", lasting=False)
        self.done.setdefault(decision.key, decision.sentence)
        return ExecutionResult(True, f"ticket {len(self.done)} is open")

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        return True

    def inverse(self, decision: Decision) -> Decision | None:
        return inverse_of(decision)


def build(dependencies: Dependencies) -> Ticket:
    """What the entry point names."""
    return Ticket(dry_run=dependencies.settings.actions.dry_run)
