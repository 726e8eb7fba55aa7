"""The yardstick of defragmentation: repeat the single move that lowers F most until none does, whatever it costs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

from tocsin.actions.planning.arrangement import EPSILON, Arrangement, Spot
from tocsin.actions.planning.bins import Bins
from tocsin.actions.planning.state import FleetState
from tocsin.actions.planning.units import Limits


def greedy(board: Bins, state: FleetState, limits: Limits) -> Arrangement:
    """Where steepest descent of F ends. Of equal moves the cheapest is taken; a unit that moves twice is paid once."""
    now = Arrangement(board, state, limits)
    while (step := _steepest(now)) is not None:
        unit, spot, after = step
        now.take(unit)
        now.put(unit, spot, after)
    return now


def _steepest(now: Arrangement) -> tuple[int, Spot, Hashable] | None:
    found: tuple[int, Spot, Hashable] | None = None
    least, cheapest = -EPSILON, math.inf
    for unit in range(len(now.board.units)):
        price = now.board.units[unit].price.gpu_hours
        for total, spot, after in _first(now, unit):
            if total < least - EPSILON or (total < least + EPSILON and found is not None and price < cheapest):
                found, least, cheapest = (unit, spot, after), min(least, total), price
    return found


def _first(now: Arrangement, unit: int) -> Iterator[tuple[float, Spot, Hashable]]:
    """The best place in another bin and every other place in its own, each with the change of F of the whole move."""
    board, (own, place) = now.board, now.at[unit]
    if now.at[unit] == board.homes[unit] and not now.may_move(unit):
        return
    cls, kind = board.classes[unit], board.bins[own].kind
    without = now.state_without(unit)
    lifted = board.measure(kind, without) - board.measure(kind, now.states[own])
    if board.fits(cls, kind):
        for change, other, after in board.options(cls, kind, without):
            if other != place:
                yield lifted + change, (own, other), after
    for change, spot, after in now.targets(unit, frozenset({own})):
        yield lifted + change, spot, after
        return
