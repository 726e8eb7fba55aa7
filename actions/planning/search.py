"""Search for an arrangement of work with the least fragmentation and cost, by ruin and recreate.

The value that falls is F x horizon + cost of all that has moved, in GPU-hours. The method (take a few bins apart, put
the pieces back one by one where they do best, keep it if it pays) is that of Schrimpf et al., "Record Breaking
Optimization Results Using the Ruin and Recreate Principle", 2000; acceptance cools as in simulated annealing.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tocsin.actions.planning.board import Board, Place
from tocsin.actions.planning.state import FleetState
from tocsin.actions.planning.units import Limits

EPSILON = 1e-9
_FIRST_HEAT = 0.1
"""GPU-hours by which a worse arrangement is readily taken at first (own choice)."""
_LAST_HEAT = 0.001
_BLINK = 0.02
"""Share of good places that are overlooked, so that equal tries end differently (own choice)."""

_VACATE, _PART = 0.45, 0.25
"""Shares of the tries that empty a bin, and that empty a part of one; the rest mixes two or three bins."""
_MOST_LIFTED = 16
_MOST_PASSES = 5
_BISECTIONS = 6
_WIDEST = 500.0
_MISSED = 1e9
_STEEPER, _RESTARTS = 3.0, 3
_DRAWS = 40
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

    def __init__(self, board: Board, state: FleetState, limits: Limits) -> None:
        self.board = board
        self.limits = limits
        self.horizon_h = limits.horizon_h
        self.states: list[Hashable] = [one.state for one in board.bins]
        self.at: list[Spot] = list(board.homes)
        self.inside: list[set[int]] = [set() for _ in board.bins]
        self._groups: dict[tuple[Hashable, Hashable], set[int]] = {}
        self._made = 0
        self._ranked: dict[Hashable, list[Ranked]] = {cls: [] for cls in board.classes}
        self._room = {one.host: [state.cpus_left(one.host), state.memory_left(one.host)] for one in board.bins}
        self._left = {name: budget.allowed for name, budget in state.budgets.items()}
        self.moved = 0
        self.cost = 0.0
        for number, one in enumerate(board.bins):
            self._group(one.kind, one.state).add(number)
        for unit, (home, _) in enumerate(board.homes):
            self.inside[home].add(unit)
        self.fragmented = sum(board.measure(one.kind, one.state) for one in board.bins)

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
                if self.board.fits(cls, kind):
                    for change, place, after in self.board.options(cls, kind, state):
                        insort(ranked, (change, -place, self._made, place, after, members))
        return members

    def _forget(self) -> None:
        """Drop the groups that no bin is in any more."""
        self._groups = {key: members for key, members in self._groups.items() if members}
        for ranked in self._ranked.values():
            ranked[:] = [entry for entry in ranked if entry[-1]]

    def _set(self, number: int, state: Hashable) -> None:
        kind, before = self.board.bins[number].kind, self.states[number]
        self._groups[kind, before].discard(number)
        self._group(kind, state).add(number)
        self.fragmented += self.board.measure(kind, state) - self.board.measure(kind, before)
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
        """What the state of the unit's bin would be without it."""
        number, place = self.at[unit]
        return self.board.without(self.board.classes[unit], self.board.bins[number].kind, self.states[number], place)

    def _state_with(self, unit: int, spot: Spot) -> Hashable | None:
        number, place = spot
        return self.board.back(self.board.classes[unit], self.board.bins[number].kind, self.states[number], place)

    def _account(self, unit: int, spot: Spot, sign: int) -> None:
        piece = self.board.units[unit]
        room = self._room[self.board.bins[spot[0]].host]
        room[0] += sign * piece.cpus
        room[1] += sign * piece.memory_bytes
        if spot != self.board.homes[unit]:
            self.cost -= sign * piece.price.gpu_hours
            self.moved -= sign
            for name, count in piece.budgets.items():
                self._left[name] += sign * count

    def has_room(self, unit: int, number: int) -> bool:
        """Whether the host of a bin has the CPUs and the memory for a unit that comes from another host."""
        piece = self.board.units[unit]
        cpus, memory = self._room[self.board.bins[number].host]
        return piece.cpus <= cpus + EPSILON and piece.memory_bytes <= memory + EPSILON

    def may_move(self, unit: int) -> bool:
        """Whether budgets and the number of moves let the lifted `unit` be elsewhere than at home."""
        if self.moved >= self.limits.most_moves:
            return False
        return all(self._left[name] >= count for name, count in self.board.units[unit].budgets.items())

    def best(self, unit: int, closed: frozenset[int] = NO_BINS, rng: random.Random | None = None) -> Found | None:
        """The best place of a lifted unit outside `closed`; with `rng` good places are overlooked now and then."""
        board, home = self.board, self.board.homes[unit]
        found: Found | None = None
        least = math.inf
        if home[0] not in closed and self.has_room(unit, home[0]):
            state = self._state_with(unit, home)
            if state is not None:
                kind = board.bins[home[0]].kind
                change = board.measure(kind, state) - board.measure(kind, self.states[home[0]])
                least, found = self.horizon_h * max(self.fragmented + change, self.limits.pack_to), (home, state)
        if not self.may_move(unit):
            return found
        for change, spot, after in self.targets(unit, closed):
            value = self.horizon_h * max(self.fragmented + change, self.limits.pack_to)
            if value + board.units[unit].price.gpu_hours >= least - EPSILON:
                return found
            if spot != home and (rng is None or rng.random() >= _BLINK):
                return spot, after
        return found

    def targets(self, unit: int, closed: frozenset[int] = NO_BINS) -> Iterator[tuple[float, Spot, Hashable]]:
        """Places of a unit as (change of F, spot, state of the bin after), the best first; of alike bins only one."""
        piece = self.board.units[unit]
        free = not (closed or piece.cpus or piece.memory_bytes)
        for change, _, _, place, after, members in self._ranked[self.board.classes[unit]]:
            if members:
                number = min(members) if free else self._choose(unit, members, closed)
                if number is not None:
                    yield change, (number, place), after

    def _choose(self, unit: int, members: set[int], closed: frozenset[int]) -> int | None:
        first = min(members)
        if first not in closed and self.has_room(unit, first):
            return first
        return min((one for one in members if one not in closed and self.has_room(unit, one)), default=None)


def search(board: Board, state: FleetState, limits: Limits) -> Arrangement:
    """The best arrangement found; equal input gives an equal answer.

    With `pack_to` the horizon is first sought that leads about there, then what is too much or too little is mended.
    """
    now = Arrangement(board, state, limits)
    if not board.units or limits.most_moves < 1:
        return now
    rng = random.Random(limits.seed)
    if limits.pack_to > 0:
        _approach(now, rng)
    else:
        descend(now)
        _anneal(now, rng, limits.effort, _Kept(now))
    settle(now)
    return now


def improve(board: Board, state: FleetState, spots: Iterable[Spot], limits: Limits) -> Arrangement:
    """What can be made of an arrangement that keeps to the limits; without effort, units that gain nothing go home."""
    now = Arrangement(board, state, limits)
    _go(now, list(spots))
    if limits.effort:
        if limits.pack_to == 0:
            _anneal(now, random.Random(limits.seed), limits.effort, _Kept(now))
        settle(now)
    else:
        _send_home(now)
    return now


def _send_home(now: Arrangement) -> None:
    moved = [unit for unit, spot in enumerate(now.at) if spot != now.board.homes[unit]]
    for unit in sorted(moved, key=lambda one: -now.board.units[one].price.gpu_hours):
        before = now.value
        spot = now.take(unit)
        home = now.board.homes[unit]
        if now.can_stand(unit, home):
            now.put_back(unit, home)
            if now.value <= before + EPSILON:
                continue
            now.take(unit)
        now.put_back(unit, spot)


def _approach(now: Arrangement, rng: random.Random) -> None:
    """Find the cheapest way to `pack_to`: first the worth of an hour that leads there, then around it in detail."""
    limits, home = now.limits, list(now.at)
    tries = max(1, limits.effort // (2 * _BISECTIONS))
    low, high = limits.horizon_h / _WIDEST, limits.horizon_h
    kept = _Kept(now)
    now.limits = replace(limits, pack_to=0.0)
    for _ in range(_BISECTIONS):
        now.horizon_h = math.sqrt(low * high)
        _go(now, home)
        descend(now)
        _anneal(now, rng, tries, kept)
        if now.fragmented <= limits.pack_to + EPSILON:
            high = now.horizon_h
        else:
            low = now.horizon_h
    now.limits, now.horizon_h = limits, min(limits.horizon_h, _STEEPER * high)
    for _ in range(_RESTARTS):
        _go(now, kept.spots)
        _anneal(now, rng, (limits.effort - tries * _BISECTIONS) // _RESTARTS, kept)
    now.horizon_h = _MISSED
    _go(now, kept.spots)


class _Kept:
    """The best arrangement seen, by the value that the limits ask for."""

    def __init__(self, now: Arrangement) -> None:
        self._limits = now.limits
        self.spots = list(now.at)
        self._least = self._value(now)

    def _value(self, now: Arrangement) -> float:
        short = max(0.0, now.fragmented - self._limits.pack_to)
        if self._limits.pack_to > 0 and short > EPSILON:
            return _MISSED + short
        return short * self._limits.horizon_h + now.cost

    def see(self, now: Arrangement) -> None:
        """Keep `now` if it is better."""
        value = self._value(now)
        if value < self._least - EPSILON:
            self._least, self.spots = value, list(now.at)


def _anneal(now: Arrangement, rng: random.Random, effort: int, kept: _Kept) -> None:
    """Take apart and put together until `effort` units were lifted; ends at the best that was seen by its own value."""
    best_value, best = now.value, list(now.at)
    kept.see(now)
    lifted = 0
    while lifted < effort:
        heat = _FIRST_HEAT * (_LAST_HEAT / _FIRST_HEAT) ** (lifted / effort)
        before = now.value
        units, closed = _ruin(now, rng)
        lifted += len(units)
        spots = [now.take(unit) for unit in units]
        fits = _recreate(now, units, closed, rng)
        if not fits or now.value > before - heat * math.log(1.0 - rng.random()) + EPSILON:
            _restore(now, units, spots)
            continue
        kept.see(now)
        if now.value < best_value - EPSILON:
            best_value, best = now.value, list(now.at)
    _go(now, best)


def _go(now: Arrangement, spots: list[Spot]) -> None:
    astray = [unit for unit, spot in enumerate(spots) if now.at[unit] != spot]
    _restore(now, astray, [spots[unit] for unit in astray])


def descend(now: Arrangement) -> None:
    """Move what gains most, again and again; a gain is worked out anew only when its turn comes."""
    heap = [(-_gain(now, unit), unit) for unit in range(len(now.board.units))]
    heapify(heap)
    while heap:
        unit = heappop(heap)[1]
        gain = _gain(now, unit)
        if gain <= EPSILON:
            continue
        if heap and gain < -heap[0][0] - EPSILON:
            heappush(heap, (-gain, unit))
            continue
        now.take(unit)
        found = now.best(unit)
        assert found is not None
        now.put(unit, *found)


def _gain(now: Arrangement, unit: int) -> float:
    """By how much the value falls if a unit goes where it is best."""
    before = now.value
    spot = now.take(unit)
    found = now.best(unit)
    gain = 0.0
    if found is not None:
        now.put(unit, *found)
        gain = before - now.value
        now.take(unit)
    now.put_back(unit, spot)
    return gain


def settle(now: Arrangement, passes: int = _MOST_PASSES) -> None:
    """Put each unit where it alone is best, until none is better elsewhere; units that gain nothing go home."""
    units = now.board.units
    cheapest_first = sorted(range(len(units)), key=lambda unit: units[unit].price.gpu_hours)
    for _ in range(passes):
        changed = False
        for unit in cheapest_first:
            before = now.value
            spot = now.take(unit)
            found = now.best(unit)
            if found is not None:
                now.put(unit, *found)
                if now.value < before - EPSILON:
                    changed = True
                    continue
                now.take(unit)
            now.put_back(unit, spot)
        if not changed:
            return


def _ruin(now: Arrangement, rng: random.Random) -> tuple[list[int], frozenset[int]]:
    """Units to lift, and the bins that are to stay without them."""
    first = _any_bin(now, rng)
    inside = sorted(now.inside[first])
    draw = rng.random()
    if draw < _VACATE:
        return inside[:_MOST_LIFTED], frozenset({first})
    if draw < _VACATE + _PART:
        return rng.sample(inside, rng.randint(1, len(inside)))[:_MOST_LIFTED], frozenset({first})
    units = set(inside)
    for _ in range(rng.randint(1, 2)):
        units |= now.inside[_any_bin(now, rng, now.board.bins[first].kind)]
    return sorted(units)[:_MOST_LIFTED], frozenset()


def _any_bin(now: Arrangement, rng: random.Random, kind: Hashable = None) -> int:
    """A bin with units in it, of `kind` where a few draws find one; those cheap to empty come up more often."""
    size = len(now.inside)
    found = -1
    for _ in range(_DRAWS):
        number = size - 1 - int(rng.random() ** 1.5 * size)
        if now.inside[number]:
            found = number
            if kind is None or now.board.bins[number].kind == kind:
                return number
    return found if found >= 0 else next(number for number in range(size) if now.inside[number])


def _recreate(now: Arrangement, units: list[int], closed: frozenset[int], rng: random.Random) -> bool:
    """Put lifted units back, large ones first; whether all of them found a place."""
    pieces = now.board.units
    for unit in sorted(units, key=lambda one: -pieces[one].size * (0.7 + 0.6 * rng.random())):
        found = now.best(unit, closed, rng) or now.best(unit)
        if found is None:
            return False
        now.put(unit, *found)
    return True


def _restore(now: Arrangement, units: Iterable[int], spots: Iterable[Spot]) -> None:
    """Put units where they were, those that were put elsewhere and those that are still lifted."""
    pairs = list(zip(units, spots, strict=True))
    for unit, _ in pairs:
        now.lift(unit)
    for unit, spot in pairs:
        now.put_back(unit, spot)
