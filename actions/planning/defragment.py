"""Defragmentation of the fleet and of MIG slices: which work to move where, in what order, and what it is worth."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tocsin.actions.planning.arrangement import EPSILON, Arrangement, Spot
from tocsin.actions.planning.bins import Bins, FleetBins, MigBins, fleet_figures, mig_figures
from tocsin.actions.planning.plan import Move, Plan, Refusal, Step, StepKind
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, GpuHold, GpuMode
from tocsin.actions.planning.units import HOUR_S, PlanLimits, Unit, say_gpus, units_of
from tocsin.domain.phrase import Phrase, say, say_count

MINUTE_S = 60.0


def schedule(
    state: FleetState, packing: Bins, spots: Sequence[Spot], limits: PlanLimits, *, by_worth: bool = False
) -> tuple[tuple[Step, ...], list[int], tuple[Refusal, ...]]:
    """The moves that lead to where `spots` has each unit, with the numbers of the units that they move.

    Each goes into room that is free by then: what need not wait for a checkpoint first, of these the most profitable;
    with `by_worth` the most profitable before all. Where moves wait for each other's room in a circle, the one that
    costs most is refused, and those that wait for it alone. A move that comes later than its checkpoint is priced
    anew. The time that the moves themselves take is not counted.
    """
    queue = _Queue(
        Arrangement(packing, state, replace(limits, pack_to=0.0, most_moves=len(packing.units))), spots, by_worth
    )
    simulation = Simulation(state, limits.most_risk)
    steps: list[Step] = []
    order: list[int] = []
    begins_s = 0.0
    while (unit := queue.pop()) is not None:
        gain = queue.move(unit) * limits.horizon_h
        begins_s = max(begins_s, packing.units[unit].price.wait_s)
        step = _step(state, simulation, packing, unit, spots[unit], gain, begins_s)
        simulation.do(step)
        steps.append(step)
        order.append(unit)
    return tuple(steps), order, tuple(queue.refused)


class _Queue:
    """Units that have yet to move, by what the move is worth now."""

    def __init__(self, now: Arrangement, spots: Sequence[Spot], by_worth: bool) -> None:
        self._by_worth = by_worth
        self._now = now
        self._spots = spots
        self._waiting = {unit for unit, spot in enumerate(spots) if spot != now.at[unit]}
        self._blocked: dict[int, list[int]] = {}
        self._heap: list[tuple[float, float, int]] = []
        self.refused: list[Refusal] = []
        self._refill()

    def _worth(self, unit: int) -> float:
        """GPU-hours that the move gains now, less its cost; minus infinity where its place is not free."""
        now, spot = self._now, self._spots[unit]
        before = now.fragmented
        home = now.take(unit)
        worth = -math.inf
        if now.can_stand(unit, spot):
            now.put_back(unit, spot)
            worth = (before - now.fragmented) * now.limits.horizon_h - now.packing.units[unit].price.gpu_hours
            now.take(unit)
        now.put_back(unit, home)
        return worth

    def _entry(self, unit: int) -> tuple[float, float, int]:
        wait_s = 0.0 if self._by_worth else self._now.packing.units[unit].price.wait_s
        return wait_s, -self._worth(unit), unit

    def _refill(self) -> None:
        self._heap = [entry for unit in sorted(self._waiting) if (entry := self._entry(unit))[1] < math.inf]
        heapify(self._heap)

    def pop(self) -> int | None:
        """The unit to move next; None where none is left."""
        while self._waiting:
            if not self._heap:
                self._refill()
                if not self._heap:
                    self._refuse()
                continue
            unit = heappop(self._heap)[2]
            if unit not in self._waiting:
                continue
            entry = self._entry(unit)
            if entry[1] == math.inf:
                self._blocked.setdefault(self._spots[unit][0], []).append(unit)
            elif self._heap and entry[1] > self._heap[0][1] + EPSILON and entry[0] >= self._heap[0][0]:
                heappush(self._heap, entry)
            else:
                return unit
        return None

    def _refuse(self) -> None:
        units = self._now.packing.units
        unit = max(self._waiting, key=lambda one: (units[one].price.gpu_hours, one))
        self._waiting.discard(unit)
        self.refused.append(Refusal(units[unit].name, say("its place is free only after it has left")))

    def move(self, unit: int) -> float:
        """Move a unit; returns by how much F falls, in GPUs."""
        before = self._now.fragmented
        left = self._now.take(unit)[0]
        self._now.put_back(unit, self._spots[unit])
        self._waiting.discard(unit)
        for other in self._blocked.pop(left, ()):
            heappush(self._heap, self._entry(other))
        return before - self._now.fragmented


def _step(
    state: FleetState, simulation: Simulation, packing: Bins, unit: int, spot: Spot, gain: float, begins_s: float
) -> Step:
    piece, target = packing.units[unit], packing.bins[spot[0]]
    moves = _moves(state, simulation, piece, target.name, target.host, spot[1])
    cost = piece.price.gpu_hours + _lateness(state, piece, begins_s - piece.price.wait_s)
    begins = _begins(piece, begins_s)
    template = "Move {work} ({size}) {way}: {gain} GPU-hours of usable capacity for {cost} of work lost."
    if begins:
        template = "Move {work} ({size}) {way} {begins}: {gain} GPU-hours of usable capacity for {cost} of work lost."
    way, figures = _way(piece, moves, target.host), {"gain": f"{gain:+.2f}", "cost": f"{cost:.2f}"}
    return Step(
        StepKind.MOVE,
        piece.name,
        say(template, work=piece.name, size=_size(piece), way=way, **figures, **begins),
        moves,
        wait_s=begins_s,
        asks=piece.price.asks,
        gain_gpu_hours=gain,
        cost_gpu_hours=cost,
    )


def _way(piece: Unit, moves: Sequence[Move], host: str) -> Phrase:
    """From where to where: hosts for whole GPUs, GPUs for shares, first slices for instances."""
    if piece.gpus >= 1 and not piece.works[0].profile:
        return say("from {source} to {target}", source=piece.host, target=host)
    source, target = moves[0].source[0], moves[0].target[0]
    if source.start is not None:
        before, after = f"{source.gpu}@{source.start}", f"{target.gpu}@{target.start}"
        return say("from {source} to {target}", source=before, target=after)
    places = {"source": source.gpu, "source_host": piece.host, "target": target.gpu, "target_host": host}
    return say("from {source} on {source_host} to {target} on {target_host}", **places)


def _lateness(state: FleetState, piece: Unit, late_s: float) -> float:
    """What work does and loses in GPU-hours between the instant that its price is for and that of its move."""
    if piece.price.asks:
        return 0.0
    return sum(state.held_gpus(work) for work in piece.works if work.lost_s) * late_s / HOUR_S


def _size(piece: Unit) -> Phrase | str:
    return piece.works[0].profile or say_gpus(piece.gpus)


def _begins(piece: Unit, begins_s: float) -> dict[str, Phrase]:
    """When a move begins, and after what; nothing where it may begin at once."""
    how = None
    if piece.price.asks:
        how = say("after asking for a checkpoint")
    elif piece.price.wait_s > 0:
        how = say("once its checkpoint is written")
    if begins_s < MINUTE_S:
        return {} if how is None else {"begins": how}
    minutes = f"{begins_s / MINUTE_S:.0f}"
    return {"begins": say("in {n} min", n=minutes) if how is None else say("in {n} min {how}", n=minutes, how=how)}


def _moves(
    state: FleetState, simulation: Simulation, piece: Unit, name: str, host: str, place: int
) -> tuple[Move, ...]:
    moves: list[Move] = []
    free: list[str] | None = None
    for work in piece.works:
        if work.profile:
            target: tuple[GpuHold, ...] = (GpuHold(name, 1.0, place),)
        elif work.gpus < 1:
            shared = [slot.uuid for slot in state.by_host[host] if slot.mode is GpuMode.TIME_SLICE]
            target = (GpuHold(shared[place], work.gpus),)
        else:
            free = simulation.free_whole(host, work.model) if free is None else free
            taken, free = free[: int(work.gpus)], free[int(work.gpus) :]
            target = tuple(GpuHold(uuid) for uuid in taken)
        moves.append(Move(work.id, simulation.work(work.id).holds, target))
    return tuple(moves)


# Search for an arrangement of work with the least fragmentation and cost, by ruin and recreate. The value that falls
# is F x horizon + cost of all that has moved, in GPU-hours. The method (take a few bins apart, put the pieces back
# one by one where they do best, keep it if it pays) is that of Schrimpf et al., "Record Breaking Optimization Results
# Using the Ruin and Recreate Principle", 2000; acceptance cools as in simulated annealing.

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


def search(packing: Bins, state: FleetState, limits: PlanLimits) -> Arrangement:
    """The best arrangement found; equal input gives an equal answer.

    With `pack_to` the horizon is first sought that leads about there, then what is too much or too little is mended.
    """
    now = Arrangement(packing, state, limits)
    if not packing.units or limits.most_moves < 1:
        return now
    rng = random.Random(limits.seed)
    if limits.pack_to > 0:
        _approach(now, rng)
    else:
        descend(now)
        _anneal(now, rng, limits.effort, _Kept(now))
    settle(now)
    return now


def improve(packing: Bins, state: FleetState, spots: Iterable[Spot], limits: PlanLimits) -> Arrangement:
    """What can be made of an arrangement that keeps to the limits; without effort, units that gain nothing go home."""
    now = Arrangement(packing, state, limits)
    _go(now, list(spots))
    if limits.effort:
        if limits.pack_to == 0:
            _anneal(now, random.Random(limits.seed), limits.effort, _Kept(now))
        settle(now)
    else:
        _send_home(now)
    return now


def _send_home(now: Arrangement) -> None:
    moved = [unit for unit, spot in enumerate(now.at) if spot != now.packing.homes[unit]]
    for unit in sorted(moved, key=lambda one: -now.packing.units[one].price.gpu_hours):
        before = now.value
        spot = now.take(unit)
        home = now.packing.homes[unit]
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
    heap = [(-_gain(now, unit), unit) for unit in range(len(now.packing.units))]
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
    units = now.packing.units
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
        units |= now.inside[_any_bin(now, rng, now.packing.bins[first].kind)]
    return sorted(units)[:_MOST_LIFTED], frozenset()


def _any_bin(now: Arrangement, rng: random.Random, kind: Hashable = None) -> int:
    """A bin with units in it, of `kind` where a few draws find one; those cheap to empty come up more often."""
    size = len(now.inside)
    found = -1
    for _ in range(_DRAWS):
        number = size - 1 - int(rng.random() ** 1.5 * size)
        if now.inside[number]:
            found = number
            if kind is None or now.packing.bins[number].kind == kind:
                return number
    return found if found >= 0 else next(number for number in range(size) if now.inside[number])


def _recreate(now: Arrangement, units: list[int], closed: frozenset[int], rng: random.Random) -> bool:
    """Put lifted units back, large ones first; whether all of them found a place."""
    pieces = now.packing.units
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


WHOLE_MODES = (GpuMode.EXCLUSIVE, GpuMode.TIME_SLICE)


def defragment(state: FleetState, limits: PlanLimits) -> Plan:
    """Moves of work between hosts after which fewer free GPUs are of no use to the work that comes."""
    units, refused = units_of(state, WHOLE_MODES, limits)
    return _plan("defragment", state, FleetBins(state, units, limits), refused, limits)


def repack_mig(state: FleetState, limits: PlanLimits) -> Plan:
    """Moves of work between MIG instances after which more of the instances in demand can be created."""
    units, refused = units_of(state, (GpuMode.MIG,), limits)
    left_out = tuple(Refusal(one.uuid, say("{said}", said=one.reason)) for one in state.left_out.values())
    return _plan("mig", state, MigBins(state, units, limits), (*refused, *left_out), limits)


def figures(kind: str, state: FleetState) -> dict[str, float]:
    """The figures that a plan of this kind is judged by."""
    return fleet_figures(state) if kind == "defragment" else mig_figures(state)


def outside(found: Mapping[str, float], packing: Bins) -> float:
    """F of what is no bin, such as nodes out of service, which no move changes; `found` are the state's figures."""
    return found["fragmented_gpus"] - sum(packing.measure(one.kind, one.state) for one in packing.bins)


def _plan(kind: str, state: FleetState, packing: Bins, refused: tuple[Refusal, ...], limits: PlanLimits) -> Plan:
    before = figures(kind, state)
    # Of what no move changes nothing is asked; below that everything is.
    inside = replace(limits, pack_to=max(0.0, limits.pack_to - outside(before, packing)) if limits.pack_to > 0 else 0.0)
    steps, stuck = _steps(state, packing, inside)
    gain, cost = _worth(steps)
    if steps and gain <= cost and inside.pack_to > 0:
        # What is asked for is out of reach within the limits: then only what pays.
        steps, stuck = _steps(state, packing, replace(inside, pack_to=0.0))
        gain, cost = _worth(steps)
    after = figures(kind, Simulation(state, limits.most_risk).run(steps)) if steps else before
    return Plan(
        kind,
        _sentence(kind, steps, before, after, gain, cost),
        steps,
        (*stuck, *refused),
        before,
        after,
        gain,
        cost,
        limits.horizon_h,
        state.simulated,
    )


def _worth(steps: Sequence[Step]) -> tuple[float, float]:
    """What the steps gain and cost together, in GPU-hours."""
    return sum(step.gain_gpu_hours for step in steps), sum(step.cost_gpu_hours for step in steps)


def _steps(state: FleetState, packing: Bins, limits: PlanLimits) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """Moves none of which could be left out with profit, and what had to stay."""
    spots = search(packing, state, replace(limits, most_moves=len(packing.units))).at
    steps, order, stuck = schedule(state, packing, spots, limits, by_worth=True)
    if len(steps) > limits.most_moves:
        best = _only(packing, spots, order[: limits.most_moves])
        spots = improve(packing, state, best, replace(limits, effort=limits.effort // 2)).at
    steps, order, stuck = schedule(state, packing, spots, limits)
    while stuck and order:
        spots = improve(packing, state, _only(packing, spots, order), replace(limits, effort=0)).at
        steps, order, more = schedule(state, packing, spots, limits)
        if not more:
            break
        stuck = (*stuck, *more)
    return steps, stuck


def _only(packing: Bins, spots: Sequence[Spot], units: Iterable[int]) -> list[Spot]:
    """`spots` with all but `units` at home."""
    kept = set(units)
    return [spots[unit] if unit in kept else home for unit, home in enumerate(packing.homes)]


def _sentence(
    kind: str,
    steps: tuple[Step, ...],
    before: Mapping[str, float],
    after: Mapping[str, float],
    gain: float,
    cost: float,
) -> Phrase:
    what = say("MIG slices") if kind == "mig" else say("the fleet")
    if not steps:
        template = (
            "Leave {what} as it is: no move gains more than it costs (the usual jobs cannot use {n} of the free GPUs)."
        )
        return say(template, what=what, n=f"{before['fragmented_gpus']:.2f}")
    return say(
        "Move {moves} of work: of {free} free GPUs the usual jobs cannot use {then} in place of {now}; "
        "gains {gain} GPU-hours, costs {cost}.",
        moves=say_count(sum(len(step.moves) for step in steps), "piece"),
        free=f"{before['free_gpus']:.2f}",
        then=f"{after['fragmented_gpus']:.2f}",
        now=f"{before['fragmented_gpus']:.2f}",
        gain=f"{gain:.1f}",
        cost=f"{cost:.2f}",
    )
