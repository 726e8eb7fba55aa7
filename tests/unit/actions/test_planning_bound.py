"""The least that a packing can cost: below every plan, met by trying everything, and why two fleets miss the bar."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.arrangement import Arrangement
from tocsin.actions.planning.bins import Bins, FleetBins, MigBins
from tocsin.actions.planning.compare import UNBOUNDED, least_cost, yardstick
from tocsin.actions.planning.defragment import WHOLE_MODES, defragment, repack_mig
from tocsin.actions.planning.state import FleetState, GpuMode
from tocsin.actions.planning.units import PlanLimits, units_of
from tocsin_testing.planning import fleet, mig_fleet, on, work

LIMITS = PlanLimits(most_moves=UNBOUNDED)


def board_of(state: FleetState) -> Bins:
    units, _ = units_of(state, WHOLE_MODES, LIMITS)
    return FleetBins(state, units, LIMITS)


def everything(packing: Bins, state: FleetState, most_f: float) -> float:
    """The cheapest of all ways to place all units, by hand."""
    costs = [float("inf")]
    spots = [
        [
            (bin_, place)
            for bin_ in range(len(packing.bins))
            for place in range(8)
            if packing.fits(cls, packing.bins[bin_].kind)
        ]
        for cls in packing.classes
    ]
    for chosen in itertools.product(*spots):
        now = Arrangement(packing, state, LIMITS)
        for unit in range(len(chosen)):
            now.take(unit)
        for unit, spot in enumerate(chosen):
            if not now.can_stand(unit, spot):
                break
            now.put_back(unit, spot)
        else:
            if now.fragmented <= most_f + 1e-9:
                costs.append(now.cost)
    return min(costs)


@pytest.mark.parametrize("most_f", [1.0, 3.0, 5.0, 20.0])
def test_it_is_what_trying_everything_finds(most_f: float) -> None:
    works = [
        work("a", on("n0", 0, 1), lost_s=600.0),
        work("b", on("n1", 0), lost_s=60.0),
        work("c", on("n2", 0, 1, 2), lost_s=30.0),
    ]
    state = fleet(3, works, gpus=4)
    packing = board_of(state)
    found = least_cost(packing, most_f)
    assert found is not None
    expected = everything(packing, state, most_f)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_no_plan_costs_less(seed: int) -> None:
    state = rehearsal.fleet(32, seed)
    plan = defragment(state, replace(LIMITS, effort=2000))
    least = least_cost(board_of(state), plan.after["fragmented_gpus"])
    assert least is not None
    assert least <= plan.cost_gpu_hours + 1e-9


def test_instances_are_bounded_too() -> None:
    state = mig_fleet([[("1g", 0), ("1g", 4)], [("3g", 4)]], {"4g": 0.5, "7g": 0.5})
    units, _ = units_of(state, (GpuMode.MIG,), LIMITS)
    packing = MigBins(state, units, LIMITS)
    assert least_cost(packing, 100.0) == 0.0
    plan = repack_mig(state, LIMITS)
    assert plan.cost_gpu_hours > 0
    assert least_cost(packing, plan.after["fragmented_gpus"]) == pytest.approx(plan.cost_gpu_hours)


def test_a_fleet_too_large_for_it_has_no_bound() -> None:
    assert least_cost(board_of(rehearsal.fleet(64, 0)), 1.0, most_states=100) is None


@pytest.mark.parametrize("seed", [2, 3])
def test_the_fleets_that_miss_the_bar_leave_no_plan_that_meets_it(seed: int) -> None:
    state = rehearsal.fleet(64, seed)
    packed, paid, _ = yardstick("defragment", state, LIMITS)
    least = least_cost(board_of(state), packed)
    assert least is not None
    assert least > 0.5 * paid
