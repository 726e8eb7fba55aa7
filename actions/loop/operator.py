"""What people may tell the loop. Everything is an entry of the journal under their name."""

from __future__ import annotations

from tocsin.actions.model.catalogue import is_disruptive
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.scope import base_key
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, DecisionState, Mode
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.journal.kinds import EntryKind


def named_person(actor: str) -> str:
    """`actor`; raises InputError where that names nobody."""
    if not actor.strip() or actor == "tocsin":
        raise InputError("actor", actor, "this needs a person's name", "say who you are")
    return actor


class OperatorCalls:
    """Safe to call from other threads than the one that steps.

    Each method raises InputError where `actor` names no person, and Conflict where it would change nothing.
    """

    def __init__(self, book: DecisionLog, clock: Clock, policy: Policy) -> None:
        self._book = book
        self._clock = clock
        self.policy = policy

    def controls(self) -> Controls:
        """What people and earlier actions have laid down, at this moment."""
        with self._book.lock:
            return self._book.ledger.controls()

    def approve(self, identity: str, actor: str) -> None:
        """Let a proposed decision run, once the other guards allow."""
        named_person(actor)
        with self._book.lock:
            record = self._waiting(identity)
            if record.decision.mode is Mode.OBSERVE:
                raise Conflict(
                    f"decision {identity} is in observe mode: its rule only watches, approval changes nothing"
                )
            if record.state is DecisionState.APPROVED:
                raise Conflict(f"decision {identity} is already approved by {record.approved_by}")
            if self._clock.now_ms() >= record.decision.expires_ms:
                raise Conflict(f"decision {identity} has expired")
            self._book.about(EntryKind.APPROVAL, record.decision, actor=actor)

    def reject(self, identity: str, actor: str, reason: str = "") -> None:
        """Never run a decision, and leave its subject alone for the hold-off."""
        named_person(actor)
        with self._book.lock:
            record = self._waiting(identity)
            self._book.about(EntryKind.REJECTION, record.decision, actor=actor, reason=reason)
            self._hold_off(base_key(record.decision.subject), actor, reason)

    def release(self, subject: Subject, actor: str, reason: str = "") -> None:
        """A person gave a subject back (uncordoned it): its incidents are cancelled, it is left alone."""
        named_person(actor)
        with self._book.lock:
            records = self._book.records()
            running = {r.decision.key for r in records if r.state is DecisionState.EXECUTING}
            effects = [d for d in self._book.ledger.controls().effects.values() if _within(d, subject)]
            decided = [r.decision for r in records if not r.notice and _within(r.decision, subject)]
            released = [decision.key for decision in effects if decision.key not in running]
            causes = sorted({decision.findings[0] for decision in (*decided, *effects) if decision.findings})
            self._hold_off(base_key(subject), actor, reason, released=released, cancelled=causes)

    def pause(self, actor: str, reason: str = "") -> None:
        """Stop all actions; notifications still go out."""
        with self._book.lock:
            note = self._book.ledger.controls().paused
            if note is not None:
                raise Conflict(f"already paused by {note.actor}")
            self._book.note(EntryKind.PAUSE, {"reason": reason}, actor=named_person(actor))

    def resume(self, actor: str) -> None:
        """End the pause."""
        with self._book.lock:
            if self._book.ledger.controls().paused is None:
                raise Conflict("not paused")
            self._book.note(EntryKind.RESUME, {}, actor=named_person(actor))

    def reset_breaker(self, actor: str) -> None:
        """Close the breaker; causes are counted from zero."""
        with self._book.lock:
            if self._book.ledger.controls().breaker is None:
                raise Conflict("the breaker is not tripped")
            self._book.note(EntryKind.BREAKER_RESET, {}, actor=named_person(actor))

    def _waiting(self, identity: str) -> LedgerEntry:
        record = self._book.ledger.by_id(identity)
        if record is None:
            raise Conflict(f"no decision {identity} is known")
        if record.notice:
            raise Conflict(f"decision {identity} only notifies: nothing to say yes or no to")
        if not record.waiting:
            why = f": {record.reason}" if record.reason else ""
            raise Conflict(f"decision {identity} is already {record.state}{why}; tocsin status lists those that wait")
        return record

    def _hold_off(self, key: str, actor: str, reason: str, **more: list[str]) -> None:
        until_ms = self._clock.now_ms() + self.policy.hold_off_ms
        self._book.note(
            EntryKind.HOLD_OFF, {"subject": key, "until_ms": until_ms, "reason": reason, **more}, actor=actor
        )


def _within(decision: Decision, subject: Subject) -> bool:
    mine = decision.subject
    if base_key(mine) == base_key(subject):
        return True
    on_host = subject.kind is SubjectKind.HOST and mine.host == subject.name
    return on_host and is_disruptive(decision.action)
