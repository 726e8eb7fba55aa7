"""A simulated fleet that is acted on: real loop, guards and executor, findings made by hand, time from the fleet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tocsin.actions.executors.simulated import Simulated
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.view import Confirmations, FleetView
from tocsin.domain.clock import DAY, MINUTE, SECOND, ManualClock
from tocsin.domain.decision import ActionParameters
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.reading import Reading
from tocsin.queries.fleet_state import workloads_of
from tocsin.runtime.brain.action_state import errors_of, gpu_views
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.ownership import Ownership
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.jobs import POOLS
from tocsin.sim.load import end_job
from tocsin.sim.spec import FleetSpec
from tocsin_testing.action_world import FakeNotifier, incident, settings
from tocsin_testing.builders import T0
from tocsin_testing.journal_double import JournalDouble

CALM = 5
"""Readings below the clear level before a cause ends: work that writes a checkpoint is cool for three."""


class InertPort:
    """The fleet as executor `simulated` sees it, on which every action is taken and none has an effect."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._fleet = fleet
        self.gpu_on, self.jobs = fleet.gpu_on, fleet.jobs
        self.schedulable, self.closed = fleet.schedulable, fleet.closed

    def apply(self, action: ActionKind, gpu: str, parameters: ActionParameters) -> bool:
        return True

    def move(self, job: str, hosts: Collection[str]) -> bool:
        return True


@dataclass
class ActedCase:
    """One cause. It opens once `value` passes `above`, at once where there is none, and clears below `clear`."""

    subject: Subject
    action: ActionKind
    category: Category
    metric: str = ""
    above: float | None = None
    clear: float | None = None
    told: bool = False
    finding: Finding | None = None
    ended: DecisionStatus | None = None
    done: bool = False
    calm: int = 0


class ActedFleet:
    """`step` is a minute: the fleet moves on, causes open and clear, the loop turns once."""

    def __init__(self, gpus: int, *, effective: bool = True, seed: int = 3) -> None:
        self.fleet = SimulatedFleet(FleetSpec(gpus=gpus, seed=seed, start_ms=T0, interval_ms=MINUTE))
        self.clock = ManualClock(T0)
        own = settings(managed_pools=list(POOLS), goal_seconds=900.0, settle_seconds=120.0)
        self.policy = Policy(own)
        self.executor = Simulated(self.fleet if effective else InertPort(self.fleet))
        self.journal = JournalDouble(self.clock)
        self.loop = ActionLoop(self.journal, [self.executor], self.clock, self.policy, FakeNotifier())
        self.cases: list[ActedCase] = []
        self._events: list[Event] = []
        self._confirmations = Confirmations()
        self.readings: list[Reading] = []
        self._owners = Ownership(len(self.fleet.gpus) + 1, round(own.newcomer_seconds * SECOND))
        self._owners.seed((), T0, ())
        self._counting = Counting(self._owners, own.unshown_gpus_per_host, own.managed_label)
        self.held: list[int] = []
        """GPUs whose work begins again where something ends it, so that heat stays."""

    def step(self) -> None:
        if self.held:
            self.hold_work(self.held)
        batch = self.fleet.step()
        self.clock.advance(self.fleet.now_ms - self.clock.now_ms())
        self._owners.refuse(batch, self.clock.now_ms())
        self.readings, self._events = list(batch.readings), [*self._events, *batch.events]
        by_uuid = {one.gpu.uuid: one for one in self.readings}
        for case in self.cases:
            self._judge(case, by_uuid)
        view = self._view([case.finding for case in self.cases if case.finding is not None])
        self.loop.step(view, view.incidents, [])
        # The first end of each counts: what had no effect is tried again.
        ended = {
            one.decision.findings[0]: one
            for one in sorted(self.loop.statuses(), key=lambda one: -one.decision.at_ms)
            if one.outcome is not None and one.decision.findings and one.decision.action is not ActionKind.NOTIFY
        }
        for case in self.cases:
            status = ended.get(case.finding.id) if case.finding is not None else None
            if status is not None and status.decision.action is case.action:
                case.ended, case.finding, case.done = status, None, True

    def _judge(self, case: ActedCase, by_uuid: dict[str, Reading]) -> None:
        now_ms = self.clock.now_ms()
        value = None if not case.metric else self._value(case, by_uuid)
        if case.done:
            return
        if case.finding is None:
            if case.above is not None and (value is None or value <= case.above):
                return
            case.finding = Finding(
                rule=f"acted_{case.action}",
                subject=case.subject,
                severity=Severity.CRITICAL,
                category=case.category,
                action=case.action,
                started_ms=now_ms,
                last_ms=now_ms,
                sentence="It is made up.",
                metric=case.metric,
                value=value,
                threshold=case.above,
                simulated=True,
                told=case.told,
            )
        elif case.clear is not None and value is not None and value < case.clear and case.calm < CALM:
            # A cause ends once it has been calm for a while, as with the `clear_for` of a rule.
            case.calm += 1
        elif case.clear is not None and value is not None and value < case.clear:
            # It stays on record by the decision: what waits for its goal looks for the cause by its id.
            case.finding = replace(case.finding, last_ms=-1)
        elif case.finding.last_ms >= 0 or case.clear is None:
            case.calm = 0
            case.finding = replace(case.finding, last_ms=now_ms, value=value)

    def _value(self, case: ActedCase, by_uuid: dict[str, Reading]) -> float | None:
        values = by_uuid[case.subject.name].values
        found = [value for name, value in values.items() if name.partition("{")[0] == case.metric]
        return max(found, default=None)

    def _view(self, findings: list[Finding]) -> FleetView:
        now_ms, nodes = self.clock.now_ms(), self.executor.nodes()
        live = [one for one in findings if one.last_ms >= 0]
        workloads = workloads_of(self.readings, nodes, blind=False)
        self._counting.look([one.gpu for one in self.readings], nodes, now_ms)
        return FleetView(
            now_ms,
            T0,
            gpu_views(
                self.readings,
                live,
                nodes,
                workloads,
                recalled=lambda _uuid: False,
                counts=self._counting.of,
            ),
            {one.id: one for one in live},
            tuple(incident(one) for one in live),
            self._confirmations.update(live, now_ms),
            {pool.name: pool for pool in self.fleet.pools()},
            nodes,
            errors=errors_of(self._events),
            policy=self.policy,
        )

    def make_room(self, numbers: list[int]) -> None:
        """The jobs on some GPUs end."""
        for number in numbers:
            end_job(self.fleet._state, self.fleet._inventory, number, self.fleet.now_ms)

    def hold_work(self, numbers: list[int]) -> None:
        """What runs on some GPUs goes on for a day: no heat ends for want of work."""
        slots = self.fleet._inventory.gang[numbers]
        self.fleet._state.work.until_ms[slots] = self.fleet.now_ms + DAY
        self.fleet._state.work.busy[slots] = True

    def gpu_subject(self, number: int) -> Subject:
        gpu = self.fleet.gpus[number]
        return Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool)
