"""The executor that changes nothing: the journal says what would have been done."""

from __future__ import annotations

from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, went
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind
from tocsin.domain.phrase import say


class JournalOnly(ExecutorBase):
    """Supports every action and does none."""

    name = "journal_only"
    resumable = True

    def supports(self, action: ActionKind) -> bool:
        return True

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        return went(True, say("recorded only, nothing was changed"), lasting=False)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        return None


def build(dependencies: Dependencies) -> Executor:
    """Executor `journal_only` by the settings; raises InputError or Unavailable where it cannot be had."""
    return JournalOnly()
