"""A drill of scale-out before drain: nodes fail, with warning or without, and capacity is watched.

A discrete-event simulation around the real planner. What happens to the nodes is drawn from the seed alone, so that two
ways of acting meet the same failures. All shares and durations are own choices.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tocsin.actions.planning.placement import evacuate
from tocsin.actions.planning.plan import Step, StepKind
from tocsin.actions.planning.scaling import replace_before_drain
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetNode, FleetState, GpuHold, Pool, Slot, Workload
from tocsin.actions.planning.units import PlanLimits

POOL = "train"
GPUS = 8
HOUR_S = 3600.0
LENGTH_S = 24 * HOUR_S


class Way(StrEnum):
    """How a warning is answered."""

    SCALE_FIRST = "scale_first"
    """By the planner: no drain before the floor holds without the node."""
    DRAIN_FIRST = "drain_first"
    """Drain at once, and ask for a node at the same time."""


@dataclass(frozen=True, slots=True)
class DrillSpec:
    """A pool of `nodes` nodes of which `failures` fail within a day and `false_alarms` more are warned of in vain.

    `spare` nodes are above the floor. `surprises` is the share of failures without warning; the others are known
    `least_lead_s` to `most_lead_s` before. A new node takes up to `provision_s`, and one request in `refused` fails.
    """

    nodes: int = 16
    failures: int = 4
    false_alarms: int = 1
    spare: int = 0
    surprises: float = 0.0
    least_lead_s: float = HOUR_S
    most_lead_s: float = 6 * HOUR_S
    provision_s: float = 900.0
    refused: float = 0.1


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What one run came to.

    `broken_by_action` counts steps of ours that took GPUs out of service and left fewer than the floor.
    `seconds_below` is how long fewer were ready, for whatever reason, `least` the fewest that were, `lost_works` the
    works that a failing node took with it.
    """

    seed: int
    floor: int
    least: int
    seconds_below: float
    broken_by_action: int
    drained: int
    added: int
    lost_works: int


def drill(seed: int, way: Way, spec: DrillSpec | None = None) -> DrillResult:
    """One run of a day; equal arguments give equal results."""
    return _DrillRun(seed, way, spec or DrillSpec()).result()


@dataclass(order=True)
class _Event:
    at_s: float
    number: int
    kind: str = field(compare=False)
    host: str = field(compare=False)


class _DrillRun:
    def __init__(self, seed: int, way: Way, spec: DrillSpec) -> None:
        self._seed, self._way, self._spec = seed, way, spec
        self._provider = random.Random(f"provider {seed}")
        self._state = _pool(random.Random(f"pool {seed}"), spec)
        self._floor = self._state.pools[POOL].floor_gpus
        self._limits = PlanLimits()
        self._events: list[_Event] = []
        self._warned: list[str] = []
        self._ordered: set[str] = set()
        self._count = 0
        self._now_s = 0.0
        self._below_s = 0.0
        self._least = self._ready()
        self._broken = self._drained = self._added = self._lost = 0
        self._draw(random.Random(f"failures {seed}"))

    def _draw(self, rng: random.Random) -> None:
        hosts = rng.sample(sorted(self._state.nodes), self._spec.failures + self._spec.false_alarms)
        for number, host in enumerate(hosts):
            fails_s = rng.uniform(self._spec.most_lead_s, LENGTH_S)
            lead_s = rng.uniform(self._spec.least_lead_s, self._spec.most_lead_s)
            surprise = rng.random() < self._spec.surprises
            false_alarm = number >= self._spec.failures
            if false_alarm or not surprise:
                self._push(fails_s - lead_s, "warn", host)
            if not false_alarm:
                self._push(fails_s, "fail", host)

    def _push(self, at_s: float, kind: str, host: str) -> None:
        self._count += 1
        heapq.heappush(self._events, _Event(at_s, self._count, kind, host))

    def _ready(self) -> int:
        return self._state.ready_gpus(POOL)

    def result(self) -> DrillResult:
        while self._events:
            event = heapq.heappop(self._events)
            if event.at_s > LENGTH_S:
                break
            self._pass_time(event.at_s)
            {"warn": self._warn, "fail": self._fail, "ready": self._arrive, "denied": self._denied}[event.kind](
                event.host
            )
            self._react()
            self._least = min(self._least, self._ready())
        self._pass_time(LENGTH_S)
        return DrillResult(
            self._seed,
            self._floor,
            self._least,
            self._below_s,
            self._broken,
            self._drained,
            self._added,
            self._lost,
        )

    def _pass_time(self, to_s: float) -> None:
        if self._ready() < self._floor:
            self._below_s += to_s - self._now_s
        self._now_s = to_s

    def _warn(self, host: str) -> None:
        self._warned.append(host)
        self._state = self._state.with_nodes([replace(self._state.nodes[host], risk=0.5)])
        if self._way is Way.DRAIN_FIRST:
            self._order(host)

    def _fail(self, host: str) -> None:
        node = self._state.nodes.get(host)
        if node is None:
            return
        self._lost += len(self._state.on_host.get(host, ()))
        gone = [replace(slot, healthy=False) for slot in self._state.by_host[host]]
        lost = {work.id for work in self._state.on_host.get(host, ())}
        works = {name: work for name, work in self._state.works.items() if name not in lost}
        self._state = replace(self._state, works=works).with_nodes([replace(node, schedulable=False)], gone)
        if host in self._warned:
            self._warned.remove(host)
        if node.schedulable:
            self._order(host)

    def _order(self, host: str) -> None:
        """Ask for a node in place of `host`, once."""
        if host in self._ordered:
            return
        self._ordered.add(host)
        delay_s = self._provider.uniform(0.3, 1.0) * self._spec.provision_s
        denied = self._provider.random() < self._spec.refused
        self._push(self._now_s + delay_s, "denied" if denied else "ready", host)

    def _denied(self, host: str) -> None:
        self._ordered.discard(host)
        if self._way is Way.DRAIN_FIRST or host not in self._warned:
            self._order(host)

    def _arrive(self, host: str) -> None:
        self._added += 1
        name = f"{host}-new"
        slots = [Slot(f"{name}/{index}", name, "H100") for index in range(GPUS)]
        self._state = self._state.with_nodes([FleetNode(name, POOL)], slots)

    def _react(self) -> None:
        for host in list(self._warned):
            steps = self._planned(host)
            if steps and steps[0].kind is StepKind.SCALE_OUT:
                self._order(host)
            elif steps:
                self._carry_out(host, steps)

    def _planned(self, host: str) -> tuple[Step, ...]:
        if self._way is Way.SCALE_FIRST:
            return replace_before_drain(self._state, [host], self._limits).steps
        cordon = Step(StepKind.CORDON, host, "Cordon.")
        closed = self._state.with_nodes([replace(self._state.nodes[host], schedulable=False)])
        moves, _ = evacuate(closed, host, self._limits)
        return (cordon, *moves, Step(StepKind.DRAIN, host, "Drain."))

    def _carry_out(self, host: str, steps: Iterable[Step]) -> None:
        """Do what can be done. The simulation of the drill has no floor of its own: it is counted, not enforced."""
        simulation = Simulation(replace(self._state, pools={}), 1.0)
        for step in steps:
            before = self._ready()
            try:
                simulation.do(step)
            except PlanBroken:
                break
            self._state = replace(simulation.state, pools=self._state.pools)
            after = self._ready()
            self._least = min(self._least, after)
            if after < before and after < self._floor:
                self._broken += 1
            if step.kind is StepKind.DRAIN:
                self._drained += 1
                self._warned.remove(host)


def _pool(rng: random.Random, spec: DrillSpec) -> FleetState:
    nodes = {name: FleetNode(name, POOL) for name in (f"node-{number:02d}" for number in range(spec.nodes))}
    slots = [Slot(f"{host}/{index}", host, "H100") for host in nodes for index in range(GPUS)]
    works: dict[str, Workload] = {}
    for host in nodes:
        free = [slot.uuid for slot in slots if slot.host == host]
        for size in rng.choice(((4,), (2, 2), (4, 2), (2, 1), (2, 2, 1))):
            held, free = free[:size], free[size:]
            name = f"{host}-job-{len(works)}"
            works[name] = Workload(
                name, float(size), tuple(GpuHold(uuid) for uuid in held), lost_s=600.0, restart_s=300.0
            )
    pool = Pool(
        POOL,
        floor_gpus=GPUS * (spec.nodes - spec.spare),
        node_gpus=GPUS,
        node_model="H100",
        provision_s=spec.provision_s,
    )
    return FleetState(
        nodes=nodes, gpus={slot.uuid: slot for slot in slots}, works=works, pools={POOL: pool}, simulated=True
    )
