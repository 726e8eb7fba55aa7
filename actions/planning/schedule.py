"""In what order the moves to a new arrangement are made, and what each of them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tocsin.actions.planning.board import Board
from tocsin.actions.planning.plan import Move, Refusal, Step, StepKind
from tocsin.actions.planning.search import EPSILON, Arrangement, Spot
from tocsin.actions.planning.stage import Stage
from tocsin.actions.planning.state import FleetState, GpuMode, Hold
from tocsin.actions.planning.units import Limits, Unit


def schedule(
    state: FleetState, board: Board, spots: Sequence[Spot], limits: Limits
) -> tuple[tuple[Step, ...], list[int], tuple[Refusal, ...]]:
    """The moves that lead to where `spots` has each unit, with the numbers of the units that they move.

    Each goes into room that is free by then, the most profitable first. Where moves wait for each other's room in a
    circle, the one that costs most is refused, and those that wait for it alone.
    """
    queue = _Queue(Arrangement(board, state, replace(limits, pack_to=0.0, most_moves=len(board.units))), spots)
    stage = Stage(state, limits.most_risk)
    steps: list[Step] = []
    order: list[int] = []
    while (unit := queue.pop()) is not None:
        gain = queue.move(unit) * limits.horizon_h
        step = _step(state, stage, board, unit, spots[unit], gain)
        stage.do(step)
        steps.append(step)
        order.append(unit)
    return tuple(steps), order, tuple(queue.refused)


class _Queue:
    """Units that have yet to move, by what the move is worth now."""

    def __init__(self, now: Arrangement, spots: Sequence[Spot]) -> None:
        self._now = now
        self._spots = spots
        self._waiting = {unit for unit, spot in enumerate(spots) if spot != now.at[unit]}
        self._blocked: dict[int, list[int]] = {}
        self._heap: list[tuple[float, int]] = []
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

    def _refill(self) -> None:
        worth = [(-self._worth(unit), unit) for unit in sorted(self._waiting)]
        self._heap = [entry for entry in worth if entry[0] < math.inf]
        heapify(self._heap)

    def pop(self) -> int | None:
        """The unit to move next; None where none is left."""
        while self._waiting:
            if not self._heap:
                self._refill()
                if not self._heap:
                    self._refuse()
                continue
            _, unit = heappop(self._heap)
            if unit not in self._waiting:
                continue
            worth = self._worth(unit)
            if worth == -math.inf:
                self._blocked.setdefault(self._spots[unit][0], []).append(unit)
            elif self._heap and worth < -self._heap[0][0] - EPSILON:
                heappush(self._heap, (-worth, unit))
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
            heappush(self._heap, (-self._worth(other), other))
        return before - self._now.fragmented


def _step(state: FleetState, stage: Stage, board: Board, unit: int, spot: tuple[int, int], gain: float) -> Step:
    piece, target = board.units[unit], board.bins[spot[0]]
    moves = _moves(state, stage, piece, target.name, target.host, spot[1])
    where = f"from {piece.host} to {target.host}"
    if piece.works[0].profile:
        where = f"from {piece.works[0].holds[0].gpu}@{piece.works[0].holds[0].start} to {target.name}@{spot[1]}"
    return Step(
        StepKind.MOVE,
        piece.name,
        f"Move {piece.name} ({_size(piece)}) {where}{_how(piece)}: {gain:+.2f} GPU-hours of usable capacity "
        f"for {piece.price.gpu_hours:.2f} of work lost.",
        moves,
        wait_s=piece.price.wait_s,
        gain_gpu_hours=gain,
        cost_gpu_hours=piece.price.gpu_hours,
    )


def _size(piece: Unit) -> str:
    return piece.works[0].profile or f"{piece.gpus:g} GPU" + ("s" if piece.gpus > 1 else "")


def _how(piece: Unit) -> str:
    if piece.price.asks:
        return " after asking for a checkpoint"
    if piece.price.wait_s > 0:
        return f" after its checkpoint in {piece.price.wait_s / 60:.0f} min"
    return ""


def _moves(state: FleetState, stage: Stage, piece: Unit, name: str, host: str, place: int) -> tuple[Move, ...]:
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
