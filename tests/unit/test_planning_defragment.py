"""Defragmentation on fleets small enough to know the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.baseline import greedy
from tocsin.actions.planning.board import FleetBoard, MigBoard
from tocsin.actions.planning.compare import compare, yardstick
from tocsin.actions.planning.defragment import WHOLE_MODES, defragment, repack_mig
from tocsin.actions.planning.measures import fleet_figures, mig_unusable
from tocsin.actions.planning.state import FleetState, GpuMode, Hold
from tocsin.actions.planning.units import Limits, price, units_of
from tocsin.domain.fragmentation_fleet import Node, Task, expected_unusable
from tocsin_testing.planning import budgets, fleet, mig_fleet, on, work

QUICK = Limits(effort=2000)


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
        ({"lost_s": None}, "nobody knows when its last checkpoint was"),
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
    now = price(state, plain, Limits())
    assert now is not None
    assert (now.gpu_hours, now.wait_s, now.asks) == (pytest.approx(2 * 2160 / 3600), 0.0, False)
    asked = price(state, replace(plain, checkpoint_s=40.0), Limits())
    assert asked is not None
    assert (asked.gpu_hours, asked.asks) == (pytest.approx(2 * 400 / 3600), True)
    soon = price(state, replace(plain, checkpoint_every_s=2400.0), Limits())
    assert soon is not None
    assert (soon.gpu_hours, soon.wait_s) == (pytest.approx(2 * 360 / 3600), 600.0)
    assert price(state, replace(plain, checkpoint_every_s=2400.0), Limits(patience_s=500.0)) == now
    assert price(state, replace(plain, checkpoint_s=1.0, checkpoint_every_s=1800.0), Limits(at_once=True)) == now
    assert price(state, replace(plain, lost_s=None), Limits()) is None


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
    halves = [work(f"h{number}", (Hold(f"n0/{number}", 0.5),), 0.5) for number in range(2)]
    state = replace(fleet(1, halves, gpus=2), mix=(Task(1.0),))
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
    state = replace(fleet(1, [work("a", on("n0", 0), cpus=60.0)]), mix=(Task(1.0, cpus=8.0),))
    state = state.with_nodes([replace(state.nodes["n0"], cpus=64.0)])
    assert fleet_figures(state)["stranded_gpus"] == 7.0
    units, _ = units_of(state, WHOLE_MODES, QUICK)
    board = FleetBoard(state, units, QUICK)
    assert board.measure(board.bins[0].kind, board.bins[0].state) == 7.0


def test_the_greedy_descent_is_the_plain_one() -> None:
    """Against the same descent written out over the domain's own measure."""
    for seed in range(3):
        state = rehearsal.fleet(64, seed)
        limits = Limits(at_once=True, most_moves=10**9)
        units, _ = units_of(state, WHOLE_MODES, limits)
        end = greedy(FleetBoard(state, units, limits), state, limits)
        f, cost, moved = yardstick("defragment", state, Limits())
        assert (cost, moved) == (pytest.approx(end.cost), end.moved)
        assert f == pytest.approx(_plain_greedy(state, units))


def _plain_greedy(state: FleetState, units: tuple[object, ...]) -> float:
    from tocsin.actions.planning.plan import Move, Step, StepKind
    from tocsin.actions.planning.stage import PlanBroken, Stage

    def measure(one: FleetState) -> float:
        return sum(expected_unusable(one.free_node(host), one.mix) for host in one.nodes)

    start = state
    spent: list[Step] = []
    while True:
        before, best = measure(state), None
        for unit in units:
            name = unit.name  # type: ignore[attr-defined]
            if name not in state.works:
                continue
            piece = state.works[name]
            for host in state.nodes:
                for target in _targets(state, piece, host):
                    try:
                        after = Stage(state, 0.1).run([Step(StepKind.MOVE, name, "", (Move(name, piece.holds, target),))])
                    except PlanBroken:
                        continue
                    used = {n for n in piece.budgets if sum(n in start.works[s.subject].budgets for s in _once(spent, name)) >= start.budgets[n].allowed}
                    if used:
                        continue
                    key = (round(measure(after) - before, 9), unit.price.gpu_hours)  # type: ignore[attr-defined]
                    if key[0] < -1e-9 and (best is None or key < best[0]):
                        best = key, after, Step(StepKind.MOVE, name, "")
        if best is None:
            return measure(state)
        state = best[1]
        spent.append(best[2])


def _once(spent: list[object], name: str) -> list[object]:
    names = {step.subject: step for step in spent if step.subject != name}  # type: ignore[attr-defined]
    return list(names.values())
