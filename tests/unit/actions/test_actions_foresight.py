"""Decisions that rules ask for name the work that they move and where it would go, as far as planners know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.actions.guards.base import evaluate
from tocsin.actions.guards.place import place
from tocsin.actions.loop.decide import cause_key, decide
from tocsin.actions.loop.loop import OTHER_WORK
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.actions.planning.defragment import defragment
from tocsin.actions.planning.foresight import Foresight, alone
from tocsin.actions.planning.state import FleetState, Workload
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import Decision, DecisionState, Ruling, encode
from tocsin.domain.event import EventKind
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Evidence, Finding, Subject, SubjectKind
from tocsin.domain.notice import notice_text
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World, finding, incident, settings
from tocsin_testing.builders import T0
from tocsin_testing.planning import budgets, fleet, on, work

GPU = Subject(SubjectKind.GPU, "n0/0", "n0", "p")
NO_ROOM = "no other node of its pool has room for all of a (8 GPUs)"


def decided(root: Finding, foresight: Foresight) -> Decision:
    view = FleetView(T0, T0, findings={root.id: root}, foresight=foresight, policy=Policy(settings()))
    found = decide([incident(root)], [], view, view.policy)
    return next(one for one in found if one.action is root.action)


def decide_all(root: Finding, foresight: Foresight) -> list[Decision]:
    view = FleetView(T0, T0, findings={root.id: root}, foresight=foresight, policy=Policy(settings()))
    return decide([incident(root)], [], view, view.policy)


def leaving(action: ActionKind = ActionKind.MIGRATE, subject: Subject = GPU, **more: Any) -> Finding:
    return finding(subject, category=Category.MEMORY, action=action, **more)


def test_a_migration_names_the_work_and_where_it_would_go() -> None:
    state = fleet(2, [work("a", on("n0", 0), lost_s=3540.0), work("b", on("n1", 0, 1, 2))])
    likely_to_fail = replace(state.nodes["n0"], risk=0.5)
    made = decided(leaving(), Foresight(state=state.with_nodes([likely_to_fail])))
    assert encode(made.parameters)["work"] == "a"
    assert encode(made.parameters)["to_host"] == "n1"
    assert "a to n1 for 1.00 GPU-hours" in made.sentence


def test_work_that_must_stay_or_has_no_place_is_named_as_such() -> None:
    stuck = fleet(1, [work("a", on("n0", *range(8)))])
    assert str(Foresight(state=stuck).leaving(GPU).obstacle) == NO_ROOM
    assert decided(leaving(), Foresight(state=stuck)).sentence == "Migrate the work off n0/0 on n0: It is too hot."
    held = fleet(2, [work("a", on("n0", 0), budgets=("x",))], budgets=budgets(x=0))
    made = decided(leaving(), Foresight(state=held))
    assert str(Foresight(state=held).leaving(GPU).obstacle) == "a has to stay: budget x allows 0 disruptions now"
    assert encode(made.parameters)["to_host"] == ""


def test_a_job_of_which_no_move_is_asked_for_yet_gets_one() -> None:
    """GPU 1 has work that leaves with GPU 0's; what it shares with GPU 2 leaves by that one."""
    state = fleet(2, [work("a", on("n0", 0, 1)), work("b", on("n0", 1, 2))])
    full = [leaving(subject=Subject(SubjectKind.GPU, f"n0/{n}", "n0", "p")) for n in range(3)]
    roots = [replace(one, level=AlertLevel.NOTE, started_ms=T0 + n) for n, one in enumerate(full)]
    view = FleetView(T0, T0, foresight=Foresight(state=state), policy=Policy(settings(limits={"max_concurrent": 3})))
    made = decide([incident(*roots)], [], view, view.policy)
    assert [one.subject.name for one in made if one.action is ActionKind.MIGRATE] == ["n0/0", "n0/2"]


FULL = fleet(1, [work("a", on("n0", *range(8)))])


def loop_over(state: FleetState, **more: Any) -> tuple[World, FleetView]:
    """A loop that proposes a migration off a GPU of `state`."""
    gpus = {slot.uuid: Gpu(slot.uuid, slot.host, pool="p") for slot in state.gpus.values()}
    world = World(settings(mode="propose", managed_pools=["p"]), gpus)
    world.break_gpu("n0/0", action=ActionKind.MIGRATE, category=Category.MEMORY, **more)
    return world, replace(world.view(), foresight=Foresight(state=state))


def test_a_migration_without_a_place_is_held_by_that_and_waits_for_nobody() -> None:
    world, view = loop_over(FULL)
    world.loop.step(view, view.incidents, [])
    made = world.only(ActionKind.MIGRATE)
    verdict = world.verdict("place", ActionKind.MIGRATE)
    assert (verdict.ruling, verdict.reason) == (Ruling.HOLD, NO_ROOM)
    assert not made.waits_for_person
    told = world.notifier.told[0]
    assert f"it cannot start now: {NO_ROOM}" in told.sentence
    assert not encode(told.parameters).get("proposes")


def test_once_there_is_a_place_it_waits_for_a_person_and_names_it() -> None:
    world, view = loop_over(FULL)
    world.loop.step(view, view.incidents, [])
    room = fleet(2, [work("a", on("n0", *range(8)))])
    wider = replace(view, foresight=Foresight(state=room))
    world.loop.step(wider, wider.incidents, [])
    made = world.only(ActionKind.MIGRATE)
    assert made.waits_for_person
    assert encode(made.decision.parameters)["to_host"] == "n1"
    assert "a to n1" in made.decision.sentence


@pytest.mark.parametrize("closed", [{"leaving": True}, {"schedulable": False}])
def test_a_place_on_a_host_that_takes_no_work_any_more_is_given_up(closed: dict[str, bool]) -> None:
    """It waits for a person, who reads where the work would go: not to a node that is to be rebooted."""
    state = fleet(3, [work("a", on("n0", *range(8)))])
    world, view = loop_over(state)
    world.loop.step(view, view.incidents, [])
    assert encode(world.only(ActionKind.MIGRATE).decision.parameters)["to_host"] == "n1"
    without = state.with_nodes([replace(state.nodes["n1"], **closed)])
    later = replace(view, foresight=Foresight(state=without))
    world.loop.step(later, later.incidents, [])
    made = world.only(ActionKind.MIGRATE)
    assert made.waits_for_person
    assert encode(made.decision.parameters)["to_host"] == "n2"
    assert "a to n2" in made.decision.sentence


def approved(elsewhere: FleetState) -> tuple[World, DecisionStatus]:
    """A migration of work `a` that a person approved, and a step in the state `elsewhere`."""
    world, view = loop_over(fleet(2, [work("a", on("n0", *range(8)))]))
    world.loop.step(view, view.incidents, [])
    asked = world.only(ActionKind.MIGRATE)
    world.loop.operator.approve(asked.decision.id, "ann")
    later = replace(view, foresight=Foresight(state=elsewhere))
    for _ in range(2):
        world.loop.step(later, later.incidents, [])
    return world, asked


def test_a_yes_holds_where_only_the_place_has_changed() -> None:
    world, asked = approved(fleet(3, [work("a", on("n0", *range(8))), work("c", on("n1", *range(8)))]))
    begun = world.only(ActionKind.MIGRATE)
    assert world.executor.done == [begun.decision.key] == [asked.decision.key]
    assert encode(begun.decision.parameters)["to_host"] == "n2"


def test_a_yes_is_for_the_work_that_it_was_given_for() -> None:
    world, asked = approved(fleet(2, [work("b", on("n0", 0))]))
    new, old = (status for status in world.loop.statuses() if status.decision.action is ActionKind.MIGRATE)
    assert world.executor.done == []
    assert (old.decision.id, old.state, old.reason) == (asked.decision.id, DecisionState.EXPIRED, OTHER_WORK)
    assert new.waits_for_person
    assert encode(new.decision.parameters)["work"] == "b"


def test_what_is_taken_away_leaves_without_a_place() -> None:
    notice = (Evidence(f"{EventKind.MAINTENANCE_NOTICE}:1", notice_text("it ends", T0 + HOUR), T0),)
    world, view = loop_over(FULL, evidence=notice)
    world.loop.step(view, view.incidents, [])
    assert world.only(ActionKind.MIGRATE).waits_for_person


def test_a_node_that_is_left_is_no_target() -> None:
    state = fleet(1, [work("a", on("n0", 0))])
    alone_there = "no other node of its pool has room for all of a (1 GPU)"
    for subject in (GPU, Subject(SubjectKind.HOST, "n0", "n0", "p")):
        assert str(Foresight(state=state).leaving(subject).obstacle) == alone_there, "though other GPUs are free"
    wider = fleet(2, [work("a", on("n0", 0)), work("b", on("n1", *range(7)))])
    assert encode(decided(leaving(), Foresight(state=wider)).parameters)["to_host"] == "n1"
    foreign = wider.with_nodes([replace(wider.nodes["n1"], pool="q")])
    unbound = foreign.with_works([replace(foreign.works["a"], pool="")])
    assert str(Foresight(state=unbound).leaving(GPU).obstacle) == alone_there, "no pool but its own may take it"


def gang(*hosts: str) -> list[Workload]:
    return [work(f"job/{n}", on(host, *range(8)), gang="job") for n, host in enumerate(hosts)]


def test_a_gang_goes_where_there_is_room_for_all_of_it() -> None:
    roomy, narrow = fleet(4, gang("n0", "n1")), fleet(3, gang("n0", "n1"))
    assert encode(decided(leaving(), Foresight(state=roomy)).parameters)["to_host"] == "n2 n3"
    stuck = Foresight(state=narrow).leaving(GPU)
    assert str(stuck.obstacle) == "no other node of its pool has room for all of job (16 GPUs)"


def test_no_two_pieces_of_work_are_promised_the_same_room() -> None:
    state = fleet(2, [work("a", on("n0", 0)), work("b", on("n0", 1)), work("c", on("n1", *range(7)))])
    host = Subject(SubjectKind.HOST, "n0", "n0", "p")
    note = Foresight(state=state).leaving(host)
    assert (str(note.words), str(note.obstacle)) == (
        "a to n1 for 0.02 GPU-hours",
        "no other node of its pool has room for all of b (1 GPU)",
    )


def test_a_gang_of_which_several_gpus_are_full_is_asked_for_once() -> None:
    full = [
        leaving(subject=Subject(SubjectKind.GPU, f"{host}/{n}", host, "p"), rule="memory_full", level=AlertLevel.NOTE)
        for host in ("n0", "n1")
        for n in range(3)
    ]
    full.append(leaving(subject=Subject(SubjectKind.GPU, "n2/0", "n2", "p"), rule="memory_full", level=AlertLevel.NOTE))
    state = fleet(6, [*gang("n0", "n1"), work("b", on("n2", 0))])
    foresight, policy = Foresight(state=state), Policy(settings(limits={"max_concurrent": 9}))

    def moves(**controls: Any) -> list[Decision]:
        view = FleetView(T0, T0, foresight=foresight, policy=policy, controls=Controls(**controls))
        return decide([incident(*full)], [], view, policy)

    assert [encode(one.parameters)["work"] for one in moves()] == ["job", "b"]
    job = GpuView(Gpu("", ""), 0, job="slurm 7")
    gpus = {one.subject.name: replace(job, gpu=Gpu(one.subject.name, one.subject.host)) for one in full}
    unseen = FleetView(T0, T0, gpus=gpus, policy=policy)
    assert len(decide([incident(*full)], [], unseen, policy)) == 1, "before the planners have looked"
    asked = cause_key(full[4], ActionKind.MIGRATE)
    assert asked in [one.key for one in moves(asked=frozenset({asked}))], "it stays the same decision"


def test_memory_that_is_expected_to_run_full_and_cannot_be_left_asks_for_a_checkpoint() -> None:
    chance = (Evidence(f"{PREDICTION_EVIDENCE}out_of_memory", "likely", T0, value=0.6),)
    root = leaving(evidence=chance)
    held = decide_all(root, Foresight(state=FULL))
    assert [one.action for one in held] == [ActionKind.NOTIFY, ActionKind.CHECKPOINT]
    assert NO_ROOM in held[1].sentence
    room = Foresight(state=fleet(2, [work("a", on("n0", *range(8)))]))
    assert [one.action for one in decide_all(root, room)] == [ActionKind.NOTIFY, ActionKind.MIGRATE]


def test_defragmenting_names_the_moves_of_the_plan_that_touch_the_subject() -> None:
    state = fleet(2, [work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0))])
    plan = defragment(state, PlanLimits(effort=500))
    seen = Foresight(state=state, plans={"defragment": plan})
    for subject in (
        Subject(SubjectKind.FLEET, "fleet"),
        Subject(SubjectKind.POOL, "p", pool="p"),
        Subject(SubjectKind.GPU, "n1/0", "n1", "p"),
    ):
        made = decided(leaving(ActionKind.DEFRAGMENT, subject), seen)
        assert encode(made.parameters)["work"] == "b"
        assert encode(made.parameters)["to_host"] == "n0"
        assert "Move b (1 GPU) from n1 to n0" in made.sentence
    elsewhere = decided(leaving(ActionKind.DEFRAGMENT, Subject(SubjectKind.GPU, "n0/7", "n0", "p")), seen)
    assert "work" not in encode(elsewhere.parameters)


def test_a_fleet_is_defragmented_only_where_a_plan_names_what_moves() -> None:
    state = fleet(2, [work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0))])
    root = leaving(ActionKind.DEFRAGMENT, Subject(SubjectKind.FLEET, "fleet"))
    still = defragment(fleet(1, [work("a", on("n0", 0, 1))]), PlanLimits(effort=500))
    plan = defragment(state, PlanLimits(effort=500))

    def held(seen: Foresight) -> str:
        view = FleetView(T0, T0, findings={root.id: root}, foresight=seen, policy=Policy(settings()))
        return place(decided(root, seen), view, T0).reason

    assert held(Foresight(state=state)) == "no plan has been made yet"
    assert held(Foresight(state=state, plans={"defragment": still})) == "no move gains more than it costs"
    assert held(Foresight(state=state, plans={"defragment": plan})) == ""
    members = {slot.uuid: GpuView(Gpu(slot.uuid, slot.host, pool="p"), T0) for slot in state.gpus.values()}
    tight = Policy(settings(managed_pools=["p"], limits={"max_concurrent_ratio": 0.1, "min_available_ratio": 0.8}))
    for seen in (Foresight(state=state), Foresight(state=state, plans={"defragment": plan})):
        view = FleetView(T0, T0, members, {root.id: root}, foresight=seen, policy=tight)
        held_by = [one.guard for one in evaluate(decided(root, seen), view, T0) if one.ruling is Ruling.HOLD]
        assert {"max_share", "capacity"}.isdisjoint(held_by), "an empty plan takes nothing out, a small one a GPU"
    view = FleetView(T0, T0, foresight=Foresight(state=state), policy=Policy(settings()))
    assert place(decided(leaving(ActionKind.DEFRAGMENT), view.foresight), view, T0).ruling is Ruling.ALLOW


@pytest.mark.parametrize("state", [None, FleetState(), fleet(1, [])])
def test_where_nothing_is_known_nothing_is_said(state: FleetState | None) -> None:
    made = decided(leaving(), Foresight(state=state))
    assert "work" not in encode(made.parameters)
    assert made.sentence == "Migrate the work off n0/0 on n0: It is too hot."


def test_other_actions_are_told_nothing() -> None:
    state = fleet(2, [work("a", on("n0", 0))])
    assert "work" not in encode(decided(leaving(ActionKind.CORDON), Foresight(state=state)).parameters)


def test_what_planners_ask_for_are_incidents_of_their_own() -> None:
    root = leaving(rule="plan_mig")
    assert [one.root for one in alone([root, leaving()])] == [root]
    assert replace(root).id == root.id
