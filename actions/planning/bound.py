"""The least that a packing can cost, worked out exactly on small fleets: how much of a bar is in reach at all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from tocsin.actions.planning.arrangement import EPSILON
from tocsin.actions.planning.bins import Bins, HostClass, HostState, MigClass, MigKind, Place
from tocsin.actions.planning.state import TEMPLATES

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


def _islands(packing: Bins) -> list[list[int]]:
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
    groups: dict[int, list[int]] = {}
    for number in range(len(packing.bins)):
        groups.setdefault(find(number), []).append(number)
    return list(groups.values())


def _front(packing: Bins, bins: list[int], most_states: int) -> Front | None:
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
    packing: Bins, bins: list[int], unit: int, costs: dict[tuple[Hashable, ...], float], most_states: int
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
