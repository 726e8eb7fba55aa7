"""What people may tell the loop. Everything is an entry of the journal under their name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tocsin.actions.model.budget import FleetBudget, WholeFleet
from tocsin.actions.model.catalogue import ACTIONS, is_disruptive
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.decision_json import dump_decision
from tocsin.actions.model.decision_log import RIGHT, DecisionLog
from tocsin.actions.model.ledger_entry import DecisionStatus, LedgerEntry
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import Inverse, is_asked
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.sentences import joined, named
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, DecisionState, Mode, RecoveryParameters, undone_by
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import Subject, SubjectKind


class OperatorCalls:
    """Safe to call from other threads than the one that steps. `inverse` gives the decision that undoes another one.

    Each method raises InputError where `actor` names no person, and Conflict where it would change nothing.
    """

    def __init__(
        self,
        decision_log: DecisionLog,
        clock: Clock,
        policy: Policy,
        inverse: Inverse,
        budget: FleetBudget | None = None,
    ) -> None:
        self._decision_log = decision_log
        self._budget = budget or WholeFleet()
        self._clock = clock
        self.policy = policy
        self._inverse = inverse

    def approve(self, identity: str, actor: str) -> None:
        """Let a proposed decision run, once the other guards allow."""
        named_person(actor)
        with self._decision_log.lock:
            record = self._waiting(identity)
            if record.decision.mode is Mode.OBSERVE:
                raise Conflict(
                    f"decision {identity} is in observe mode: its rule only watches, approval changes nothing"
                )
            if record.state is DecisionState.APPROVED:
                raise Conflict(f"decision {identity} is already approved by {record.approved_by}")
            if self._clock.now_ms() >= self._decision_log.controls().expiry_ms(record.decision):
                raise Conflict(f"decision {identity} has expired")
            self._decision_log.about(EntryKind.APPROVAL, record.decision, actor=actor)

    def reject(self, identity: str, actor: str, reason: str = "", *, right: bool = False) -> None:
        """Never run a decision, and leave its subject alone for the hold-off.

        It counts against the record of its rule, unless the person says that the statement was `right`.
        """
        named_person(actor)
        with self._decision_log.lock:
            record = self._waiting(identity)
            self._decision_log.about(EntryKind.REJECTION, record.decision, actor=actor, reason=reason, **_said(right))
            self._hold_off(base_key(record.decision.subject), actor, reason)

    def release(self, subject: Subject, actor: str, reason: str = "", *, right: bool = False) -> None:
        """A person gave a subject back (uncordoned it): its incidents are cancelled, it is left alone.

        Soon after an action that says that its statement was wrong, unless the person says that it was `right`.
        """
        named_person(actor)
        with self._decision_log.lock:
            records = self._decision_log.records()
            running = {r.decision.key for r in records if r.state is DecisionState.EXECUTING}
            effects = [d for d in self._decision_log.ledger.controls().effects.values() if _within(d, subject)]
            decided = [r.decision for r in records if not r.notice and _within(r.decision, subject)]
            released = [decision.key for decision in effects if decision.key not in running]
            causes = sorted({decision.findings[0] for decision in (*decided, *effects) if decision.findings})
            self._hold_off(base_key(subject), actor, reason, released=released, cancelled=causes, **_said(right))

    def pause(self, actor: str, reason: str = "") -> None:
        """Stop all actions; notifications still go out."""
        with self._decision_log.lock:
            note = self._decision_log.ledger.controls().paused
            if note is not None:
                raise Conflict(f"already paused by {note.actor}")
            self._decision_log.note(EntryKind.PAUSE, {"reason": reason}, actor=named_person(actor))

    def stop_for(self, reason: str) -> None:
        """The service itself stops all actions until a person resumes."""
        self._decision_log.note(EntryKind.PAUSE, {"reason": reason})

    def resume(self, actor: str) -> None:
        with self._decision_log.lock:
            if self._decision_log.ledger.controls().paused is None:
                raise Conflict("not paused")
            self._decision_log.note(EntryKind.RESUME, {}, actor=named_person(actor))

    def reset_breaker(self, actor: str) -> None:
        """Close the breaker; causes are counted from zero, in a fleet of several cells those of all. Raises Unavailable
        where the others cannot be told."""
        with self._decision_log.lock:
            if self._decision_log.ledger.controls().breaker is None:
                raise Conflict("the breaker is not tripped")
            named_person(actor)
            self._budget.forget_causes()
            self._decision_log.note(EntryKind.BREAKER_RESET, {}, actor=actor)

    def undo(self, identity: str, actor: str, reason: str = "", *, right: bool = False) -> str:
        """Enter the recovery that undoes a decision, under the name of `actor`; returns its id.

        It goes through the guards like every recovery. The cause of the decision is cancelled and the subject left
        alone for the hold-off, as by `release`, whose `right` this is. A recovery that waits for a person already is
        approved instead. The conflict where nothing can be undone has the one reason.
        """
        named_person(actor)
        with self._decision_log.lock:
            record = self._decision_log.ledger.by_id(identity)
            if record is None:
                raise Conflict(f"no decision {identity} is known")
            made = self._undoing(record)
            key = record.decision.key
            waiting = (one for one in self._decision_log.records() if one.waiting)
            before = next((one for one in waiting if undone_by(one.decision.parameters) == key), None)
            if before is not None:
                return self._agree(before, identity, actor)
            wanted = self._entered(made, actor, reason)
            causes = list(record.decision.findings[:1])
            subject, simulated = base_key(record.decision.subject), record.decision.simulated
            self._hold_off(subject, actor, reason, simulated=simulated, cancelled=causes, **_said(right))
            self._decision_log.note(EntryKind.DECISION, dump_decision(wanted), actor=actor, simulated=wanted.simulated)
            if wanted.mode is Mode.PROPOSE:
                self.approve(wanted.id, actor)
            return wanted.id

    def _waiting(self, identity: str) -> LedgerEntry:
        record = self._decision_log.ledger.by_id(identity)
        if record is None:
            raise Conflict(f"no decision {identity} is known")
        if record.notice:
            raise Conflict(f"decision {identity} only notifies: nothing to say yes or no to")
        if not record.waiting:
            why = f": {record.reason}" if record.reason else ""
            raise Conflict(f"decision {identity} is already {record.state}{why}; tocsin status lists those that wait")
        return record

    def _hold_off(self, key: str, actor: str, reason: str, *, simulated: bool = False, **more: Any) -> None:
        until_ms = self._clock.now_ms() + self.policy.hold_off_ms
        content = {"subject": key, "until_ms": until_ms, "reason": reason, **more}
        self._decision_log.note(EntryKind.HOLD_OFF, content, actor=actor, simulated=simulated)

    def _undoing(self, record: LedgerEntry) -> Decision:
        """The inverse of a decision, if it may be entered now."""
        decision = record.decision
        problem = problem_of(record.status(), self._decision_log.ledger.controls())
        if not problem and self.policy.mode_set(decision.rule) is Mode.OBSERVE:
            problem = f"rule {decision.rule} only watches"
        made = self._inverse(decision) if not problem else None
        if made is None:
            raise Conflict(f"decision {decision.id} cannot be undone: {problem or 'its executor knows no way back'}")
        return made

    def _agree(self, before: LedgerEntry, identity: str, actor: str) -> str:
        held = before.state is DecisionState.HELD and before.decision.mode is Mode.PROPOSE
        if is_asked(before.decision) or not held:
            raise Conflict(f"decision {identity} is being undone already, by decision {before.decision.id}")
        self.approve(before.decision.id, actor)
        return before.decision.id

    def _entered(self, made: Decision, actor: str, reason: str) -> Decision:
        """The inverse `made` as this person asks for it now, under a key of its own."""
        number, now_ms = 1, self._clock.now_ms()
        while f"{made.key}|asked {number}" in self._decision_log.ledger.known:
            number += 1
        key = f"{made.key}|asked {number}"
        parameters = replace(made.parameters, cause=key)
        if isinstance(parameters, RecoveryParameters):
            parameters = replace(parameters, asked_by=actor)
        why = f"{actor} undoes what was done" + (f": {reason}" if reason else "")
        return replace(
            made,
            key=key,
            mode=self.policy.mode_of(made.rule, made.action, simulated=made.simulated),
            at_ms=now_ms,
            expires_ms=now_ms + self.policy.time_box_ms,
            sentence=joined(f"{ACTIONS[made.action].verb} {named(made.subject)}", why),
            parameters=parameters,
        )


def problem_of(status: DecisionStatus, controls: Controls) -> str:
    """Why a decision cannot be undone; empty where it can."""
    decision = status.decision
    action = str(decision.action).replace("_", " ")
    if ACTIONS[decision.action].inverse is None:
        return f"nothing undoes {action}"
    if decision.key not in controls.started:
        return f"{action} was not done: the decision is {status.state}"
    if status.state is DecisionState.EXECUTING:
        return f"{action} still runs; undo it when that has ended"
    return "" if decision.key in controls.effects else f"{action} is in effect no more"


def asked_for(records: Iterable[LedgerEntry]) -> dict[str, Decision]:
    """Waiting recoveries that people asked for, by key."""
    return {one.decision.key: one.decision for one in records if one.waiting and is_asked(one.decision)}


def named_person(actor: str) -> str:
    """`actor`; raises InputError where that names nobody."""
    if not actor.strip() or actor == "tocsin":
        raise InputError("actor", actor, "this needs a person's name", "say who you are")
    return actor


def _said(right: bool) -> dict[str, Any]:
    return {"statement": RIGHT} if right else {}


def _within(decision: Decision, subject: Subject) -> bool:
    mine = decision.subject
    if base_key(mine) == base_key(subject):
        return True
    on_host = subject.kind is SubjectKind.HOST and mine.host == subject.name
    return on_host and is_disruptive(decision.action)
