"""Placement: every reason for or against a place on its own, and gangs whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning.placement import candidates, evacuate, place
from tocsin.actions.planning.plan import StepKind
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, GpuHold, GpuMode, Workload
from tocsin.actions.planning.units import PlanLimits
from tocsin_testing.planning import MODEL, budgets, fleet, mig_fleet, on, work

LIMITS = PlanLimits()


def waiting(name: str = "w", gpus: float = 2.0, **more: object) -> Workload:
    return work(name, (), gpus, **more)


def first(state: FleetState, piece: Workload) -> str:
    return candidates(state, piece, LIMITS)[0].host


def test_the_place_that_breaks_up_least_is_taken() -> None:
    state = fleet(2, [work("a", on("n1", *range(6))), waiting()])
    assert first(state, state.works["w"]) == "n1", "two are free there and of no use to four or eight"
    step = place(state, LIMITS).steps[0]
    assert step.kind is StepKind.PLACE
    assert "on n1" in step.sentence
    assert "fragmentation -" in step.sentence


def test_the_safer_of_two_equal_hosts() -> None:
    state = fleet(2, [waiting()])
    state = state.with_nodes([replace(state.nodes["n0"], risk=0.05)])
    assert first(state, state.works["w"]) == "n1"
    both = candidates(state, state.works["w"], LIMITS)
    assert both[1].terms["risk"] == pytest.approx(0.05 * 2 * (3600 + 60) / 3600)
    state = state.with_nodes([replace(state.nodes["n0"], risk=0.5)])
    assert [one.host for one in candidates(state, state.works["w"], LIMITS)] == ["n1"]


def test_the_host_that_has_the_data_then_its_rack() -> None:
    state = fleet(8, [waiting(data_hosts=("n5",))])
    terms = {one.host: one.terms["data"] for one in candidates(state, state.works["w"], LIMITS)}
    assert first(state, state.works["w"]) == "n5"
    assert terms["n5"] == 0.0
    assert terms["n5"] < terms["n6"] < terms["n0"]
    assert terms["n0"] == pytest.approx(2 * 600 / 3600)


def test_work_that_shares_goes_to_the_least_loaded() -> None:
    state = fleet(2, [work("a", on("n0", 0, 1, 2)), waiting(gpus=0.5)])
    shared = [replace(state.gpus[f"n{host}/7"], mode=GpuMode.TIME_SLICE) for host in range(2)]
    state = replace(state.with_nodes([], shared), mix=())
    assert first(state, state.works["w"]) == "n1"


def test_a_share_goes_where_it_just_fits() -> None:
    parts = [work("a", (GpuHold("n0/0", 0.25),), 0.25), work("b", (GpuHold("n0/1", 0.5),), 0.5), waiting(gpus=0.5)]
    state = fleet(1, parts, gpus=3)
    state = state.with_nodes([], [replace(slot, mode=GpuMode.TIME_SLICE) for slot in state.gpus.values()])
    assert candidates(state, state.works["w"], LIMITS)[0].holds == (GpuHold("n0/1", 0.5),)


def test_an_instance_goes_where_it_hinders_least() -> None:
    state = mig_fleet([[("3g", 4)], []], {"4g": 1.0})
    piece = Workload("w", profile="1g", lost_s=0.0)
    state = state.with_works([piece])
    holds = candidates(state, piece, LIMITS)[0].holds
    assert holds[0].start not in range(4), "the first four slices are where a 4g begins"
    full = mig_fleet([[("7g", 0)]], {})
    assert candidates(full, piece, LIMITS) == []


def test_modes_models_pools_and_rooms_bind() -> None:
    state = fleet(1, [work("a", on("n0", 0), cpus=60.0)])
    state = state.with_nodes([replace(state.nodes["n0"], cpus=64.0, memory_bytes=1.0)])
    assert candidates(state, waiting(gpus=7.0), LIMITS)
    for change in (
        {"gpus": 8.0},
        {"gpus": 0.5},
        {"model": "other"},
        {"pool": "other"},
        {"cpus": 5.0},
        {"memory_bytes": 2.0},
        {"profile": "1g"},
    ):
        assert candidates(state, replace(waiting(gpus=7.0), **change), LIMITS) == [], change  # type: ignore[arg-type]


def test_priority_comes_first_and_the_rest_is_told_why() -> None:
    works = [waiting("low", 8.0), waiting("high", 8.0, priority=10)]
    plan = place(fleet(1, works), LIMITS)
    assert plan.moved == ("high",)
    assert [refusal.subject for refusal in plan.refused] == ["low"]
    assert "1 host: too few free GPUs" in plan.refused[0].reason
    assert "1 must wait on" in plan.sentence


def gang(*islands: str) -> FleetState:
    state = fleet(len(islands), [waiting(f"g{number}", 8.0, gang="g") for number in range(2)])
    nodes = zip(state.nodes.values(), islands, strict=True)
    return state.with_nodes([replace(node, island=island) for node, island in nodes])


def test_a_gang_starts_in_one_fabric_where_one_has_room() -> None:
    plan = place(gang("a", "b", "c", "b"), LIMITS)
    hosts = {hold.gpu.partition("/")[0] for move in plan.steps[0].moves for hold in move.target}
    assert hosts == {"n1", "n3"}
    assert len(place(gang("a", "b", "c", "d"), LIMITS).steps) == 1, "else in one rack"


def test_a_gang_starts_whole_or_not_at_all() -> None:
    plan = place(gang("a"), LIMITS)
    assert plan.steps == ()
    assert plan.refused[0].subject == "gang g"
    state = fleet(2, [work("g0", on("n0", *range(8)), gang="g"), waiting("g1", 8.0, gang="g")])
    assert "runs already" in place(state, LIMITS).refused[0].reason


def closed(state: FleetState, host: str) -> FleetState:
    return state.with_nodes([replace(state.nodes[host], schedulable=False)])


def test_a_host_is_emptied_after_checkpoints() -> None:
    state = fleet(3, [work("a", on("n0", 0, 1), lost_s=1800.0, checkpoint_s=30.0), work("b", on("n0", 2))])
    steps, refused = evacuate(closed(state, "n0"), "n0", LIMITS)
    assert not refused
    assert [step.kind for step in steps] == [StepKind.CHECKPOINT, StepKind.MOVE, StepKind.MOVE]
    assert "wait 30 s" in steps[0].sentence
    assert steps[1].cost_gpu_hours == pytest.approx(2 * 90 / 3600)
    assert Simulation(closed(state, "n0")).run(steps).on_host.get("n0") is None


def test_what_cannot_leave_a_host_says_why() -> None:
    works = [
        work("pinned", on("n0", 0), budgets=("none",)),
        work("one", on("n0", 1), budgets=("some",)),
        work("two", on("n0", 2), budgets=("some",)),
        work("daemon", on("n0", 3), movable=False),
        work("unknown", on("n0", 4), lost_s=None),
        work("large", on("n0", 5, 6, 7), model="A100"),
    ]
    state = closed(fleet(2, works, budgets=budgets(none=0, some=1)), "n0")
    steps, refused = evacuate(state, "n0", LIMITS)
    told = {refusal.subject: refusal.reason for refusal in refused}
    assert [step.subject for step in steps] == ["one", "unknown"]
    assert "allows 0" in told["pinned"]
    assert "nothing left" in told["two"]
    assert "fits nowhere" in told["large"]
    assert "daemon" not in told, "it goes with its node"
    assert "an unknown amount of work lost" in steps[1].sentence


def test_a_gang_leaves_whole_and_stays_in_its_fabric() -> None:
    members = [work(f"g{number}", on(f"n{number}", *range(4)), gang="g") for number in range(2)]
    state = fleet(4, members)
    islands = ("a", "a", "b", "a")
    state = state.with_nodes([replace(n, island=i) for n, i in zip(state.nodes.values(), islands, strict=True)])
    steps, refused = evacuate(closed(state, "n0"), "n0", LIMITS)
    assert not refused
    targets = {move.work: move.target[0].gpu.partition("/")[0] for move in steps[0].moves}
    assert targets["g1"] == "n1", "it restarts where it is"
    assert targets["g0"] in {"n1", "n3"}
    Simulation(closed(state, "n0")).run(steps)


def test_the_model_of_the_examples_is_the_one_that_works_ask_for() -> None:
    assert fleet(1, []).gpus["n0/0"].model == MODEL
