"""Carrying out: begun in the journal before it begins in the world, checked when settled, ended exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.actions.book import Book
from tocsin.actions.catalogue import ACTIONS, is_recovery
from tocsin.actions.executors.protocol import PRE_CHECK, Executor
from tocsin.actions.record import Record
from tocsin.actions.recovery import inverse_of
from tocsin.actions.view import FleetView
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, DecisionState, Outcome, OutcomeStatus, Ruling, Verdict
from tocsin.domain.finding import ActionKind
from tocsin.journal.kinds import EntryKind

INTERRUPTED = "interrupted: whether it took effect is unknown, it is not done again"


class Execution:
    """Runs decisions through the first executor that supports them."""

    def __init__(self, book: Book, executors: Sequence[Executor], clock: Clock) -> None:
        self._book = book
        self._executors = tuple(executors)
        self._clock = clock
        self._since: dict[str, float] = {}

    def executor_for(self, action: ActionKind) -> Executor | None:
        """Who carries out `action`; None where nobody does."""
        return next((each for each in self._executors if each.supports(action)), None)

    def inverse(self, decision: Decision) -> Decision | None:
        """What undoes `decision`, by the executor that did it or would do it now."""
        executor = self.executor_for(decision.action)
        return inverse_of(decision) if executor is None else executor.inverse(decision)

    def pre_check(self, decision: Decision, view: FleetView) -> Verdict:
        """The executor's own verdict."""
        executor = self.executor_for(decision.action)
        if executor is None:
            return Verdict(PRE_CHECK, Ruling.HOLD, f"no executor carries out {decision.action}")
        return executor.check(decision, view)

    def begin(self, record: Record) -> None:
        """Record the start. From here on the key is used up, whatever happens to this process."""
        executor = self.executor_for(record.decision.action)
        self._book.started(record.decision, "" if executor is None else executor.name)

    def carry_out(self, record: Record) -> None:
        """Do it, and record that it is done or has failed."""
        executor = self._named(record)
        if executor is None:
            return
        result = executor.execute(record.decision)
        if not result.ok:
            stays = ACTIONS[record.decision.action].lasting and not result.certain
            self._end(
                record, OutcomeStatus.FAILED, result.detail, result.attempts, in_effect=stays, renew=result.certain
            )
            return
        self._since[record.decision.key] = self._clock.monotonic()
        self._book.about(
            EntryKind.VERIFICATION,
            record.decision,
            phase="due",
            detail=result.detail,
            attempts=result.attempts,
            lasting=result.lasting and ACTIONS[record.decision.action].lasting,
        )

    def verify_settled(self, view: FleetView) -> None:
        """Post-check what has had its settle time.

        The time is counted on the monotonic scale of this process: a step of the wall clock does not shorten it, and a
        restart begins it anew.
        """
        for record in self._in(DecisionState.VERIFYING):
            since = self._since.setdefault(record.decision.key, self._clock.monotonic())
            if not record.checked and self._clock.monotonic() - since >= view.policy.settings.settle_seconds:
                executor = self._named(record)
                seen = None if executor is None else executor.verify(record.decision, view)
                self._book.about(EntryKind.VERIFICATION, record.decision, phase="checked", seen=seen)
            if record.checked:
                self._since.pop(record.decision.key, None)
                self._conclude(record)

    def settle_interrupted(self) -> None:
        """End what a killed process, or a step that broke off, had begun: its effect is unknown, it is not repeated."""
        for record in self._in(DecisionState.EXECUTING):
            lasting = ACTIONS[record.decision.action].lasting
            self._end(record, OutcomeStatus.FAILED, INTERRUPTED, 1, in_effect=lasting, renew=False)

    def _conclude(self, record: Record) -> None:
        if record.seen is False:
            detail = f"{record.detail}; its effect is not seen"
            self._end(record, OutcomeStatus.UNVERIFIED, detail, record.attempts, in_effect=record.lasting)
            return
        status = OutcomeStatus.RESTORED if is_recovery(record.decision.action) else OutcomeStatus.SUCCEEDED
        detail = f"{record.detail}; " + ("its effect is seen" if record.seen else "its effect cannot be seen from here")
        self._end(record, status, detail, record.attempts, in_effect=record.lasting)

    def _end(
        self, record: Record, status: OutcomeStatus, detail: str, attempts: int, *, in_effect: bool, renew: bool = False
    ) -> None:
        outcome = Outcome(record.decision.id, status, record.executor, self._clock.now_ms(), detail, attempts)
        self._book.ended(record, outcome, in_effect=in_effect, renew=renew)

    def _named(self, record: Record) -> Executor | None:
        return next((each for each in self._executors if each.name == record.executor), None)

    def _in(self, state: DecisionState) -> list[Record]:
        return [record for record in self._book.records() if record.state is state]
