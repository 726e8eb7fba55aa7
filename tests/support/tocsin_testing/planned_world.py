"""A made-up fleet whose plans are carried out: planner, loop and guards are the real ones, the manager is a stage."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tocsin.actions.executors.base import seen_in
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult
from tocsin.actions.model.ledger_entry import DecisionStatus, StepReport
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.view import Confirmations, FleetView, GpuView
from tocsin.actions.planning.foresight import alone
from tocsin.actions.planning.plan import Move, Step, StepKind
from tocsin.actions.planning.scaling import PoolDemand, new_names
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetState, GpuHold
from tocsin.config.planning import PlanningSettings
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.decision import (
    Decision,
    MigrateParameters,
    RestoreParameters,
    Ruling,
    ScaleInParameters,
    ScaleOutParameters,
    ThrottleParameters,
    Verdict,
    encode,
)
from tocsin.domain.finding import ActionKind, Finding
from tocsin.domain.reading import Gpu
from tocsin.runtime.brain.plan_watch import PlanInputs, Planner
from tocsin_testing.action_world import FakeNotifier, settings
from tocsin_testing.builders import T0
from tocsin_testing.journal_double import JournalDouble


class StagedManager:
    """Does what is decided to `state`, by the laws of the stage; what it refused is in `broken`."""

    name = "staged"
    resumable = False

    def __init__(self, state: FleetState, clock: ManualClock) -> None:
        self.state = state
        self.clock = clock
        self.done: list[Decision] = []
        self.broken: list[str] = []
        self._resting: list[tuple[str, int]] = []
        self._allowed = state.budgets

    def supports(self, action: ActionKind) -> bool:
        return action is not ActionKind.NOTIFY

    def serves(self, decision: Decision) -> bool:
        return True

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        self.done.append(decision)
        try:
            self._do(decision)
        except PlanBroken as broken:
            self.broken.append(str(broken))
            return ExecutionResult(False, str(broken), lasting=False)
        return ExecutionResult(True, "done")

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        return seen_in(decision, view)

    def inverse(self, decision: Decision) -> Decision | None:
        return inverse_of(decision)

    def _do(self, decision: Decision) -> None:
        told = decision.parameters
        if isinstance(told, MigrateParameters):
            (work,) = told.work
            self._move(work, encode(told)["to"])
        elif isinstance(told, ScaleOutParameters):
            pool = self.state.pools[told.context.pool]
            hosts = new_names(self.state, pool, told.nodes or 0)
            self._run(
                Step(StepKind.SCALE_OUT, pool.name, "", hosts=hosts),
                Step(StepKind.WAIT_READY, pool.name, "", hosts=hosts),
            )
        elif isinstance(told, ScaleInParameters):
            host = told.node
            self._run(Step(StepKind.CORDON, host, ""), Step(StepKind.SCALE_IN, host, ""))
        elif isinstance(told, ThrottleParameters | RestoreParameters):
            assert told.power_limit_watts is not None
            self._limit(decision, told.power_limit_watts)

    def settle(self) -> None:
        """What was moved counts against its budgets until it runs again."""
        now_ms = self.clock.now_ms()
        self._resting = [(name, back_ms) for name, back_ms in self._resting if back_ms > now_ms]
        down = Counter(name for name, _ in self._resting)
        left = {name: replace(one, allowed=one.allowed - down[name]) for name, one in self._allowed.items()}
        self.state = replace(self.state, budgets=left)

    def _run(self, *steps: Step) -> None:
        stage = Simulation(self.state)
        for step in steps:
            stage.do(step)
        self.state = stage.state

    def _move(self, name: str, to: str) -> None:
        works = [work for work in self.state.works.values() if name in (work.gang, work.id)]
        assert len(works) == 1, "this manager moves single pieces"
        work = works[0]
        places = [place.partition("@") for place in to.split()]
        share = 1.0 if work.gpus >= 1 or work.profile else work.gpus
        target = tuple(GpuHold(gpu, share, int(start) if start else None) for gpu, _, start in places)
        self._run(Step(StepKind.MOVE, name, "", (Move(work.id, work.holds, target),)))
        back_ms = self.clock.now_ms() + round(work.restart_s * SECOND)
        self._resting += [(budget, back_ms) for budget in work.budgets]

    def _limit(self, decision: Decision, watts: float) -> None:
        slot = self.state.gpus[decision.subject.name]
        self.state = self.state.with_nodes([], [replace(slot, limit_watts=watts)])


class PlannedWorld:
    """`step` is one minute: a look of the planner, then a turn of the loop."""

    def __init__(self, state: FleetState, planning: PlanningSettings, actions: ActionSettings | None = None) -> None:
        self.clock = ManualClock(T0)
        self.journal = JournalDouble(self.clock)
        self.manager = StagedManager(replace(state, at_ms=T0), self.clock)
        pools = sorted({node.pool for node in state.nodes.values()})
        self.policy = Policy(actions or settings(managed_pools=pools))
        self.planning = planning
        self.demands: tuple[PoolDemand, ...] = ()
        self._since: dict[tuple[str, str], int] = {}
        self.restart()

    def restart(self) -> None:
        """A new brain over the same journal: nothing is found yet; the recorder knows since when the rest was."""
        self.started_ms = self.clock.now_ms()
        self.findings: list[Finding] = []
        self.planner = Planner(self.planning)
        self._confirmations = Confirmations()
        self.loop = ActionLoop(self.journal, [self.manager], self.clock, self.policy, FakeNotifier())

    @property
    def state(self) -> FleetState:
        """The fleet as it is now."""
        return replace(self.manager.state, at_ms=self.clock.now_ms())

    def step(self, advance: int = MINUTE) -> StepReport:
        """Time passes, plans are made anew, the loop turns once."""
        self.clock.advance(advance)
        self.manager.settle()
        now_ms, state = self.clock.now_ms(), self.state
        sight = PlanInputs(self.demands, self.loop.controls(), tuple(self.findings))
        made, foresight = self.planner.look(state, sight, now_ms)
        self.findings = [
            replace(one, started_ms=self._since.get((one.rule, one.subject.key), one.started_ms)) for one in made
        ]
        settling = now_ms < self.started_ms + self.policy.boot_grace_ms
        kept = self._since if settling else {}
        self._since = kept | {(one.rule, one.subject.key): one.started_ms for one in self.findings}
        gpus = {
            slot.uuid: GpuView(
                Gpu(slot.uuid, slot.host, pool=state.nodes[slot.host].pool, simulated=state.simulated),
                now_ms,
                values={} if slot.limit_watts is None else {"gpu_power_limit_watts": slot.limit_watts},
            )
            for slot in state.gpus.values()
        }
        view = FleetView(
            now_ms,
            self.started_ms,
            gpus,
            {one.id: one for one in self.findings},
            tuple(alone(self.findings)),
            self._confirmations.update(self.findings, now_ms),
            foresight=foresight,
            policy=self.policy,
        )
        return self.loop.step(view, view.incidents, [])

    def decisions(self, action: ActionKind) -> list[DecisionStatus]:
        """All decisions for `action`, by the instant they were made."""
        found = [one for one in self.loop.statuses() if one.decision.action is action]
        return sorted(found, key=lambda one: (one.decision.at_ms, one.decision.key))
