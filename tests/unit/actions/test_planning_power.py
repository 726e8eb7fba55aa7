"""Power budgets: who gives way, all GPUs of a job alike, and never above what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning.power import PowerBudget, power_caps
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, Workload
from tocsin_testing.planning import fleet, on, work


def powered(*works: Workload, hosts: int = 1, watts: float = 700.0) -> FleetState:
    state = fleet(hosts, works)
    slots = state.gpus.values()
    return state.with_nodes(
        [], [replace(slot, limit_watts=watts, least_watts=200.0, default_watts=700.0) for slot in slots]
    )


def caps(state: FleetState, budget: PowerBudget) -> dict[str, float]:
    plan = power_caps(state, budget)
    return {uuid: slot.limit_watts or 0.0 for uuid, slot in Simulation(state).run(plan.steps).gpus.items()}


def test_without_a_budget_nothing_changes() -> None:
    plan = power_caps(powered(work("a", on("n0", 0))), PowerBudget())
    assert plan.steps == ()
    assert plan.before == plan.after


def test_idle_gpus_give_way_first_then_the_lower_priority() -> None:
    state = powered(work("high", on("n0", 0, 1), priority=3), work("low", on("n0", 2, 3)))
    found = caps(state, PowerBudget(4 * 700 + 4 * 420))
    assert [found[f"n0/{number}"] for number in range(8)] == [700] * 4 + [420] * 4
    found = caps(state, PowerBudget(2 * 690 + 2 * 560 + 4 * 420))
    assert found["n0/0"] == found["n0/1"] > found["n0/2"] == found["n0/3"] > 420
    assert sum(found.values()) <= 2 * 690 + 2 * 560 + 4 * 420


def test_all_ranks_of_a_gang_alike_also_over_racks() -> None:
    members = [work(f"g{number}", on(f"n{4 * number}", *range(8)), gang="g") for number in range(2)]
    found = caps(powered(*members, hosts=5), PowerBudget(racks={"r0": 8 * 600.0 + 24 * 420.0}))
    assert len({found[f"n0/{number}"] for number in range(8)} | {found[f"n4/{number}"] for number in range(8)}) == 1
    assert 590 <= found["n4/0"] <= 600, "the rack of the other half binds it too"


def test_a_limit_below_the_floor_is_left_and_none_is_raised() -> None:
    state = powered(work("a", on("n0", 0)), watts=400.0)
    assert set(caps(state, PowerBudget(8 * 400.0)).values()) == {400.0}


def test_floors_that_do_not_fit_are_said() -> None:
    plan = power_caps(powered(), PowerBudget(8 * 420.0 - 1))
    assert plan.steps == ()
    assert plan.refused[0].subject == "facility"
    assert "the floors need 3360 W of 3359 W" in plan.refused[0].reason
    assert power_caps(powered(), PowerBudget(racks={"r0": 100.0})).refused[0].subject == "rack r0"


def test_gpus_of_unknown_limits_are_left_out() -> None:
    plan = power_caps(fleet(1, []), PowerBudget(1.0))
    assert plan.steps == ()
    assert {refusal.reason for refusal in plan.refused} == {"its power limits are not known"}


@pytest.mark.parametrize("budget", [3400.0, 4000.0, 4700.0, 5500.0])
def test_the_budget_is_used_up_to_a_step(budget: float) -> None:
    state = powered(*(work(f"w{number}", on("n0", number)) for number in range(8)))
    total = sum(caps(state, PowerBudget(budget)).values())
    assert budget - 8 * 3.0 - 1 <= total <= budget
