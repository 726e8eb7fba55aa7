"""What people must hear of the loop's own doings: an action that did not work, and a tripped breaker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.controls import Breaker
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.sentences import joined, named
from tocsin.actions.model.view import FleetView
from tocsin.domain.action_parameters import NotifyParameters
from tocsin.domain.decision import Decision, DecisionState
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.subject import Subject, SubjectKind


def escalations(
    records: Iterable[LedgerEntry], breaker: Breaker | None, view: FleetView, policy: Policy
) -> dict[str, Decision]:
    """Notifications, by key, of failed and unverified actions and of the breaker; same state, same keys."""
    notices = [
        _failed(record, view, policy)
        for record in records
        if record.state is DecisionState.FAILED and not record.notice
    ]
    if breaker is not None:
        notices.append(_tripped(breaker.at_ms, breaker.reason, view, policy))
    return {notice.key: notice for notice in notices}


def _failed(record: LedgerEntry, view: FleetView, policy: Policy) -> Decision:
    decision = record.decision
    status = "failed" if record.outcome is None else record.outcome.status
    verb = ACTIONS[decision.action].verb.lower()
    return replace(
        decision,
        action=ActionKind.NOTIFY,
        severity=Severity.CRITICAL,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + policy.time_box_ms,
        key=f"{decision.key}|escalate",
        sentence=joined(f"A person is needed: {verb} {named(decision.subject)} ended {status}", record.reason),
        parameters=NotifyParameters(escalates=decision.id, intended=decision.action),
    )


def _tripped(at_ms: int, reason: str, view: FleetView, policy: Policy) -> Decision:
    return Decision(
        rule="breaker",
        subject=Subject(SubjectKind.FLEET, "fleet"),
        action=ActionKind.NOTIFY,
        mode=policy.settings.mode,
        severity=Severity.CRITICAL,
        category=Category.CAPACITY,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + policy.time_box_ms,
        key=f"breaker|fleet:fleet|notify|{at_ms}",
        sentence=joined(f"The breaker tripped, no action runs until a person closes it: {reason}"),
        simulated=any(member.gpu.simulated for member in view.gpus.values()),
    )
