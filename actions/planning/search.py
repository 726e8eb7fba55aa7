"""Search for an arrangement of work with the least fragmentation and cost, by ruin and recreate.

The value that falls is F x horizon + cost of all that has moved, in GPU-hours. The method (take a few bins apart, put
the pieces back one by one where they do best, keep it if it pays) is that of Schrimpf et al., "Record Breaking
Optimization Results Using the Ruin and Recreate Principle", 2000; acceptance cools as in simulated annealing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tocsin.actions.planning.arrangement import EPSILON, Arrangement, Spot
from tocsin.actions.planning.bins import Bins
from tocsin.actions.planning.state import FleetState
from tocsin.actions.planning.units import Limits

# The numbers below are own choices, tried on made-up fleets of 64 to 1,000 GPUs.
_FIRST_HEAT, _LAST_HEAT = 0.1, 0.001
"""GPU-hours by which a worse arrangement is readily taken, at first and at last."""
_VACATE, _PART = 0.45, 0.25
"""Shares of the tries that empty a bin, and that empty a part of one; the rest mixes two or three bins."""
_MOST_LIFTED = 16
"""Units that one try takes apart at most."""
_MOST_PASSES = 5
"""Rounds over all units in which each is put where it alone is best."""
_BISECTIONS, _WIDEST = 6, 500.0
"""Tries to find what an hour must be worth to lead to a given F, and how far below the horizon that may lie."""
_STEEPER, _RESTARTS = 3.0, 3
"""Around that point F counts so many times more, and the search begins anew so often from the best."""
_MISSED = 1e9
"""Value of an arrangement that misses the F that was asked for: more than any that does not."""
_DRAWS = 40
"""Draws for a bin of the kind that is sought."""


def search(board: Bins, state: FleetState, limits: Limits) -> Arrangement:
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


def improve(board: Bins, state: FleetState, spots: Iterable[Spot], limits: Limits) -> Arrangement:
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
