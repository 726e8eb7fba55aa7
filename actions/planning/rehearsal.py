"""Made-up fleets to plan for: seeded, worn by churn the way real ones are. All shares and durations are own choices."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

from tocsin.actions.planning.state import (
    SHARE_EPSILON,
    TEMPLATES,
    Budget,
    FleetNode,
    FleetState,
    GpuHold,
    GpuMode,
    Pool,
    Slot,
    Workload,
)
from tocsin.domain.fragmentation import Placement, TaskClass, mig_capacity
from tocsin.domain.grouping import grouped

GPUS_PER_NODE = 8
NODES_PER_RACK = 4
NODE_CPUS = 96.0
NODE_MEMORY = 2.0**40
MIX = (TaskClass(0.5, 0.10), TaskClass(1.0, 0.40), TaskClass(2.0, 0.15), TaskClass(4.0, 0.15), TaskClass(8.0, 0.20))
DEMAND = {"1g": 0.40, "1g.double": 0.05, "2g": 0.25, "3g": 0.20, "4g": 0.05, "7g": 0.05}
FULL = 0.75
"""Share of the GPUs that work holds in the end."""
CHURN = 3.0
"""Works that start, as a multiple of those that run in the end: the rest has ended and left its holes."""

_DRAWS = 50
"""GPUs that are tried for an instance before it is turned away."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A pool: its share of the nodes, its GPUs, and the sizes of its work with their shares."""

    name: str
    share: float
    model: str
    watts: tuple[float, float]
    sizes: tuple[tuple[float, float], ...]


_KINDS = (
    _Kind(
        "training",
        0.5,
        "NVIDIA H100 80GB HBM3",
        (200.0, 700.0),
        ((1, 0.25), (2, 0.25), (4, 0.3), (8, 0.15), (16, 0.05)),
    ),
    _Kind("inference", 0.25, "NVIDIA L40S", (100.0, 350.0), ((0.25, 0.25), (0.5, 0.25), (1, 0.35), (2, 0.15))),
    _Kind("batch", 0.25, "NVIDIA A100-SXM4-80GB", (100.0, 400.0), ((1, 0.6), (2, 0.25), (4, 0.15))),
)


def fleet(gpus: int, seed: int = 0) -> FleetState:
    """A fleet of whole and time-sliced GPUs in three pools, about three quarters full and full of holes."""
    rng = random.Random(f"fleet {gpus} {seed}")
    nodes, slots = _nodes(max(1, gpus // GPUS_PER_NODE), rng)
    maker = _Churn(FleetState(nodes=nodes, gpus=slots, mix=MIX, demand=DEMAND, simulated=True), rng)
    works = maker.run()
    names = sorted({name for work in works.values() for name in work.budgets})
    return replace(
        maker.state,
        works=works,
        budgets={name: Budget(name, rng.randint(0, 3)) for name in names},
        pools=_pools(maker.state, works),
    )


def with_waiting(state: FleetState, seed: int = 0) -> FleetState:
    """`state` with a dozen works that wait: single ones, a gang of two whole nodes, some whose data is on a host."""
    rng = random.Random(f"waiting {seed}")
    hosts = sorted(state.nodes)
    waiting = []
    for number in range(10):
        kind = _KINDS[number % len(_KINDS)]
        gpus = rng.choice([size for size, _ in kind.sizes if size <= 4])
        work = Workload(
            f"waits-{number:02d}", gpus, pool=kind.name, model=kind.model, priority=rng.choice((0, 10, 100))
        )
        near = (rng.choice(hosts),) if rng.random() < 0.5 else ()
        waiting.append(replace(work, cpus=4.0 * gpus, lost_s=0.0, restart_s=120.0, data_hosts=near))
    gang = Workload("", 8.0, pool="training", gang="waits-gang", priority=100, cpus=64.0, lost_s=0.0, restart_s=600.0)
    waiting += [replace(gang, id=f"waits-gang-{number}") for number in range(2)]
    return state.with_works(waiting)


def _nodes(count: int, rng: random.Random) -> tuple[dict[str, FleetNode], dict[str, Slot]]:
    nodes: dict[str, FleetNode] = {}
    slots: dict[str, Slot] = {}
    for number in range(count):
        kind = _kind_of(number, count)
        host = f"node-{number:04d}"
        rack = f"rack-{number // NODES_PER_RACK:03d}"
        risk = rng.uniform(0.2, 0.6) if rng.random() < 0.03 else rng.uniform(0.0, 0.02)
        nodes[host] = FleetNode(host, kind.name, rack, "", NODE_CPUS, NODE_MEMORY, rng.random() >= 0.02, risk)
        for index in range(GPUS_PER_NODE):
            shared = kind.name == "inference" and index >= GPUS_PER_NODE // 2
            uuid = f"GPU-{number:04d}-{index}"
            mode = GpuMode.TIME_SLICE if shared else GpuMode.EXCLUSIVE
            least, most = kind.watts
            slots[uuid] = Slot(uuid, host, kind.model, mode, limit_watts=most, least_watts=least, default_watts=most)
    return nodes, slots


def _kind_of(number: int, count: int) -> _Kind:
    place = (number + 0.5) / count
    for kind in _KINDS:
        if place < kind.share:
            return kind
        place -= kind.share
    return _KINDS[-1]


class _Churn:
    """Work comes, takes the emptiest nodes that fit (a scheduler that spreads), and leaves in no order."""

    def __init__(self, state: FleetState, rng: random.Random) -> None:
        self.state = state
        self._rng = rng
        self._free = dict.fromkeys(state.gpus, 1.0)
        self._cpus = dict.fromkeys(state.nodes, NODE_CPUS)
        self._running: dict[str, list[list[Workload]]] = {kind.name: [] for kind in _KINDS}
        self._hosts = grouped((node.pool, host) for host, node in state.nodes.items())
        self._count = 0

    def run(self) -> dict[str, Workload]:
        """The works that run in the end, by id."""
        for kind in _KINDS:
            capacity = len(self._hosts.get(kind.name, ())) * GPUS_PER_NODE
            started = 0.0
            while capacity and started < CHURN * FULL * capacity:
                size = self._rng.choices(*zip(*kind.sizes, strict=True))[0]
                while self._held(kind.name) + size > FULL * capacity and self._running[kind.name]:
                    self._stop(kind.name)
                started += size
                self._start(kind, size)
        return {work.id: work for units in self._running.values() for unit in units for work in unit}

    def _held(self, pool: str) -> float:
        return sum(work.gpus for unit in self._running[pool] for work in unit)

    def _stop(self, pool: str) -> None:
        units = self._running[pool]
        for work in units.pop(self._rng.randrange(len(units))):
            for hold in work.holds:
                self._free[hold.gpu] += hold.share
                host = self.state.gpus[hold.gpu].host
            self._cpus[host] += work.cpus

    def _start(self, kind: _Kind, size: float) -> None:
        self._count += 1
        name = f"{kind.name}-{self._count:05d}"
        pieces = [min(size, GPUS_PER_NODE)] * max(1, int(size // GPUS_PER_NODE))
        template = self._template(kind, size, name)
        unit = []
        for number, gpus in enumerate(pieces):
            holds = self._place(kind.name, gpus, template.cpus)
            if not holds:
                break
            work = replace(template, id=f"{name}-{number}" if len(pieces) > 1 else name, gpus=gpus, holds=holds)
            self._hold(work, -1)
            unit.append(work)
        if len(unit) == len(pieces):
            self._running[kind.name].append(unit)
            return
        for work in unit:
            self._hold(work, 1)

    def _hold(self, work: Workload, sign: int) -> None:
        for hold in work.holds:
            self._free[hold.gpu] += sign * hold.share
        self._cpus[self.state.gpus[work.holds[0].gpu].host] += sign * work.cpus

    def _place(self, pool: str, gpus: float, cpus: float) -> tuple[GpuHold, ...]:
        best: tuple[float, tuple[GpuHold, ...]] | None = None
        mode = GpuMode.TIME_SLICE if gpus < 1 else GpuMode.EXCLUSIVE
        for host in self._hosts[pool]:
            slots = [slot.uuid for slot in self.state.by_host[host] if slot.mode is mode]
            able = [uuid for uuid in slots if self._free[uuid] >= min(gpus, 1.0) - SHARE_EPSILON]
            if len(able) < gpus or not able or self._cpus[host] < cpus:
                continue
            free = sum(self._free[uuid] for uuid in slots) + self._rng.random()
            if best is None or free > best[0]:
                wanted = self._rng.sample(able, max(1, int(gpus)))
                best = free, tuple(GpuHold(uuid, min(gpus, 1.0)) for uuid in sorted(wanted))
        return best[1] if best else ()

    def _template(self, kind: _Kind, size: float, name: str) -> Workload:
        rng = self._rng
        per_gpu = rng.choice((4.0, 8.0, 8.0, 10.0))
        common = Workload(
            name,
            pool=kind.name,
            model=kind.model,
            cpus=max(1.0, per_gpu * min(size, GPUS_PER_NODE)),
            memory_bytes=2.0**35 * max(0.25, min(size, GPUS_PER_NODE)),
            priority=rng.choice((0, 0, 0, 10, 100)),
            movable=rng.random() >= 0.02,
        )
        if kind.name == "inference":
            return replace(
                common, lost_s=0.0, restart_s=rng.uniform(60.0, 300.0), budgets=(f"serve-{rng.randrange(40):02d}",)
            )
        if kind.name == "batch":
            return replace(common, lost_s=rng.expovariate(1.0 / 7200.0), restart_s=rng.uniform(30.0, 120.0))
        every = rng.choice((1800.0, 3600.0, 7200.0, 14400.0))
        known = rng.random() >= 0.03
        return replace(
            common,
            gang=name if size > GPUS_PER_NODE else "",
            lost_s=rng.uniform(0.0, every) if known else None,
            checkpoint_every_s=every,
            checkpoint_s=rng.uniform(20.0, 120.0) if rng.random() < 0.5 else None,
            restart_s=rng.uniform(120.0, 900.0),
        )


def _pools(state: FleetState, works: dict[str, Workload]) -> dict[str, Pool]:
    pools = {}
    for kind in _KINDS:
        size = GPUS_PER_NODE * sum(node.pool == kind.name for node in state.nodes.values())
        if size:
            held = sum(work.gpus for work in works.values() if work.pool == kind.name)
            pools[kind.name] = Pool(
                kind.name,
                floor_gpus=int(0.8 * size),
                most_nodes=size // GPUS_PER_NODE + 4,
                node_model=kind.model,
                node_cpus=NODE_CPUS,
                waiting_gpus=0.0,
                utilisation=held / size,
            )
    return pools


def mig(gpus: int, seed: int = 0) -> FleetState:
    """A pool of GPUs in MIG mode whose instances began where the driver happened to put them."""
    rng = random.Random(f"mig {gpus} {seed}")
    nodes, slots = {}, {}
    for number in range(gpus):
        host = f"node-{number // GPUS_PER_NODE:04d}"
        nodes[host] = FleetNode(host, "shared", f"rack-{number // GPUS_PER_NODE // NODES_PER_RACK:03d}", cpus=NODE_CPUS)
        uuid = f"GPU-{number // GPUS_PER_NODE:04d}-{number % GPUS_PER_NODE}"
        slots[uuid] = Slot(uuid, host, "NVIDIA H100 80GB HBM3", GpuMode.MIG)
    layouts: dict[str, list[Placement]] = {uuid: [] for uuid in slots}
    works: dict[str, Workload] = {}
    held = 0
    for count in range(gpus * 8):
        if held > 0.55 * 8 * gpus:
            held -= _end(rng, works, layouts)
        held += _begin(rng, f"infer-{count:05d}", works, layouts)
    return FleetState(
        nodes=nodes,
        gpus={uuid: replace(slot, instances=tuple(sorted(layouts[uuid]))) for uuid, slot in slots.items()},
        works=works,
        budgets={f"serve-{number:02d}": Budget(f"serve-{number:02d}", rng.randint(0, 3)) for number in range(40)},
        mix=MIX,
        demand=DEMAND,
        simulated=True,
    )


@cache
def _capacity(layout: tuple[Placement, ...]) -> dict[str, int]:
    return mig_capacity(layout)


def _end(rng: random.Random, works: dict[str, Workload], layouts: dict[str, list[Placement]]) -> int:
    """Two works end; returns the slices that they had."""
    slices = 0
    for name in rng.sample(sorted(works), min(len(works), 2)):
        work = works.pop(name)
        start = work.holds[0].start
        assert start is not None
        layouts[work.holds[0].gpu].remove((work.profile, start))
        slices += TEMPLATES["seven"].profiles[work.profile].memory_slices
    return slices


def _begin(rng: random.Random, name: str, works: dict[str, Workload], layouts: dict[str, list[Placement]]) -> int:
    """One work begins where there is room; returns the slices that it takes."""
    profile = rng.choices(list(DEMAND), list(DEMAND.values()))[0]
    uuids = list(layouts)
    drawn = (uuids[rng.randrange(len(uuids))] for _ in range(_DRAWS))
    uuid = next((one for one in drawn if _capacity(tuple(sorted(layouts[one])))[profile]), None)
    if uuid is None:
        return 0
    template = TEMPLATES["seven"].profiles[profile]
    used = {
        piece
        for other, start in layouts[uuid]
        for piece in range(start, start + TEMPLATES["seven"].profiles[other].memory_slices)
    }
    start = rng.choice([at for at in template.starts if used.isdisjoint(range(at, at + template.memory_slices))])
    layouts[uuid].append((profile, start))
    stateful = rng.random() < 0.4
    works[name] = Workload(
        name,
        holds=(GpuHold(uuid, 1.0, start),),
        profile=profile,
        cpus=2.0,
        budgets=() if stateful else (f"serve-{rng.randrange(40):02d}",),
        lost_s=rng.uniform(0.0, 7200.0) if stateful else 0.0,
        checkpoint_every_s=7200.0 if stateful else None,
        checkpoint_s=rng.uniform(5.0, 30.0) if stateful and rng.random() < 0.5 else None,
        restart_s=rng.uniform(30.0, 300.0),
    )
    return template.memory_slices
