"""What planners look at: nodes, GPUs, the work on them, and what must not be disturbed. Nothing here changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from pydantic import ConfigDict, with_config

from tocsin.domain.fragmentation import FOUR_SLICE, SEVEN_SLICE, FreeNode, MigTemplate, Placement, TaskClass
from tocsin.domain.grouping import grouped

TEMPLATES: Mapping[str, MigTemplate] = {"seven": SEVEN_SLICE, "four": FOUR_SLICE}
STRICT = ConfigDict(extra="forbid")
"""State files are checked against these classes; a key that they do not have is an error."""
SHARE_EPSILON = 1e-9
"""Shares are sums of decimal fractions; what is missing by less is not missing."""

UNMANAGED = "nothing manages its process"
UNSEEN = "its owner is unknown"
GUESSED = "its MIG instance is unknown"
"""Why work stays."""


class GpuMode(StrEnum):
    """How a GPU is given to work."""

    EXCLUSIVE = "exclusive"
    """Whole, to one piece of work."""
    TIME_SLICE = "time_slice"
    """In shares of its time, to several."""
    MIG = "mig"
    """In instances of fixed slices."""


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU. `instances` are its MIG instances, used or not, and `template` names its slices (``seven``, ``four``).

    `limit_watts` is the power limit in force, `least_watts` the lowest that the board takes, `default_watts` the
    board's own; None where unknown. A GPU that is not `healthy` takes no new work.
    """

    uuid: str
    host: str
    model: str = ""
    mode: GpuMode = GpuMode.EXCLUSIVE
    instances: tuple[Placement, ...] = ()
    template: str = "seven"
    healthy: bool = True
    limit_watts: float | None = None
    least_watts: float | None = None
    default_watts: float | None = None


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class FleetNode:
    """A host. `cpus` and `memory_bytes` are all that GPU work may have of it, None where unknown, taken as enough.

    `island` names the fast fabric that it belongs to, the host itself where empty. `risk` is the probability that it
    fails within the horizon, 0 to 1. `leaving` is True where it is to be drained or rebooted: nothing is moved to it.
    """

    host: str
    pool: str = "default"
    rack: str = ""
    island: str = ""
    cpus: float | None = None
    memory_bytes: float | None = None
    schedulable: bool = True
    risk: float = 0.0
    leaving: bool = False

    @property
    def fabric(self) -> str:
        return self.island or self.host


@with_config(STRICT)
@dataclass(frozen=True, slots=True, order=True)
class GpuHold:
    """What a piece of work has of one GPU: a `share` of it, or the MIG instance that begins at slice `start`."""

    gpu: str
    share: float = 1.0
    start: int | None = None


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Workload:
    """One pod or job step, on one host; works with the same `gang` start, stop and move together.

    `holds` is empty while it waits. `gpus` is what it asks for: a share of one GPU, whole GPUs, or with `profile` one
    MIG instance. `lost_s` is the work in seconds since its last checkpoint, all of which a move loses (0 for work
    without state, None where unknown: it is not moved); `restart_s` is how long it stands after a move. `checkpoint_s`
    is how long it stands to write a checkpoint when it is asked for one, None where it cannot be asked.
    `checkpoint_every_s` and `ends_in_s` are None where unknown. `budgets` name the disruption budgets that cover it.
    `model` and `pool` bind where not empty. `data_hosts` have its data at hand. `movable` is false for work that no
    eviction may touch, such as pods of a DaemonSet. `stays` says why the work must be neither moved nor stopped, so
    that its node stays in service too; empty where nothing speaks against it.
    """

    id: str
    gpus: float = 1.0
    holds: tuple[GpuHold, ...] = ()
    profile: str = ""
    gang: str = ""
    priority: int = 0
    budgets: tuple[str, ...] = ()
    lost_s: float | None = None
    restart_s: float = 0.0
    checkpoint_every_s: float | None = None
    checkpoint_s: float | None = None
    ends_in_s: float | None = None
    pool: str = ""
    model: str = ""
    cpus: float = 0.0
    memory_bytes: float = 0.0
    data_hosts: tuple[str, ...] = ()
    movable: bool = True
    stays: str = ""

    @property
    def mode(self) -> GpuMode:
        if self.profile:
            return GpuMode.MIG
        return GpuMode.TIME_SLICE if self.gpus < 1 else GpuMode.EXCLUSIVE

    @property
    def unit(self) -> str:
        """What moves together: its gang, or itself."""
        return f"gang {self.gang}" if self.gang else self.id


def share_of(slot: Slot, work: Workload, hold: GpuHold) -> float:
    """The share of the GPU `slot` that `hold` of `work` is, 0 to 1; of MIG instances that of the memory slices."""
    if not work.profile:
        return hold.share
    template = TEMPLATES[slot.template]
    return template.profiles[work.profile].memory_slices / template.memory_slices


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Budget:
    """A disruption budget: how many of the works that name it may be disturbed now."""

    name: str
    allowed: int


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Pool:
    """What may be done to a pool's size.

    Never fewer than `floor_gpus` GPUs ready; at most `most_nodes` nodes. A node that is added has `node_gpus` GPUs of
    `node_model`, like those of a node that the pool has, and `node_cpus` CPUs; it is ready `provision_s` seconds after
    it is asked for. `waiting_gpus` is what work waits for and `utilisation` how busy the pool is, 0 to 1; None where
    unknown. `changed_ms` is when it was last scaled.
    """

    name: str
    floor_gpus: int = 0
    most_nodes: int | None = None
    node_gpus: int = 8
    node_model: str = ""
    node_cpus: float | None = None
    provision_s: float = 900.0
    waiting_gpus: float | None = None
    utilisation: float | None = None
    changed_ms: int | None = None


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU for which no plan is made, and why. Its node is not taken away: what it does is not known."""

    uuid: str
    host: str
    reason: str


@dataclass(frozen=True)
class FleetState:
    """The fleet at `at_ms`. `mix` are the tasks that come, `demand` the share of each MIG profile in the requests.

    `left_out` are GPUs of the fleet that are not among `gpus`, by UUID.
    """

    at_ms: int = 0
    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    gpus: Mapping[str, Slot] = field(default_factory=dict)
    works: Mapping[str, Workload] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    mix: tuple[TaskClass, ...] = ()
    demand: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    @cached_property
    def by_host(self) -> Mapping[str, tuple[Slot, ...]]:
        """GPUs by host, in the order of `gpus`."""
        return dict.fromkeys(self.nodes, ()) | grouped((slot.host, slot) for slot in self.gpus.values())

    @cached_property
    def on_gpu(self) -> Mapping[str, tuple[Workload, ...]]:
        """The works that hold anything of a GPU, by its UUID."""
        return grouped((hold.gpu, work) for work in self.works.values() for hold in work.holds)

    @cached_property
    def on_host(self) -> Mapping[str, tuple[Workload, ...]]:
        return grouped((self.host_of(work), work) for work in self.works.values() if work.holds)

    @cached_property
    def gangs(self) -> Mapping[str, tuple[Workload, ...]]:
        return grouped((work.gang, work) for work in self.works.values() if work.gang)

    @cached_property
    def taken(self) -> Mapping[str, float]:
        """The share of each GPU that work holds; of a MIG GPU, its memory slices with an instance in use."""
        found: dict[str, float] = {}
        for work in self.works.values():
            for hold in work.holds:
                found[hold.gpu] = found.get(hold.gpu, 0.0) + share_of(self.gpus[hold.gpu], work, hold)
        return found

    @cached_property
    def room(self) -> Mapping[str, tuple[float, ...]]:
        """The free share of each GPU of a host, in the order of `by_host`."""
        return {host: self._room_on(slots) for host, slots in self.by_host.items()}

    def _room_on(self, slots: Iterable[Slot]) -> tuple[float, ...]:
        taken = self.taken
        return tuple(max(0.0, 1.0 - taken.get(slot.uuid, 0.0)) if slot.healthy else 0.0 for slot in slots)

    def host_of(self, work: Workload) -> str:
        """The host that `work` is on; empty while it waits."""
        return self.gpus[work.holds[0].gpu].host if work.holds else ""

    def held_gpus(self, work: Workload) -> float:
        """GPUs that `work` holds, shares added up."""
        return math.fsum(share_of(self.gpus[hold.gpu], work, hold) for hold in work.holds)

    def free(self, uuid: str) -> float:
        """The share of a GPU that no work holds; 0 where it takes none."""
        return max(0.0, 1.0 - self.taken.get(uuid, 0.0)) if self.gpus[uuid].healthy else 0.0

    def cpus_left(self, host: str) -> float:
        """CPUs of `host` that no work has; infinite where unknown."""
        cpus = self.nodes[host].cpus
        return math.inf if cpus is None else cpus - math.fsum(work.cpus for work in self.on_host.get(host, ()))

    def memory_left(self, host: str) -> float:
        """Memory of `host` in bytes that no work has; infinite where unknown."""
        memory = self.nodes[host].memory_bytes
        works = self.on_host.get(host, ())
        return math.inf if memory is None else memory - math.fsum(work.memory_bytes for work in works)

    def free_node(self, host: str) -> FreeNode:
        """What `fleet_fragmentation` measures of a host; MIG GPUs have a measure of their own and are left out."""
        node = self.nodes[host]
        free = tuple(self.free(slot.uuid) for slot in self.by_host[host] if slot.mode is not GpuMode.MIG)
        cpus, others = self.cpus_left(host), len(self.by_host[host]) - len(free)
        return FreeNode(free, None if math.isinf(cpus) else cpus, node.schedulable, others)

    def layout(self, uuid: str) -> tuple[Placement, ...]:
        """The MIG instances of a GPU in which work runs; empty ones can be destroyed at no cost and do not count."""
        return tuple(
            sorted(
                (work.profile, hold.start)
                for work in self.on_gpu.get(uuid, ())
                for hold in work.holds
                if hold.gpu == uuid and hold.start is not None
            )
        )

    def staying(self, host: str) -> dict[str, str]:
        """What on `host` must not be stopped, by the name of the work or of the GPU that is left out, and why."""
        works = {work.id: work.stays for work in self.on_host.get(host, ()) if work.stays}
        return works | {one.uuid: one.reason for one in self.left_out.values() if one.host == host}

    def ready_gpus(self, pool: str) -> int:
        """Healthy GPUs of a pool on nodes that take work."""
        return sum(
            slot.healthy and self.nodes[slot.host].schedulable and self.nodes[slot.host].pool == pool
            for slot in self.gpus.values()
        )

    def with_works(self, works: Iterable[Workload]) -> FleetState:
        """A copy in which `works` stand for those of the same id."""
        changed = {work.id: work for work in works}
        made = replace(self, works={**self.works, **changed})
        made.__dict__["by_host"] = self.by_host
        if not any(work.holds for work in changed.values()):
            made._take_over_lifted(self, changed)
        return made

    def _take_over_lifted(self, before: FleetState, gone: Collection[str]) -> None:
        """What holds where, from the state `before` in which the works `gone` held something: of all others it is the
        same."""
        works = [before.works[name] for name in gone if name in before.works]
        on_gpu, on_host, taken = dict(before.on_gpu), dict(before.on_host), dict(before.taken)
        for uuid in {hold.gpu for work in works for hold in work.holds}:
            left = tuple(work for work in on_gpu.pop(uuid) if work.id not in gone)
            del taken[uuid]
            if left:
                on_gpu[uuid], taken[uuid] = left, self._share_taken(uuid, left)
        hosts = {self.host_of(work) for work in works if work.holds}
        on_host.update({host: tuple(work for work in on_host[host] if work.id not in gone) for host in hosts})
        self.__dict__.update(on_gpu=on_gpu, on_host=on_host, taken=taken)
        self.__dict__["room"] = {**before.room, **{host: self._room_on(self.by_host[host]) for host in hosts}}

    def _share_taken(self, uuid: str, works: Iterable[Workload]) -> float:
        found = 0.0
        for work in {work.id: work for work in works}.values():
            for hold in work.holds:
                found += share_of(self.gpus[uuid], work, hold) if hold.gpu == uuid else 0.0
        return found

    def with_nodes(self, nodes: Iterable[FleetNode], gpus: Iterable[Slot] = ()) -> FleetState:
        """A copy in which `nodes` and `gpus` stand for, or are added to, those of the same name."""
        nodes, slots = list(nodes), list(gpus)
        made = replace(
            self,
            nodes={**self.nodes, **{node.host: node for node in nodes}},
            gpus={**self.gpus, **{slot.uuid: slot for slot in slots}},
        )
        if all(self._is_like(slot) for slot in slots) and all(node.host in self.nodes for node in nodes):
            made._take_over_alike(self, {slot.uuid: slot for slot in slots})
        return made

    def _take_over_alike(self, before: FleetState, changed: Mapping[str, Slot]) -> None:
        """What is on which host, from the state `before`, of which the GPUs `changed` are in another condition."""
        hosts = {slot.host for slot in changed.values()}
        new = {host: tuple(changed.get(slot.uuid, slot) for slot in before.by_host[host]) for host in hosts}
        kept = {name: getattr(before, name) for name in ("on_gpu", "on_host", "gangs", "taken")}
        self.__dict__.update(kept, by_host={**before.by_host, **new})
        self.__dict__["room"] = {**before.room, **{host: self._room_on(slots) for host, slots in new.items()}}

    def _is_like(self, slot: Slot) -> bool:
        """Whether work holds the same of `slot` as of the GPU with its name."""
        known = self.gpus.get(slot.uuid)
        return known is not None and (known.host, known.template) == (slot.host, slot.template)
