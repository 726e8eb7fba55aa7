"""Plans become decisions: one step at a time, behind every guard, withdrawn as soon as a look does not want them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.defragment import figures
from tocsin.actions.planning.power import PowerBudget, follow_power
from tocsin.actions.planning.scaling import PoolDemand
from tocsin.actions.planning.state import FleetState, Pool
from tocsin.config.planning import PlanningSettings
from tocsin.domain.clock import MINUTE
from tocsin.domain.decision import DecisionState, MigrateParameters, Mode, ScaleOutParameters, encode
from tocsin.domain.finding import ActionKind
from tocsin_testing.action_world import settings
from tocsin_testing.planned_world import PlannedWorld
from tocsin_testing.planning import budgets, fleet, mig_fleet, on, work

MOVED = ActionKind.MIGRATE


def planning(*follow: str, **more: Any) -> PlanningSettings:
    return PlanningSettings.model_validate({"follow": list(follow), "effort": 500, **more})


def crumbs() -> FleetState:
    """Two half-empty nodes whose work fits on one."""
    return fleet(2, [work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0))])


def test_nothing_is_followed_by_default() -> None:
    world = PlannedWorld(crumbs(), PlanningSettings())
    for _ in range(5):
        assert not world.step().created
    assert not world.findings


def test_a_move_that_pays_becomes_a_decision_and_is_carried_out() -> None:
    world = PlannedWorld(crumbs(), planning("defragment"))
    world.step()
    assert not world.findings, "one look alone proposes nothing"
    for _ in range(6):
        world.step()
    (one,) = world.decisions(MOVED)
    assert one.state is DecisionState.DONE
    assert one.decision.rule == "plan_defragment"
    assert one.decision.subject.name == "n1/0"
    told = one.decision.parameters
    assert isinstance(told, MigrateParameters)
    assert (told.work, told.to_host) == (("b",), (("n0",),))
    assert (told.gain_gpu_hours or 0) > (told.cost_gpu_hours or 0) > 0
    assert "Move b (1 GPU) from n1 to n0" in one.decision.sentence
    assert "1 step of this plan gain" in one.decision.sentence
    assert world.state.host_of(world.state.works["b"]) == "n0"
    assert not world.findings


def test_what_is_only_proposed_waits_for_a_person_and_is_withdrawn_once_the_plan_drops_it() -> None:
    world = PlannedWorld(crumbs(), planning("defragment"), settings(mode=Mode.PROPOSE, managed_pools=["p"]))
    for _ in range(4):
        world.step()
    (one,) = world.decisions(MOVED)
    assert one.state is DecisionState.HELD
    assert not world.manager.done
    state = world.manager.state
    world.manager.state = replace(state, works={"a": state.works["a"]})
    world.step()
    (one,) = world.decisions(MOVED)
    assert (one.state, one.reason) == (DecisionState.EXPIRED, "its cause ended")
    assert not world.manager.done


def test_a_decision_keeps_its_key_over_looks_and_over_a_restart() -> None:
    careful = settings(mode=Mode.PROPOSE, managed_pools=["p"], boot_grace_seconds=180.0)
    world = PlannedWorld(crumbs(), planning("defragment"), careful)
    for _ in range(3):
        world.step()
    keys = {one.decision.key for one in world.decisions(MOVED)}
    world.restart()
    for _ in range(3):
        world.step()
    assert {one.decision.key for one in world.decisions(MOVED)} == keys
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("works", "more"),
    [
        ([work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0), lost_s=1e7)], {}),
        ([work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0), lost_s=None)], {}),
        ([work("a", on("n0", 0, 1, 2, 3), lost_s=1e7), work("b", on("n1", 0), budgets=("x",))], {"budgets": {"x": 0}}),
    ],
)
def test_what_costs_more_than_it_gains_or_may_not_move_is_left_alone(works: Any, more: Any) -> None:
    given = budgets(**more["budgets"]) if more else {}
    world = PlannedWorld(fleet(2, works, budgets=given), planning("defragment"))
    for _ in range(4):
        world.step()
    assert not world.findings


def test_guards_hold_moves_like_everything_else() -> None:
    world = PlannedWorld(crumbs(), planning("defragment"), settings(managed_pools=["another"]))
    for _ in range(4):
        world.step()
    (one,) = world.decisions(MOVED)
    assert one.state is DecisionState.HELD
    assert "managed" in {verdict.guard for verdict in one.verdicts if verdict.ruling == "hold"}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_worn_fleet_is_put_together_again_move_by_move(seed: int) -> None:
    state = rehearsal.fleet(64, seed)
    world = PlannedWorld(state, planning("defragment", max_moves=6, mode="act"))
    before = figures("defragment", state)["fragmented_gpus"]
    busiest = 0
    for _ in range(40):
        world.step()
        busiest = max(busiest, len(world.loop.controls().busy))
    after = figures("defragment", world.state)["fragmented_gpus"]
    moves = world.decisions(MOVED)
    assert len([one for one in moves if one.state is DecisionState.DONE]) >= 3
    assert after < 0.8 * before
    assert busiest == 1, "one step at a time"
    assert not world.manager.broken, "no budget, no gang, no GPU given twice"
    assert len({one.decision.key for one in moves}) == len(moves)
    assert world.state.works.keys() == state.works.keys()


def test_instances_are_moved_too() -> None:
    state = mig_fleet([[("1g", 0), ("1g", 4)], [("3g", 4)]], {"4g": 0.5, "7g": 0.5})
    world = PlannedWorld(state, planning("mig"))
    before = figures("mig", state)["fragmented_gpus"]
    for _ in range(14):
        world.step()
    assert world.decisions(MOVED)
    assert figures("mig", world.state)["fragmented_gpus"] < before
    assert not world.manager.broken


def idle_pool(**more: Any) -> FleetState:
    pools = {"p": Pool("p", node_model="H100", waiting_gpus=0.0, utilisation=0.1, **more)}
    return fleet(3, [work("a", on("n0", 0, 1)), work("b", on("n2", 0))], pools=pools)


def test_an_idle_pool_gives_a_node_back_and_then_rests() -> None:
    world = PlannedWorld(idle_pool(), planning("scale_in"))
    for _ in range(20):
        world.step()
    (one,) = world.decisions(ActionKind.SCALE_IN)
    assert one.state is DecisionState.DONE
    assert encode(one.decision.parameters)["node"] == "n1"
    assert sorted(world.state.nodes) == ["n0", "n2"]
    for _ in range(25):
        world.step()
    done = [decision.action for decision in world.manager.done]
    assert done == [ActionKind.SCALE_IN, ActionKind.MIGRATE, ActionKind.SCALE_IN], "the node is emptied first"
    assert len(world.state.nodes) == 1
    assert not world.manager.broken


def test_a_pool_never_falls_below_its_floor() -> None:
    world = PlannedWorld(idle_pool(floor_gpus=24), planning("scale_in"))
    for _ in range(5):
        world.step()
    assert not world.findings


def test_demand_ahead_adds_nodes_once_and_waits_for_them() -> None:
    state = fleet(2, [work("a", on("n0", *range(8)))])
    world = PlannedWorld(state, planning("demand"))
    at_ms = world.clock.now_ms() + 10 * MINUTE
    world.demands = (PoolDemand("p", ((at_ms, 20.0, 20.0),)),)
    for _ in range(9):
        world.step()
    (one,) = world.decisions(ActionKind.SCALE_OUT)
    assert one.state is DecisionState.DONE
    told = one.decision.parameters
    assert isinstance(told, ScaleOutParameters)
    assert (told.nodes, told.gpus) == (2, 16)
    assert world.state.ready_gpus("p") == 32


def powered(count: int = 2) -> FleetState:
    state = fleet(count, [work("a", on("n0", 0, 1), priority=5)], gpus=2)
    slots = [replace(one, limit_watts=700.0, least_watts=200.0, default_watts=700.0) for one in state.gpus.values()]
    return state.with_nodes([], slots)


def watts(world: PlannedWorld) -> float:
    return sum(slot.limit_watts or 0.0 for slot in world.state.gpus.values())


def test_power_limits_are_lowered_and_given_back_with_the_budget() -> None:
    world = PlannedWorld(powered(), planning("power", facility_watts=2500.0))
    for _ in range(10):
        world.step()
    assert watts(world) <= 2500.0
    limited = [decision.subject.name for decision in world.manager.done]
    assert limited
    assert len(set(limited)) == len(limited), "nothing swings"
    world.planning = planning("power", facility_watts=2800.0)
    world.restart()
    for _ in range(10):
        world.step()
    assert watts(world) == 2800.0
    assert {one.action for one in world.manager.done} == {ActionKind.THROTTLE, ActionKind.RESTORE}


def test_a_new_brain_keeps_the_limits_that_stand_from_its_first_look_on() -> None:
    short = settings(managed_pools=["p"], boot_grace_seconds=90.0)
    world = PlannedWorld(powered(), planning("power", facility_watts=2500.0), short)
    for _ in range(8):
        world.step()
    done = list(world.manager.done)
    assert done
    world.restart()
    for _ in range(6):
        world.step()
    assert world.manager.done == done
    assert watts(world) <= 2500.0


def test_no_limit_is_given_back_while_a_gpu_is_lost() -> None:
    world = PlannedWorld(powered(), planning("power", facility_watts=2500.0))
    for _ in range(8):
        world.step()
    done = list(world.manager.done)
    seen = next(one for one in world.state.gpus.values() if one.limit_watts == 700.0)
    world.manager.state = world.state.with_nodes([], [replace(seen, limit_watts=None, healthy=False)])
    for _ in range(8):
        world.step()
    assert world.manager.done == done, "it may draw its 700 W all the same"
    world.manager.state = world.state.with_nodes([], [seen])
    for _ in range(8):
        world.step()
    assert world.manager.done == done


def test_gpus_that_other_rules_throttle_are_asked_for_no_second_limit() -> None:
    state, budget = powered(), PowerBudget(2500.0)
    plan, free = follow_power(state, budget, ())
    taken = {one.subject.name for one in free}
    hot = min(taken)
    _, asked = follow_power(state, budget, (), {hot})
    assert plan.steps
    assert taken - {hot} < {one.subject.name for one in asked}, "others give way"
    assert hot not in {one.subject.name for one in asked}


def test_limits_that_hold_the_budget_stay() -> None:
    world = PlannedWorld(powered(), planning("power", facility_watts=2500.0))
    for _ in range(60):
        world.step()
    assert watts(world) <= 2500.0
    assert all(one.action is ActionKind.THROTTLE for one in world.manager.done)
