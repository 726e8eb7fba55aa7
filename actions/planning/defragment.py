"""Defragmentation of the fleet and of MIG slices: which work to move where, in what order, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tocsin.actions.planning.arrangement import Spot
from tocsin.actions.planning.bins import Bins, FleetBins, MigBins
from tocsin.actions.planning.measures import fleet_figures, mig_figures
from tocsin.actions.planning.plan import Plan, Refusal, Step
from tocsin.actions.planning.schedule import schedule
from tocsin.actions.planning.search import improve, search
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, GpuMode
from tocsin.actions.planning.units import Limits, units_of
from tocsin.domain.words import counted

WHOLE_MODES = (GpuMode.EXCLUSIVE, GpuMode.TIME_SLICE)


def defragment(state: FleetState, limits: Limits) -> Plan:
    """Moves of work between hosts after which fewer free GPUs are of no use to the work that comes."""
    units, refused = units_of(state, WHOLE_MODES, limits)
    return _plan("defragment", state, FleetBins(state, units, limits), refused, limits)


def repack_mig(state: FleetState, limits: Limits) -> Plan:
    """Moves of work between MIG instances after which more of the instances in demand can be created."""
    units, refused = units_of(state, (GpuMode.MIG,), limits)
    left_out = tuple(Refusal(one.uuid, one.reason) for one in state.left_out.values())
    return _plan("mig", state, MigBins(state, units, limits), (*refused, *left_out), limits)


def figures(kind: str, state: FleetState) -> dict[str, float]:
    """The figures that a plan of this kind is judged by."""
    return fleet_figures(state) if kind == "defragment" else mig_figures(state)


def outside(found: Mapping[str, float], board: Bins) -> float:
    """F of what is no bin, such as nodes out of service, which no move changes; `found` are the state's figures."""
    return found["fragmented_gpus"] - sum(board.measure(one.kind, one.state) for one in board.bins)


def _plan(kind: str, state: FleetState, board: Bins, refused: tuple[Refusal, ...], limits: Limits) -> Plan:
    before = figures(kind, state)
    # Of what no move changes nothing is asked; below that everything is.
    inside = replace(limits, pack_to=max(0.0, limits.pack_to - outside(before, board)) if limits.pack_to > 0 else 0.0)
    steps, stuck = _steps(state, board, inside)
    gain = sum(step.gain_gpu_hours for step in steps)
    cost = sum(step.cost_gpu_hours for step in steps)
    after = figures(kind, Simulation(state, limits.most_risk).run(steps))
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


def _steps(state: FleetState, board: Bins, limits: Limits) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """Moves none of which could be left out with profit, and what had to stay."""
    spots = search(board, state, replace(limits, most_moves=len(board.units))).at
    steps, order, stuck = schedule(state, board, spots, limits, by_worth=True)
    if len(steps) > limits.most_moves:
        best = _only(board, spots, order[: limits.most_moves])
        spots = improve(board, state, best, replace(limits, effort=limits.effort // 2)).at
    steps, order, stuck = schedule(state, board, spots, limits)
    while stuck and order:
        spots = improve(board, state, _only(board, spots, order), replace(limits, effort=0)).at
        steps, order, more = schedule(state, board, spots, limits)
        if not more:
            break
        stuck = (*stuck, *more)
    return steps, stuck


def _only(board: Bins, spots: Sequence[Spot], units: Iterable[int]) -> list[Spot]:
    """`spots` with all but `units` at home."""
    kept = set(units)
    return [spots[unit] if unit in kept else home for unit, home in enumerate(board.homes)]


def _sentence(
    kind: str,
    steps: tuple[Step, ...],
    before: Mapping[str, float],
    after: Mapping[str, float],
    gain: float,
    cost: float,
) -> str:
    what = "MIG slices" if kind == "mig" else "the fleet"
    if not steps:
        left = before["fragmented_gpus"]
        return f"Leave {what} as it is: no move gains more than it costs ({left:.2f} GPUs are fragmented)."
    moves = counted(sum(len(step.moves) for step in steps), "piece")
    now, then = before["fragmented_gpus"], after["fragmented_gpus"]
    return (
        f"Move {moves} of work: of {before['free_gpus']:.2f} free GPUs, {then:.2f} in place of {now:.2f} are "
        f"fragmented; gains {gain:.1f} GPU-hours, costs {cost:.2f}."
    )
