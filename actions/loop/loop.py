"""The loop: given the whole state, decide, ask the guards, do at most one thing per subject, and record it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tocsin.actions.loop.decide import decide
from tocsin.actions.loop.escalation import escalations
from tocsin.actions.loop.execution import Execution
from tocsin.actions.loop.guard_evaluation import GuardEvaluation
from tocsin.actions.loop.notifications import Notifications
from tocsin.actions.loop.operator import OperatorCalls, named_person
from tocsin.actions.loop.routing import Routing
from tocsin.actions.loop.undo import asked, undo
from tocsin.actions.loop.watching import OUTSIDE, departed, overruled
from tocsin.actions.loop.workers import Inline, Workers
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.decision_log import DecisionLog, JournalPort
from tocsin.actions.model.executor import Executor
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import due_recoveries
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.status import DecisionStatus, StepReport
from tocsin.actions.model.view import FleetView
from tocsin.actions.notifications.fanout import FanOut, JournalNotifier
from tocsin.actions.notifications.protocol import Notifier
from tocsin.domain.action_parameters import undone_by
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Ruling
from tocsin.domain.finding import Incident
from tocsin.domain.prediction import Prediction
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.journal.kinds import EntryKind

FINISH_SECONDS = 5.0
"""How long the end waits for calls under way (own choice: a request's time-out)."""


class ActionLoop(OperatorCalls):
    """One per fleet. `step` belongs to one thread; what people say may come from others.

    Level-triggered: a step that comes twice, late or after a restart does what the state asks for and nothing again.
    An execution that the journal shows begun without an outcome goes on where its executor is resumable; else it is
    reported as failed with unknown effect. Without `workers` executions run within the step.
    """

    def __init__(
        self,
        journal: JournalPort,
        executors: Sequence[Executor] | Routing,
        clock: Clock,
        policy: Policy,
        notifier: Notifier | FanOut | None = None,
        workers: Workers | None = None,
    ) -> None:
        super().__init__(DecisionLog(journal), clock, policy)
        routing = executors if isinstance(executors, Routing) else Routing(executors)
        self._routing = routing
        self._workers = workers or Inline()
        self._execution = Execution(self._book, routing, clock, self._workers)
        self._judge = GuardEvaluation(self._book, self._execution, policy)
        self._notices = Notifications(self._book, notifier or JournalNotifier(), clock)
        self._counts: Counter[str] = Counter()
        self._execution.settle_interrupted()

    def step(self, view: FleetView, incidents: Sequence[Incident], predictions: Sequence[Prediction]) -> StepReport:
        """One turn over the state `view`; `incidents` and `predictions` are the present ones."""
        now_ms = self._clock.now_ms()
        self._execution.advance(self._current(view))
        self._execution.verify_settled(self._current(view))
        self._watch(self._current(view))
        wanted = self._wanted(self._current(view), incidents, predictions)
        created = self._register(wanted)
        ended = self._judge.close_ended(self._current(view), now_ms)
        self._judge.judge_all(self._current(view), now_ms, wanted)
        self._judge.trip_breaker(now_ms)
        executed = self._execute(view, wanted)
        self._escalate(view)
        settling = now_ms < view.started_ms + self.policy.boot_grace_ms
        live = None if settling else view.findings
        notified = self._notices.deliver(now_ms, live) if view.active else ()
        concluded = self._execution.concluded()
        self._count(created=created, executed=executed, concluded=concluded, notified=notified, ended=ended)
        counts = dict(self._counts + self._notices.counts)
        return StepReport(now_ms, self.statuses(), created, executed, concluded, notified, ended, counts)

    def close(self) -> None:
        """Begin no execution and send no notification any more; safe to repeat."""
        self._execution.finish(FINISH_SECONDS)
        self._workers.close()
        self._routing.close()
        self._notices.close()

    def undo(self, identity: str, actor: str, reason: str = "") -> str:
        """Undo what a decision did, through the guards; returns the id of the decision that does it.

        Raises InputError where `actor` names no person, and Conflict where nothing can be undone.
        """
        named_person(actor)
        now_ms, inverse = self._clock.now_ms(), self._execution.inverse
        return undo(
            self._book, self.policy, inverse, now_ms, identity, actor, reason, lambda one: self.approve(one, actor)
        )

    def statuses(self) -> list[DecisionStatus]:
        """Every decision that is listed, the waiting ones first, then by the latest change."""
        with self._book.lock:
            records = sorted(self._book.records(), key=lambda r: (r.final, -r.updated_ms))
            return [record.status() for record in records]

    def controls(self) -> Controls:
        """Pause, breaker, approvals and the rest, as they are at this moment."""
        with self._book.lock:
            return self._book.ledger.controls()

    def _current(self, view: FleetView) -> FleetView:
        """`view` with the controls as they are at this moment."""
        controls = self.controls()
        if view.controls is controls and view.policy is self.policy:
            return view
        return replace(view, controls=controls, policy=self.policy)

    def _watch(self, view: FleetView) -> None:
        """Take note of what others did: they outrank what was decided here."""
        for host in overruled(view):
            self.release(Subject(SubjectKind.HOST, host, host), OUTSIDE, "the node takes work again")
        gone = departed(view)
        if gone:
            self._book.note(EntryKind.EFFECT_ENDED, {"keys": gone, "reason": "the node has left the fleet"})

    def _wanted(
        self, view: FleetView, incidents: Sequence[Incident], predictions: Sequence[Prediction]
    ) -> dict[str, Decision]:
        """What the state asks for, by key: what gives back first, then by urgency."""
        told = asked(self._book.records())
        undone = {undone_by(one.parameters) for one in told.values()}
        recovered = due_recoveries(view, self._execution.inverse)
        due = [*told.values(), *(one for one in recovered if undone_by(one.parameters) not in undone)]
        decided = decide(incidents, predictions, view, self.policy, self._routing.supports)
        return {decision.key: decision for decision in (*due, *decided)}

    def _register(self, wanted: dict[str, Decision]) -> tuple[str, ...]:
        """Enter new decisions, and the new mode of waiting ones."""
        created = []
        ledger = self._book.ledger
        for key, decision in wanted.items():
            record = ledger.records.get(key)
            if key not in ledger.known:
                self._book.decided(decision)
                created.append(decision.id)
            elif record is not None and record.waiting and record.decision.mode is not decision.mode:
                self._book.decided(replace(record.decision, mode=decision.mode))
        return tuple(created)

    def _escalate(self, view: FleetView) -> None:
        """Enter the notifications about the loop's own doings."""
        breaker = self._current(view).controls.breaker
        notices = escalations(self._book.records(), breaker, view, self.policy)
        self._register({key: notice for key, notice in notices.items() if key not in self._book.ledger.known})

    def _execute(self, view: FleetView, wanted: dict[str, Decision]) -> tuple[str, ...]:
        """Run what every guard allows, asking each again at the last moment, at most one per subject."""
        executed = []
        touched: set[str] = set()
        for key in wanted:
            record = self._book.ledger.records.get(key)
            if record is None or record.notice or not record.waiting or record.overall is not Ruling.ALLOW:
                continue
            subject = base_key(record.decision.subject)
            own = self._judge.own(record.decision, self._current(view), wanted)
            with self._book.lock:
                now_ms = self._clock.now_ms()
                self._judge.judge(record, self._current(view), now_ms, own)
                go = record.waiting and record.overall is Ruling.ALLOW and subject not in touched
                if go:
                    self._execution.begin(record, view)
            if go:
                touched.add(subject)
                executed.append(record.decision.id)
                self._execution.carry_out(record, self._current(view))
        return tuple(executed)

    def _count(self, **lists: tuple[str, ...]) -> None:
        for name, identities in lists.items():
            self._counts[name] += len(identities)
