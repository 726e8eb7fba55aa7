"""The log of decisions: entries of the journal, and the state that they fold to, the same for the same entries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from pydantic import TypeAdapter

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.controls import Breaker, Controls, Cooled, HoldOff, Known, Note, Tally
from tocsin.actions.model.cooling import cooled_by
from tocsin.actions.model.decision_json import (
    OUTCOME,
    VERDICTS,
    dump_decision,
    dump_outcome,
    dump_verdicts,
    in_chinese_too,
    load_decision,
)
from tocsin.actions.model.deliveries import Delivered, Done
from tocsin.actions.model.goals import repaired_by
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.questions import Question, Questions
from tocsin.actions.model.rule_record import Acting, RuleRecords, is_by_hand
from tocsin.actions.model.scope import base_key, same_kind, slot_of
from tocsin.actions.model.silences import Silences
from tocsin.actions.model.steady import SteadyInstants
from tocsin.domain.clock import Clock
from tocsin.domain.decision import (
    Decision,
    DecisionState,
    Outcome,
    OutcomeStatus,
    Ruling,
    ThrottleKind,
    Verdict,
    undone_by,
)
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.journal.port import Draft

_STATE_OF = {
    OutcomeStatus.SUCCEEDED: DecisionState.DONE,
    OutcomeStatus.RESTORED: DecisionState.DONE,
    OutcomeStatus.GOAL_NOT_REACHED: DecisionState.GOAL_NOT_REACHED,
    OutcomeStatus.UNVERIFIED: DecisionState.FAILED,
    OutcomeStatus.FAILED: DecisionState.FAILED,
}
_WITHOUT_EFFECT = frozenset({OutcomeStatus.GOAL_NOT_REACHED, OutcomeStatus.UNVERIFIED})


RIGHT = "right"
"""What a person says of the statement who rejects or gives back all the same."""
KEEP_FINAL = 2_000
"""Ended decisions that stay listed; of older ones only the keys are remembered, so that nothing is done twice."""
_KEEP_STARTS = 100
_KEEP_REPAIRS = 1_000


@dataclass(slots=True)
class _PlainState:
    """What of a ledger's state holds no decision; its fields as they are there."""

    paused: Note | None
    breaker: Breaker | None
    approvals: dict[str, Note]
    rejections: dict[str, Note]
    hold_offs: dict[str, HoldOff]
    started: dict[str, int]
    attempts: list[tuple[str, ActionKind, tuple[int, ...]]]
    doubtful: set[str]
    experience: dict[ActionKind, Tally]
    failures: list[tuple[str, ActionKind, tuple[int, ...]]]
    confirmed: set[str]
    renewals: dict[str, int]
    cancelled: set[str]
    finished: set[str]
    ended: list[str]
    known: set[str]
    causes: dict[str, int]
    done: dict[str, dict[str, Done]]
    pages: dict[str, dict[str, int]] = field(default_factory=dict)
    summaries: dict[str, dict[str, int]] = field(default_factory=dict)
    gathered: dict[str, set[str]] = field(default_factory=dict)
    lowered: dict[str, set[str]] = field(default_factory=dict)
    references: dict[str, dict[str, str]] = field(default_factory=dict)
    called: dict[str, dict[str, str]] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    silences: list[Any] = field(default_factory=list)
    cooled: dict[str, Cooled] | None = None
    questions: dict[str, Question] = field(default_factory=dict)


_PLAIN = TypeAdapter(_PlainState)
_ENTRY = TypeAdapter(LedgerEntry)


class Ledger:
    """All decisions and controls. `apply` takes entries in the order of the journal; other kinds pass it by.

    A fold and nothing else: it reads no clock and no settings, so that a brain that was killed comes to the state that
    it had. Entries of kinds that are unknown here change nothing. `known` and the starts only grow: of a decision that
    is listed no more its key is still used up.
    """

    def __init__(self) -> None:
        self.records: dict[str, LedgerEntry] = {}
        self.ended: list[str] = []
        self.known: set[str] = set()
        self.causes: dict[str, int] = {}
        self.deliveries = Delivered()
        self.rules = RuleRecords()
        self.silences = Silences()
        self._paused: Note | None = None
        self._breaker: Breaker | None = None
        self._approvals: dict[str, Note] = {}
        self._rejections: dict[str, Note] = {}
        self._hold_offs: dict[str, HoldOff] = {}
        self._started: dict[str, int] = {}
        self._attempts: dict[tuple[str, ActionKind], tuple[int, ...]] = {}
        self._effects: dict[str, Decision] = {}
        self._doubtful, self._confirmed = set[str](), set[str]()
        self._experience: dict[ActionKind, Tally] = {}
        self._failures: dict[tuple[str, ActionKind], tuple[int, ...]] = {}
        self._renewals, self._repaired = dict[str, int](), dict[str, int]()
        self._cancelled, self._finished = set[str](), set[str]()
        self._cooled: dict[str, Cooled] = {}
        self._questions = Questions()
        self._shown_renewals: Mapping[str, int] | None = None
        self._controls: Controls | None = None

    def apply(self, entry: Entry) -> None:
        handler = self._HANDLERS.get(entry.kind)
        if handler is not None:
            handler(self, entry, dict(entry.payload))
            self._controls = None
            record = self.records.get(str(entry.payload.get("key", "")))
            if record is not None:
                record.follow(entry.seq)

    def controls(self) -> Controls:
        """A snapshot for guards; the same object until an entry changes it."""
        if self._shown_renewals is None:
            self._shown_renewals = dict(self._renewals)
        if self._controls is None:
            self._controls = Controls(
                self._paused,
                self._breaker,
                dict(self._approvals),
                dict(self._rejections),
                dict(self._hold_offs),
                MappingProxyType(self._started),
                dict(self._attempts),
                dict(self._effects),
                {base_key(decision.subject): str(decision.action) for decision in self._running()},
                self._shown_renewals,
                Known(self._cancelled),
                Known(self._finished),
                frozenset(self._doubtful),
                frozenset(self._confirmed & self._effects.keys()),
                dict(self._failures),
                dict(self._experience),
                self._capping(),
                repaired=dict(self._repaired),
                asked=Known(self.known),
                silences=tuple(self.silences.known.values()),
                cooled={key: one for key, one in self._cooled.items() if key in self._effects},
                questions=dict(self._questions.known),
            )
        return self._controls

    def _running(self) -> list[Decision]:
        running = (DecisionState.EXECUTING, DecisionState.VERIFYING)
        effects = [self.records[key] for key in self._effects if key in self.records]
        return [record.decision for record in effects if record.state in running]

    def _capping(self) -> frozenset[str]:
        caps: set[str] = set()
        others: set[str] = set()
        for decision in self._running():
            is_cap = decision.action is ActionKind.THROTTLE and decision.parameters.throttle_kind is ThrottleKind.CAP
            (caps if is_cap else others).add(base_key(decision.subject))
        return frozenset(caps - others)

    def tell_ahead(self, steady: SteadyInstants) -> None:
        """Name the instants that lie ahead of the start: an earlier process had a clock that was ahead."""
        times = [at_ms for starts in (*self._attempts.values(), *self._failures.values()) for at_ms in starts]
        for at_ms in (*times, *(one.at_ms for one in self._questions.known.values()), *self.causes.values()):
            if at_ms > steady.start_ms:
                steady.wrote(at_ms, at_ms)
        for one in self.silences.known.values():
            if one.at_ms > steady.start_ms:
                steady.wrote(one.at_ms, one.starts_ms, one.until_ms, one.breaker_until_ms)
        for record in self.records.values():
            if record.waiting and record.decision.at_ms > steady.start_ms:
                steady.wrote(record.decision.at_ms, record.decision.expires_ms)

    def by_id(self, identity: str) -> LedgerEntry | None:
        """The record of a decision id; None where it is unknown or no longer listed."""
        return next((record for record in self.records.values() if record.decision.id == identity), None)

    def _record(self, payload: Mapping[str, Any]) -> LedgerEntry | None:
        return self.records.get(payload["key"])

    def _decision(self, entry: Entry, payload: dict[str, Any]) -> None:
        decision = load_decision(payload)
        self.known.add(decision.key)
        record = self.records.get(decision.key)
        if record is None:
            self.records[decision.key] = LedgerEntry(decision, entry.at_ms)
            self._questions.ask(decision, entry.at_ms)
        else:
            record.decision, record.updated_ms = decision, entry.at_ms

    def _verdict(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if record is None:
            return
        record.hear(VERDICTS.validate_python(payload["verdicts"]), Ruling(payload["overall"]))
        record.updated_ms = entry.at_ms
        if payload.get("cause"):
            self.causes[payload["cause"]] = entry.at_ms
            record.counted, record.cause, record.counted_ms = True, payload["cause"], entry.at_ms
        record.withheld = record.withheld or record.silenced
        if payload.get("state"):
            self._end(record, DecisionState(payload["state"]), payload)

    def _end(self, record: LedgerEntry, state: DecisionState, payload: dict[str, Any]) -> None:
        record.state, record.reason = state, str(payload.get("reason", ""))
        record.reason_zh = str(payload.get("reason_zh", ""))
        cause = record.decision.parameters.cause
        if payload.get("renew") and cause:
            self._renewals[cause] = self._renewals.get(cause, 0) + 1
            self._shown_renewals = None
        rejected = record.decision.id in self._rejections
        if not (rejected and payload.get("statement") == RIGHT):
            self.rules.settle(record, rejected=rejected)
        self.ended.append(record.decision.key)
        self._finished.add(record.decision.key)
        for key in self.ended[:-KEEP_FINAL]:
            gone = self.records.pop(key)
            self._approvals.pop(gone.decision.id, None)
            self._rejections.pop(gone.decision.id, None)
        del self.ended[:-KEEP_FINAL]

    def _approval(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if record is not None:
            record.state, record.approved_by, record.updated_ms = DecisionState.APPROVED, entry.actor, entry.at_ms
            self._questions.answer(record.decision)
            self._approvals[record.decision.id] = Note(entry.actor, entry.at_ms)

    def _rejection(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if record is not None:
            record.updated_ms = entry.at_ms
            self._questions.answer(record.decision)
            self._rejections[record.decision.id] = Note(entry.actor, entry.at_ms, payload.get("reason", ""))
            self._end(record, DecisionState.REJECTED, payload)

    def _execution(self, entry: Entry, payload: dict[str, Any]) -> None:
        self._started[payload["key"]] = entry.at_ms
        record = self._record(payload)
        slot = (payload["subject"], ActionKind(payload["action"])) if record is None else slot_of(record.decision)
        # Counted at the start: what comes to no outcome, such as an action that kills the brain, is a try as well.
        self._attempts[slot] = (*self._attempts.get(slot, ()), entry.at_ms)[-_KEEP_STARTS:]
        if record is not None:
            record.state, record.executor, record.updated_ms = DecisionState.EXECUTING, payload["executor"], entry.at_ms
            record.before, record.started_ms = dict(payload.get("before", {})), entry.at_ms
            record.work = tuple(payload.get("work", ()))
            self._effects[payload["key"]] = record.decision
            # Until the recovery is seen to work, what it undoes may be back or not. Guards count it either way: as out
            # of service for what may still be taken, as in service for what must be left.
            self._doubtful.update(self._undone_by(record.decision))

    def _progress(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if record is not None:
            record.detail, record.updated_ms = payload["detail"], entry.at_ms
            record.detail_zh = payload.get("detail_zh", "")

    def _verification(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if record is None:
            return
        record.updated_ms = entry.at_ms
        record.effect.update(payload.get("effect", {}))
        if payload["phase"] == "due":
            record.state = DecisionState.VERIFYING
            record.detail, record.attempts, record.lasting = payload["detail"], payload["attempts"], payload["lasting"]
            record.changed, record.detail_zh = payload.get("changed", True), payload.get("detail_zh", "")
        else:
            record.checked, record.seen, record.measured = True, payload["seen"], payload.get("measured")
            if record.seen:
                self._confirmed.add(payload["key"])

    def _outcome(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        outcome = OUTCOME.validate_python(payload["outcome"])
        restored = record is not None and outcome.status is OutcomeStatus.RESTORED
        over = self._undone_by(record.decision) if record is not None and restored else []
        # Also of an entry that is not known any more: an effect may outlive the listing of its decision.
        for key in (*over, *([] if payload["in_effect"] else [payload["key"]])):
            self._effects.pop(key, None)
            self._doubtful.discard(key)
        if record is None:
            return
        cooled = cooled_by(record.decision, record.before, outcome.effect) if payload["in_effect"] else None
        if cooled is not None:
            kept = {key: one for key, one in self._cooled.items() if key in self._effects}
            self._cooled = {**kept, record.decision.key: cooled}
        action = record.decision.action
        self._experience[action] = self._experience.get(action, Tally()).joined(outcome)
        slot = slot_of(record.decision)
        if outcome.status in _WITHOUT_EFFECT:
            self._failures[slot] = (*self._failures.get(slot, ()), entry.at_ms)[-_KEEP_STARTS:]
        elif outcome.status is not OutcomeStatus.FAILED:
            self._failures.pop(slot, None)
        for key in repaired_by(record.decision, outcome):
            self._repaired.pop(key, None)
            self._repaired[key] = entry.at_ms
        for key in list(self._repaired)[:-_KEEP_REPAIRS]:
            del self._repaired[key]
        self._conclude(record, outcome, entry, payload)

    def _conclude(self, record: LedgerEntry, outcome: Outcome, entry: Entry, payload: dict[str, Any]) -> None:
        record.outcome, record.updated_ms = outcome, entry.at_ms
        self._end(
            record, _STATE_OF[outcome.status], payload | {"reason": outcome.detail, "reason_zh": outcome.detail_zh}
        )

    def _undone_by(self, recovery: Decision) -> list[str]:
        """Keys of the effects that `recovery` is to undo: what began after it is not given back by it."""
        found: list[str] = []
        for key, effect in self._effects.items():
            if key == recovery.key:
                break
            spec = ACTIONS[effect.action]
            host = spec.scope is Scope.HOST and effect.subject.host and effect.subject.host == recovery.subject.host
            same = base_key(effect.subject) == base_key(recovery.subject)
            # A restore that undoes nothing in particular gives back all there is. An uncordon of one GPU's decision
            # gives back the host, and with it what other decisions took of that host.
            alike = not undone_by(recovery.parameters) or same_kind(effect, recovery)
            if spec.inverse is recovery.action and (same or host) and alike:
                found.append(key)
        return found

    def _notification(self, entry: Entry, payload: dict[str, Any]) -> None:
        record = self._record(payload)
        if not self.deliveries.apply(payload, None if record is None else record.decision, entry.at_ms):
            return
        self._started[payload["key"]] = entry.at_ms
        if record is not None:
            self._conclude(record, OUTCOME.validate_python(payload["outcome"]), entry, payload)

    def _pause(self, entry: Entry, payload: dict[str, Any]) -> None:
        self._paused = Note(entry.actor, entry.at_ms, payload.get("reason", ""))

    def _resume(self, entry: Entry, payload: dict[str, Any]) -> None:
        self._paused = None

    def _trip(self, entry: Entry, payload: dict[str, Any]) -> None:
        reason, reason_zh = payload["reason"], payload.get("reason_zh", "")
        self._breaker = Breaker(entry.at_ms, tuple(payload["causes"]), reason, reason_zh)

    def _reset(self, entry: Entry, payload: dict[str, Any]) -> None:
        self._breaker = None
        # The causes that tripped it would trip it again at once.
        self.causes.clear()

    def _hold_off(self, entry: Entry, payload: dict[str, Any]) -> None:
        subject = payload["subject"]
        self._hold_offs[subject] = HoldOff(payload["until_ms"], entry.actor, payload.get("reason", ""))
        self._cancelled.update(payload.get("cancelled", ()))
        self._questions.give_back(payload.get("cancelled", ()), (one.decision for one in self.records.values()))
        for key in payload.get("released", ()):
            self._effects.pop(key, None)
        if payload.get("statement") != RIGHT:
            self.rules.given_back(payload.get("cancelled", ()), entry.at_ms)

    def _manual(self, entry: Entry, payload: dict[str, Any]) -> None:
        if payload.get("phase") != "ended" or payload.get("status") != "succeeded":
            return
        subject = payload["subject"]
        for record in self.records.values():
            if record.waiting and is_by_hand(record.decision, payload["action"], subject["kind"], subject["name"]):
                record.by_hand = True

    def _rule_acts(self, entry: Entry, payload: dict[str, Any]) -> None:
        acts = entry.kind == EntryKind.RULE_EARNED_ACT
        said = Acting(acts, entry.at_ms, payload["sentence"], payload.get("sentence_zh", ""))
        self.rules.told(payload["rule"], entry.simulated, said)

    def _silenced(self, entry: Entry, payload: dict[str, Any]) -> None:
        self.silences.begin(entry)

    def _silence_ended(self, entry: Entry, payload: dict[str, Any]) -> None:
        self.silences.end(entry)

    def _effect_ended(self, entry: Entry, payload: dict[str, Any]) -> None:
        for key in payload["keys"]:
            self._effects.pop(key, None)
            self._doubtful.discard(key)

    _HANDLERS: ClassVar[dict[str, Callable[[Ledger, Entry, dict[str, Any]], None]]] = {
        EntryKind.DECISION: _decision,
        EntryKind.VERDICT: _verdict,
        EntryKind.APPROVAL: _approval,
        EntryKind.REJECTION: _rejection,
        EntryKind.EXECUTION_STARTED: _execution,
        EntryKind.EXECUTION_GOES_ON: _progress,
        EntryKind.VERIFICATION: _verification,
        EntryKind.OUTCOME: _outcome,
        EntryKind.NOTIFICATION: _notification,
        EntryKind.PAUSE: _pause,
        EntryKind.RESUME: _resume,
        EntryKind.BREAKER_TRIPPED: _trip,
        EntryKind.BREAKER_RESET: _reset,
        EntryKind.HOLD_OFF: _hold_off,
        EntryKind.EFFECT_ENDED: _effect_ended,
        EntryKind.CAUSE_ACKNOWLEDGED: _silenced,
        EntryKind.SNOOZED: _silenced,
        EntryKind.MAINTENANCE_PLANNED: _silenced,
        EntryKind.SILENCE_ENDED: _silence_ended,
        EntryKind.MANUAL_ACTION: _manual,
        EntryKind.RULE_EARNED_ACT: _rule_acts,
        EntryKind.RULE_FELL_BACK: _rule_acts,
    }

    # ------------------------------------------------------------------ as JSON, for a checkpoint of the journal

    def state(self) -> dict[str, Any]:
        """All that the entries so far came to, as JSON."""
        plain = _PlainState(
            paused=self._paused,
            breaker=self._breaker,
            approvals=self._approvals,
            rejections=self._rejections,
            hold_offs=self._hold_offs,
            started=self._started,
            attempts=[(subject, action, at) for (subject, action), at in self._attempts.items()],
            doubtful=self._doubtful,
            experience=self._experience,
            failures=[(subject, action, at) for (subject, action), at in self._failures.items()],
            confirmed=self._confirmed,
            renewals=self._renewals,
            cancelled=self._cancelled,
            finished=self._finished,
            ended=self.ended,
            known=self.known,
            causes=self.causes,
            **self.deliveries.plain(),
            repaired=self._repaired,
            silences=self.silences.state(),
            cooled=self._cooled,
            questions=self._questions.known,
        )
        return {
            "plain": _PLAIN.dump_python(plain, mode="json"),
            "records": [
                _ENTRY.dump_python(record, mode="json", exclude={"decision"})
                | {"decision": dump_decision(record.decision)}
                for record in self.records.values()
            ],
            "effects": {key: dump_decision(decision) for key, decision in self._effects.items()},
            "open": self.deliveries.open_as_json(),
            "rules": self.rules.as_json(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Ledger:
        """The ledger whose `state` this was."""
        found, plain = cls(), _PLAIN.validate_python(state["plain"])
        for raw in state["records"]:
            decision = load_decision(raw["decision"])
            found.records[decision.key] = _ENTRY.validate_python({**raw, "decision": decision})
        found._paused, found._breaker = plain.paused, plain.breaker
        found._approvals, found._rejections, found._hold_offs = plain.approvals, plain.rejections, plain.hold_offs
        found._started, found._doubtful, found._experience = plain.started, plain.doubtful, plain.experience
        found._attempts = {(subject, action): at for subject, action, at in plain.attempts}
        found._failures = {(subject, action): at for subject, action, at in plain.failures}
        found._confirmed, found._renewals = plain.confirmed, plain.renewals
        found._cancelled, found._finished = plain.cancelled, plain.finished
        found._repaired, found.silences = plain.repaired, Silences.restored(plain.silences)
        found.ended, found.known, found.causes = plain.ended, plain.known, plain.causes
        found._effects = {key: load_decision(raw) for key, raw in state["effects"].items()}
        found._cooled = found._cooled_by_listed() if plain.cooled is None else plain.cooled
        found._questions = Questions(plain.questions)
        found.deliveries.told = plain.done
        found.deliveries.pages, found.deliveries.summaries = plain.pages, plain.summaries
        found.deliveries.gathered, found.deliveries.lowered = plain.gathered, plain.lowered
        found.deliveries.references, found.deliveries.called = plain.references, plain.called
        found.deliveries.open = {
            channel: {
                message: {key: load_decision(raw) for key, raw in decisions.items()}
                for message, decisions in messages.items()
            }
            for channel, messages in state["open"].items()
        }
        if "rules" in state:
            found.rules = RuleRecords.restored(state["rules"])
        else:
            found._settle_listed()
        return found

    def _cooled_by_listed(self) -> dict[str, Cooled]:
        """What throttles in effect bought, out of what is listed: an older checkpoint does not have it."""
        listed = [self.records[key] for key in self._effects if key in self.records]
        found = {one.decision.key: cooled_by(one.decision, one.before, one.effect) for one in listed}
        return {key: cooled for key, cooled in found.items() if cooled is not None}

    def _settle_listed(self) -> None:
        """The records out of what is listed: a checkpoint of before there were any has no more."""
        for key in self.ended:
            record = self.records[key]
            self.rules.settle(record, rejected=record.decision.id in self._rejections)


LEDGER_KINDS: tuple[str, ...] = tuple(Ledger._HANDLERS)

"""Kinds of entries that the ledger reads."""


class JournalPort(Protocol):
    """What the loop needs of a journal."""

    def append_many(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> list[Entry]:
        """Add entries, all of them or none; durable on return. Raises BudgetSpent for a start that takes what is not
        there."""

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Entries in order."""

    def folded(self, part: str) -> tuple[int, Any]:
        """The state that `part` had after an entry, and the number of that; (0, None) where all is to be read."""


LEDGER_PART = "ledger"
"""Name of the ledger's state in a checkpoint of the journal."""


class DecisionLog:
    """Writes what happens to decisions; hold `lock` across a question and the entry that rests on its answer.

    With a `clock`, a step of the wall clock changes no rest, hold-off or time box; without one they go by it.
    """

    def __init__(self, journal: JournalPort, clock: Clock | None = None) -> None:
        self._journal = journal
        self._steady = None if clock is None else SteadyInstants(clock)
        self._controls: tuple[Controls, int, Controls] | None = None
        self.lock = threading.RLock()
        after, state = journal.folded(LEDGER_PART)
        self.ledger = Ledger() if state is None else Ledger.restored(state)
        if self._steady is not None and state is not None:
            self.ledger.tell_ahead(self._steady)
        for entry in journal.entries(after=after, kinds=LEDGER_KINDS):
            self.ledger.apply(entry)
            if self._steady is not None and entry.at_ms > self._steady.start_ms:
                self._steady.note(entry)

    def follow(self, entries: Iterable[Entry]) -> None:
        """Take in entries that another process has appended."""
        with self.lock:
            for entry in entries:
                if entry.kind in LEDGER_KINDS:
                    self.ledger.apply(entry)
                    if self._steady is not None:
                        self._steady.note(entry)

    def controls(self) -> Controls:
        """A snapshot for guards, its rests on the wall clock as it shows now; the same object until one changes it."""
        with self.lock:
            found = self.ledger.controls()
            if self._steady is None or not self._steady.moved():
                return found
            steps = self._steady.steps()
            if self._controls is None or self._controls[0] is not found or self._controls[1] != steps:
                boxes = {key: one.decision.expires_ms for key, one in self.ledger.records.items() if one.waiting}
                expires = {key: self._steady.today(end) for key, end in boxes.items()}
                moved = {key: end for key, end in expires.items() if end != boxes[key]}
                self._controls = found, steps, replace(self._steady.controls(found), expires=moved)
            return self._controls[2]

    def causes(self) -> Mapping[str, int]:
        """When each root cause was counted for the breaker, on the wall clock as it shows now; hold `lock`."""
        if self._steady is None or not self._steady.moved():
            return self.ledger.causes
        return {cause: self._steady.today(at_ms) for cause, at_ms in self.ledger.causes.items()}

    def acknowledged_causes(self, start_ms: int, now_ms: int) -> set[str]:
        """Causes that the breaker leaves out: each decision that counted under them after `start_ms` has a root that a
        person's own acknowledgement covers; hold `lock`."""
        acks = [one for one in self.controls().silences if one.stands(now_ms) and now_ms < one.breaker_until_ms]
        taken: dict[str, bool] = {}
        for record in self.ledger.records.values() if acks else ():
            if record.cause and self._today(record.counted_ms) > start_ms:
                root = record.decision.incident or next(iter(record.decision.findings), "")
                covered = any(root in one.causes for one in acks)
                taken[record.cause] = taken.get(record.cause, True) and covered
        return {cause for cause, covered in taken.items() if covered}

    def _today(self, at_ms: int) -> int:
        return at_ms if self._steady is None else self._steady.today(at_ms)

    def state(self) -> dict[str, Any]:
        """The ledger as JSON, for a checkpoint."""
        with self.lock:
            return self.ledger.state()

    def records(self) -> list[LedgerEntry]:
        with self.lock:
            return list(self.ledger.records.values())

    def note(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> None:
        """Append an entry and take it in."""
        self.note_all([(kind, payload, simulated)], actor=actor)

    def note_all(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> None:
        """Append entries in one transaction and take them in: all of them or none."""
        if not drafts:
            return
        with self.lock:
            for entry in self._journal.append_many(drafts, actor=actor):
                if self._steady is not None:
                    self._steady.note(entry)
                self.ledger.apply(entry)

    def about(self, kind: EntryKind, decision: Decision, actor: str = "tocsin", **payload: Any) -> None:
        self.note_all([draft_about(kind, decision, **payload)], actor=actor)

    def decided(self, *decisions: Decision) -> None:
        """Decisions, or their new modes."""
        self.note_all([draft_of(decision) for decision in decisions])

    def closed(self, record: LedgerEntry, state: DecisionState, reason: str, renew: bool, reason_zh: str = "") -> None:
        """A decision ended without having run."""
        self.note_all([draft_of_end(record, state, reason, renew, reason_zh)])

    def started(
        self,
        decision: Decision,
        executor: str,
        before: Mapping[str, float],
        work: Collection[str] = (),
        takes: Mapping[str, Any] | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """An execution begins, with what the readings show `before` and the jobs there; nothing else ever begins under
        the key. `takes` is what it takes of the fleet's budget. Raises BudgetSpent where that is not there. With `anew`
        the decision itself is entered again, in the same transaction."""
        more: dict[str, Any] = {"work": sorted(work)} if work else {}
        more |= {"takes": dict(takes)} if takes is not None else {}
        start = draft_about(
            EntryKind.EXECUTION_STARTED,
            decision,
            subject=base_key(decision.subject),
            action=str(decision.action),
            executor=executor,
            before=dict(before),
            **more,
        )
        self.note_all([draft_of(decision), start] if anew else [start])

    def ended(self, record: LedgerEntry, outcome: Outcome, *, in_effect: bool, renew: bool = False) -> None:
        """How an execution ended; `in_effect` where its effect lasts."""
        content = dump_outcome(outcome)
        self.about(EntryKind.OUTCOME, record.decision, outcome=content, in_effect=in_effect, renew=renew)


def draft_about(kind: EntryKind, decision: Decision, **payload: Any) -> Draft:
    """An entry about `decision`."""
    return kind, {"decision": decision.id, "key": decision.key, **payload}, decision.simulated


def draft_of(decision: Decision) -> Draft:
    """The entry of a decision, or of what is new of it."""
    return EntryKind.DECISION, dump_decision(decision), decision.simulated


def draft_of_verdicts(record: LedgerEntry, verdicts: tuple[Verdict, ...], overall: str, **more: Any) -> Draft:
    """The entry of what the guards say."""
    return draft_about(EntryKind.VERDICT, record.decision, overall=overall, verdicts=dump_verdicts(verdicts), **more)


def draft_of_end(record: LedgerEntry, state: DecisionState, reason: str, renew: bool, reason_zh: str = "") -> Draft:
    """The entry of a decision that ends without having run."""
    why = {"reason": reason, **in_chinese_too("reason", reason_zh)}
    return draft_of_verdicts(record, record.verdicts, str(record.overall), state=str(state), renew=renew, **why)
