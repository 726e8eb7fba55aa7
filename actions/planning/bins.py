"""Bins for the search: what they are, how work fits into them, and how fragmented each is.

A bin is a host for the fleet and a GPU for MIG. Its state is a small hashable value, so that what has been worked out
for one bin holds for every other in the same state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from tocsin.actions.planning.state import SHARE_EPSILON, TEMPLATES, FleetNode, FleetState, GpuMode, Slot
from tocsin.actions.planning.units import PlanLimits, Unit
from tocsin.domain.fragmentation import (
    SEVEN_SLICE,
    FreeNode,
    MigTemplate,
    Placement,
    TaskClass,
    expected_unusable,
    fleet_fragmentation,
    free_slices,
    mig_capacity,
    mig_fragmentation,
    mig_ideal,
)

NODE_GPUS = 8
"""GPUs of the job that takes a whole node of the usual size."""


def mig_unusable(
    layout: Sequence[Placement], demand: Mapping[str, float], template: MigTemplate = SEVEN_SLICE
) -> float:
    """Free memory slices of a GPU that the next instance is expected to be unable to use: FGD's F over slices.

    For a profile that fits nowhere that is all that is free, else the free slices times the share of the profile's
    instances that the layout prevents (1 - feasible / ideal); the mean over profiles weighted by `demand`, which need
    not sum to 1. 0 for a demand that weighs nothing.
    """
    slices = len(free_slices(layout, template)[0])
    weight = sum(demand.get(name, 0.0) for name in template.profiles)
    if not slices or weight <= 0:
        return 0.0
    feasible, ideal = mig_capacity(layout, template), mig_ideal(layout, template)
    lost = sum(
        demand.get(name, 0.0) * (1.0 - feasible[name] / ideal[name] if feasible[name] else 1.0)
        for name in template.profiles
    )
    return slices * lost / weight


def fleet_figures(state: FleetState) -> dict[str, float]:
    """Free, fragmented (F), unusable and stranded GPUs, jobs of a whole node that fit, and the most free on a host."""
    nodes = {host: state.free_node(host) for host in state.nodes}
    found = fleet_fragmentation(nodes.values(), state.mix)
    whole = [sum(part >= 1.0 for part in node.free) if node.usable else 0 for node in nodes.values()]
    return {
        "free_gpus": found.free,
        "fragmented_gpus": found.fragmented,
        "unusable_gpus": found.unusable,
        "stranded_gpus": found.stranded,
        "node_jobs_that_fit": float(sum(count // NODE_GPUS for count in whole)),
        "largest_on_one_host": float(max(whole, default=0)),
    }


def mig_figures(state: FleetState) -> dict[str, float]:
    """Free GPUs in slices, what of them is fragmented, the index of the fleet, and instances that can be created."""
    counts = Counter((slot.template, state.layout(slot.uuid)) for slot in state.gpus.values() if _usable(state, slot))
    free = fragmented = index = 0.0
    creatable: dict[str, float] = {}
    for (name, layout), count in sorted(counts.items()):
        template = TEMPLATES[name]
        slices = len(free_slices(layout, template)[0])
        free += count * slices / template.memory_slices
        fragmented += count * mig_unusable(layout, state.demand, template) / template.memory_slices
        index += count * slices / template.memory_slices * mig_fragmentation(layout, state.demand, template)
        for profile, able in mig_capacity(layout, template).items():
            key = f"creatable_{profile}"
            creatable[key] = creatable.get(key, 0.0) + count * able
    figures = {"free_gpus": free, "fragmented_gpus": fragmented, "index": index / free if free > 0 else 0.0}
    return figures | creatable


Place = int
"""Where in a bin: the first slice of a MIG instance, the number of a shared GPU, 0 for whole GPUs."""
Option = tuple[float, Place, Hashable]
"""What placing changes in the bin's measure, where, and the bin's state after."""


@dataclass(frozen=True, slots=True)
class PackingBin:
    """`kind` says what fits at all; bins of one kind and state are alike."""

    name: str
    host: str
    kind: Hashable
    state: Hashable


class Bins(Protocol):
    """Bins in the order in which they are preferred, units, and each unit's home as (bin, place)."""

    bins: list[PackingBin]
    units: list[Unit]
    homes: list[tuple[int, Place]]
    classes: list[Hashable]

    def measure(self, kind: Hashable, state: Hashable) -> float:
        """How fragmented a bin is, in GPUs."""

    def fits(self, cls: Hashable, kind: Hashable) -> bool:
        """Whether a unit of class `cls` may go to bins of `kind` at all."""

    def options(self, cls: Hashable, kind: Hashable, state: Hashable) -> tuple[Option, ...]:
        """Where a unit of class `cls` can go in such a bin, the best first."""

    def without(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable:
        """The state after a unit has left `place`."""

    def back(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable | None:
        """The state after a unit has come to `place`, whatever the bin takes else; None where that is not free."""


class HostKind(NamedTuple):
    """What binds on a host: `takes` is false where no work may come."""

    pool: str
    model: str
    takes: bool


class HostState(NamedTuple):
    """Free GPUs of a host: `whole` exclusive ones, the free share of each time-sliced one, and CPUs (None: enough)."""

    whole: int
    shares: tuple[float, ...]
    cpus: float | None


class HostClass(NamedTuple):
    """What a unit asks of a host; `pool` and `model` bind where not empty."""

    gpus: float
    cpus: float
    pool: str
    model: str


class FleetBins:
    """Hosts as bins; the measure is FGD's F over GPUs that are not in MIG mode."""

    def __init__(self, state: FleetState, units: tuple[Unit, ...], limits: PlanLimits) -> None:
        self._mix = state.mix
        self._counts_cpus = any(task.cpus > 0 for task in state.mix)
        hosts = [host for host, node in state.nodes.items() if node.schedulable and _uniform(state, host)]
        rank = _rank(state, hosts, units)
        hosts.sort(key=lambda host: rank[host])
        self.bins = [self._bin(state, state.nodes[host], limits) for host in hosts]
        index = {one.host: number for number, one in enumerate(self.bins)}
        self.units = [unit for unit in units if unit.host in index]
        self.homes = [(index[unit.host], _shared_place(state, unit)) for unit in self.units]
        self.classes: list[Hashable] = [self._class(state, unit) for unit in self.units]
        self._measures: dict[Hashable, float] = {}
        self._options: dict[Hashable, tuple[Option, ...]] = {}

    def _bin(self, state: FleetState, node: FleetNode, limits: PlanLimits) -> PackingBin:
        slots = [slot for slot in state.by_host[node.host] if slot.mode is not GpuMode.MIG]
        exclusive = [slot for slot in slots if slot.mode is GpuMode.EXCLUSIVE]
        whole = sum(state.free(slot.uuid) >= 1.0 - SHARE_EPSILON for slot in exclusive)
        shares = tuple(round(state.free(slot.uuid), 9) for slot in slots if slot.mode is GpuMode.TIME_SLICE)
        cpus = state.cpus_left(node.host) if self._counts_cpus else math.inf
        kind = HostKind(node.pool, slots[0].model if slots else "", not node.leaving and node.risk <= limits.most_risk)
        return PackingBin(
            node.host, node.host, kind, HostState(whole, shares, None if math.isinf(cpus) else round(cpus, 6))
        )

    def _class(self, state: FleetState, unit: Unit) -> HostClass:
        node = state.nodes[unit.host]
        models = {work.model for work in unit.works if work.model}
        model = min(models) if models else state.gpus[unit.works[0].holds[0].gpu].model
        return HostClass(unit.gpus, unit.cpus if self._counts_cpus else 0.0, node.pool, model)

    def measure(self, kind: Hashable, state: Hashable) -> float:
        found = self._measures.get(state)
        if found is None:
            assert isinstance(state, HostState)
            found = self._measures[state] = host_measure(state, self._mix)
        return found

    def fits(self, cls: Hashable, kind: Hashable) -> bool:
        assert isinstance(cls, HostClass)
        assert isinstance(kind, HostKind)
        return kind.takes and cls.pool == kind.pool and cls.model == kind.model

    def options(self, cls: Hashable, kind: Hashable, state: Hashable) -> tuple[Option, ...]:
        key = (cls, state)
        found = self._options.get(key)
        if found is None:
            assert isinstance(cls, HostClass)
            assert isinstance(state, HostState)
            before = self.measure(kind, state)
            made = [(self.measure(kind, new) - before, place, new) for place, new in _host_after(cls, state)]
            found = self._options[key] = tuple(sorted(made, key=lambda option: option[:2]))
        return found

    def without(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable:
        assert isinstance(cls, HostClass)
        assert isinstance(state, HostState)
        cpus = None if state.cpus is None else round(state.cpus + cls.cpus, 6)
        if cls.gpus >= 1:
            return HostState(state.whole + int(cls.gpus), state.shares, cpus)
        return HostState(state.whole, _with(state.shares, place, cls.gpus), cpus)

    def back(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable | None:
        assert isinstance(cls, HostClass)
        assert isinstance(state, HostState)
        if state.cpus is not None and state.cpus < cls.cpus - SHARE_EPSILON:
            return None
        cpus = None if state.cpus is None else round(state.cpus - cls.cpus, 6)
        if cls.gpus >= 1:
            left = state.whole - int(cls.gpus)
            return HostState(left, state.shares, cpus) if left >= 0 else None
        if state.shares[place] < cls.gpus - SHARE_EPSILON:
            return None
        return HostState(state.whole, _with(state.shares, place, -cls.gpus), cpus)


def host_measure(state: HostState, mix: tuple[TaskClass, ...]) -> float:
    """FGD's F_n of a host in such a state."""
    return expected_unusable(FreeNode((1.0,) * state.whole + state.shares, state.cpus), mix)


def _host_after(cls: HostClass, state: HostState) -> list[tuple[Place, HostState]]:
    if state.cpus is not None and state.cpus < cls.cpus - SHARE_EPSILON:
        return []
    cpus = None if state.cpus is None else round(state.cpus - cls.cpus, 6)
    if cls.gpus >= 1:
        left = state.whole - int(cls.gpus)
        return [(0, HostState(left, state.shares, cpus))] if left >= 0 else []
    seen: dict[float, Place] = {}
    for place, share in enumerate(state.shares):
        if share >= cls.gpus - SHARE_EPSILON:
            seen.setdefault(share, place)
    return [(place, HostState(state.whole, _with(state.shares, place, -cls.gpus), cpus)) for place in seen.values()]


def _with(shares: tuple[float, ...], place: Place, change: float) -> tuple[float, ...]:
    return (*shares[:place], round(shares[place] + change, 9), *shares[place + 1 :])


def _uniform(state: FleetState, host: str) -> bool:
    return len({slot.model for slot in state.by_host[host] if slot.mode is not GpuMode.MIG}) == 1


def _shared_place(state: FleetState, unit: Unit) -> Place:
    if unit.gpus >= 1:
        return 0
    shared = [slot.uuid for slot in state.by_host[unit.host] if slot.mode is GpuMode.TIME_SLICE]
    return shared.index(unit.works[0].holds[0].gpu)


def _rank(state: FleetState, hosts: list[str], units: tuple[Unit, ...]) -> dict[str, tuple[float, float, str]]:
    """Order in which alike hosts are filled: the safest first, of these the one that costs most to empty."""
    dear = dict.fromkeys(hosts, 0.0)
    movable = dict.fromkeys(hosts, 0.0)
    for unit in units:
        if unit.host in dear:
            dear[unit.host] += unit.price.gpu_hours
            movable[unit.host] += len(unit.works)
    for host in hosts:
        if movable[host] < len(state.on_host.get(host, ())):
            dear[host] = math.inf
    return {host: (round(state.nodes[host].risk, 2), -dear[host], host) for host in hosts}


class MigKind(NamedTuple):
    """What binds on a GPU in MIG mode."""

    pool: str
    model: str
    template: str
    takes: bool


class MigClass(NamedTuple):
    """What a unit asks of a GPU in MIG mode."""

    profile: str
    pool: str
    model: str


class MigBins:
    """GPUs in MIG mode as bins, their layouts as states; the measure is `mig_unusable` as a share of the GPU."""

    def __init__(self, state: FleetState, units: tuple[Unit, ...], limits: PlanLimits) -> None:
        self._demand = dict(state.demand)
        slots = [slot for slot in state.gpus.values() if _usable(state, slot)]
        rank = _rank(state, sorted({slot.host for slot in slots}), units)
        slots.sort(key=lambda slot: (rank[slot.host], slot.uuid))
        self.bins = [self._bin(state, slot, limits) for slot in slots]
        index = {one.name: number for number, one in enumerate(self.bins)}
        self.units = [unit for unit in units if unit.works[0].holds[0].gpu in index]
        self.homes: list[tuple[int, Place]] = []
        self.classes: list[Hashable] = []
        for unit in self.units:
            hold = unit.works[0].holds[0]
            assert hold.start is not None
            slot = state.gpus[hold.gpu]
            self.homes.append((index[hold.gpu], hold.start))
            self.classes.append(MigClass(unit.works[0].profile, state.nodes[slot.host].pool, slot.model))
        self._measures: dict[Hashable, float] = {}
        self._options: dict[Hashable, tuple[Option, ...]] = {}

    def _bin(self, state: FleetState, slot: Slot, limits: PlanLimits) -> PackingBin:
        node = state.nodes[slot.host]
        kind = MigKind(node.pool, slot.model, slot.template, not node.leaving and node.risk <= limits.most_risk)
        return PackingBin(slot.uuid, slot.host, kind, state.layout(slot.uuid))

    def measure(self, kind: Hashable, state: Hashable) -> float:
        assert isinstance(kind, MigKind)
        key = (kind.template, state)
        found = self._measures.get(key)
        if found is None:
            template = TEMPLATES[kind.template]
            slices = mig_unusable(_layout(state), self._demand, template)
            found = self._measures[key] = slices / template.memory_slices
        return found

    def fits(self, cls: Hashable, kind: Hashable) -> bool:
        assert isinstance(cls, MigClass)
        assert isinstance(kind, MigKind)
        return kind.takes and cls.pool == kind.pool and cls.model == kind.model

    def options(self, cls: Hashable, kind: Hashable, state: Hashable) -> tuple[Option, ...]:
        key = (cls, kind, state)
        found = self._options.get(key)
        if found is None:
            assert isinstance(cls, MigClass)
            assert isinstance(kind, MigKind)
            before = self.measure(kind, state)
            after = _mig_after(cls.profile, _layout(state), kind.template)
            made = [(self.measure(kind, new) - before, place, new) for place, new in after]
            # Of equal places the last: low slices are where the large profiles begin.
            found = self._options[key] = tuple(sorted(made, key=lambda option: (option[0], -option[1])))
        return found

    def without(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable:
        assert isinstance(cls, MigClass)
        return tuple(placement for placement in _layout(state) if placement != (cls.profile, place))

    def back(self, cls: Hashable, kind: Hashable, state: Hashable, place: Place) -> Hashable | None:
        assert isinstance(cls, MigClass)
        assert isinstance(kind, MigKind)
        return dict(_mig_after(cls.profile, _layout(state), kind.template)).get(place)


def _layout(state: Hashable) -> tuple[Placement, ...]:
    assert isinstance(state, tuple)
    return state


@lru_cache(maxsize=50_000)
def _mig_after(
    profile: str, layout: tuple[Placement, ...], template: str
) -> tuple[tuple[Place, tuple[Placement, ...]], ...]:
    known = TEMPLATES[template]
    if profile not in known.profiles or mig_capacity(layout, known)[profile] < 1:
        return ()
    wanted = known.profiles[profile]
    used = {piece for name, start in layout for piece in range(start, start + known.profiles[name].memory_slices)}
    return tuple(
        (start, tuple(sorted((*layout, (profile, start)))))
        for start in wanted.starts
        if used.isdisjoint(range(start, start + wanted.memory_slices))
    )


def _usable(state: FleetState, slot: Slot) -> bool:
    return slot.mode is GpuMode.MIG and slot.healthy and state.nodes[slot.host].schedulable
