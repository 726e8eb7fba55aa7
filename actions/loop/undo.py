"""Undoing at a person's word: the inverse of what was done, sent through the guards like every recovery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.codec import dump_decision
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import Inverse, is_asked
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.sentences import joined, named
from tocsin.actions.model.status import DecisionStatus
from tocsin.domain.action_parameters import RecoveryParameters, undone_by
from tocsin.domain.decision import Decision, DecisionState, Mode
from tocsin.domain.errors import Conflict
from tocsin.journal.kinds import EntryKind

SayYes = Callable[[str], None]
"""Approves a decision by its id."""


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


def waiting_for(key: str, records: list[LedgerEntry]) -> LedgerEntry | None:
    """The waiting decision that undoes the one with `key`; None where there is none."""
    return next((one for one in records if one.waiting and undone_by(one.decision.parameters) == key), None)


def asked(records: list[LedgerEntry]) -> dict[str, Decision]:
    """Waiting recoveries that people asked for, by key."""
    return {one.decision.key: one.decision for one in records if one.waiting and is_asked(one.decision)}


def undo(
    book: DecisionLog,
    policy: Policy,
    inverse: Inverse,
    now_ms: int,
    identity: str,
    actor: str,
    reason: str,
    say_yes: SayYes,
) -> str:
    """Enter the recovery that undoes a decision, under the name of `actor`; returns its id.

    The cause of the decision is cancelled and the subject left alone for the hold-off, as by `release`. A recovery that
    waits for a person already is approved instead, by `say_yes`. Raises Conflict where nothing can be undone, with the
    one reason.
    """
    with book.lock:
        record = book.ledger.by_id(identity)
        if record is None:
            raise Conflict(f"no decision {identity} is known")
        problem = problem_of(record.status(), book.ledger.controls())
        decision = record.decision
        mode = policy.mode_of(decision.rule)
        if not problem and mode is Mode.OBSERVE:
            problem = f"rule {decision.rule} only watches"
        made = inverse(decision) if not problem else None
        if made is None:
            raise Conflict(f"decision {identity} cannot be undone: {problem or 'its executor knows no way back'}")
        before = waiting_for(decision.key, book.records())
        if before is not None:
            return _agree(before, identity, say_yes)
        wanted = _dated(made, book, policy, now_ms, actor, reason, mode)
        _leave_alone(book, decision, now_ms + policy.hold_off_ms, actor, reason)
        book.note(EntryKind.DECISION, dump_decision(wanted), actor=actor, simulated=wanted.simulated)
        if mode is Mode.PROPOSE:
            say_yes(wanted.id)
        return wanted.id


def _agree(before: LedgerEntry, identity: str, say_yes: SayYes) -> str:
    held = before.state is DecisionState.HELD and before.decision.mode is Mode.PROPOSE
    if is_asked(before.decision) or not held:
        raise Conflict(f"decision {identity} is being undone already, by decision {before.decision.id}")
    say_yes(before.decision.id)
    return before.decision.id


def _dated(
    made: Decision, book: DecisionLog, policy: Policy, now_ms: int, actor: str, reason: str, mode: Mode
) -> Decision:
    number = 1
    while f"{made.key}|asked {number}" in book.ledger.known:
        number += 1
    key = f"{made.key}|asked {number}"
    parameters = replace(made.parameters, cause=key)
    if isinstance(parameters, RecoveryParameters):
        parameters = replace(parameters, asked_by=actor)
    told = f"{actor} undoes what was done" + (f": {reason}" if reason else "")
    return replace(
        made,
        key=key,
        mode=mode,
        at_ms=now_ms,
        expires_ms=now_ms + policy.time_box_ms,
        sentence=joined(f"{ACTIONS[made.action].verb} {named(made.subject)}", told),
        parameters=parameters,
    )


def _leave_alone(book: DecisionLog, decision: Decision, until_ms: int, actor: str, reason: str) -> None:
    book.note(
        EntryKind.HOLD_OFF,
        {
            "subject": base_key(decision.subject),
            "until_ms": until_ms,
            "reason": reason,
            "cancelled": list(decision.findings[:1]),
        },
        actor=actor,
        simulated=decision.simulated,
    )
