"""A copy of the state on which plans are tried step by step; a step that breaks a law is refused by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from tocsin.actions.planning.plan import Move, Step, StepKind
from tocsin.actions.planning.state import (
    SHARE_EPSILON,
    TEMPLATES,
    FleetNode,
    FleetState,
    GpuHold,
    GpuMode,
    Pool,
    Slot,
    Workload,
)
from tocsin.domain.errors import TocsinError
from tocsin.domain.fragmentation import Placement, free_slices
from tocsin.domain.phrase import Phrase, say


class PlanBroken(TocsinError):
    """A step cannot be carried out, or must not be: `number` counts from 1, `reason` and `said` say why."""

    def __init__(self, number: int, step: Step, said: Phrase | str) -> None:
        self.number = number
        self.step = step
        self.said = said
        self.reason = str(said)
        super().__init__(f"step {number} ({step.kind} {step.subject}) breaks the plan: {said}")


class _MoveRefused(Exception):
    """Why a step is refused; a phrase where people are shown it."""

    def __init__(self, said: Phrase | str) -> None:
        super().__init__(str(said))
        self.said = said


class Simulation:
    """The state after some steps. `most_risk` bounds the risk of nodes that work may come to.

    The laws: no GPU, CPU or memory is given twice; mode, model and pool match; a gang moves whole and never to more
    fabrics than it had; over all steps no disruption budget loses more than it allows; no step that takes nodes out of
    service leaves a pool below its floor; a node that is drained or removed is empty, and none is on which something
    stays; a power limit lies between the least that the board takes and the limit that was found.
    """

    def __init__(self, state: FleetState, most_risk: float = 1.0) -> None:
        self._origin = state
        self._most_risk = most_risk
        self._nodes = dict(state.nodes)
        self._gpus = dict(state.gpus)
        self._works = dict(state.works)
        self._hosted: dict[str, set[str]] = {host: set() for host in state.nodes}
        self._taken: dict[str, float] = {}
        self._layouts: dict[str, list[Placement]] = {}
        self._cpus: dict[str, float] = dict.fromkeys(state.nodes, 0.0)
        self._memory: dict[str, float] = dict.fromkeys(state.nodes, 0.0)
        self._disturbed: Counter[str] = Counter()
        self._steps = 0
        for work in state.works.values():
            if work.holds:
                self._hold(work, 1)

    @property
    def state(self) -> FleetState:
        """The state as it is now; its budgets allow what the steps have left of them."""
        left = {
            name: replace(budget, allowed=budget.allowed - self._disturbed[name]) if name in self._disturbed else budget
            for name, budget in self._origin.budgets.items()
        }
        works = dict(self._works)
        return replace(self._origin, nodes=dict(self._nodes), gpus=dict(self._gpus), works=works, budgets=left)

    def run(self, steps: Iterable[Step]) -> FleetState:
        """Do `steps`; returns the state after. Raises PlanBroken with the step that breaks a law."""
        for step in steps:
            self.do(step)
        return self.state

    def do(self, step: Step) -> None:
        """Do one step. Raises PlanBroken; nothing counts that was done after that."""
        self._steps += 1
        try:
            _DEEDS[step.kind](self, step)
        except _MoveRefused as refused:
            raise PlanBroken(self._steps, step, refused.said) from None

    def work(self, name: str) -> Workload:
        return self._works[name]

    def free_whole(self, host: str, model: str) -> list[str]:
        """Wholly free exclusive GPUs of a host, of `model` where that is not empty."""
        return [
            slot.uuid
            for slot in self._origin.by_host.get(host, ())
            if slot.mode is GpuMode.EXCLUSIVE
            and slot.healthy
            and model in {"", slot.model}
            and self._taken.get(slot.uuid, 0.0) < SHARE_EPSILON
        ]

    def _hold(self, work: Workload, sign: int) -> None:
        host = self._gpus[work.holds[0].gpu].host
        self._cpus[host] += sign * work.cpus
        self._memory[host] += sign * work.memory_bytes
        (self._hosted[host].add if sign > 0 else self._hosted[host].discard)(work.id)
        for hold in work.holds:
            if hold.start is None:
                self._taken[hold.gpu] = self._taken.get(hold.gpu, 0.0) + sign * hold.share
            elif sign > 0:
                self._layouts.setdefault(hold.gpu, []).append((work.profile, hold.start))
            else:
                self._layouts[hold.gpu].remove((work.profile, hold.start))

    def _move(self, step: Step) -> None:
        works = [self._leave(move) for move in step.moves]
        self._whole_gangs(works)
        before = {self._fabric(work) for work in works if work.holds}
        for work, move in zip(works, step.moves, strict=True):
            if work.holds:
                self._disturb(work)
                self._hold(work, -1)
            self._works[work.id] = replace(work, holds=move.target)
        for move in step.moves:
            self._arrive(self._works[move.work])
        after = {self._fabric(self._works[work.id]) for work in works}
        if len(works) > 1 and before and len(after) > len(before):
            raise _MoveRefused(f"the gang would lie in {len(after)} fabrics in place of {len(before)}")

    def _leave(self, move: Move) -> Workload:
        work = self._works.get(move.work)
        if work is None or work.holds != move.source:
            raise _MoveRefused(f"{move.work} is not where the step takes it from")
        if not move.target:
            raise _MoveRefused(f"{move.work} would be left without a GPU")
        if work.holds and work.stays:
            raise _MoveRefused(f"{work.id} stays: {work.stays}")
        if work.holds and not work.movable:
            raise _MoveRefused(f"no eviction may touch {work.id}")
        return work

    def _whole_gangs(self, works: list[Workload]) -> None:
        moving = {work.id for work in works}
        for gang in {work.gang for work in works if work.gang}:
            missing = {work.id for work in self._origin.gangs.get(gang, ())} - moving
            if missing:
                raise _MoveRefused(f"gang {gang} would be split: {min(missing)} stays")

    def _disturb(self, work: Workload) -> None:
        for name in work.budgets:
            budget = self._origin.budgets.get(name)
            self._disturbed[name] += 1
            if budget is None or self._disturbed[name] > budget.allowed:
                raise _MoveRefused(f"disruption budget {name} does not allow it")

    def _fabric(self, work: Workload) -> str:
        return self._nodes[self._gpus[work.holds[0].gpu].host].fabric

    def _arrive(self, work: Workload) -> None:
        slots = [self._gpus[hold.gpu] for hold in work.holds if hold.gpu in self._gpus]
        if len(slots) < len(work.holds):
            raise _MoveRefused(f"{work.id} would get a GPU that is not known")
        if not whole_request(work, work.holds):
            raise _MoveRefused(f"{work.id} would not get what it asks for")
        if len({slot.host for slot in slots}) != 1:
            raise _MoveRefused(f"{work.id} would lie on {len({slot.host for slot in slots})} hosts")
        node = self._nodes[slots[0].host]
        problem = misfit(work, node, slots, self._most_risk)
        if problem:
            raise _MoveRefused(problem)
        self._hold(work, 1)
        if node.cpus is not None and self._cpus[node.host] > node.cpus + SHARE_EPSILON:
            raise _MoveRefused(f"{node.host} has not enough CPUs")
        if node.memory_bytes is not None and self._memory[node.host] > node.memory_bytes + 1.0:
            raise _MoveRefused(f"{node.host} has not enough memory")
        for slot in slots:
            self._fits(slot)

    def _fits(self, slot: Slot) -> None:
        if slot.mode is not GpuMode.MIG:
            if self._taken.get(slot.uuid, 0.0) > 1.0 + 1e-6:
                raise _MoveRefused(f"{slot.uuid} would be given out more than once")
            return
        try:
            free_slices(self._layouts.get(slot.uuid, ()), TEMPLATES[slot.template])
        except ValueError as error:
            raise _MoveRefused(f"{slot.uuid}: {error}") from None

    def _ready(self, pool: str) -> int:
        return sum(
            slot.healthy and self._nodes[slot.host].schedulable and self._nodes[slot.host].pool == pool
            for slot in self._gpus.values()
        )

    def _scale_out(self, step: Step) -> None:
        pool = self._origin.pools.get(step.subject)
        if pool is None:
            raise _MoveRefused("nothing is known of this pool")
        if pool.most_nodes is not None:
            have = sum(node.pool == pool.name for node in self._nodes.values())
            if have + len(step.hosts) > pool.most_nodes:
                said = "pool {pool} has {n} nodes and may have {most}"
                raise _MoveRefused(say(said, pool=pool.name, n=have, most=pool.most_nodes))
        pattern = self._pattern(pool)
        for host in step.hosts:
            if host in self._nodes:
                raise _MoveRefused(f"{host} is there already")
            self._nodes[host] = FleetNode(host, pool.name, cpus=pool.node_cpus, schedulable=False)
            self._hosted[host] = set()
            self._cpus[host] = self._memory[host] = 0.0
            for index, slot in enumerate(pattern):
                uuid = f"{host}/{index}"
                self._gpus[uuid] = replace(slot, uuid=uuid, host=host, instances=(), healthy=True)

    def _pattern(self, pool: Pool) -> tuple[Slot, ...]:
        """GPUs of a node that is added: like those of a node of the same size that the pool has."""
        for host, slots in self._origin.by_host.items():
            if self._origin.nodes[host].pool == pool.name and len(slots) == pool.node_gpus:
                return slots
        return (Slot("", "", pool.node_model),) * pool.node_gpus

    def _wait_ready(self, step: Step) -> None:
        for host in step.hosts:
            if host not in self._nodes:
                raise _MoveRefused(f"{host} was never asked for")
            self._nodes[host] = replace(self._nodes[host], schedulable=True)

    def _cordon(self, step: Step) -> None:
        node = self._node(step.subject)
        if not node.schedulable:
            return
        self._nodes[node.host] = replace(node, schedulable=False)
        floor = self._origin.pools[node.pool].floor_gpus if node.pool in self._origin.pools else 0
        ready = self._ready(node.pool)
        if ready < floor:
            said = "pool {pool} would have {n} GPUs ready, fewer than its floor of {floor}"
            raise _MoveRefused(say(said, pool=node.pool, n=ready, floor=floor))

    def _drain(self, step: Step) -> None:
        node = self._node(step.subject)
        left = sorted(name for name in self._hosted[node.host] if self._works[name].movable)
        if left:
            raise _MoveRefused(f"{left[0]} still runs there")
        staying = self._origin.staying(node.host)
        if staying:
            name, reason = min(staying.items())
            raise _MoveRefused(f"{name} must stay: {reason}")
        if node.schedulable:
            raise _MoveRefused("it still takes work")

    def _scale_in(self, step: Step) -> None:
        self._drain(step)
        node = self._nodes.pop(step.subject)
        self._gpus = {uuid: slot for uuid, slot in self._gpus.items() if slot.host != node.host}
        gone = self._hosted.pop(node.host)
        self._works = {name: work for name, work in self._works.items() if name not in gone}

    def _checkpoint(self, step: Step) -> None:
        work = self._works.get(step.subject)
        if work is None:
            raise _MoveRefused("there is no such work")
        self._works[work.id] = replace(work, lost_s=0.0)

    def _power_limit(self, step: Step) -> None:
        slot = self._gpus.get(step.subject)
        if slot is None or slot.limit_watts is None or slot.least_watts is None:
            raise _MoveRefused("its power limits are not known")
        if not slot.least_watts - 1e-6 <= step.amount <= slot.limit_watts + 1e-6:
            raise _MoveRefused(
                f"{step.amount:.0f} W is not between {slot.least_watts:.0f} and {slot.limit_watts:.0f} W"
            )
        self._gpus[slot.uuid] = replace(slot, limit_watts=step.amount)

    def _node(self, host: str) -> FleetNode:
        if host not in self._nodes:
            raise _MoveRefused("there is no such node")
        return self._nodes[host]


_DEEDS: dict[StepKind, Callable[[Simulation, Step], None]] = {
    StepKind.MOVE: Simulation._move,
    StepKind.PLACE: Simulation._move,
    StepKind.SCALE_OUT: Simulation._scale_out,
    StepKind.WAIT_READY: Simulation._wait_ready,
    StepKind.CORDON: Simulation._cordon,
    StepKind.CHECKPOINT: Simulation._checkpoint,
    StepKind.DRAIN: Simulation._drain,
    StepKind.SCALE_IN: Simulation._scale_in,
    StepKind.POWER_LIMIT: Simulation._power_limit,
}


def misfit(work: Workload, node: FleetNode, slots: Iterable[Slot], most_risk: float) -> str:
    """Why `work` may not come to these GPUs of `node`, room apart; empty where it may."""
    if not node.schedulable:
        return f"{node.host} takes no work"
    if node.leaving:
        return f"{node.host} is to be drained or rebooted"
    if node.risk > most_risk:
        return f"{node.host} is likely to fail ({node.risk:.0%})"
    if work.pool and work.pool != node.pool:
        return f"{work.id} belongs to pool {work.pool}"
    for slot in slots:
        if not slot.healthy:
            return f"{slot.uuid} is not healthy"
        if slot.mode is not work.mode:
            return f"{slot.uuid} is in mode {slot.mode}, {work.id} needs {work.mode}"
        if work.model and work.model != slot.model:
            return f"{work.id} needs {work.model}, {slot.uuid} is {slot.model}"
    return ""


def whole_request(work: Workload, holds: Iterable[GpuHold]) -> bool:
    """Whether `holds` are what `work` asks for: one instance, one share, or so many whole GPUs."""
    found = list(holds)
    if work.profile:
        return len(found) == 1 and found[0].start is not None
    if work.gpus < 1:
        return len(found) == 1 and abs(found[0].share - work.gpus) < SHARE_EPSILON
    return len({hold.gpu for hold in found}) == len(found) == int(work.gpus) and all(one.share == 1 for one in found)
