"""The loop: given the whole state, decide, ask the guards, do at most one thing per subject, and record it all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from tocsin.actions.guards.base import evaluate as evaluate_guards
from tocsin.actions.guards.base import guards, worst
from tocsin.actions.guards.permission import effective_mode
from tocsin.actions.guards.silence import held_back_by
from tocsin.actions.loop.decide import decide
from tocsin.actions.loop.execution import Execution, Inline, Workers
from tocsin.actions.loop.notifications import Notifications
from tocsin.actions.loop.operator import OperatorCalls, asked_for
from tocsin.actions.loop.routing import Routing
from tocsin.actions.loop.rule_watch import RuleWatch
from tocsin.actions.loop.silence_calls import SilenceCalls
from tocsin.actions.model.budget import FleetBudget, WholeFleet, root_causes_of, share_of
from tocsin.actions.model.catalogue import ACTIONS, Scope, is_disruptive, is_recovery
from tocsin.actions.model.controls import Breaker, Controls
from tocsin.actions.model.decision_log import DecisionLog, JournalPort, draft_of_end, draft_of_verdicts
from tocsin.actions.model.earning import RecordKey
from tocsin.actions.model.executor import Executor
from tocsin.actions.model.ledger_entry import SELECTION, DecisionStatus, LedgerEntry, StepReport
from tocsin.actions.model.past import with_past
from tocsin.actions.model.policy import Policy, milliseconds
from tocsin.actions.model.recovery import due_recoveries, is_asked
from tocsin.actions.model.rule_record import Acting
from tocsin.actions.model.scope import base_key, breaker_cause, hosts_of
from tocsin.actions.model.sentences import joined, named
from tocsin.actions.model.view import FleetView
from tocsin.actions.notifications.channel import Notifier
from tocsin.actions.notifications.fanout import FanOut, JournalNotifier
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import Clock
from tocsin.domain.decision import (
    Decision,
    DecisionState,
    MigrateParameters,
    Mode,
    NotifyParameters,
    OutcomeStatus,
    Ruling,
    Verdict,
    undone_by,
)
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import BudgetSpent, Unavailable
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.fleet_share import PastRow, RestOfFleet
from tocsin.domain.phrase import Phrase, in_chinese, say
from tocsin.domain.prediction import Prediction
from tocsin.journal.port import Draft

# Asking the guards, recording what they say, and closing what has no more reason to wait.

WITHHELD = "withheld_"
"""How the names of counts begin of notifications that silences hold back; by what follows."""
SPENT = "budget_spent"
"""Name of the count of starts that the other cells of the fleet left no room for."""


class GuardEvaluation:
    """Keeps the verdicts of waiting decisions up to date."""

    def __init__(self, decision_log: DecisionLog, execution: Execution, policy: Policy, budget: FleetBudget) -> None:
        self._decision_log = decision_log
        self._execution = execution
        self._policy = policy
        self._budget = budget
        self._counted = {each.name for each in guards() if each.counts_for_breaker} | {SELECTION}
        self._rejecting = {each.name for each in guards() if each.denial_rejects}
        self.counts: Counter[str] = Counter()

    def evaluate_all(
        self, view: FleetView, now_ms: int, wanted: Collection[str], only: Collection[str] | None = None
    ) -> None:
        """Ask about everything that waits, or about the keys `only`; what is new goes on record in one transaction."""
        asked = [
            (record, self.own_verdicts(record.decision, view, wanted))
            for record in self._waiting()
            if only is None or record.decision.key in only
        ]
        with self._decision_log.lock:
            drafts = [self._evaluated(record, view, now_ms, own) for record, own in asked if record.waiting]
            self._decision_log.note_all([draft for of_one in drafts for draft in of_one])

    def evaluate(self, record: LedgerEntry, view: FleetView, now_ms: int, own: tuple[Verdict, ...]) -> None:
        """Ask all guards about one decision; an entry is made where a ruling changed, a denial ends it.

        `own` are those of `own_verdicts`, which may take an executor's time: people are not made to wait for them.
        """
        with self._decision_log.lock:
            if record.waiting:
                self._decision_log.note_all(self._evaluated(record, view, now_ms, own))

    def _evaluated(self, record: LedgerEntry, view: FleetView, now_ms: int, own: tuple[Verdict, ...]) -> list[Draft]:
        """The entries to make of what the guards say now."""
        decision, drafts = record.decision, list[Draft]()
        verdicts = (*evaluate_guards(decision, view, now_ms), *own)
        overall = worst(verdicts)
        before = record.rulings()
        record.verdicts, record.overall = verdicts, overall
        if record.rulings() != before:
            held_back = held_back_by(decision, view, now_ms) if record.silenced and not record.withheld else ""
            if held_back:
                self.counts[f"{WITHHELD}{held_back}"] += 1
            cause = "" if record.counted else self._cause(decision, verdicts, view)
            drafts.append(draft_of_verdicts(record, verdicts, str(overall), cause=cause))
        rejecting = self._rejecting | {v.guard for v in own}
        denied = [v for v in verdicts if v.ruling is Ruling.DENY and v.guard in rejecting]
        reason = "; ".join(v.reason for v in denied)
        if reason:
            anew = all(v.until_ms is not None for v in denied)
            chinese = [in_chinese(v.said) for v in denied]
            reason_zh = "；".join(chinese) if all(chinese) else ""
            drafts.append(draft_of_end(record, DecisionState.REJECTED, reason, anew, reason_zh))
        return drafts

    def own_verdicts(self, decision: Decision, view: FleetView, wanted: Collection[str]) -> tuple[Verdict, ...]:
        """Is it what the subject needs most, and the executor's pre-check; nothing for a notification."""
        if decision.action is ActionKind.NOTIFY:
            return ()
        chosen = decision.key in wanted
        selection = Verdict(SELECTION, Ruling.ALLOW)
        if not chosen:
            said = say("another action is needed there now")
            selection = Verdict(SELECTION, Ruling.HOLD, str(said), said=said)
        return selection, self._execution.pre_check(decision, view)

    def _cause(self, decision: Decision, verdicts: tuple[Verdict, ...], view: FleetView) -> str:
        """The root cause that the breaker counts; empty where it is not in earnest or only a forecast."""
        if not is_disruptive(decision.action) or effective_mode(decision, view) is Mode.OBSERVE:
            return ""
        held = any(v.guard in self._counted and v.ruling is not Ruling.ALLOW for v in verdicts)
        return "" if held else breaker_cause(decision, view)

    def close_ended(self, view: FleetView, now_ms: int) -> tuple[str, ...]:
        """Expire waiting decisions whose cause or time has ended; notifications go out all the same."""
        ended = []
        for record in self._waiting():
            why = None if record.notice else _end_of(record.decision, view, now_ms)
            with self._decision_log.lock:
                if why is not None and record.waiting:
                    renew = effective_mode(record.decision, view) is not Mode.OBSERVE
                    self._decision_log.closed(
                        record, DecisionState.EXPIRED, str(why), renew=renew, reason_zh=in_chinese(why)
                    )
                    ended.append(record.decision.id)
        return tuple(ended)

    def trip_breaker(self, now_ms: int, rest: RestOfFleet) -> None:
        """Latch the breaker where enough distinct root causes of the fleet fall in its window."""
        settings = self._policy.settings
        with self._decision_log.lock:
            ledger = self._decision_log.ledger
            start_ms = now_ms - milliseconds(settings.breaker_window_seconds)
            left_out = self._decision_log.acknowledged_causes(start_ms, now_ms)
            counted = self._decision_log.causes().items()
            own = {cause: at_ms for cause, at_ms in counted if at_ms > start_ms and cause not in left_out}
            elsewhere = self._budget.tell_causes(own)
            causes = sorted({*own, *(cause for cause, at_ms in elsewhere.items() if at_ms > start_ms)})
            if ledger.controls().breaker is not None or len(causes) < root_causes_of(settings, rest):
                return
            window = f"{settings.breaker_window_seconds:g}"
            said = say("{n} distinct root causes within {window} s", n=len(causes), window=window)
            content = {"causes": causes, "reason": str(said), "reason_zh": in_chinese(said)}
            self._decision_log.note(EntryKind.BREAKER_TRIPPED, content)

    def _waiting(self) -> list[LedgerEntry]:
        return [record for record in self._decision_log.records() if record.waiting]


def _end_of(decision: Decision, view: FleetView, now_ms: int) -> Phrase | None:
    """Why the decision ends now, None where it does not.

    While this brain only watches, a cause that it does not see may be one that it does not see yet.
    """
    if now_ms >= view.controls.expiry_ms(decision):
        return say("its time box ended")
    live = any(identity in view.findings for identity in decision.findings)
    if is_asked(decision):
        stands = undone_by(decision.parameters) in view.controls.effects
        return None if stands else say("what it was to undo has ended")
    if is_recovery(decision.action):
        return say("a cause came back") if live else None
    if now_ms < view.started_ms + view.policy.boot_grace_ms:
        return None
    return None if decision.findings and decision.findings[0] in view.findings else say("its cause ended")


log = structlog.get_logger()

OUTSIDE = "someone at the manager"
"""Actor of what was done at Kubernetes or Slurm and not through Tocsin."""
OTHER_WORK = "other work runs there than was approved; it is asked anew"
"""Why a decision with a yes ends without having begun."""
KEEPS_COOL_SECONDS = 300.0
"""So long the GPUs of a throttle must keep cool without it before it is given back (own choice)."""
FINISH_SECONDS = 5.0
"""How long the end waits for calls under way (own choice: a request's time-out)."""


class ActionLoop:
    """One per fleet. `step` belongs to one thread; what people say (`operator`, `silences`) may come from others.

    Level-triggered: a step that comes twice, late or after a restart does what the state asks for and nothing again.
    An execution that the journal shows begun without an outcome goes on where its executor is resumable; else it is
    reported as failed with unknown effect. Without `workers` executions run within the step. `may_act` is
    asked right before each call of an executor. One that does not lead is never stepped: it only follows. `budget` is
    what it shares with other cells of the fleet.
    """

    def __init__(
        self,
        journal: JournalPort,
        executors: Sequence[Executor] | Routing,
        clock: Clock,
        policy: Policy,
        notifier: Notifier | FanOut | None = None,
        workers: Workers | None = None,
        *,
        may_act: Callable[[], bool] = lambda: True,
        leads: bool = True,
        budget: FleetBudget | None = None,
    ) -> None:
        self._clock = clock
        self._cool_since_s: dict[str, float] = {}
        self._budget = budget or WholeFleet()
        self._decision_log = DecisionLog(journal, clock)
        self._rules = RuleWatch(self._decision_log, policy, clock)
        routing = executors if isinstance(executors, Routing) else Routing(executors)
        self._routing = routing
        self._workers = workers or Inline()
        self._execution = Execution(self._decision_log, routing, clock, self._workers, may_act)
        self._guards = GuardEvaluation(self._decision_log, self._execution, policy, self._budget)
        self._notifications = Notifications(self._decision_log, notifier or JournalNotifier(), clock)
        self.operator = OperatorCalls(self._decision_log, clock, policy, self._execution.inverse, self._budget)
        self.silences = SilenceCalls(self._decision_log, clock)
        self._handed: dict[str, Decision] = {}
        self._elsewhere: tuple[Sequence[tuple[str, PastRow]], Mapping[str, Finding]] = (), {}
        self._joined: tuple[Controls, object, Controls] | None = None
        self._counts: Counter[str] = Counter()
        if leads:
            self._execution.settle_interrupted()

    def follow(self, entries: Iterable[Entry]) -> None:
        """Take in what another brain has put on record, while this one stands by."""
        self._decision_log.follow(entries)

    def step(
        self,
        view: FleetView,
        incidents: Sequence[Incident],
        predictions: Sequence[Prediction],
        resting: Collection[str] = (),
    ) -> StepReport:
        """One turn over the state `view`; `incidents` and `predictions` are the present ones. Of those that rest, by
        their ids, nothing is done and nobody is told that they are over."""
        now_ms = self._clock.now_ms()
        self._execution.advance(self._current(view))
        self._execution.verify_settled(self._current(view))
        self._watch(self._current(view))
        if view.active:
            self._rules.follow()
        if self._budget.shared:
            view = replace(view, rest=self._budget.publish(share_of(self._own(view), places=True)))
            self._elsewhere = view.rest.past, view.findings
        wanted = self._wanted(self._current(view), incidents, predictions)
        created = self._register(wanted, view)
        ended = self._guards.close_ended(self._current(view), now_ms)
        self._guards.evaluate_all(self._current(view), now_ms, wanted)
        self._guards.trip_breaker(now_ms, view.rest)
        executed = self._execute(view, wanted)
        if executed:
            # What has begun may stand in the way of what waits: nobody is asked for a yes that would start nothing.
            self._guards.evaluate_all(self._current(view), now_ms, wanted)
        self._escalate(view)
        settling = now_ms < view.started_ms + self.policy.boot_grace_ms
        # An incident is named after its root: while it goes on so does what was told of it, whatever of it has cleared.
        live = None if settling else {*view.findings, *(one.id for one in incidents), *resting}
        notified = self._notifications.deliver(now_ms, live) if view.active else ()
        concluded = self._execution.concluded()
        self._count(created=created, executed=executed, concluded=concluded, notified=notified, ended=ended)
        counts = dict(self._counts + self._notifications.counts + self._guards.counts)
        about = self._statuses_of({*created, *executed, *concluded, *ended})
        return StepReport(now_ms, about, created, executed, concluded, notified, ended, counts)

    def step_alone(
        self, view: FleetView, incidents: Sequence[Incident], predictions: Sequence[Prediction]
    ) -> StepReport:
        """One turn for `incidents` alone, between two steps: what they ask for anew. What recovers, ends or is checked
        waits for the next step, whose `view` has read every GPU since."""
        now_ms = self._clock.now_ms()
        if self._budget.shared:
            view = replace(view, rest=self._budget.publish(share_of(self._own(view))))
        current = self._current(view)
        decided = decide(incidents, predictions, current, self.policy, self._routing.supports)
        wanted = {decision.key: decision for decision in decided}
        created = self._register(wanted, view)
        self._guards.evaluate_all(self._current(view), now_ms, wanted, wanted)
        self._guards.trip_breaker(now_ms, view.rest)
        executed = self._execute(view, wanted)
        notified = self._notifications.deliver(now_ms) if view.active else ()
        self._count(created=created, executed=executed, notified=notified)
        counts = dict(self._counts + self._notifications.counts + self._guards.counts)
        about = self._statuses_of({*created, *executed})
        return StepReport(now_ms, about, created, executed, (), notified, (), counts)

    def moved(self, silent: Mapping[str, str]) -> Mapping[str, str]:
        """Of GPUs that are silent here, with their hosts, those that another cell reads by now, with the cell."""
        return self._budget.elsewhere(silent) if silent else {}

    def tell(self, notice: Decision) -> None:
        """Hand in a notification; a brain that acts enters it at its next step, once for its key."""
        with self._decision_log.lock:
            self._handed[notice.key] = notice

    def knows(self, key: str) -> bool:
        """Whether a decision of this key was ever made."""
        return key in self._decision_log.ledger.known

    def close(self) -> None:
        """Begin no execution and send no notification any more; safe to repeat."""
        try:
            self._execution.finish(FINISH_SECONDS)
        except Unavailable as error:
            # Their outcomes are found as interrupted executions by whoever goes on.
            log.warning("results of the last executions are not on record", error=str(error))
        self._workers.close()
        self._routing.close()
        self._notifications.close()

    @property
    def policy(self) -> Policy:
        """What the settings say, with the records of the rules as they are at this moment."""
        return self._rules.policy()

    def rules_acting(self) -> dict[RecordKey, Acting]:
        """What the journal last said of each rule that came to act alone."""
        with self._decision_log.lock:
            return dict(self._decision_log.ledger.rules.acting)

    def statuses(self, *, final: bool = True) -> list[DecisionStatus]:
        """Every decision that is listed, the waiting ones first, then by the latest change; without `final` those that
        are over are left out, which are most."""
        with self._decision_log.lock:
            kept = (one for one in self._decision_log.records() if final or not one.final)
            records = sorted(kept, key=lambda r: (r.final, -r.updated_ms))
            return [record.status() for record in records]

    def _statuses_of(self, ids: Collection[str]) -> list[DecisionStatus]:
        """What `statuses` has of the decisions `ids`: most steps change none of the thousands that are listed."""
        if not ids:
            return []
        with self._decision_log.lock:
            found = [one for one in self._decision_log.records() if one.decision.id in ids]
            return [one.status() for one in sorted(found, key=lambda one: (one.final, -one.updated_ms))]

    def tickets(self) -> dict[str, dict[str, str]]:
        """What people call the open tickets, by the id of the incident and by channel."""
        with self._decision_log.lock:
            return self._decision_log.ledger.deliveries.tickets()

    def held(self) -> threading.RLock:
        """Nothing is recorded of decisions while this is held."""
        return self._decision_log.lock

    def folded(self) -> dict[str, Any]:
        """What the journal came to, for a checkpoint of it: the part `LEDGER_PART`."""
        return self._decision_log.state()

    def controls(self) -> Controls:
        """Pause, breaker, approvals and the rest, as they are at this moment, with what was said in other cells of GPUs
        that may be here now."""
        own, elsewhere = self._decision_log.controls(), self._elsewhere
        known = self._joined
        if known is None or known[0] is not own or known[1] is not elsewhere:
            known = self._joined = own, elsewhere, with_past(own, *elsewhere)
        return known[2]

    def _own(self, view: FleetView) -> FleetView:
        """`view` with what was said in this cell alone: what others said is not told to them as this one's."""
        return replace(view, controls=self._decision_log.controls(), policy=self.policy)

    def _current(self, view: FleetView) -> FleetView:
        """`view` with the controls as they are at this moment."""
        controls = self.controls()
        policy = self.policy
        if view.controls is controls and view.policy is policy:
            return view
        return replace(view, controls=controls, policy=policy)

    def _watch(self, view: FleetView) -> None:
        """Take note of what others did: they outrank what was decided here."""
        for host in _overruled(view):
            self.operator.release(Subject(SubjectKind.HOST, host, host), OUTSIDE, "the node takes work again")
        gone = _departed(view)
        if gone:
            self._decision_log.note(EntryKind.EFFECT_ENDED, {"keys": gone, "reason": "the node has left the fleet"})

    def _wanted(
        self, view: FleetView, incidents: Sequence[Incident], predictions: Sequence[Prediction]
    ) -> dict[str, Decision]:
        """What the state asks for, by key: what gives back first, then by urgency."""
        asked = asked_for(self._decision_log.records())
        undone = {undone_by(one.parameters) for one in asked.values()}
        recovered = self._for_good(due_recoveries(view, self._execution.inverse), view)
        due = [*asked.values(), *(one for one in recovered if undone_by(one.parameters) not in undone)]
        decided = decide(incidents, predictions, view, self.policy, self._routing.supports)
        return {decision.key: decision for decision in (*due, *decided)}

    def _for_good(self, recovered: Sequence[Decision], view: FleetView) -> list[Decision]:
        """`recovered` without those of throttles whose GPUs have not kept cool for long: load dips for a minute while a
        job saves its state, and comes back."""
        now = self._clock.monotonic()
        keys = {undone_by(one.parameters) for one in recovered} & view.controls.cooled.keys()
        self._cool_since_s = {key: self._cool_since_s.get(key, now) for key in keys}
        brief = {key for key, since in self._cool_since_s.items() if now - since < KEEPS_COOL_SECONDS}
        return [one for one in recovered if undone_by(one.parameters) not in brief]

    def _register(self, wanted: dict[str, Decision], view: FleetView) -> tuple[str, ...]:
        """Enter new decisions, and what is new of waiting ones: their mode, and a place that their work has found, or
        finds in place of a host that takes none any more."""
        created, entered = list[str](), list[Decision]()
        ledger = self._decision_log.ledger
        for key, decision in wanted.items():
            record = ledger.records.get(key)
            if key not in ledger.known:
                entered.append(decision)
                created.append(decision.id)
            elif record is not None and record.waiting:
                before = record.decision
                found = _places_all(decision) and not (_places_all(before) and _may_come(before, view))
                now = _with_moves(before, decision) if found else before
                if now is not before or before.mode is not decision.mode:
                    entered.append(replace(now, mode=decision.mode))
        self._decision_log.decided(*entered)
        return tuple(created)

    def _escalate(self, view: FleetView) -> None:
        """Enter the notifications about the loop's own doings."""
        breaker = self._current(view).controls.breaker
        notices = _escalations(self._decision_log.records(), breaker, view, self.policy)
        notices |= {notice.key: notice for notice in self._rules.notices(self._current(view))}
        with self._decision_log.lock:
            handed, self._handed = self._handed, {}
        notices |= handed if view.active else {}
        new = {key: notice for key, notice in notices.items() if key not in self._decision_log.ledger.known}
        if self._register(new, view):
            self._guards.evaluate_all(self._current(view), self._clock.now_ms(), (), new)

    def _execute(self, view: FleetView, wanted: dict[str, Decision]) -> tuple[str, ...]:
        """Run what every guard allows, asking each again at the last moment, at most one per subject."""
        executed = []
        touched: set[str] = set()
        for key, asked in wanted.items():
            record = self._decision_log.ledger.records.get(key)
            if record is None or record.notice or not record.waiting or record.overall is not Ruling.ALLOW:
                continue
            if not self._brought_up_to_date(record, asked):
                continue
            subject = base_key(record.decision.subject)
            own = self._guards.own_verdicts(record.decision, self._current(view), wanted)
            with self._decision_log.lock:
                now_ms = self._clock.now_ms()
                self._guards.evaluate(record, self._current(view), now_ms, own)
                go = record.waiting and record.overall is Ruling.ALLOW and subject not in touched
                go = go and self._began(record, self._current(view))
            if go:
                touched.add(subject)
                executed.append(record.decision.id)
                self._execution.carry_out(record, self._current(view))
        return tuple(executed)

    def _began(self, record: LedgerEntry, view: FleetView) -> bool:
        """Whether the start is on record. Where another cell has taken meanwhile what was left of the fleet's limits it
        is not: the guards say so at the next look."""
        try:
            self._execution.begin(record, view, shared=self._budget.shared)
        except BudgetSpent as error:
            log.info("not begun", decision=record.decision.id, reason=str(error))
            self._counts[SPENT] += 1
            return False
        return True

    def _brought_up_to_date(self, record: LedgerEntry, asked: Decision) -> bool:
        """Whether the decision names what runs there and where there is room now, so that guards are asked about what
        would be done. A yes is for the work that it was given for: where other work runs there by now, it is asked
        anew."""
        with self._decision_log.lock:
            now = _with_moves(record.decision, asked)
            if now is record.decision or not record.waiting:
                return record.waiting
            if record.approved_by and _work_of(now) != _work_of(record.decision):
                reason_zh = in_chinese(say(OTHER_WORK))
                self._decision_log.closed(record, DecisionState.EXPIRED, OTHER_WORK, renew=True, reason_zh=reason_zh)
                return False
            self._decision_log.decided(now)
            return True

    def _count(self, **lists: tuple[str, ...]) -> None:
        for name, identities in lists.items():
            self._counts[name] += len(identities)


def _places_all(decision: Decision) -> bool:
    moved = decision.parameters
    return isinstance(moved, MigrateParameters) and bool(moved.to_host) and all(moved.to_host)


def _may_come(decision: Decision, view: FleetView) -> bool:
    """Whether the hosts that work is to go to take any, as the planners saw them last."""
    moved, state = decision.parameters, view.foresight.state
    if not isinstance(moved, MigrateParameters) or state is None:
        return True
    named = [state.nodes[host] for hosts in moved.to_host for host in hosts if host in state.nodes]
    return all(node.schedulable and not node.leaving for node in named)


def _work_of(decision: Decision) -> frozenset[str]:
    moved = decision.parameters
    return frozenset(moved.work) if isinstance(moved, MigrateParameters) else frozenset()


def _with_moves(before: Decision, now: Decision) -> Decision:
    """`before` with the moves that the state asks for now; itself where they are the same."""
    old, new = before.parameters, now.parameters
    if not isinstance(old, MigrateParameters) or not isinstance(new, MigrateParameters):
        return before
    if (old.work, old.to_host) == (new.work, new.to_host):
        return before
    return replace(before, parameters=replace(new, cause=old.cause), sentence=now.sentence)


def _escalations(
    records: Iterable[LedgerEntry], breaker: Breaker | None, view: FleetView, policy: Policy
) -> dict[str, Decision]:
    """Notifications, by key, of actions that failed or missed their goal and of the breaker; same state, same keys."""
    notices = [
        _failed(record, view, policy)
        for record in records
        if record.state in (DecisionState.FAILED, DecisionState.GOAL_NOT_REACHED) and not record.notice
    ]
    if breaker is not None:
        notices.append(_tripped(breaker.at_ms, breaker.reason, view, policy))
    return {notice.key: notice for notice in notices}


def _failed(record: LedgerEntry, view: FleetView, policy: Policy) -> Decision:
    decision, outcome = record.decision, record.outcome
    what = f"{ACTIONS[decision.action].verb.lower()} {named(decision.subject)}"
    then = f"next: {outcome.next_step}" if outcome is not None and outcome.next_step else ""
    missed = outcome is not None and outcome.status is OutcomeStatus.GOAL_NOT_REACHED
    status = "failed" if outcome is None else outcome.status
    said = f"Done, goal not reached: {what}" if missed else f"A person is needed: {what} ended {status}"
    return replace(
        decision,
        action=ActionKind.NOTIFY,
        severity=Severity.CRITICAL,
        level=AlertLevel.PAGE,
        hard_fault=False,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + policy.time_box_ms,
        key=f"{decision.key}|escalate",
        sentence=joined(said, record.reason, then),
        parameters=NotifyParameters(escalates=decision.id, intended=decision.action),
        goal=None,
    )


def _tripped(at_ms: int, reason: str, view: FleetView, policy: Policy) -> Decision:
    return Decision(
        rule="breaker",
        subject=Subject(SubjectKind.FLEET, "fleet"),
        action=ActionKind.NOTIFY,
        mode=policy.settings.mode,
        severity=Severity.CRITICAL,
        # What fails pages by itself; that nothing runs meanwhile is for the working day.
        level=AlertLevel.WARNING,
        category=Category.CAPACITY,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + policy.time_box_ms,
        key=f"breaker|fleet:fleet|notify|{at_ms}",
        sentence=joined(f"The breaker tripped, no action runs until a person closes it: {reason}"),
        simulated=any(member.gpu.simulated for member in view.gpus.values()),
    )


def _overruled(view: FleetView) -> list[str]:
    """Hosts that were seen out of service by Tocsin's doing, and take work again though Tocsin did not put them back.

    An effect that was never seen does not count: a manager that accepts a request and does nothing overrules nobody.
    """
    if view.blind:
        return []
    controls = view.controls
    found: set[str] = set()
    for key, effect in controls.effects.items():
        if key not in controls.confirmed or key in controls.doubtful or ACTIONS[effect.action].scope is not Scope.HOST:
            continue
        nodes = [view.nodes[host] for host in hosts_of(effect.subject, view) if host in view.nodes]
        found.update(node.host for node in nodes if node.schedulable)
    return sorted(found)


def _departed(view: FleetView) -> list[str]:
    """Keys of lasting effects on hosts that the manager does not list and that no GPU reports from any more.

    Nothing counts as gone while no manager is seen, or while its list is empty.
    """
    if not view.nodes or view.blind:
        return []
    running = set(view.controls.busy)
    found: list[str] = []
    for key, effect in view.controls.effects.items():
        hosts = hosts_of(effect.subject, view)
        if hosts and base_key(effect.subject) not in running and all(_gone(host, view) for host in hosts):
            found.append(key)
    return sorted(found)


def _gone(host: str, view: FleetView) -> bool:
    seen = any(member.is_fresh(view.now_ms, view.policy.fresh_ms) for member in view.by_host.get(host, ()))
    return host not in view.nodes and not seen
