"""Defragmentation compared on made-up fleets: with a greedy descent, and with the least that the same packing can cost.

The greedy descent repeats the single move that lowers F most until none does, whatever it costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.arrangement import EPSILON, Arrangement, Spot
from tocsin.actions.planning.bins import Bins, FleetBins, HostClass, HostState, MigBins, MigClass, MigKind, Place
from tocsin.actions.planning.defragment import WHOLE_MODES, defragment, figures, outside, repack_mig
from tocsin.actions.planning.plan import Plan
from tocsin.actions.planning.state import TEMPLATES, FleetState, GpuMode
from tocsin.actions.planning.units import PlanLimits, units_of
from tocsin.domain.grouping import grouped
from tocsin.domain.progress import track

MOST_STATES = 60_000
"""States of the bins of one kind up to which the bound is worked out; beyond, it would take minutes (own choice)."""
Front = list[tuple[float, float]]
"""(F, cost): the cheapest cost of each F, falling as F rises."""


def least_cost(packing: Bins, most_f: float, most_states: int = MOST_STATES) -> float | None:
    """The least cost in GPU-hours of any arrangement whose F is at most `most_f`; None where the fleet is too large.

    Every place of every unit is tried, islands of bins between which work moves for themselves. Budgets, memory and the
    order of moves are left out, all of which can only make it dearer: no plan costs less. Infinite where no arrangement
    packs so well.
    """
    fronts: Front = [(0.0, 0.0)]
    for bins in _islands(packing):
        found = _front(packing, bins, most_states)
        if found is None:
            return None
        fronts = _pruned([(f + more, cost + dearer) for f, cost in fronts for more, dearer in found])
    return min((cost for f, cost in fronts if f <= most_f + 1e-6), default=math.inf)


def _islands(packing: Bins) -> list[tuple[int, ...]]:
    """Bins grouped so that no unit can go from one group to another."""
    leader = list(range(len(packing.bins)))

    def find(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    first: dict[Hashable, int] = {}
    for number, one in enumerate(packing.bins):
        leader[number] = first.setdefault(one.kind, number)
    for cls, (home, _) in set(zip(packing.classes, packing.homes, strict=True)):
        for kind, number in first.items():
            if packing.fits(cls, kind):
                leader[find(number)] = find(home)
    return list(grouped((find(number), number) for number in range(len(packing.bins))).values())


def _front(packing: Bins, bins: Sequence[int], most_states: int) -> Front | None:
    """Units are lifted and put back one by one; of all ways to one state of the bins the cheapest counts."""
    units = [unit for unit, (home, _) in enumerate(packing.homes) if home in bins]
    states = [packing.bins[number].state for number in bins]
    for unit in units:
        home, place = packing.homes[unit]
        at = bins.index(home)
        states[at] = packing.without(packing.classes[unit], packing.bins[home].kind, states[at], place)
    costs: dict[tuple[Hashable, ...], float] = {tuple(states): 0.0}
    for unit in sorted(units, key=lambda one: -packing.units[one].size):
        placed = _placed(packing, bins, unit, costs, most_states)
        if placed is None:
            return None
        costs = placed
    kinds = [packing.bins[number].kind for number in bins]
    return _pruned([(sum(map(packing.measure, kinds, state)), cost) for state, cost in costs.items()])


def _placed(
    packing: Bins, bins: Sequence[int], unit: int, costs: dict[tuple[Hashable, ...], float], most_states: int
) -> dict[tuple[Hashable, ...], float] | None:
    """The states after one more unit; None for more than `most_states`."""
    cls, home, price = packing.classes[unit], packing.homes[unit], packing.units[unit].price.gpu_hours
    found: dict[tuple[Hashable, ...], float] = {}
    for state, cost in costs.items():
        if len(found) > most_states:
            return None
        for at, number in enumerate(bins):
            kind = packing.bins[number].kind
            places = _places(cls, kind, state[at]) if packing.fits(cls, kind) else (home[1],) * (number == home[0])
            for place in places:
                after = packing.back(cls, kind, state[at], place)
                if after is None:
                    continue
                key = (*state[:at], after, *state[at + 1 :])
                paid = cost + (0.0 if (number, place) == home else price)
                if paid < found.get(key, math.inf):
                    found[key] = paid
    return found if len(found) <= most_states else None


def _places(cls: Hashable, kind: Hashable, state: Hashable) -> Iterable[Place]:
    """Every place of a bin, alike or not: which of two equal ones is taken matters to work that is at home there."""
    if isinstance(cls, MigClass):
        assert isinstance(kind, MigKind)
        return TEMPLATES[kind.template].profiles[cls.profile].starts
    assert isinstance(cls, HostClass)
    assert isinstance(state, HostState)
    return (0,) if cls.gpus >= 1 else range(len(state.shares))


def _pruned(points: Front) -> Front:
    kept: Front = []
    for f, cost in sorted(points):
        if not kept or cost < kept[-1][1] - EPSILON:
            kept.append((f, cost))
    return kept


def greedy(packing: Bins, state: FleetState, limits: PlanLimits) -> Arrangement:
    """Where steepest descent of F ends. Of equal moves the cheapest is taken; a unit that moves twice is paid once."""
    now = Arrangement(packing, state, limits)
    while (step := _steepest(now)) is not None:
        unit, spot, after = step
        now.take(unit)
        now.put(unit, spot, after)
    return now


def _steepest(now: Arrangement) -> tuple[int, Spot, Hashable] | None:
    found: tuple[int, Spot, Hashable] | None = None
    least, cheapest = -EPSILON, math.inf
    for unit in range(len(now.packing.units)):
        price = now.packing.units[unit].price.gpu_hours
        for total, spot, after in _first(now, unit):
            if total < least - EPSILON or (total < least + EPSILON and found is not None and price < cheapest):
                found, least, cheapest = (unit, spot, after), min(least, total), price
    return found


def _first(now: Arrangement, unit: int) -> Iterator[tuple[float, Spot, Hashable]]:
    """The best place in another bin and every other place in its own, each with the change of F of the whole move."""
    packing, (own, place) = now.packing, now.at[unit]
    if now.at[unit] == packing.homes[unit] and not now.may_move(unit):
        return
    cls, kind = packing.classes[unit], packing.bins[own].kind
    without = now.state_without(unit)
    lifted = packing.measure(kind, without) - packing.measure(kind, now.states[own])
    if packing.fits(cls, kind):
        for change, other, after in packing.options(cls, kind, without):
            if other != place:
                yield lifted + change, (own, other), after
    for change, spot, after in now.targets(unit, frozenset({own})):
        yield lifted + change, spot, after
        return


UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One fleet: F in GPUs and cost in GPU-hours, before, after the greedy descent and after the planner.

    `at_once` is the planner's cost where it neither waits for checkpoints nor asks for them, as the greedy descent
    does. No plan that packs so well costs less than `least`; None where the fleet is too large to say. `net` and
    `greedy_net` are gain less cost in GPU-hours where the planner may go on as long as it pays.
    """

    kind: str
    gpus: int
    seed: int
    before: float
    greedy_f: float
    greedy_cost: float
    greedy_moves: int
    planner_f: float
    planner_cost: float
    planner_moves: int
    at_once_f: float
    at_once: float
    greedy_net: float
    net: float
    seconds: float
    least: float | None

    @property
    def ratio(self) -> float:
        """Planner's cost over that of the greedy descent; 0 where neither costs anything."""
        return self.planner_cost / self.greedy_cost if self.greedy_cost > 0 else 0.0

    @property
    def meets(self) -> bool:
        """Whether the planner packs at least as well for at most half the cost."""
        return self.planner_f <= self.greedy_f + 1e-6 and self.planner_cost <= self.greedy_cost / 2 + 1e-9


def yardstick(kind: str, state: FleetState, limits: PlanLimits) -> tuple[float, float, int]:
    """F, cost and number of works moved of the greedy descent, at the price of moving at once."""
    limits = replace(limits, at_once=True, most_moves=UNBOUNDED)
    packing = _packing(kind, state, limits)
    end = greedy(packing, state, limits)
    return end.fragmented + outside(figures(kind, state), packing), end.cost, end.moved


def compare(
    kinds: Iterable[str],
    sizes: Iterable[int],
    seeds: Iterable[int],
    clock: Callable[[], float],
    limits: PlanLimits | None = None,
) -> Iterator[ComparisonRow]:
    """One row for each made-up fleet; `kinds` are ``defragment`` and ``mig``, `clock` counts seconds."""
    limits = replace(limits or PlanLimits(), most_moves=UNBOUNDED)
    for kind, gpus, seed in track(list(itertools.product(kinds, sizes, seeds)), "made-up fleets"):
        yield _row(kind, gpus, seed, clock, limits)


def _row(kind: str, gpus: int, seed: int, clock: Callable[[], float], limits: PlanLimits) -> ComparisonRow:
    state = rehearsal.fleet(gpus, seed) if kind == "defragment" else rehearsal.mig(gpus, seed)
    planner: Callable[[FleetState, PlanLimits], Plan] = defragment if kind == "defragment" else repack_mig
    greedy_f, greedy_cost, moves = yardstick(kind, state, limits)
    begun = clock()
    thrifty = planner(state, replace(limits, pack_to=greedy_f))
    seconds = clock() - begun
    at_once = planner(state, replace(limits, pack_to=greedy_f, at_once=True))
    free = planner(state, limits)
    before = free.before["fragmented_gpus"]
    packing = _packing(kind, state, limits)
    return ComparisonRow(
        kind,
        gpus,
        seed,
        before,
        greedy_f,
        greedy_cost,
        moves,
        thrifty.after["fragmented_gpus"],
        thrifty.cost_gpu_hours,
        len(thrifty.steps),
        at_once.after["fragmented_gpus"],
        at_once.cost_gpu_hours,
        (before - greedy_f) * limits.horizon_h - greedy_cost,
        free.gain_gpu_hours - free.cost_gpu_hours,
        seconds,
        least_cost(packing, greedy_f - outside(figures(kind, state), packing)),
    )


def _packing(kind: str, state: FleetState, limits: PlanLimits) -> Bins:
    fleet = kind == "defragment"
    units, _ = units_of(state, WHOLE_MODES if fleet else (GpuMode.MIG,), limits)
    return FleetBins(state, units, limits) if fleet else MigBins(state, units, limits)
