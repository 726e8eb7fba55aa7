"""What managers show, and what a manager that is silent means."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.model.executor import ManagerUnavailable
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.place import Place, PlaceKind
from tocsin.runtime.brain.managers import BLIND_SECONDS, Managers
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.claims import Claim, ClaimSource
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0


class Seeing(FakeExecutor):
    """Shows one node, unless it is down."""

    def __init__(self, name: str, *nodes: NodeState) -> None:
        super().__init__()
        self.name = name
        self.shown = nodes
        self.down = False
        self.rounds = 0
        self.closed = False

    def nodes(self) -> Mapping[str, NodeState]:
        if self.down:
            raise ManagerUnavailable("no answer")
        return {node.host: node for node in self.shown}

    def upkeep(self) -> list[str]:
        if self.down:
            raise ManagerUnavailable("no answer")
        self.rounds += 1
        return ["node-1"]

    def missing_rights(self) -> list[str]:
        return ["patch nodes"]

    def close(self) -> None:
        self.closed = True


def test_nodes_of_all_managers_the_stricter_counts() -> None:
    one = Seeing("one", NodeState("a", schedulable=True), NodeState("b", schedulable=True))
    two = Seeing("two", NodeState("b", schedulable=False))
    managers = Managers([one, two, FakeExecutor()], ManualClock(T0), OwnMetrics())
    assert managers.blind()
    managers.look()
    assert not managers.blind()
    assert {host: node.schedulable for host, node in managers.nodes().items()} == {"a": True, "b": False}


def test_a_manager_that_falls_silent_leaves_its_nodes_and_blinds() -> None:
    clock, own = ManualClock(T0), OwnMetrics()
    one = Seeing("one", NodeState("a", schedulable=False))
    managers = Managers([one], clock, own)
    managers.look()
    one.down = True
    clock.advance(round((BLIND_SECONDS - 1) * SECOND))
    managers.look()
    assert not managers.blind()
    assert own.value("tocsin_manager_up", manager="one") == 0
    clock.advance(2 * SECOND)
    assert managers.blind()
    assert not managers.nodes()["a"].schedulable
    one.down = False
    managers.look()
    assert not managers.blind()
    assert own.value("tocsin_manager_up", manager="one") == 1


def test_without_managers_nothing_is_blind() -> None:
    managers = Managers([FakeExecutor()], ManualClock(T0), OwnMetrics())
    managers.look()
    assert (managers.nodes(), managers.blind()) == ({}, False)


def test_marks_that_ran_out_are_taken_back_and_a_failure_is_survived() -> None:
    one = Seeing("one")
    managers = Managers([one], ManualClock(T0), OwnMetrics())
    one.down = True
    managers.tidy()
    one.down = False
    managers.tidy()
    managers.tidy()
    assert one.rounds == 2


def test_places_that_two_managers_name_are_both_kept() -> None:
    rack = Claim(Place(PlaceKind.HOST, "b"), Place(PlaceKind.RACK, "r1"), ClaimSource.NODE_LABEL)
    leaf = Claim(Place(PlaceKind.HOST, "b"), Place(PlaceKind.SWITCH, "s1"), ClaimSource.SLURM)
    one = Seeing("one", NodeState("b", schedulable=True, places=(rack,)))
    two = Seeing("two", NodeState("b", schedulable=False, places=(leaf,)))
    managers = Managers([one, two], ManualClock(T0), OwnMetrics())
    managers.look()
    assert managers.nodes()["b"].places == (rack, leaf)


def test_a_node_that_is_shown_as_before_is_the_same_object_and_one_that_changed_is_not() -> None:
    def shown(**jobs: str) -> tuple[NodeState, ...]:
        return tuple(NodeState(host, schedulable=True, jobs={"p": job}) for host, job in jobs.items())

    one = Seeing("one", *shown(a="j", b="j", c="j"))
    managers = Managers([one], ManualClock(T0), OwnMetrics())
    managers.look()
    before = managers.nodes()
    one.shown = shown(a="j", b="k", d="j")
    managers.look()
    after = managers.nodes()
    assert after == {node.host: node for node in one.shown}
    assert [host for host, node in after.items() if node is before.get(host)] == ["a"]
