"""Carrying out: begun in the journal before it begins in the world, checked when settled, ended exactly once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import structlog

from tocsin.actions.loop.routing import Routing
from tocsin.actions.model.budget import taking_of
from tocsin.actions.model.catalogue import ACTIONS, is_recovery
from tocsin.actions.model.cooling import LOAD, MEMORY_TEMPERATURE, TEMPERATURE, is_for_heat
from tocsin.actions.model.decision_json import in_chinese_too
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, hold
from tocsin.actions.model.goals import (
    NEW_ERRORS,
    OPEN_CAUSES,
    POOL_GPUS,
    BegunAction,
    goal_of,
    in_words,
    measure,
    work_at,
)
from tocsin.actions.model.ladder import RUNGS
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.scope import gpus_of, misplaced
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, DecisionState, GoalSense, Outcome, OutcomeStatus, Ruling, Verdict
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Subject
from tocsin.domain.phrase import Phrase, in_chinese, say

log = structlog.get_logger()

T = TypeVar("T")

POWER = "gpu_power_watts"
LOOKED_AT = (TEMPERATURE, MEMORY_TEMPERATURE, POWER, LOAD, "gpu_memory_used_ratio", "gpu_sm_clock_hertz")
PER_WATT = "celsius_bought_per_watt"
LEAST_WATTS = 1.0
"""A smaller change of power is noise (own choice)."""
INTERRUPTED = "interrupted: whether it took effect is unknown, it is not done again"
STEADY_CELSIUS, STEADY_SECONDS = 1.0, 60.0
"""A temperature stands once it fell by less within so long (own choice: heat sinks take minutes, sensors show whole
degrees)."""
PROGRESS_SECONDS = 60.0
"""Least time between two entries about one execution that goes on (own choice)."""


@dataclass(frozen=True, slots=True)
class Told:
    """A text in both languages; `chinese` is empty where there is English alone."""

    english: str
    chinese: str = ""

    def and_then(self, clause: Phrase) -> Told:
        chinese = in_chinese(clause)
        return Told(f"{self.english}; {clause}", f"{self.chinese}；{chinese}" if self.chinese and chinese else "")


def _result_words(seen: bool | None, figures: Phrase | None) -> Phrase:
    """What the post-check saw, with the figures of the goal where there are any."""
    if seen is None:
        return say("its effect cannot be seen from here")
    if figures is None:
        return say("its effect is seen") if seen else say("goal not reached")
    return say("its effect is seen: {figures}" if seen else "goal not reached: {figures}", figures=figures)


class Workers(Protocol):
    """Where executors are called: one that answers slowly must not hold up the decisions about other subjects."""

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        """Begin `work`, now or soon."""

    def close(self) -> None:
        """Begin nothing more; what has not begun is given up."""


class Inline:
    """Runs them at once, in the thread that asks; what they raise goes through."""

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(work())
        return done

    def close(self) -> None:
        """Nothing to end."""


class Threads:
    """Runs up to `count` of them beside each other."""

    def __init__(self, count: int = 8) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="execution")

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        return self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Execution:
    """Runs decisions through the executor that serves them, beside each other where `workers` are threads.

    What an executor has begun and not ended (`pending`) is called again at each step, after a restart too where the
    executor is resumable, until it ends or its time is over. While actions are paused nothing is called.

        approved -- begin --> EXECUTING -- it worked --> VERIFYING -- goal reached, or not visible --> DONE
                                  |                          +------ goal not reached -----> GOAL_NOT_REACHED
                                  +-- it failed, took too long, was interrupted --> FAILED

    Where a decision stands is in the journal alone, and four rules hold over kill -9 at any instant:

    - The start is durable before the executor is called. So nothing runs that is not on record, and a key that has a
      start is never begun again: an action happens once or not at all, never twice.
    - Every path ends in `_end`, which takes the decision out of the state that led there: one outcome for each start.
    - What may have taken effect counts as in effect, so that the limits are never told of more room than there is.
      Only an executor that is `certain` that nothing changed may say otherwise, and only then is the cause decided
      again under a new key.
    - The fields of this object are what may be forgotten: calls under way and since when. Times are monotonic, so that
      a step of the wall clock ends no drain and shortens no settle time.
    """

    def __init__(
        self,
        decision_log: DecisionLog,
        routing: Routing,
        clock: Clock,
        workers: Workers,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._decision_log = decision_log
        self._may_act = may_act
        self._routing = routing
        self._clock = clock
        self._workers = workers
        self._settling_since_s: dict[str, float] = {}
        # Keys that this process has called and that have not ended: one that executes and is not here is of an earlier
        # process.
        self._begun_s: dict[str, float] = {}
        self._jobs: dict[str, Future[ExecutionResult]] = {}
        self._checks: dict[str, Future[bool | None]] = {}
        self._reported_s: dict[str, float] = {}
        self._coolest: dict[str, tuple[float, float]] = {}
        self._concluded: list[str] = []

    def concluded(self) -> tuple[str, ...]:
        """Ids of the decisions whose outcome was recorded since the last call."""
        found, self._concluded = tuple(self._concluded), []
        return found

    def inverse(self, decision: Decision) -> Decision | None:
        """What undoes `decision`, by the executor that did it or would do it now."""
        executor = self._routing.executor_for(decision)
        return inverse_of(decision) if executor is None else executor.inverse(decision)

    def pre_check(self, decision: Decision, view: FleetView) -> Verdict:
        """The executor's own verdict; what it was asked for must be readable first, whoever wrote it.

        Recoveries are excepted: they inherit what an earlier action was told, and a text that this version cannot read
        must not keep a node out of service.
        """
        if decision.parameters.problem and not is_recovery(decision.action):
            return Verdict(PRE_CHECK, Ruling.DENY, decision.parameters.problem)
        elsewhere = "" if is_recovery(decision.action) else misplaced(decision.subject, view)
        if elsewhere:
            return Verdict(PRE_CHECK, Ruling.HOLD, elsewhere)
        executor = self._routing.executor_for(decision)
        if executor is None:
            return hold(say("no executor carries out {action}", action=decision.action.value))
        try:
            return executor.check(decision, view)
        except Exception as error:  # the supervisor of executors: one of them stops no other decision
            log.exception("an executor's pre-check broke off", executor=executor.name, decision=decision.id)
            return Verdict(PRE_CHECK, Ruling.HOLD, f"{executor.name} could not check: {_words(error)}")

    def begin(self, record: LedgerEntry, view: FleetView, *, shared: bool = False) -> None:
        """Record the start. From here on the key is used up, whatever happens to this process.

        Where limits are `shared` with other cells what it takes of them is in the same entry. Raises BudgetSpent where
        that is not there any more: nothing is on record then.
        """
        decision = record.decision
        executor, goal = self._routing.executor_for(decision), goal_of(decision, view)
        anew = goal != decision.goal
        before, work = _measured(decision.subject, view), work_at(decision, view)
        takes = taking_of(decision, view) if shared else None
        name = "" if executor is None else executor.name
        self._decision_log.started(replace(decision, goal=goal), name, before, work, takes, anew=anew)

    def carry_out(self, record: LedgerEntry, view: FleetView) -> None:
        """Do it, and record what came of it as far as that is known at once."""
        executor = self._routing.named(record.executor)
        if executor is not None:
            self._call(record, executor)
            self._collect(record, view)

    def advance(self, view: FleetView) -> None:
        """Take in what has ended, go on with what is pending, end what an earlier process left behind."""
        for record in self._in(DecisionState.EXECUTING):
            self._collect(record, view)
            if record.state is DecisionState.EXECUTING and record.decision.key not in self._jobs:
                self._go_on(record, view)

    def finish(self, seconds: float) -> None:
        """Wait that long at most for the calls under way and put their results on record, before the end."""
        # What is pending stays as it is: the next process goes on with it, or ends it as interrupted.
        wait(list(self._jobs.values()), timeout=seconds)
        for record in self._in(DecisionState.EXECUTING):
            job = self._jobs.get(record.decision.key)
            if job is not None and job.done() and not job.cancelled() and not job.result().pending:
                del self._jobs[record.decision.key]
                self._take_result(record, job.result())

    def _go_on(self, record: LedgerEntry, view: FleetView) -> None:
        executor = self._routing.named(record.executor)
        known = record.decision.key in self._begun_s
        if executor is None or not (known or executor.resumable):
            # A start without a result, by a process that is gone: to call again could do it twice.
            self._interrupted(record)
        elif _may_go_on(record.decision, view):
            self._call(record, executor)
            self._collect(record, view)

    def _call(self, record: LedgerEntry, executor: Executor) -> None:
        decision = record.decision
        job = self._workers.submit(lambda: self._executed(executor, decision))
        self._begun_s.setdefault(decision.key, self._clock.monotonic())
        self._jobs[decision.key] = job

    def _executed(self, executor: Executor, decision: Decision) -> ExecutionResult:
        """What came of a call. At the last moment it is asked once more whether this brain may act: between the start
        on record and this instant the process may have been stopped for longer than it holds its lease."""
        if not self._may_act():
            said = say("waits: another brain may be the active one by now")
            return ExecutionResult(True, str(said), pending=True, said=said)
        return _executed(executor, decision)

    def _collect(self, record: LedgerEntry, view: FleetView) -> None:
        key = record.decision.key
        job = self._jobs.get(key)
        if job is None or not job.done():
            return
        del self._jobs[key]
        begun = self._begun_s.pop(key)
        result = job.result()
        if result.pending:
            over = self._clock.monotonic() - begun >= view.policy.settings.execution_seconds
            if not over:
                self._begun_s[key] = begun
                self._report_progress(record, result)
                return
            # It may still take effect after this: failed, but not certain.
            limit, detail = f"{view.policy.settings.execution_seconds:g}", result.said or result.detail
            said = say("did not end within {limit} s: {detail}", limit=limit, detail=detail)
            result = replace(result, ok=False, certain=False, detail=str(said), said=said)
        self._reported_s.pop(key, None)
        self._take_result(record, result)

    def _report_progress(self, record: LedgerEntry, result: ExecutionResult) -> None:
        """Put a change of where it stands on record, once a while: a drain counts down for hours."""
        now = self._clock.monotonic()
        last = self._reported_s.get(record.decision.key)
        if result.detail != record.detail and (last is None or now - last >= PROGRESS_SECONDS):
            self._reported_s[record.decision.key] = now
            chinese = in_chinese_too("detail", result.detail_zh)
            self._decision_log.about(EntryKind.EXECUTION_GOES_ON, record.decision, detail=result.detail, **chinese)

    def _take_result(self, record: LedgerEntry, result: ExecutionResult) -> None:
        lasting = ACTIONS[record.decision.action].lasting
        if not result.ok:
            # Half a drain that nobody is sure of still keeps the node: it is given back by its inverse, not forgotten.
            stays = lasting and not result.certain
            told = Told(result.detail, result.detail_zh)
            self._end(record, OutcomeStatus.FAILED, told, result.attempts, in_effect=stays, renew=result.certain)
            return
        self._settling_since_s[record.decision.key] = self._clock.monotonic()
        self._decision_log.about(
            EntryKind.VERIFICATION,
            record.decision,
            phase="due",
            detail=result.detail,
            attempts=result.attempts,
            lasting=result.lasting and lasting,
            changed=result.lasting,
            effect=dict(result.effect),
            **in_chinese_too("detail", result.detail_zh),
        )

    def verify_settled(self, view: FleetView) -> None:
        """Post-check what has had its settle time.

        The time is counted on the monotonic scale of this process: a step of the wall clock does not shorten it, and a
        restart begins it anew.
        """
        for record in self._in(DecisionState.VERIFYING):
            since = self._settling_since_s.setdefault(record.decision.key, self._clock.monotonic())
            if not record.checked and self._clock.monotonic() - since >= view.policy.settings.settle_seconds:
                self._check(record, view)
            if record.checked:
                self._settling_since_s.pop(record.decision.key, None)
                self._coolest.pop(record.decision.key, None)
                self._conclude(record)

    def _check(self, record: LedgerEntry, view: FleetView) -> None:
        key, decision = record.decision.key, record.decision
        executor = self._routing.named(record.executor)
        if executor is not None and key not in self._checks:
            self._checks[key] = self._workers.submit(lambda: _verified(executor, decision, view))
        looking = self._checks.get(key)
        if looking is not None and not looking.done():
            return
        self._checks.pop(key, None)
        # An executor that changed nothing has no effect to be seen, whatever the view shows.
        answer = None if looking is None or not record.changed else looking.result()
        seen, value = judged(record, answer, view)
        if self._still_cools(record, value, view) if seen else self._may_come(record, seen, value, view):
            return
        # Work that was taken away has taken its load along: that is not what the action was for.
        taken = ACTIONS[decision.action].disruptive
        effect = {} if taken else _change(record.before, _measured(decision.subject, view))
        found: dict[str, Any] = {} if value is None else {"measured": value}
        self._decision_log.about(
            EntryKind.VERIFICATION, record.decision, phase="checked", seen=seen, effect=effect, **found
        )

    def _may_come(self, record: LedgerEntry, seen: bool | None, value: float | None, view: FleetView) -> bool:
        """Whether a goal that is not reached has time left: heat takes minutes to go, a node to arrive. An error that
        came does not go away by waiting."""
        goal, settings = record.decision.goal, view.policy.settings
        if goal is None or (goal.measure == NEW_ERRORS and value):
            return False
        if seen is None and not (record.changed and goal.measure == NEW_ERRORS):
            # What nobody shows now nobody will show later, unless the GPU has to come back first.
            return False
        since = self._settling_since_s[record.decision.key]
        return self._clock.monotonic() - since < settings.settle_seconds + settings.goal_seconds

    def _still_cools(self, record: LedgerEntry, value: float | None, view: FleetView) -> bool:
        """Whether a throttle that has reached its goal goes on cooling: what it buys is measured once the temperature
        stands, since by that it is given back."""
        key, goal, settings = record.decision.key, record.decision.goal, view.policy.settings
        now = self._clock.monotonic()
        over = now - self._settling_since_s[key] >= settings.settle_seconds + settings.goal_seconds
        if value is None or goal is None or not is_for_heat(record.decision) or over:
            return False
        since, best = self._coolest.get(key, (now, math.inf))
        figure = value if goal.sense is GoalSense.AT_MOST else -value
        if best - figure >= STEADY_CELSIUS:
            since, best = self._coolest[key] = now, figure
        return now - since < STEADY_SECONDS

    def settle_interrupted(self) -> None:
        """End what a killed process had begun and nobody can go on with: its effect is unknown, it is not repeated."""
        for record in self._in(DecisionState.EXECUTING):
            executor = self._routing.named(record.executor)
            if record.decision.key not in self._begun_s and (executor is None or not executor.resumable):
                self._interrupted(record)

    def _interrupted(self, record: LedgerEntry) -> None:
        lasting = ACTIONS[record.decision.action].lasting
        told = Told(INTERRUPTED, in_chinese(say(INTERRUPTED)))
        self._end(record, OutcomeStatus.FAILED, told, 1, in_effect=lasting, renew=False)

    def _conclude(self, record: LedgerEntry) -> None:
        goal = record.decision.goal
        figures = None if goal is None or (record.measured is None and record.seen) else in_words(goal, record.measured)
        told = Told(record.detail, record.detail_zh).and_then(_result_words(record.seen, figures))
        if record.seen is False:
            # On a ladder the cause is decided again at once, so that failures add up to the next rung.
            again = record.decision.action in RUNGS
            missed = OutcomeStatus.GOAL_NOT_REACHED
            self._end(record, missed, told, record.attempts, in_effect=record.lasting, renew=again)
            return
        status = OutcomeStatus.RESTORED if is_recovery(record.decision.action) else OutcomeStatus.SUCCEEDED
        self._end(record, status, told, record.attempts, in_effect=record.lasting)

    def _end(
        self,
        record: LedgerEntry,
        status: OutcomeStatus,
        told: Told,
        attempts: int,
        *,
        in_effect: bool,
        renew: bool = False,
    ) -> None:
        then = next_step(record.decision, status, lasting=in_effect, again=renew)
        outcome = Outcome(
            decision=record.decision.id,
            status=status,
            executor=record.executor,
            at_ms=self._clock.now_ms(),
            detail=told.english,
            detail_zh=told.chinese,
            attempts=attempts,
            effect=dict(record.effect),
            measured=record.measured,
            next_step=str(then),
            next_step_zh=in_chinese(then),
        )
        self._concluded.append(record.decision.id)
        self._decision_log.ended(record, outcome, in_effect=in_effect, renew=renew)

    def _in(self, state: DecisionState) -> list[LedgerEntry]:
        return [record for record in self._decision_log.records() if record.state is state]


def _executed(executor: Executor, decision: Decision) -> ExecutionResult:
    try:
        return executor.execute(decision)
    except Exception as error:  # the supervisor of executors: one of them stops no other decision
        log.exception("an execution broke off", executor=executor.name, decision=decision.id)
        return ExecutionResult(False, f"{executor.name} broke off: {_words(error)}", certain=False)


def _verified(executor: Executor, decision: Decision, view: FleetView) -> bool | None:
    try:
        return executor.verify(decision, view)
    except Exception:  # the supervisor of executors: one of them stops no other decision
        log.exception("a post-check broke off", executor=executor.name, decision=decision.id)
        return None


def judged(record: LedgerEntry, answer: bool | None, view: FleetView) -> tuple[bool | None, float | None]:
    """Whether the goal is reached, and its figure. What the executor itself sees undone is not reached; where neither
    it nor the state shows anything, nobody knows."""
    goal = record.decision.goal
    if goal is None or not record.changed:
        return answer, None
    value = measure(record.decision, goal, view, BegunAction(record.started_ms, frozenset(record.work)))
    is_restore = record.decision.action is ActionKind.RESTORE
    if answer is not None and (goal.measure in (OPEN_CAUSES, POOL_GPUS) or is_restore):
        # Managers see a node before its agent reports; what is given back may leave another's lower limit in force.
        return answer, value
    if answer is False or value is None:
        return answer, value
    return goal.met(value), value


def next_step(decision: Decision, status: OutcomeStatus, *, lasting: bool, again: bool) -> Phrase:
    """What comes after an end, for people; `again` says that the cause is decided anew."""
    if status in (OutcomeStatus.SUCCEEDED, OutcomeStatus.RESTORED):
        if not lasting or ACTIONS[decision.action].inverse is None:
            return say("nothing more is to be done")
        if decision.category is Category.HARDWARE:
            return say("it stays until a person gives it back: tocsin undo {id}", id=decision.id)
        if is_for_heat(decision):
            return say("it is undone once the GPU keeps cool without it")
        return say("it is undone once its cause is gone")
    if status is OutcomeStatus.GOAL_NOT_REACHED and again:
        return say("after the rest it is tried again; what has no effect time and again gives way to the next rung")
    if again:
        return say("it is tried again after the rest")
    return say("it is not repeated by itself: a person should look")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _may_go_on(decision: Decision, view: FleetView) -> bool:
    """A pause, or another active brain, stops also what is under way; a tripped breaker all but what gives back."""
    controls = view.controls
    if not view.active:
        return False
    return controls.paused is None and (controls.breaker is None or is_recovery(decision.action))


def _measured(subject: Subject, view: FleetView) -> dict[str, float]:
    """The mean of each of `LOOKED_AT` over the subject's GPUs; what none of them has is left out."""
    found: dict[str, float] = {}
    members = gpus_of(subject, view)
    for name in LOOKED_AT:
        values = [member.values[name] for member in members if name in member.values]
        if values:
            found[name] = sum(values) / len(values)
    return found


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Difference `after` - `before` of what both have, as ``<metric>_change``, and degrees lost per watt given up."""
    found = {f"{name}_change": after[name] - value for name, value in before.items() if name in after}
    watts = -found.get(f"{POWER}_change", 0.0)
    if f"{TEMPERATURE}_change" in found and watts >= LEAST_WATTS:
        found[PER_WATT] = -found[f"{TEMPERATURE}_change"] / watts
    return found
