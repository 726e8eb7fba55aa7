"""Where every piece of work is during a search, with everything that a change of it touches."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Hashable, Iterator

from tocsin.actions.planning.bins import Bins, Place
from tocsin.actions.planning.state import FleetState
from tocsin.actions.planning.units import PlanLimits

EPSILON = 1e-9
BLINK = 0.02
"""Share of good places that are overlooked, so that equal tries end differently (own choice)."""
_STALE = 2
"""Groups per bin from which on the empty ones are dropped."""

Spot = tuple[int, Place]
Found = tuple[Spot, Hashable]
"""Where to put a unit, and the state of the bin after."""
Ranked = tuple[float, int, int, Place, Hashable, set[int]]
"""Change of F, two numbers that settle ties, place, state after, and the bins that offer it."""
NO_BINS: frozenset[int] = frozenset()


class Arrangement:
    """Where every unit is, changeable; keeps F, the cost, and what each budget and host has left.

    A unit that has been taken and not put back counts nowhere. Bins of one kind and state form a group. For each class
    of units every option is kept in order of what it changes in F, with the group that offers it: the first whose group
    has a bin with room is the best, and no bin is looked at that does not come into question.
    """

    def __init__(self, packing: Bins, state: FleetState, limits: PlanLimits) -> None:
        self.packing = packing
        self.limits = limits
        self.horizon_h = limits.horizon_h
        self.states: list[Hashable] = [one.state for one in packing.bins]
        self.at: list[Spot] = list(packing.homes)
        self.inside: list[set[int]] = [set() for _ in packing.bins]
        self._groups: dict[tuple[Hashable, Hashable], set[int]] = {}
        self._made = 0
        self._ranked: dict[Hashable, list[Ranked]] = {cls: [] for cls in packing.classes}
        self._room = {one.host: [state.cpus_left(one.host), state.memory_left(one.host)] for one in packing.bins}
        self._left = {name: budget.allowed for name, budget in state.budgets.items()}
        self.moved = 0
        self.cost = 0.0
        for number, one in enumerate(packing.bins):
            self._group(one.kind, one.state).add(number)
        for unit, (home, _) in enumerate(packing.homes):
            self.inside[home].add(unit)
        self.fragmented = sum(packing.measure(one.kind, one.state) for one in packing.bins)

    @property
    def value(self) -> float:
        """What is sought to be least, in GPU-hours."""
        return max(self.fragmented, self.limits.pack_to) * self.horizon_h + self.cost

    def _group(self, kind: Hashable, state: Hashable) -> set[int]:
        members = self._groups.get((kind, state))
        if members is None:
            if len(self._groups) > _STALE * len(self.states):
                self._forget()
            self._made += 1
            members = self._groups[kind, state] = set()
            for cls, ranked in self._ranked.items():
                if self.packing.fits(cls, kind):
                    for change, place, after in self.packing.options(cls, kind, state):
                        insort(ranked, (change, -place, self._made, place, after, members))
        return members

    def _forget(self) -> None:
        """Drop the groups that no bin is in any more."""
        self._groups = {key: members for key, members in self._groups.items() if members}
        for ranked in self._ranked.values():
            ranked[:] = [entry for entry in ranked if entry[-1]]

    def _set(self, number: int, state: Hashable) -> None:
        kind, before = self.packing.bins[number].kind, self.states[number]
        self._groups[kind, before].discard(number)
        self._group(kind, state).add(number)
        self.fragmented += self.packing.measure(kind, state) - self.packing.measure(kind, before)
        self.states[number] = state

    def take(self, unit: int) -> Spot:
        """Lift a unit from where it is; returns that."""
        spot = self.at[unit]
        self._set(spot[0], self.state_without(unit))
        self.inside[spot[0]].discard(unit)
        self._account(unit, spot, 1)
        return spot

    def lift(self, unit: int) -> None:
        """Take a unit that may be lifted already."""
        if unit in self.inside[self.at[unit][0]]:
            self.take(unit)

    def put(self, unit: int, spot: Spot, state: Hashable) -> None:
        """Place a lifted unit; `state` is that of the bin after."""
        self._set(spot[0], state)
        self.inside[spot[0]].add(unit)
        self.at[unit] = spot
        self._account(unit, spot, -1)

    def can_stand(self, unit: int, spot: Spot) -> bool:
        """Whether `spot` is free for a lifted unit."""
        return self.has_room(unit, spot[0]) and self._state_with(unit, spot) is not None

    def put_back(self, unit: int, spot: Spot) -> None:
        """Place a lifted unit at `spot`, which is free for it."""
        state = self._state_with(unit, spot)
        assert state is not None
        self.put(unit, spot, state)

    def state_without(self, unit: int) -> Hashable:
        packing, (number, place) = self.packing, self.at[unit]
        return packing.without(packing.classes[unit], packing.bins[number].kind, self.states[number], place)

    def _state_with(self, unit: int, spot: Spot) -> Hashable | None:
        number, place = spot
        return self.packing.back(self.packing.classes[unit], self.packing.bins[number].kind, self.states[number], place)

    def _account(self, unit: int, spot: Spot, sign: int) -> None:
        piece = self.packing.units[unit]
        room = self._room[self.packing.bins[spot[0]].host]
        room[0] += sign * piece.cpus
        room[1] += sign * piece.memory_bytes
        if spot != self.packing.homes[unit]:
            self.cost -= sign * piece.price.gpu_hours
            self.moved -= sign
            for name, count in piece.budgets.items():
                self._left[name] += sign * count

    def has_room(self, unit: int, number: int) -> bool:
        """Whether the host of a bin has the CPUs and the memory for a unit that comes from another host."""
        piece = self.packing.units[unit]
        cpus, memory = self._room[self.packing.bins[number].host]
        return piece.cpus <= cpus + EPSILON and piece.memory_bytes <= memory + EPSILON

    def may_move(self, unit: int) -> bool:
        """Whether budgets and the number of moves let the lifted `unit` be elsewhere than at home."""
        if self.moved >= self.limits.most_moves:
            return False
        return all(self._left[name] >= count for name, count in self.packing.units[unit].budgets.items())

    def best(self, unit: int, closed: frozenset[int] = NO_BINS, rng: random.Random | None = None) -> Found | None:
        """The best place of a lifted unit outside `closed`; with `rng` good places are overlooked now and then."""
        packing, home = self.packing, self.packing.homes[unit]
        found: Found | None = None
        least = math.inf
        if home[0] not in closed and self.has_room(unit, home[0]):
            state = self._state_with(unit, home)
            if state is not None:
                kind = packing.bins[home[0]].kind
                change = packing.measure(kind, state) - packing.measure(kind, self.states[home[0]])
                least, found = self.horizon_h * max(self.fragmented + change, self.limits.pack_to), (home, state)
        if not self.may_move(unit):
            return found
        for change, spot, after in self.targets(unit, closed):
            value = self.horizon_h * max(self.fragmented + change, self.limits.pack_to)
            if value + packing.units[unit].price.gpu_hours >= least - EPSILON:
                return found
            if spot != home and (rng is None or rng.random() >= BLINK):
                return spot, after
        return found

    def targets(self, unit: int, closed: frozenset[int] = NO_BINS) -> Iterator[tuple[float, Spot, Hashable]]:
        """Places of a unit as (change of F, spot, state of the bin after), the best first; of alike bins only one."""
        piece = self.packing.units[unit]
        free = not (closed or piece.cpus or piece.memory_bytes)
        for change, _, _, place, after, members in self._ranked[self.packing.classes[unit]]:
            if members:
                number = min(members) if free else self._choose(unit, members, closed)
                if number is not None:
                    yield change, (number, place), after

    def _choose(self, unit: int, members: set[int], closed: frozenset[int]) -> int | None:
        first = min(members)
        if first not in closed and self.has_room(unit, first):
            return first
        return min((one for one in members if one not in closed and self.has_room(unit, one)), default=None)
