"""Decisions that rules ask for name the work that they move and where it would go, as far as planners know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.actions.loop.decide import decide
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.defragment import defragment
from tocsin.actions.planning.foresight import Foresight, alone
from tocsin.actions.planning.state import FleetState
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.decision import Decision, encode
from tocsin.domain.finding import ActionKind, Category, Finding, Subject, SubjectKind
from tocsin_testing.action_world import finding, incident, settings
from tocsin_testing.builders import T0
from tocsin_testing.planning import budgets, fleet, on, work

GPU = Subject(SubjectKind.GPU, "n0/0", "n0", "p")


def decided(root: Finding, foresight: Foresight) -> Decision:
    view = FleetView(T0, T0, findings={root.id: root}, foresight=foresight, policy=Policy(settings()))
    found = decide([incident(root)], [], view, view.policy)
    return next(one for one in found if one.action is root.action)


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
    assert "a has no place now" in decided(leaving(), Foresight(state=stuck)).sentence
    held = fleet(2, [work("a", on("n0", 0), budgets=("x",))], budgets=budgets(x=0))
    made = decided(leaving(), Foresight(state=held))
    assert "a has to stay: budget x allows 0 disruptions now" in made.sentence
    assert encode(made.parameters)["to_host"] == ""


def test_a_gpu_that_is_left_is_no_target() -> None:
    state = fleet(1, [work("a", on("n0", 0))])
    made = decided(leaving(), Foresight(state=state))
    assert encode(made.parameters)["to_host"] == "n0", "another GPU of the host is free"
    host = Subject(SubjectKind.HOST, "n0", "n0", "p")
    assert "a has no place now" in decided(leaving(subject=host), Foresight(state=state)).sentence


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
        assert "move b (1 GPU) from n1 to n0" in made.sentence
    elsewhere = decided(leaving(ActionKind.DEFRAGMENT, Subject(SubjectKind.GPU, "n0/7", "n0", "p")), seen)
    assert "work" not in encode(elsewhere.parameters)


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
