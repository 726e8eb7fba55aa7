"""Which action: the cheapest for a fault to come, the next rung where one did not help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.loop.decide import choose
from tocsin.actions.model.controls import Tally
from tocsin.actions.model.cost import Stake, cheapest, prices
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.ladder import LADDERS
from tocsin.actions.planning.facts import NodeState
from tocsin.config.settings import CostSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import encode
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Evidence, Finding
from tocsin.domain.reading import Owner
from tocsin_testing.action_world import World, fleet, incident, settings
from tocsin_testing.builders import T0

N, C, M, P = ActionKind.NOTIFY, ActionKind.CHECKPOINT, ActionKind.MIGRATE, ActionKind.PLACE_ELSEWHERE


def _foretold(world: World, chance: float, **more: object) -> Finding:
    said = Evidence(f"{PREDICTION_EVIDENCE}hazard 3", "a fault is likely", T0, chance)
    return world.break_gpu("GPU-0-0", category=Category.HARDWARE, evidence=(said,), **more)


@pytest.mark.parametrize(
    ("gpus", "chance", "chosen"),
    [(8, 0.01, N), (8, 0.10, C), (8, 0.9, M), (1, 0.02, N), (0, 0.1, N), (0, 0.9, P), (512, 0.02, N), (512, 0.05, C)],
)
def test_the_cheapest_by_chance_and_work_at_stake(gpus: int, chance: float, chosen: ActionKind) -> None:
    assert cheapest(prices(Stake(gpus, chance), CostSettings()), ActionKind.CORDON) is chosen


def test_prices_are_those_of_the_formula() -> None:
    cost = CostSettings(
        checkpoint_interval_hours=4, checkpoint_hours=0.1, restart_hours=0.5, fault_gpu_hours=4, idle_gpu_hours=2
    )
    always = dict.fromkeys((C, M), Tally(10**9, 10**9))
    assert prices(Stake(8, 0.5), cost, always) == {N: pytest.approx(12.0), C: pytest.approx(4.8), M: pytest.approx(6.8)}
    assert prices(Stake(8, 0.5), cost) == {N: pytest.approx(12.0), C: pytest.approx(6.0), M: pytest.approx(8.0)}


def test_what_never_worked_is_left() -> None:
    known = {M: Tally(30, 0)}
    assert cheapest(prices(Stake(1, 0.9), CostSettings()), ActionKind.CORDON) is M
    assert cheapest(prices(Stake(1, 0.9), CostSettings(), known), ActionKind.CORDON) is C


def test_outcomes_become_experience() -> None:
    world = World(settings(settle_seconds=0.0))
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 90.0, "gpu_power_watts": 700.0}
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    world.step()
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 84.0, "gpu_power_watts": 600.0}
    world.faults.clear()
    world.step()
    known = world.loop.controls().experience[ActionKind.THROTTLE]
    assert (known.tried, known.worked) == (1, 1)
    assert known.effects["celsius_bought_per_watt"] == (1, pytest.approx(0.06))
    world.restart()
    assert world.loop.controls().experience[ActionKind.THROTTLE] == known


@given(st.integers(0, 4096), st.floats(0, 1), st.floats(0, 1))
def test_a_likelier_fault_is_never_answered_more_mildly(gpus: int, one: float, other: float) -> None:
    order = list(ActionKind)
    mild, grave = (cheapest(prices(Stake(gpus, p), CostSettings()), M) for p in sorted((one, other)))
    assert order.index(mild) <= order.index(grave)


def test_the_action_of_the_rule_is_the_furthest() -> None:
    priced = prices(Stake(8, 1.0), CostSettings())
    assert cheapest(priced, N) is N
    assert cheapest(priced, C) is C


def test_a_foretold_fault_says_what_each_choice_would_cost() -> None:
    world = World(settings(), fleet())
    found = _foretold(world, 0.9, owners=(Owner(7, pod="train-0", namespace="ml"),))
    choice = choose(incident(found), world.view())
    assert choice.action is M
    assert str(choice.why) == "expected loss in GPU-hours: migrate 2.9, checkpoint 4.4, going on 5.6"
    world.step()
    decision = world.only(M).decision
    assert decision.parameters.context.pods == ("ml/train-0",)
    assert decision.sentence.endswith(f"{choice.why}.")


def test_a_foretold_fault_under_a_wide_job_counts_all_ranks() -> None:
    world = World()
    found = _foretold(world, 0.55, owners=(Owner(7, slurm_job="12.0"),))
    view = world.view()
    alone = choose(incident(found), view)
    wide = replace(view, gpus={uuid: replace(member, job="12") for uuid, member in view.gpus.items()})
    assert (alone.action, choose(incident(found), wide).action) == (M, C)


def test_what_only_notifies_goes_on_doing_so() -> None:
    world = World()
    assert choose(incident(_foretold(world, 1.0, action=N)), world.view()).action is N


def _tried(world: World, ladder: tuple[ActionKind, ...]) -> list[str]:
    tried: list[str] = []
    for entry in world.journal.of(EntryKind.EXECUTION_STARTED):
        action = str(entry.payload["action"])
        if action in tuple(map(str, ladder)) and action not in tried:
            tried.append(action)
    return tried


@pytest.mark.parametrize("category", list(LADDERS))
def test_each_rung_follows_the_one_below_where_it_ran_twice_in_vain(category: Category) -> None:
    """One fault that lasts; the cures come only behind a drain that was seen."""
    world = World(settings(settle_seconds=0.0, escalate_after=2))
    world.executor.seen = False
    ladder = LADDERS[category]
    world.break_gpu("GPU-0-0", category=category, action=ladder[0])
    for _ in range(60):
        world.step(advance=5 * MINUTE)
    without_cures = [str(rung) for rung in ladder[: ladder.index(ActionKind.DRAIN) + 1]]
    assert _tried(world, ladder) == (without_cures if category is Category.HARDWARE else [str(rung) for rung in ladder])


def test_what_failed_for_certain_is_no_rung_that_was_tried() -> None:
    world = World(settings(settle_seconds=0.0))
    world.executor.result = ExecutionResult(False, "connection refused")
    world.break_gpu("GPU-0-0", category=Category.HARDWARE, action=ActionKind.DRAIN)
    for _ in range(20):
        world.step(advance=5 * MINUTE)
    assert _tried(world, LADDERS[Category.HARDWARE]) == ["drain"]


def test_what_was_only_rehearsed_is_no_rung_that_was_tried() -> None:
    world = World(settings(settle_seconds=0.0))
    world.executor.result = ExecutionResult(True, "rehearsed", lasting=False)
    world.executor.seen = False
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    for _ in range(20):
        world.step(advance=5 * MINUTE)
    assert _tried(world, LADDERS[Category.THERMAL]) == ["throttle"]


def test_a_prediction_never_climbs() -> None:
    world = World(settings(settle_seconds=0.0))
    world.executor.seen = False
    said = Evidence(f"{PREDICTION_EVIDENCE}ets 1", "it gets too hot", T0, None)
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE, evidence=(said,))
    for _ in range(20):
        world.step(advance=5 * MINUTE)
    assert _tried(world, LADDERS[Category.THERMAL]) == ["throttle"]


def test_a_rung_that_nobody_carries_out_is_passed_over() -> None:
    world = World(settings(settle_seconds=0.0))
    world.executor.seen = False
    world.executor.supports = lambda action: action in (ActionKind.THROTTLE, ActionKind.DRAIN)  # type: ignore[method-assign]
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    for _ in range(30):
        world.step(advance=5 * MINUTE)
    assert _tried(world, LADDERS[Category.THERMAL]) == ["throttle", "drain"]


def test_a_rung_that_worked_is_not_left() -> None:
    world = World(settings(settle_seconds=0.0))
    for _ in range(6):
        world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
        world.step()
        world.faults.clear()
        for _ in range(3):
            world.step()
    assert {entry.payload["action"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)} == {
        "throttle",
        "restore",
    }


def test_failures_of_yesterday_are_forgotten() -> None:
    world = World(settings(settle_seconds=0.0, escalate_after=1))
    world.executor.seen = False
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    world.step()
    world.step()
    fault = next(iter(world.faults.values()))
    assert choose(incident(fault), world.loop._current(world.view())).action is P
    world.clock.advance(DAY + HOUR)
    assert choose(incident(fault), world.loop._current(world.view())).action is ActionKind.THROTTLE


def test_behind_a_drain_comes_the_cure() -> None:
    world = World(settings(settle_seconds=0.0))
    world.nodes = {gpu.host: NodeState(gpu.host, schedulable=True) for gpu in world.gpus.values()}
    world.break_gpu("GPU-0-0", category=Category.HARDWARE, action=ActionKind.DRAIN)
    world.step()
    world.nodes["node-0"] = NodeState("node-0", schedulable=False, ours=True)
    for _ in range(3):
        world.step()
    begun = [entry.payload["action"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)]
    assert begun[:2] == ["drain", "reset_gpu"]


def test_a_return_ticket_carries_the_evidence() -> None:
    world = World()
    seen = (Evidence("gpu_row_remap_failure", "row remapping failed", T0, 1.0),)
    world.break_gpu("GPU-0-0", category=Category.HARDWARE, action=ActionKind.RMA_TICKET, evidence=seen)
    world.step()
    assert (
        encode(world.only(ActionKind.RMA_TICKET).decision.parameters)["evidence"]
        == "gpu_row_remap_failure: row remapping failed"
    )


def test_a_pool_that_would_run_short_grows_first() -> None:
    world = World(settings(elastic_pools=["default"], limits={"min_available_ratio": 0.8}), fleet(5, 2))
    world.executor.seen = None
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN, category=Category.HARDWARE)
    world.step()
    world.break_gpu("GPU-1-0", rule="b", action=ActionKind.DRAIN, category=Category.HARDWARE)
    for _ in range(3):
        world.step()
    begun = [(e.payload["action"], e.payload["subject"]) for e in world.journal.of(EntryKind.EXECUTION_STARTED)]
    assert begun == [("drain", "gpu:GPU-0-0"), ("scale_out", "pool:default")]
    grown = world.only(ActionKind.SCALE_OUT).decision
    assert encode(grown.parameters)["gpus"] == "2"
    assert grown.sentence.startswith("Scale out pool default: 2 GPUs are needed before drain GPU-1-0")
    world.gpus |= {gpu.uuid: gpu for gpu in fleet(15, 2).values()}
    world.step()
    assert world.journal.of(EntryKind.EXECUTION_STARTED)[-1].payload["subject"] == "gpu:GPU-1-0"


def test_a_pool_that_is_not_elastic_only_holds() -> None:
    world = World(settings(limits={"min_available_ratio": 1.0}))
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN, category=Category.HARDWARE)
    world.step()
    assert {status.decision.action for status in world.loop.statuses()} == {N, ActionKind.DRAIN}
