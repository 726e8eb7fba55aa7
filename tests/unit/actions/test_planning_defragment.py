"""Defragmentation on fleets small enough to know the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.bins import FleetBins, MigBins, fleet_figures, mig_unusable
from tocsin.actions.planning.compare import compare, greedy, yardstick
from tocsin.actions.planning.defragment import WHOLE_MODES, defragment, repack_mig, schedule
from tocsin.actions.planning.plan import Move, Step, StepKind
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetState, GpuHold, GpuMode, Workload
from tocsin.actions.planning.units import PlanLimits, price, units_of
from tocsin.domain.fragmentation import FreeNode, TaskClass, expected_unusable
from tocsin_testing.planning import budgets, fleet, mig_fleet, on, work

QUICK = PlanLimits(effort=2000)


def two_halves(**more: object) -> FleetState:
    """Two hosts, each half free: a job of eight GPUs fits nowhere, though eight are free."""
    return fleet(2, [work("cheap", on("n0", *range(4))), work("dear", on("n1", *range(4)), **more)])


def test_the_cheaper_of_two_equal_moves_is_taken() -> None:
    plan = defragment(two_halves(lost_s=3600.0), QUICK)
    assert plan.moved == ("cheap",)
    assert plan.before["fragmented_gpus"] == pytest.approx(2.0)
    assert plan.after["fragmented_gpus"] == 0.0
    assert plan.after["node_jobs_that_fit"] == 1.0
    assert plan.gain_gpu_hours == pytest.approx(2.0 * 24)
    assert plan.cost_gpu_hours == pytest.approx(4 * 60 / 3600)
    assert "from n0 to n1" in plan.steps[0].sentence


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    state = fleet(2, [work(name, on(host, *range(4)), lost_s=50_000.0) for name, host in (("a", "n0"), ("b", "n1"))])
    plan = defragment(state, QUICK)
    assert plan.steps == ()
    assert "no move gains more than it costs" in plan.sentence
    assert defragment(state, replace(QUICK, horizon_h=100.0)).moved in {("a",), ("b",)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lost_s": None}, "the time of its last checkpoint is unknown"),
        ({"movable": False}, "no eviction may touch it"),
        ({"budgets": ("none",)}, "budget none allows 0 disruptions now"),
        ({"budgets": ("none", "some")}, "two disruption budgets"),
        ({"budgets": ("gone",)}, "gone is not known"),
        ({"ends_in_s": 60.0}, "ends by itself in 60 s"),
    ],
)
def test_what_stays_says_why(change: dict[str, object], reason: str) -> None:
    works = [work(name, on(host, *range(4)), **change) for name, host in (("a", "n0"), ("b", "n1"))]
    plan = defragment(fleet(2, works, budgets=budgets(none=0, some=1)), QUICK)
    assert plan.steps == ()
    assert [refusal.subject for refusal in plan.refused] == ["a", "b"]
    assert reason in plan.refused[0].reason


def test_a_gang_over_two_hosts_stays_and_one_on_a_single_host_moves_whole() -> None:
    wide = [work(f"g{number}", on(f"n{number}", *range(4)), gang="g") for number in range(2)]
    plan = defragment(fleet(2, wide), QUICK)
    assert plan.steps == ()
    assert "a gang over 2 hosts is not split" in plan.refused[0].reason
    narrow = [work(f"g{number}", on("n0", 2 * number, 2 * number + 1), gang="g") for number in range(2)]
    plan = defragment(fleet(2, [*narrow, work("dear", on("n1", *range(4)), lost_s=9e4)]), QUICK)
    assert [len(step.moves) for step in plan.steps] == [2]
    assert {hold.gpu.partition("/")[0] for move in plan.steps[0].moves for hold in move.target} == {"n1"}


def test_work_that_can_be_asked_or_is_about_to_save_is_cheaper() -> None:
    state = fleet(1, [])
    plain = work("a", on("n0", 0, 1), lost_s=1800.0, restart_s=360.0)
    now = price(state, plain, PlanLimits())
    assert now is not None
    assert (now.gpu_hours, now.wait_s, now.asks) == (pytest.approx(2 * 2160 / 3600), 0.0, False)
    asked = price(state, replace(plain, checkpoint_s=40.0), PlanLimits())
    assert asked is not None
    assert (asked.gpu_hours, asked.asks) == (pytest.approx(2 * 400 / 3600), True)
    soon = price(state, replace(plain, checkpoint_every_s=2400.0), PlanLimits())
    assert soon is not None
    assert (soon.gpu_hours, soon.wait_s) == (pytest.approx(2 * 360 / 3600), 600.0)
    assert price(state, replace(plain, checkpoint_every_s=2400.0), PlanLimits(patience_s=500.0)) == now
    assert price(state, replace(plain, checkpoint_s=1.0, checkpoint_every_s=1800.0), PlanLimits(at_once=True)) == now
    assert price(state, replace(plain, lost_s=None), PlanLimits()) is None


def test_a_plan_waits_for_the_checkpoint_that_makes_it_worth_while() -> None:
    state = two_halves(lost_s=9e4)
    state = state.with_works([replace(state.works["cheap"], lost_s=9e4 - 300.0, checkpoint_every_s=9e4)])
    plan = defragment(state, QUICK)
    assert [step.wait_s for step in plan.steps] == [300.0]
    assert "in 5 min once its checkpoint is written" in plan.steps[0].sentence
    assert defragment(state, replace(QUICK, at_once=True)).steps == ()


def test_a_chain_makes_room_before_it_fills_it() -> None:
    """To empty n0 its four must go where two of two are: these move first, to where two are free."""
    works = [
        work("four", on("n0", 0, 1, 2, 3)),
        work("two", on("n1", 0, 1), movable=True),
        work("fixed1", on("n1", 2, 3, 4), movable=False),
        work("fixed2", on("n2", 0, 1, 2, 3, 4, 5), movable=False),
    ]
    plan = defragment(fleet(3, works), QUICK)
    assert [step.subject for step in plan.steps] == ["two", "four"]
    assert plan.after["node_jobs_that_fit"] == 1.0


def test_nothing_goes_to_a_node_that_is_likely_to_fail() -> None:
    state = two_halves(lost_s=3600.0)
    state = state.with_nodes([replace(state.nodes["n1"], risk=0.5)])
    plan = defragment(state, QUICK)
    assert plan.moved == ("dear",), "away from the risk, though it costs more"


def test_pack_to_goes_no_further_than_asked() -> None:
    works = [work(f"w{number}", on(f"n{number}", *range(4)), lost_s=60.0 * number) for number in range(6)]
    full = defragment(fleet(6, works), QUICK)
    part = defragment(fleet(6, works), replace(QUICK, pack_to=4.0))
    assert len(full.steps) == 3
    assert part.after["fragmented_gpus"] <= 4.0
    assert len(part.steps) == 1
    assert part.moved == ("w0",)


def test_at_most_so_many_moves_and_the_best_of_them() -> None:
    works = [work(f"w{number}", on(f"n{number}", *range(4)), lost_s=60.0 * number) for number in range(6)]
    plan = defragment(fleet(6, works), replace(QUICK, most_moves=1))
    assert plan.moved == ("w0",)
    assert defragment(fleet(6, works), replace(QUICK, most_moves=0)).steps == ()


def test_shares_of_gpus_are_put_together() -> None:
    halves = [work(f"h{number}", (GpuHold(f"n0/{number}", 0.5),), 0.5) for number in range(2)]
    state = replace(fleet(1, halves, gpus=2), mix=(TaskClass(1.0),))
    state = state.with_nodes([], [replace(slot, mode=GpuMode.TIME_SLICE) for slot in state.gpus.values()])
    plan = defragment(state, QUICK)
    assert plan.before["fragmented_gpus"] == pytest.approx(1.0)
    assert plan.after["fragmented_gpus"] == 0.0
    assert "from n0/" in plan.steps[0].sentence


def test_cpus_bind_where_they_are_known() -> None:
    works = [work("a", on("n0", *range(4)), cpus=40.0), work("b", on("n1", *range(4)), cpus=40.0)]
    state = fleet(2, works)
    tight = state.with_nodes([replace(node, cpus=64.0) for node in state.nodes.values()])
    assert defragment(tight, QUICK).steps == ()
    wide = state.with_nodes([replace(node, cpus=80.0) for node in state.nodes.values()])
    assert len(defragment(wide, QUICK).steps) == 1


def test_tasks_that_need_cpus_are_measured_with_them() -> None:
    state = replace(fleet(1, [work("a", on("n0", 0), cpus=60.0)]), mix=(TaskClass(1.0, cpus=8.0),))
    state = state.with_nodes([replace(state.nodes["n0"], cpus=64.0)])
    assert fleet_figures(state)["unusable_gpus"] == 7.0
    units, _ = units_of(state, WHOLE_MODES, QUICK)
    packing = FleetBins(state, units, QUICK)
    assert packing.measure(packing.bins[0].kind, packing.bins[0].state) == 7.0


def test_gpus_in_mig_mode_make_a_node_no_smaller() -> None:
    """A job of the whole node would need them: what is free beside them is stranded."""
    whole = fleet(1, [])
    assert fleet_figures(whole)["stranded_gpus"] == 0.0
    divided = {uuid: replace(slot, mode=GpuMode.MIG) for uuid, slot in list(whole.gpus.items())[:2]}
    state = replace(whole, gpus=whole.gpus | divided)
    assert state.free_node("n0").free == (1.0,) * 6
    assert fleet_figures(state)["stranded_gpus"] == 6.0


@pytest.mark.parametrize("seed", range(3))
def test_the_yardstick_ends_where_no_single_move_lowers_f(seed: int) -> None:
    """Checked with the domain's own measure on states that the stage has moved."""
    state = rehearsal.fleet(64, seed)
    limits = PlanLimits(at_once=True, most_moves=10**9)
    units, _ = units_of(state, WHOLE_MODES, limits)
    packing = FleetBins(state, units, limits)
    end = greedy(packing, state, limits)
    steps, order, stuck = schedule(state, packing, end.at, limits)
    assert not stuck
    after = Simulation(state, limits.most_risk).run(steps)
    found = _measure(after)
    assert found == pytest.approx(fleet_figures(after)["fragmented_gpus"])
    assert (found, end.cost, end.moved) == (
        pytest.approx(yardstick("defragment", state, PlanLimits())[0]),
        *_paid(packing, order),
    )
    spent = Counter(name for unit in order for name in packing.units[unit].budgets)
    for unit in units:
        piece = after.works.get(unit.name)
        if piece is None or any(spent[name] >= state.budgets[name].allowed for name in piece.budgets):
            continue
        for moved in _single_moves(after, piece):
            assert _measure(moved) >= found - 1e-9


def _paid(packing: FleetBins, order: list[int]) -> tuple[object, int]:
    return pytest.approx(sum(packing.units[unit].price.gpu_hours for unit in order)), len(order)


def _measure(state: FleetState) -> float:
    return sum(expected_unusable(state.free_node(host), state.mix) for host in state.nodes)


def _single_moves(state: FleetState, piece: Workload) -> Iterator[FleetState]:
    for host in state.nodes:
        free = [slot.uuid for slot in state.by_host[host] if slot.mode is piece.mode]
        able = [uuid for uuid in free if state.free(uuid) >= min(piece.gpus, 1.0) - 1e-9]
        whole = [tuple(GpuHold(uuid) for uuid in able[: int(piece.gpus)])] if len(able) >= piece.gpus >= 1 else []
        targets = whole if piece.gpus >= 1 else [(GpuHold(uuid, piece.gpus),) for uuid in able]
        for target in targets:
            try:
                yield Simulation(state, 0.1).run(
                    [Step(StepKind.MOVE, piece.id, "", (Move(piece.id, piece.holds, target),))]
                )
            except PlanBroken:
                continue


@pytest.mark.parametrize("kind", ["defragment", "mig"])
def test_the_same_packing_costs_less_than_half(kind: str) -> None:
    rows = list(compare([kind], [64], range(3), lambda: 0.0, PlanLimits(effort=4000)))
    assert all(row.planner_f <= row.greedy_f + 1e-6 for row in rows)
    assert sum(row.planner_cost for row in rows) <= sum(row.greedy_cost for row in rows) / 2
    assert all(row.net >= row.greedy_net for row in rows)


def test_mig_slices_are_put_where_they_hinder_least() -> None:
    """The golden places of domain knowledge: a 3g belongs at 4, a lone 1g at 6."""
    plan = repack_mig(mig_fleet([[("3g", 0)]], {"4g": 1.0}), QUICK)
    assert [move.target for step in plan.steps for move in step.moves] == [(GpuHold("n0/0", 1.0, 4),)]
    assert plan.before["creatable_4g"] == 0.0
    assert plan.after["creatable_4g"] == 1.0
    assert plan.after["index"] == 0.0
    plan = repack_mig(mig_fleet([[("1g", 0)]], {"4g": 0.5, "2g": 0.5}), QUICK)
    assert [move.target for step in plan.steps for move in step.moves] == [(GpuHold("n0/0", 1.0, 6),)]


def test_mig_work_leaves_a_gpu_that_a_whole_instance_wants() -> None:
    plan = repack_mig(mig_fleet([[("1g", 6)], [("3g", 4), ("1g", 3)]], {"7g": 1.0}), QUICK)
    assert plan.after["creatable_7g"] == 1.0
    assert plan.moved == ("w0-0",)


@pytest.mark.parametrize(
    ("layout", "demand", "expected"),
    [
        ((("3g", 4),), {"4g": 1.0}, 0.0),
        ((("3g", 0),), {"4g": 1.0}, 4.0),
        ((("3g", 0),), {"1g": 1.0}, 4 * 0.25),
        ((("3g", 0),), {"2g": 1.0, "1g": 1.0}, 4 * (0.5 + 0.25) / 2),
        ((("1g", 0),), {"2g": 1.0}, 7 / 3),
        ((("1g", 6),), {"2g": 1.0, "4g": 1.0}, 0.0),
        ((("4g", 0), ("2g", 4), ("1g", 6)), {"1g": 1.0}, 1.0),
        ((("3g", 0), ("3g", 4)), {"1g": 1.0}, 0.0),
        ((("3g", 4),), {"7g": 1.0}, 4.0),
        ((), {"7g": 1.0, "1g": 1.0}, 0.0),
        ((("3g", 0),), {}, 0.0),
    ],
)
def test_slices_that_the_next_instance_cannot_use(
    layout: tuple[tuple[str, int], ...], demand: dict[str, float], expected: float
) -> None:
    assert mig_unusable(layout, demand) == pytest.approx(expected)


def test_empty_instances_do_not_count() -> None:
    state = mig_fleet([[("3g", 0)]], {"4g": 1.0})
    state = replace(state, works={})
    assert repack_mig(state, QUICK).before["fragmented_gpus"] == 0.0
    assert MigBins(state, (), QUICK).bins[0].state == ()


def test_an_empty_fleet_has_nothing_to_move() -> None:
    assert defragment(FleetState(), QUICK).steps == ()
    assert repack_mig(FleetState(), QUICK).after["index"] == 0.0
    assert defragment(fleet(2, []), QUICK).before == defragment(fleet(2, []), QUICK).after


def test_a_host_without_free_whole_node_is_measured_like_the_domain_does() -> None:
    assert expected_unusable(FreeNode((1.0,) * 4), two_halves().mix) == pytest.approx(1.0)
