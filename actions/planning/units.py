"""What can be moved as one piece, what that costs, and what is left alone and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.planning.plan import Refusal
from tocsin.actions.planning.state import FleetState, GpuMode, Workload
from tocsin.domain.grouping import grouped
from tocsin.domain.phrase import Phrase, say

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds of a plan that moves work.

    At most `most_moves` pieces of work move. Freed capacity counts for `horizon_h` hours. No work goes to a node whose
    risk is above `most_risk`. A plan waits up to `patience_s` seconds for a checkpoint that is due; `at_once` neither
    waits for one nor asks for one. F is worth nothing below `pack_to` GPUs: with it, what is sought is the cheapest way
    there. `effort` is how many pieces of work the search lifts and puts down, and `seed` draws which.
    """

    most_moves: int = 20
    horizon_h: float = 24.0
    most_risk: float = 0.1
    patience_s: float = 1800.0
    effort: int = 30_000
    seed: int = 0
    pack_to: float = 0.0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """What moving costs in GPU-hours if it waits `wait_s` seconds for a checkpoint, or `asks` for one."""

    gpu_hours: float
    wait_s: float = 0.0
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """Works that move together from one host to one host. `budgets` counts how many works each budget loses."""

    name: str
    works: tuple[Workload, ...]
    host: str
    price: Price
    budgets: Mapping[str, int]
    cpus: float
    memory_bytes: float
    size: float
    """GPUs that it holds, shares and slices added up."""

    @property
    def gpus(self) -> float:
        """What it asks for, in GPUs or shares of one; 1 for a MIG instance."""
        return sum(work.gpus for work in self.works)


def price(state: FleetState, work: Workload, limits: PlanLimits) -> Price | None:
    """The least that moving `work` can lose; None where the time of its last checkpoint is unknown.

    GPUs held x (time since the last checkpoint + restart). Work that can be asked loses, in place of what it did since
    the last checkpoint, the time to write one; where the next one is due within the patience, the restart alone.
    """
    if work.lost_s is None:
        return None
    held = state.held_gpus(work) / HOUR_S
    found = [Price(held * (work.lost_s + work.restart_s))]
    if not limits.at_once and work.lost_s > 0:
        if work.checkpoint_s is not None:
            found.append(Price(held * (work.checkpoint_s + work.restart_s), asks=True))
        if work.checkpoint_every_s is not None:
            due = max(0.0, work.checkpoint_every_s - work.lost_s)
            if due <= limits.patience_s:
                found.append(Price(held * work.restart_s, wait_s=due))
    return min(found, key=lambda one: (one.gpu_hours, one.wait_s))


def units_of(
    state: FleetState, modes: Iterable[GpuMode], limits: PlanLimits
) -> tuple[tuple[Unit, ...], tuple[Refusal, ...]]:
    """Everything that runs on GPUs of `modes` as units that may move, and the rest with the reason why not."""
    wanted = frozenset(modes)
    found = grouped((work.unit, work) for work in state.works.values() if work.holds and work.mode in wanted)
    units, refused = [], []
    for name, works in sorted(found.items()):
        reason = pinned(state, works, limits)
        if reason is not None:
            refused.append(Refusal(name, reason))
        else:
            units.append(_unit(state, name, works, limits))
    return tuple(units), tuple(refused)


def pinned(state: FleetState, works: Sequence[Workload], limits: PlanLimits) -> Phrase | None:
    """Why these works, which move together, stay where they are; None where they may move."""
    hosts = {state.host_of(work) for work in works}
    if works[0].gang and len(state.gangs[works[0].gang]) != len(works):
        return say("its gang is not all placed in one way")
    if len(hosts) > 1:
        return say("a gang over {n} hosts is not split, and moving it would stop all of it", n=len(hosts))
    if len(works) > 1 and any(work.mode is not GpuMode.EXCLUSIVE for work in works):
        return say("a gang that shares GPUs is not split")
    if not state.nodes[min(hosts)].schedulable:
        return say("its node is out of service")
    for work in works:
        reason = _pinned(state, work, limits)
        if reason:
            return reason
    short = [name for name, count in budgets_of(works).items() if state.budgets[name].allowed < count]
    if not short:
        return None
    return say("budget {budget} allows {n} disruptions now", budget=short[0], n=state.budgets[short[0]].allowed)


def _pinned(state: FleetState, work: Workload, limits: PlanLimits) -> Phrase | None:
    if work.stays:
        return say("{said}", said=work.stays)
    if not work.movable:
        return say("no eviction may touch it")
    if len(work.budgets) > 1:
        return say("two disruption budgets cover it, which an eviction cannot pass")
    unknown = [name for name in work.budgets if name not in state.budgets]
    if unknown:
        return say("its disruption budget {budget} is not known", budget=unknown[0])
    if work.lost_s is None:
        return say("the time of its last checkpoint is unknown")
    if work.ends_in_s is not None and work.ends_in_s <= limits.patience_s:
        return say("it ends by itself in {n} s", n=f"{work.ends_in_s:.0f}")
    return None


def say_gpus(count: float) -> Phrase:
    """GPUs, or a share of one."""
    return say("{n} GPU" if count <= 1 else "{n} GPUs", n=f"{count:g}")


def budgets_of(works: Iterable[Workload]) -> Counter[str]:
    """How many of `works` each disruption budget covers, by its name."""
    return Counter(name for work in works for name in work.budgets)


def _unit(state: FleetState, name: str, works: tuple[Workload, ...], limits: PlanLimits) -> Unit:
    prices = [found for work in works if (found := price(state, work, limits)) is not None]
    if len({(one.asks, one.wait_s) for one in prices}) > 1:
        # Members of a gang stop at one instant: what some would wait for, others would have to stand for.
        prices = [found for work in works if (found := price(state, work, replace(limits, at_once=True))) is not None]
    return Unit(
        name,
        works,
        state.host_of(works[0]),
        Price(sum(one.gpu_hours for one in prices), prices[0].wait_s, prices[0].asks),
        dict(budgets_of(works)),
        sum(work.cpus for work in works),
        sum(work.memory_bytes for work in works),
        sum(state.held_gpus(work) for work in works),
    )
