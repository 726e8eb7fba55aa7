"""In what order the moves to a new arrangement are made, and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tocsin.actions.planning.arrangement import EPSILON, Arrangement, Spot
from tocsin.actions.planning.bins import Bins
from tocsin.actions.planning.plan import Move, Refusal, Step, StepKind
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, GpuMode, Hold
from tocsin.actions.planning.units import HOUR_S, Limits, Unit

MINUTE_S = 60.0


def schedule(
    state: FleetState, board: Bins, spots: Sequence[Spot], limits: Limits, *, by_worth: bool = False
) -> tuple[tuple[Step, ...], list[int], tuple[Refusal, ...]]:
    """The moves that lead to where `spots` has each unit, with the numbers of the units that they move.

    Each goes into room that is free by then: what need not wait for a checkpoint first, of these the most profitable;
    with `by_worth` the most profitable before all. Where moves wait for each other's room in a circle, the one that
    costs most is refused, and those that wait for it alone. A move that comes later than its checkpoint is priced
    anew. The time that the moves themselves take is not counted.
    """
    queue = _Queue(
        Arrangement(board, state, replace(limits, pack_to=0.0, most_moves=len(board.units))), spots, by_worth
    )
    stage = Simulation(state, limits.most_risk)
    steps: list[Step] = []
    order: list[int] = []
    begins_s = 0.0
    while (unit := queue.pop()) is not None:
        gain = queue.move(unit) * limits.horizon_h
        begins_s = max(begins_s, board.units[unit].price.wait_s)
        step = _step(state, stage, board, unit, spots[unit], gain, begins_s)
        stage.do(step)
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
            worth = (before - now.fragmented) * now.limits.horizon_h - now.board.units[unit].price.gpu_hours
            now.take(unit)
        now.put_back(unit, home)
        return worth

    def _entry(self, unit: int) -> tuple[float, float, int]:
        wait_s = 0.0 if self._by_worth else self._now.board.units[unit].price.wait_s
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
        units = self._now.board.units
        unit = max(self._waiting, key=lambda one: (units[one].price.gpu_hours, one))
        self._waiting.discard(unit)
        self.refused.append(Refusal(units[unit].name, "its place is free only after it has left"))

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
    state: FleetState, stage: Simulation, board: Bins, unit: int, spot: Spot, gain: float, begins_s: float
) -> Step:
    piece, target = board.units[unit], board.bins[spot[0]]
    moves = _moves(state, stage, piece, target.name, target.host, spot[1])
    cost = piece.price.gpu_hours + _lateness(state, piece, begins_s - piece.price.wait_s)
    return Step(
        StepKind.MOVE,
        piece.name,
        f"Move {piece.name} ({_size(piece)}) {_way(piece, moves, target.host)}{_how(piece, begins_s)}: "
        f"{gain:+.2f} GPU-hours of usable capacity for {cost:.2f} of work lost.",
        moves,
        wait_s=begins_s,
        asks=piece.price.asks,
        gain_gpu_hours=gain,
        cost_gpu_hours=cost,
    )


def _way(piece: Unit, moves: Sequence[Move], host: str) -> str:
    """From where to where: hosts for whole GPUs, GPUs for shares, first slices for instances."""
    if piece.gpus >= 1 and not piece.works[0].profile:
        return f"from {piece.host} to {host}"
    source, target = moves[0].source[0], moves[0].target[0]
    if source.start is not None:
        return f"from {source.gpu}@{source.start} to {target.gpu}@{target.start}"
    return f"from {source.gpu} on {piece.host} to {target.gpu} on {host}"


def _lateness(state: FleetState, piece: Unit, late_s: float) -> float:
    """What work does and loses in GPU-hours between the instant that its price is for and that of its move."""
    if piece.price.asks:
        return 0.0
    return sum(state.held_gpus(work) for work in piece.works if work.lost_s) * late_s / HOUR_S


def _size(piece: Unit) -> str:
    return piece.works[0].profile or f"{piece.gpus:g} GPU" + ("s" if piece.gpus > 1 else "")


def _how(piece: Unit, begins_s: float) -> str:
    when = f" in {begins_s / MINUTE_S:.0f} min" if begins_s >= MINUTE_S else ""
    if piece.price.asks:
        return f"{when} after asking for a checkpoint"
    return f"{when} once its checkpoint is written" if piece.price.wait_s > 0 else when


def _moves(state: FleetState, stage: Simulation, piece: Unit, name: str, host: str, place: int) -> tuple[Move, ...]:
    moves: list[Move] = []
    free: list[str] | None = None
    for work in piece.works:
        if work.profile:
            target: tuple[Hold, ...] = (Hold(name, 1.0, place),)
        elif work.gpus < 1:
            shared = [slot.uuid for slot in state.by_host[host] if slot.mode is GpuMode.TIME_SLICE]
            target = (Hold(shared[place], work.gpus),)
        else:
            free = stage.free_whole(host, work.model) if free is None else free
            taken, free = free[: int(work.gpus)], free[int(work.gpus) :]
            target = tuple(Hold(uuid) for uuid in taken)
        moves.append(Move(work.id, stage.work(work.id).holds, target))
    return tuple(moves)
