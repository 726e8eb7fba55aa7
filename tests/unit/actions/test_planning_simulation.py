"""The stage on which plans are tried refuses every step that breaks a law, by its number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.planning.plan import Move, Step, StepKind
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import FleetState, GpuHold, GpuMode, Pool, Workload
from tocsin_testing.planning import budgets, fleet, mig_fleet, on, work


def move(*moves: Move) -> Step:
    return Step(StepKind.MOVE, moves[0].work, "Move.", moves)


def shift(state: FleetState, name: str, target: tuple[GpuHold, ...]) -> Move:
    return Move(name, state.works[name].holds, target)


def refused(state: FleetState, *steps: Step, most_risk: float = 1.0) -> PlanBroken:
    with pytest.raises(PlanBroken) as caught:
        Simulation(state, most_risk).run(steps)
    return caught.value


def test_a_move_frees_what_it_leaves_and_takes_what_it_gets() -> None:
    state = fleet(2, [work("a", on("n0", 0, 1))])
    after = Simulation(state).run([move(shift(state, "a", on("n1", 2, 3)))])
    assert after.free("n0/0") == 1.0
    assert after.free("n1/2") == 0.0
    assert state.works["a"].holds == on("n0", 0, 1), "the state itself does not change"


def test_the_broken_step_is_named_by_number() -> None:
    state = fleet(2, [work("a", on("n0", 0)), work("b", on("n0", 1))])
    good = move(shift(state, "a", on("n1", 0)))
    error = refused(state, good, move(shift(state, "b", on("n1", 0))))
    assert error.number == 2
    assert "more than once" in error.reason
    assert "step 2 (move b)" in str(error)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "A100"}, "needs A100"),
        ({"pool": "other"}, "belongs to pool other"),
        ({"cpus": 9.0}, "not enough CPUs"),
        ({"memory_bytes": 2.0**41}, "not enough memory"),
        ({"movable": False}, "no eviction may touch"),
        ({"budgets": ("none",)}, "disruption budget none"),
    ],
)
def test_what_a_host_must_offer(change: dict[str, object], reason: str) -> None:
    state = fleet(2, [work("a", on("n0", 0), **change)], budgets=budgets(none=0))
    state = state.with_nodes([replace(node, cpus=8.0, memory_bytes=2.0**40) for node in state.nodes.values()])
    assert reason in refused(state, move(shift(state, "a", on("n1", 0)))).reason


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ((), "without a GPU"),
        ((GpuHold("gone"), GpuHold("n1/0")), "not known"),
        (on("n1", 0), "what it asks for"),
        (on("n1", 0, 0), "what it asks for"),
        ((GpuHold("n1/0"), GpuHold("n0/0")), "2 hosts"),
    ],
)
def test_what_a_work_must_get(target: tuple[GpuHold, ...], reason: str) -> None:
    state = fleet(2, [work("a", on("n0", 6, 7))])
    assert reason in refused(state, move(shift(state, "a", target))).reason


def test_no_work_comes_to_a_node_that_is_closed_sick_or_likely_to_fail() -> None:
    state = fleet(2, [work("a", on("n0", 0))])
    step = move(shift(state, "a", on("n1", 0)))
    node = state.nodes["n1"]
    assert "takes no work" in refused(state.with_nodes([replace(node, schedulable=False)]), step).reason
    assert "likely to fail (30%)" in refused(state.with_nodes([replace(node, risk=0.3)]), step, most_risk=0.1).reason
    sick = state.with_nodes([], [replace(state.gpus["n1/0"], healthy=False)])
    assert "not healthy" in refused(sick, step).reason
    shared = state.with_nodes([], [replace(state.gpus["n1/0"], mode=GpuMode.TIME_SLICE)])
    assert "in mode time_slice" in refused(shared, step).reason


def test_a_step_that_takes_work_from_where_it_is_not() -> None:
    state = fleet(2, [work("a", on("n0", 0))])
    assert "not where" in refused(state, move(Move("a", on("n0", 1), on("n1", 0)))).reason
    assert "not where" in refused(state, move(Move("b", (), on("n1", 0)))).reason


def gang(state_hosts: int = 4) -> FleetState:
    members = [work(f"g{number}", on(f"n{number}", *range(8)), gang="g") for number in range(2)]
    state = fleet(state_hosts, members)
    return state.with_nodes(
        [replace(node, island=node.rack + str(int(node.host[1:]) // 2)) for node in state.nodes.values()]
    )


def test_a_gang_moves_whole_or_not_at_all() -> None:
    state = gang()
    assert "would be split: g1 stays" in refused(state, move(shift(state, "g0", on("n2", *range(8))))).reason
    both = move(shift(state, "g0", on("n2", *range(8))), shift(state, "g1", on("n3", *range(8))))
    assert Simulation(state).run([both]).host_of(state.works["g0"]) == "n0"


def test_a_gang_never_spreads_over_more_fabrics() -> None:
    state = gang(6)
    spread = move(shift(state, "g0", on("n2", *range(8))), shift(state, "g1", on("n4", *range(8))))
    assert "2 fabrics in place of 1" in refused(state, spread).reason


def test_a_budget_counts_over_all_steps() -> None:
    works = [work(f"w{number}", on("n0", number), budgets=("serve",)) for number in range(3)]
    state = fleet(2, works, budgets=budgets(serve=2))
    steps = [move(shift(state, f"w{number}", on("n1", number))) for number in range(3)]
    assert refused(state, *steps).number == 3


def test_mig_instances_may_not_overlap() -> None:
    state = mig_fleet([[("3g", 0)], [("4g", 0)]], {})
    assert "overlaps" in refused(state, move(shift(state, "w0-0", (GpuHold("n0/1", 1.0, 0),)))).reason
    after = Simulation(state).run([move(shift(state, "w0-0", (GpuHold("n0/1", 1.0, 4),)))])
    assert after.layout("n0/1") == (("3g", 4), ("4g", 0))


def test_shares_add_up_to_one_at_most() -> None:
    parts = [work(name, (GpuHold("n0/0", share),), share) for name, share in (("a", 0.5), ("b", 0.25))]
    other = work("c", (GpuHold("n0/1", 0.5),), 0.5)
    state = fleet(1, [*parts, other])
    state = state.with_nodes([], [replace(slot, mode=GpuMode.TIME_SLICE) for slot in state.gpus.values()])
    assert "more than once" in refused(state, move(shift(state, "c", (GpuHold("n0/0", 0.5),)))).reason
    assert Simulation(state).run([move(shift(state, "b", (GpuHold("n0/1", 0.25),)))]).free("n0/1") == pytest.approx(
        0.25
    )


def scale(kind: StepKind, subject: str, *hosts: str) -> Step:
    return Step(kind, subject, "Scale.", amount=float(len(hosts)), hosts=hosts)


def test_the_floor_holds_until_new_nodes_are_ready() -> None:
    state = fleet(2, [], pools={"p": Pool("p", floor_gpus=16, most_nodes=3)})
    cordon = Step(StepKind.CORDON, "n0", "Cordon.")
    drain = Step(StepKind.DRAIN, "n0", "Drain.")
    add, wait = (scale(kind, "p", "new") for kind in (StepKind.SCALE_OUT, StepKind.WAIT_READY))
    assert "fewer than its floor of 16" in refused(state, cordon).reason
    assert refused(state, add, cordon).number == 2, "asked for is not there"
    assert "still takes work" in refused(state, drain).reason
    after = Simulation(state).run([add, wait, cordon, drain])
    assert after.ready_gpus("p") == 16
    assert after.gpus["new/0"].model == "H100"
    assert "may have 3" in refused(state, scale(StepKind.SCALE_OUT, "p", "x", "y")).reason
    assert "there already" in refused(state, scale(StepKind.SCALE_OUT, "p", "n1")).reason
    assert "nothing is known" in refused(state, scale(StepKind.SCALE_OUT, "q", "x")).reason
    assert "never asked for" in refused(state, wait).reason


def test_only_empty_nodes_are_drained_and_removed() -> None:
    state = fleet(2, [work("a", on("n0", 0)), work("d", on("n1", 0), movable=False)])
    closed = [Step(StepKind.CORDON, host, "Cordon.") for host in ("n0", "n1")]
    assert "a still runs there" in refused(state, *closed, Step(StepKind.DRAIN, "n0", "Drain.")).reason
    after = Simulation(state).run([*closed, Step(StepKind.SCALE_IN, "n1", "Remove.")])
    assert set(after.nodes) == {"n0"}
    assert set(after.works) == {"a"}, "a DaemonSet's pod goes with its node"
    assert "no such node" in refused(state, Step(StepKind.CORDON, "n9", "Cordon.")).reason


def test_power_limits_stay_between_least_and_found() -> None:
    state = fleet(1, [])
    slot = replace(state.gpus["n0/0"], limit_watts=700.0, least_watts=200.0)
    state = state.with_nodes([], [slot])
    limit = [Step(StepKind.POWER_LIMIT, "n0/0", "Limit.", amount=watts) for watts in (600.0, 701.0, 199.0)]
    assert Simulation(state).run(limit[:1]).gpus["n0/0"].limit_watts == 600.0
    for step in limit[1:]:
        assert "is not between 200 and 700 W" in refused(state, step).reason
    assert "not known" in refused(state, Step(StepKind.POWER_LIMIT, "n0/1", "Limit.", amount=1.0)).reason


def test_a_checkpoint_empties_what_would_be_lost() -> None:
    state = fleet(1, [work("a", on("n0", 0), lost_s=900.0)])
    assert Simulation(state).run([Step(StepKind.CHECKPOINT, "a", "Ask.")]).works["a"].lost_s == 0.0
    assert "no such work" in refused(state, Step(StepKind.CHECKPOINT, "b", "Ask.")).reason


def test_work_that_waits_starts_without_a_budget() -> None:
    waiting = Workload("w", 1.0, budgets=("serve",))
    state = fleet(1, [waiting], budgets=budgets(serve=0))
    start = Step(StepKind.PLACE, "w", "Start.", (Move("w", (), on("n0", 0)),))
    assert Simulation(state).run([start]).host_of(replace(waiting, holds=on("n0", 0))) == "n0"
