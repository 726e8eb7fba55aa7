"""What every plan keeps, whatever the fleet: gangs whole, budgets kept, bounds kept, worth it, and nothing changed."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.planning.defragment import defragment, repack_mig
from tocsin.actions.planning.placement import place
from tocsin.actions.planning.plan import Plan, Step, StepKind
from tocsin.actions.planning.power import FLOOR_SHARE, PowerBudget, power_caps
from tocsin.actions.planning.scaling import PoolDemand, ScalingPolicy, follow_demand, replace_before_drain, scale_in
from tocsin.actions.planning.simulation import PlanBroken, Simulation
from tocsin.actions.planning.state import Budget, FleetNode, FleetState, GpuHold, GpuMode, Pool, Slot, Workload
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.fragmentation import SEVEN_SLICE, Placement, TaskClass, mig_capacity

HOSTS, GPUS = 5, 8
seconds = st.sampled_from([0.0, 60.0, 600.0, 3600.0, 20_000.0])


@st.composite
def works(draw: st.DrawFn, host: str, free: list[str], number: int) -> Workload:
    size = draw(st.integers(1, min(4, len(free))))
    return Workload(
        f"w{number:02d}",
        float(size),
        tuple(GpuHold(free.pop()) for _ in range(size)),
        gang=draw(st.sampled_from(["", "", "", "g1", "g2"])),
        priority=draw(st.integers(0, 3)),
        budgets=draw(st.sampled_from([(), (), ("b0",), ("b1",), ("b2",)])),
        lost_s=draw(st.none() | seconds),
        restart_s=draw(seconds),
        checkpoint_every_s=draw(st.none() | st.just(7200.0)),
        checkpoint_s=draw(st.none() | st.just(30.0)),
        cpus=draw(st.sampled_from([0.0, 4.0, 16.0])),
        movable=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def fleets(draw: st.DrawFn) -> FleetState:
    nodes = {
        f"n{number}": FleetNode(
            f"n{number}",
            "p",
            f"r{number // 2}",
            draw(st.sampled_from(["", "i0"])),
            draw(st.none() | st.just(64.0)),
            schedulable=draw(st.sampled_from([True, True, True, True, False])),
            risk=draw(st.sampled_from([0.0, 0.0, 0.0, 0.4])),
        )
        for number in range(HOSTS)
    }
    slots = [
        Slot(f"{host}/{i}", host, "H100", limit_watts=700.0, least_watts=200.0, default_watts=700.0)
        for host in nodes
        for i in range(GPUS)
    ]
    found: dict[str, Workload] = {}
    for host in nodes:
        free = [slot.uuid for slot in slots if slot.host == host]
        for _ in range(draw(st.integers(0, 4))):
            if free:
                one = draw(works(host, free, len(found)))
                found[one.id] = one
    for _ in range(draw(st.integers(0, 3))):
        waiting = replace(draw(works("", [f"x{i}" for i in range(4)], len(found))), holds=(), gang="")
        found[waiting.id] = waiting
    pool = Pool(
        "p",
        floor_gpus=draw(st.integers(0, HOSTS * GPUS)),
        most_nodes=draw(st.none() | st.integers(HOSTS, HOSTS + 3)),
        node_model="H100",
        utilisation=draw(st.none() | st.floats(0, 1)),
        waiting_gpus=draw(st.none() | st.just(0.0)),
    )
    return FleetState(
        0,
        nodes,
        {slot.uuid: slot for slot in slots},
        found,
        {f"b{i}": Budget(f"b{i}", i) for i in range(3)},
        {"p": pool},
        (TaskClass(1.0, 0.5), TaskClass(4.0, 0.3), TaskClass(8.0, 0.2)),
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Placement, ...]:
    layout: tuple[Placement, ...] = ()
    for name in draw(st.lists(st.sampled_from(["1g", "1g+me", "1g.double", "2g", "3g", "4g"]), max_size=4)):
        if not mig_capacity(layout)[name]:
            continue
        used = {p for n, s in layout for p in range(s, s + SEVEN_SLICE.profiles[n].memory_slices)}
        profile = SEVEN_SLICE.profiles[name]
        able = [s for s in profile.starts if used.isdisjoint(range(s, s + profile.memory_slices))]
        layout = (*layout, (name, draw(st.sampled_from(able))))
    return layout


@st.composite
def mig_fleets(draw: st.DrawFn) -> FleetState:
    slots: dict[str, Slot] = {}
    found: dict[str, Workload] = {}
    for number in range(draw(st.integers(1, 5))):
        uuid = f"m{number}"
        slots[uuid] = Slot(uuid, f"n{number % 2}", "H100", GpuMode.MIG)
        for profile, start in draw(layouts()):
            name = f"w{len(found):02d}"
            found[name] = Workload(
                name,
                1.0,
                (GpuHold(uuid, 1.0, start),),
                profile,
                budgets=draw(st.sampled_from([(), ("b0",), ("b1",)])),
                lost_s=draw(st.none() | seconds),
                restart_s=draw(seconds),
            )
    nodes = {f"n{i}": FleetNode(f"n{i}", "p") for i in range(2)}
    return FleetState(
        0,
        nodes,
        slots,
        found,
        {f"b{i}": Budget(f"b{i}", i) for i in range(2)},
        demand={"1g": 0.5, "3g": 0.3, "7g": 0.2},
    )


limits = st.builds(
    PlanLimits,
    most_moves=st.sampled_from([0, 1, 2, 5, 100]),
    horizon_h=st.sampled_from([0.5, 24.0]),
    effort=st.just(150),
    pack_to=st.sampled_from([0.0, 0.0, 3.0]),
    at_once=st.booleans(),
)


def keeps_the_laws(state: FleetState, plan: Plan) -> None:
    """Gangs, budgets, hosts and rooms, worked out here and not by the stage."""
    held = {name: work.holds for name, work in state.works.items()}
    spent: Counter[str] = Counter()
    for step in plan.steps:
        moving = {move.work for move in step.moves}
        gangs = {state.works[name].gang for name in moving} - {""}
        for gang in gangs:
            assert {work.id for work in state.gangs[gang]} <= moving, "a gang is split"
        for move in step.moves:
            assert move.source == held[move.work]
            if move.source:
                spent.update(state.works[move.work].budgets)
            held[move.work] = move.target
            assert len({hold.gpu.partition("/")[0] for hold in move.target}) == 1
    for name, count in spent.items():
        assert count <= state.budgets[name].allowed, "a disruption budget is broken"
    shares: Counter[str] = Counter()
    for name, holds in held.items():
        if not state.works[name].profile:
            shares.update({hold.gpu: hold.share for hold in holds})
    assert all(share <= 1 for share in shares.values())


@settings(max_examples=80)
@given(st.one_of(fleets(), mig_fleets()), limits)
def test_defragmentation_keeps_the_laws_and_pays(state: FleetState, bounds: PlanLimits) -> None:
    before = copy.deepcopy(state)
    planner = repack_mig if any(slot.mode is GpuMode.MIG for slot in state.gpus.values()) else defragment
    plan = planner(state, bounds)
    assert planner(state, bounds) == plan, "the same again"
    assert state == before, "the input is as it was"
    keeps_the_laws(state, plan)
    assert len(plan.steps) <= bounds.most_moves
    assert plan.after["fragmented_gpus"] <= plan.before["fragmented_gpus"] + 1e-9
    fall = plan.before["fragmented_gpus"] - plan.after["fragmented_gpus"]
    assert math.isclose(plan.gain_gpu_hours, fall * bounds.horizon_h, abs_tol=1e-6)
    if plan.steps:
        assert plan.gain_gpu_hours > plan.cost_gpu_hours
    for step in plan.steps:
        assert step.sentence
        for move in step.moves:
            piece = state.works[move.work]
            assert piece.movable
            assert piece.lost_s is not None


@settings(max_examples=50)
@given(fleets(), limits)
def test_no_step_can_be_left_out_with_profit(state: FleetState, bounds: PlanLimits) -> None:
    """A move only when its gain exceeds its cost: without any one of them, where that is possible, less is left."""
    bounds = replace(bounds, pack_to=0.0, at_once=True)
    plan = defragment(state, bounds)
    for left_out in plan.steps:
        rest = [step for step in plan.steps if step is not left_out]
        try:
            after = Simulation(state, bounds.most_risk).run(_placed_anew(state, rest))
        except PlanBroken:
            continue
        worse = _fragmented(after) - plan.after["fragmented_gpus"]
        assert worse * bounds.horizon_h >= left_out.cost_gpu_hours - 1e-6


def _placed_anew(state: FleetState, steps: list[Step]) -> list[Step]:
    """The same moves to the same hosts; which of the whole GPUs there does not matter."""
    stage = Simulation(state, 1.0)
    made = []
    for step in steps:
        moves = []
        taken: set[str] = set()
        for move in step.moves:
            host = state.gpus[move.target[0].gpu].host
            free = [uuid for uuid in stage.free_whole(host, "") if uuid not in taken][: len(move.target)]
            taken |= set(free)
            moves.append(replace(move, target=tuple(GpuHold(uuid) for uuid in free)))
        made.append(replace(step, moves=tuple(moves)))
        stage.do(made[-1])
    return made


def _fragmented(state: FleetState) -> float:
    from tocsin.actions.planning.bins import fleet_figures

    return fleet_figures(state)["fragmented_gpus"]


@settings(max_examples=80)
@given(fleets())
def test_placement_keeps_the_laws(state: FleetState) -> None:
    before = copy.deepcopy(state)
    bounds = PlanLimits()
    plan = place(state, bounds)
    assert place(state, bounds) == plan
    assert state == before
    keeps_the_laws(state, plan)
    waiting = {work.unit for work in state.works.values() if not work.holds}
    told = {step.subject for step in plan.steps} | {refusal.subject for refusal in plan.refused}
    assert waiting == told
    for step in plan.steps:
        for move in step.moves:
            node = state.nodes[state.gpus[move.target[0].gpu].host]
            assert node.schedulable
            assert node.risk <= bounds.most_risk


@settings(max_examples=80)
@given(fleets(), st.lists(st.sampled_from([f"n{i}" for i in range(HOSTS)]), unique=True, max_size=3))
def test_no_drain_breaks_a_floor_a_gang_or_a_budget(state: FleetState, hosts: list[str]) -> None:
    before = copy.deepcopy(state)
    plan = replace_before_drain(state, hosts, PlanLimits())
    assert state == before
    _stays_above_the_floor(state, plan)
    keeps_the_laws(_with_new(state, plan), plan)
    drained = {step.subject for step in plan.steps if step.kind is StepKind.DRAIN}
    assert plan.refused or drained == set(hosts)
    for step in plan.steps:
        for move in step.moves:
            assert not {hold.gpu.partition("/")[0] for hold in move.target} & set(hosts), "out of one, into the next"


def _with_new(state: FleetState, plan: Plan) -> FleetState:
    return replace(Simulation(state, 1.0).run(plan.steps), works=state.works, budgets=state.budgets)


def _stays_above_the_floor(state: FleetState, plan: Plan) -> None:
    stage = Simulation(state, 1.0)
    floor, ready = state.pools["p"].floor_gpus, state.ready_gpus("p")
    for step in plan.steps:
        stage.do(step)
        now = stage.state.ready_gpus("p")
        assert now >= min(floor, ready), "a step of ours took capacity below the floor"
        ready = now


@settings(max_examples=80)
@given(fleets(), st.integers(0, 60), st.none() | st.integers(0, 10_000_000))
def test_a_pool_never_shrinks_below_its_floor_nor_grows_beyond_its_bound(
    state: FleetState, wanted: int, changed_ms: int | None
) -> None:
    pool = replace(state.pools["p"], changed_ms=changed_ms)
    state = replace(state, at_ms=10_000_000, pools={"p": pool})
    demand = PoolDemand("p", ((state.at_ms + 60_000, float(wanted), float(wanted)),))
    policy = ScalingPolicy()
    for plan in (scale_in(state, policy, PlanLimits()), follow_demand(state, [demand], policy, PlanLimits())):
        _stays_above_the_floor(state, plan)
        kinds = {step.kind for step in plan.steps}
        assert not {StepKind.SCALE_IN, StepKind.SCALE_OUT} <= kinds
        assert len(plan.steps) == 0 or not plan.refused
        after = Simulation(state, 1.0).run(plan.steps)
        assert pool.most_nodes is None or len(after.nodes) <= max(pool.most_nodes, len(state.nodes))


@settings(max_examples=80)
@given(fleets(), st.floats(10_000, 30_000), st.floats(0, 5000), st.floats(3000, 12_000))
def test_power_fits_every_budget_and_grows_with_it(
    state: FleetState, facility: float, more: float, rack: float
) -> None:
    racks = {"r0": rack}
    small, large = (power_caps(state, PowerBudget(watts, racks)) for watts in (facility, facility + more))
    floors = FLOOR_SHARE * 700.0 * HOSTS * GPUS
    if floors > facility or rack < FLOOR_SHARE * 700.0 * 2 * GPUS:
        assert small.steps == ()
        assert small.refused
        return
    assert small.after["facility_watts"] <= facility + 1e-6
    assert small.after["rack_watts r0"] <= rack + 1e-6
    caps = [_caps(state, plan) for plan in (small, large)]
    assert all(caps[0][uuid] <= caps[1][uuid] for uuid in state.gpus), "more power, and somebody has less"
    for watts in caps:
        assert all(FLOOR_SHARE * 700.0 <= one <= 700.0 for one in watts.values())
        for work in state.works.values():
            members = state.gangs.get(work.gang, (work,))
            assert len({watts[hold.gpu] for one in members for hold in one.holds}) <= 1, "ranks of a job differ"


def _caps(state: FleetState, plan: Plan) -> dict[str, float]:
    return {uuid: slot.limit_watts or 0.0 for uuid, slot in Simulation(state, 1.0).run(plan.steps).gpus.items()}
