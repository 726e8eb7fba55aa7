"""The executor of a simulated fleet: what is decided there happens there, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies, SimulatedPort
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, deny, went
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.build import work_id
from tocsin.actions.planning.facts import NodeState, WorkloadFacts, WorkloadSeen
from tocsin.domain.decision import (
    Decision,
    DefragmentParameters,
    MigrateParameters,
    RestoreParameters,
    Ruling,
    ThrottleKind,
    ThrottleParameters,
    Verdict,
    ranks_in,
)
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import Phrase, say

REMEMBERED = 1000
"""Keys whose result is kept: one that comes again has no second effect."""
_BY_JOB = frozenset({ActionKind.THROTTLE, ActionKind.RESTORE})
_BY_PEOPLE = frozenset({ActionKind.NOTIFY, ActionKind.RMA_TICKET})


class Simulated(ExecutorBase):
    """A decision about anything real is denied."""

    name = "simulated"

    def __init__(self, fleet: SimulatedPort, *, dry_run: bool = False) -> None:
        self._fleet = fleet
        self._dry_run = dry_run
        self._done: dict[str, ExecutionResult] = {}
        self._standing: dict[str, dict[ThrottleKind, ThrottleParameters]] = {}

    def supports(self, action: ActionKind) -> bool:
        return action not in _BY_PEOPLE

    def serves(self, decision: Decision) -> bool:
        return decision.simulated

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        if not decision.simulated:
            return deny(say("the simulated fleet takes no decision about anything real"))
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        if decision.key not in self._done:
            self._done[decision.key] = self._execute(decision)
            while len(self._done) > REMEMBERED:
                del self._done[next(iter(self._done))]
        return self._done[decision.key]

    def _execute(self, decision: Decision) -> ExecutionResult:
        target = self._target(decision)
        if self._dry_run:
            template = "dry run: would do {action} to {target} of the simulated fleet"
            said = say(template, action=decision.action.value, target=target or "nothing")
            return went(bool(target), said, lasting=False)
        try:
            done = self._moved(decision) or [self._apply(decision, each) for each in _all(decision, target)]
        except InputError as error:
            return ExecutionResult(False, str(error), lasting=False)
        if not any(done):
            return went(False, _why_not(decision), lasting=False)
        return went(True, say("{action} in the simulated fleet", action=decision.action.replace("_", " ")))

    def _moved(self, decision: Decision) -> list[bool]:
        """Whether each named piece of work moved to the hosts named for it; empty where none is named. Defragmenting a
        GPU mends what is on it."""
        parameters = decision.parameters
        if not isinstance(parameters, MigrateParameters | DefragmentParameters):
            return []
        if isinstance(parameters, DefragmentParameters) and decision.subject.kind in (
            SubjectKind.GPU,
            SubjectKind.HOST,
        ):
            return []
        return [self._fleet.move(work, hosts) for work, hosts in zip(parameters.work, parameters.to_host, strict=False)]

    def _apply(self, decision: Decision, target: str) -> bool:
        """Do it to one target. What is given back of two throttles leaves the other in force."""
        action, parameters = decision.action, decision.parameters
        standing = self._standing.setdefault(target, {})
        done = self._fleet.apply(action, target, parameters)
        if isinstance(parameters, ThrottleParameters) and done:
            standing[parameters.throttle_kind] = parameters
        elif isinstance(parameters, RestoreParameters):
            standing.pop(parameters.throttle_kind, None)
            for other in standing.values() if parameters.undoes else ():
                self._fleet.apply(ActionKind.THROTTLE, target, other)
        return done

    def _target(self, decision: Decision) -> str:
        if decision.subject.kind is SubjectKind.HOST:
            return self._fleet.gpu_on(decision.subject.name)
        return decision.subject.name

    def nodes(self) -> Mapping[str, NodeState]:
        closed = frozenset(self._fleet.closed())
        return {host: NodeState(host, takes, closed=closed) for host, takes in self._fleet.schedulable().items()}

    def work(self) -> WorkloadSeen:
        """Every job of the simulated fleet; it has no disruption budgets, and CPUs and memory are not counted."""
        return WorkloadSeen(
            {
                work_id(job.owner): WorkloadFacts(
                    lost_s=job.lost_s, checkpoint_every_s=job.checkpoint_every_s, ends_in_s=job.ends_in_s
                )
                for job in self._fleet.jobs()
            }
        )


def _why_not(decision: Decision) -> Phrase:
    if decision.action is ActionKind.SCALE_IN:
        return say("pool {pool} has no GPU that it could give back", pool=decision.subject.name)
    return say("the simulated {kind} does not answer, or has no room", kind=decision.subject.kind)


def _all(decision: Decision, target: str) -> list[str]:
    """What a decision is done to: power limits of a job are those of all its GPUs, anything else has one target."""
    ranks = ranks_in(decision.parameters) if decision.action in _BY_JOB else ()
    return [rank.gpu for rank in ranks] or [target]


def build(dependencies: Dependencies) -> Executor:
    """Executor `simulated` by the settings; raises InputError or Unavailable where it cannot be had."""
    if dependencies.fleet is None:
        problem = "there is no fleet that this process simulates"
        raise InputError("actions.executors", "simulated", problem, "use it with tocsin demo alone")
    return Simulated(dependencies.fleet, dry_run=dependencies.settings.actions.dry_run)
