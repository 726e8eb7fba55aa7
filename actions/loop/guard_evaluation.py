"""Asking the guards, recording what they say, and closing what has no more reason to wait."""

from __future__ import annotations

from collections.abc import Collection

from tocsin.actions.guards.base import evaluate as evaluate_guards
from tocsin.actions.guards.base import guards, worst
from tocsin.actions.guards.permission import effective_mode
from tocsin.actions.loop.execution import Execution
from tocsin.actions.model.catalogue import is_disruptive, is_recovery
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.policy import Policy, milliseconds
from tocsin.actions.model.recovery import is_asked
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling, Verdict, undone_by
from tocsin.domain.finding import ActionKind
from tocsin.journal.entry import EntryKind

SELECTION = "selection"
"""Name of the loop's own verdict: is this what the subject needs most."""


class GuardEvaluation:
    """Keeps the verdicts of waiting decisions up to date."""

    def __init__(self, decision_log: DecisionLog, execution: Execution, policy: Policy) -> None:
        self._decision_log = decision_log
        self._execution = execution
        self._policy = policy
        self._counted = {each.name for each in guards() if each.counts_for_breaker} | {SELECTION}
        self._rejecting = {each.name for each in guards() if each.denial_rejects}

    def evaluate_all(self, view: FleetView, now_ms: int, wanted: Collection[str]) -> None:
        """Ask all guards about all waiting decisions."""
        for record in self._waiting():
            self.evaluate(record, view, now_ms, self.own_verdicts(record.decision, view, wanted))

    def evaluate(self, record: LedgerEntry, view: FleetView, now_ms: int, own: tuple[Verdict, ...]) -> None:
        """Ask all guards about one decision; an entry is made where a ruling changed, a denial ends it.

        `own` are those of `own_verdicts`, which may take an executor's time: people are not made to wait for them.
        """
        with self._decision_log.lock:
            if record.waiting:
                self._evaluate(record, view, now_ms, own)

    def _evaluate(self, record: LedgerEntry, view: FleetView, now_ms: int, own: tuple[Verdict, ...]) -> None:
        decision = record.decision
        verdicts = (*evaluate_guards(decision, view, now_ms), *own)
        overall = worst(verdicts)
        before = record.rulings()
        record.verdicts, record.overall = verdicts, overall
        if record.rulings() != before:
            cause = "" if record.counted else self._cause(decision, verdicts, view)
            self._decision_log.verdicts_given(record, verdicts, str(overall), cause=cause)
        rejecting = self._rejecting | {v.guard for v in own}
        denied = [v for v in verdicts if v.ruling is Ruling.DENY and v.guard in rejecting]
        reason = "; ".join(v.reason for v in denied)
        if reason:
            anew = all(v.until_ms is not None for v in denied)
            self._decision_log.closed(record, DecisionState.REJECTED, reason, renew=anew)

    def own_verdicts(self, decision: Decision, view: FleetView, wanted: Collection[str]) -> tuple[Verdict, ...]:
        """Is it what the subject needs most, and the executor's pre-check; nothing for a notification."""
        if decision.action is ActionKind.NOTIFY:
            return ()
        chosen = decision.key in wanted
        selection = Verdict(SELECTION, Ruling.ALLOW)
        if not chosen:
            selection = Verdict(SELECTION, Ruling.HOLD, "the state asks for something else on this subject now")
        return selection, self._execution.pre_check(decision, view)

    def _cause(self, decision: Decision, verdicts: tuple[Verdict, ...], view: FleetView) -> str:
        """The root cause that the breaker counts; empty where the decision is not in earnest."""
        if not is_disruptive(decision.action) or effective_mode(decision, view) is Mode.OBSERVE:
            return ""
        held = any(v.guard in self._counted and v.ruling is not Ruling.ALLOW for v in verdicts)
        return "" if held else f"{decision.rule}|{base_key(decision.subject)}"

    def close_ended(self, view: FleetView, now_ms: int) -> tuple[str, ...]:
        """Expire waiting decisions whose cause or time has ended; notifications go out all the same."""
        ended = []
        for record in self._waiting():
            reason = "" if record.notice else _end_of(record.decision, view, now_ms)
            with self._decision_log.lock:
                if reason and record.waiting:
                    renew = effective_mode(record.decision, view) is not Mode.OBSERVE
                    self._decision_log.closed(record, DecisionState.EXPIRED, reason, renew=renew)
                    ended.append(record.decision.id)
        return tuple(ended)

    def trip_breaker(self, now_ms: int) -> None:
        """Latch the breaker where enough distinct root causes fall in its window."""
        settings = self._policy.settings
        with self._decision_log.lock:
            ledger = self._decision_log.ledger
            start_ms = now_ms - milliseconds(settings.breaker_window_seconds)
            causes = sorted(cause for cause, at_ms in ledger.causes.items() if at_ms > start_ms)
            if ledger.controls().breaker is not None or len(causes) < settings.breaker_root_causes:
                return
            reason = f"{len(causes)} distinct root causes within {settings.breaker_window_seconds:g} s"
            self._decision_log.note(EntryKind.BREAKER_TRIPPED, {"causes": causes, "reason": reason})

    def _waiting(self) -> list[LedgerEntry]:
        return [record for record in self._decision_log.records() if record.waiting]


def _end_of(decision: Decision, view: FleetView, now_ms: int) -> str:
    """Why the decision ends now, empty where it does not.

    While this brain only watches, a cause that it does not see may be one that it does not see yet.
    """
    if now_ms >= decision.expires_ms:
        return "its time box ended"
    live = any(identity in view.findings for identity in decision.findings)
    if is_asked(decision):
        return "" if undone_by(decision.parameters) in view.controls.effects else "what it was to undo has ended"
    if is_recovery(decision.action):
        return "a cause came back" if live else ""
    if now_ms < view.started_ms + view.policy.boot_grace_ms:
        return ""
    return "" if decision.findings and decision.findings[0] in view.findings else "its cause ended"
