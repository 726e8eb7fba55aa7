"""A fixed cap and the thermal controller on one GPU: the lower limit holds, and each ends for itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.node.order_queue import OrderQueue
from tocsin.domain.decision import encode
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderState
from tocsin.domain.power import Obstacle
from tocsin_testing.node_world import FakePower, Node

HOT, WARM = 84.0, 80.0


class Driven(FakePower):
    """GPUs that draw what their limit lets them."""

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        super().set_limit(gpu, milliwatts)
        self.watts[gpu] = self.limit_mw[gpu] / 1000.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "limits", power=Driven(("GPU-a",)))
    made.power.watts["GPU-a"] = 700.0
    return made


def capped(node: Node, watts: int = 500) -> Order:
    order = node.order(key="cap", power_limit_watts=str(watts))
    node.worker.receive([order])
    node.seconds(1)
    assert (node.state(order), node.watts) == (OrderState.APPLIED, watts)
    return order


def heated(node: Node) -> Order:
    node.power.celsius["GPU-a"] = HOT
    order = node.order(key="heat")
    node.worker.receive([order])
    node.seconds(3)
    assert node.state(order) is OrderState.APPLIED
    node.power.celsius["GPU-a"] = WARM
    return order


def ended(node: Node, kind: str) -> Order:
    order = node.order(ActionKind.RESTORE, key=f"end {kind}", of=kind)
    node.worker.receive([order])
    return order


def prior(node: Node) -> int:
    (path,) = node.folder.glob("*.limit.json")
    found: int = json.loads(path.read_text())["prior_mw"]
    return found


def test_a_hot_gpu_under_a_cap_is_protected_below_the_cap(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    assert node.watts == 447.5
    for order in (cap, heat):
        assert node.report(order).requested_after_mw == 447_500, "whichever order has set it"
        assert node.report(order).requested_before_mw == 700_000
    assert (prior(node), node.worker.engaged) == (700_000, 1)


def test_a_cap_on_a_gpu_that_heat_holds_lower_is_taken_and_waits(node: Node) -> None:
    heat = heated(node)
    assert node.watts == 647.5
    cap = node.order(key="cap", power_limit_watts="660")
    node.worker.receive([cap])
    node.seconds(5)
    assert (node.state(cap), node.state(heat), node.watts) == (OrderState.APPLIED, OrderState.APPLIED, 647.5)
    writes = len(node.writes)
    node.seconds(30)
    assert len(node.writes) == writes, "nothing is written again and again"
    ended(node, "heat")
    assert node.watts == 660


def test_when_the_heat_ends_the_cap_goes_on(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    back = ended(node, "heat")
    assert (node.state(heat), node.state(back), node.watts) == (OrderState.RESTORED, OrderState.RESTORED, 500)
    assert "stays under another order (cap)" in node.report(back).detail
    assert (node.state(cap), node.report(cap).requested_after_mw, prior(node)) == (OrderState.APPLIED, 500_000, 700_000)
    ended(node, "cap")
    assert (node.watts, node.markers, node.worker.busy) == (700, [], False)


def test_when_the_cap_ends_the_heat_goes_on(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    ended(node, "cap")
    node.seconds(30)
    assert (node.state(cap), node.state(heat), node.watts) == (OrderState.RESTORED, OrderState.APPLIED, 447.5)
    ended(node, "heat")
    assert (node.watts, node.markers) == (700, [])


def test_a_controller_that_only_watches_touches_no_cap(node: Node) -> None:
    cap = capped(node)
    node.power.celsius["GPU-a"] = WARM
    heat = node.order(key="heat")
    node.worker.receive([heat])
    for _ in range(10):
        node.worker.receive([cap])
        node.seconds(60)
    assert (node.state(heat), node.state(cap), node.watts) == (OrderState.EXPIRED, OrderState.APPLIED, 500)


def test_the_lease_of_each_runs_for_itself(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    node.seconds(600)
    node.worker.receive([heat])
    node.seconds(300)
    assert (node.state(cap), node.state(heat), node.watts) == (OrderState.EXPIRED, OrderState.APPLIED, 447.5)
    node.seconds(600)
    assert (node.state(heat), node.watts, node.markers) == (OrderState.EXPIRED, 700, [])


def test_a_restore_that_names_no_kind_ends_both(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    node.worker.receive([node.order(ActionKind.RESTORE)])
    assert {node.state(cap), node.state(heat)} == {OrderState.RESTORED}
    assert (node.watts, node.markers) == (700, [])


def test_the_end_of_the_agent_and_a_kill_give_the_true_prior_back(node: Node) -> None:
    node.power.limit_mw["GPU-a"] = 650_400
    capped(node), heated(node)
    node.restart()
    assert (node.power.limit_mw["GPU-a"], node.markers) == (650_400, [])
    cap, heat = capped(node), heated(node)
    node.worker.close()
    assert (node.power.limit_mw["GPU-a"], node.markers) == (650_400, [])
    assert {node.state(cap), node.state(heat)} == {OrderState.RESTORED}


def test_a_step_that_fails_leaves_the_cap(node: Node) -> None:
    cap = capped(node)
    node.power.fail("set_limit", Obstacle.REFUSED)
    node.power.celsius["GPU-a"] = HOT
    heat = node.order(key="heat")
    node.worker.receive([heat])
    node.seconds(3)
    assert (node.state(heat), node.state(cap), node.watts) == (OrderState.FAILED, OrderState.APPLIED, 500)
    node.power.trouble.clear()
    ended(node, "cap")
    assert (node.watts, node.markers) == (700, [])


def test_what_cannot_be_given_back_now_falls_back_to_the_cap_later(node: Node) -> None:
    cap, _heat = capped(node), heated(node)
    node.power.fail("set_limit", Obstacle.LOST)
    assert node.state(ended(node, "heat")) is OrderState.FAILED
    assert node.watts == 447.5
    node.power.trouble.clear()
    node.seconds(10)
    assert (node.watts, node.state(cap), prior(node)) == (500, OrderState.APPLIED, 700_000)


def test_somebody_elses_limit_ends_both_and_stays(node: Node) -> None:
    cap, heat = capped(node), heated(node)
    node.power.limit_mw["GPU-a"] = 300_000
    node.power.celsius["GPU-a"] = HOT
    node.seconds(60)
    assert {node.state(cap), node.state(heat)} == {OrderState.FAILED}
    assert (node.watts, node.markers) == (300, [])


def test_a_lock_of_the_clocks_and_the_heat_end_for_themselves(node: Node) -> None:
    lock = node.order(key="lock", sm_clock_max_mhz="1200")
    node.worker.receive([lock])
    node.seconds(10)
    heat = heated(node)
    ended(node, "heat")
    assert (node.watts, node.power.locked, node.state(lock)) == (700, {"GPU-a": (210, 1200)}, OrderState.APPLIED)
    again = replace(heat, key="heat again")
    node.power.celsius["GPU-a"] = HOT
    node.worker.receive([again])
    node.seconds(3)
    ended(node, "cap")
    assert (node.power.locked, node.watts) == ({}, 647.5)
    node.worker.close()
    assert (node.watts, node.markers) == (700, [])


def test_what_the_board_takes_back_names_its_kind(node: Node) -> None:
    queue = OrderQueue(node.clock)
    cap, heat = node.order(key="cap", power_limit_watts="500"), node.order(key="heat")
    queue.post([cap, heat])
    queue.withdraw(["heat"])
    (back, left) = queue.for_host("node-1")
    assert (encode(back.parameters), left.key) == ({"of": "heat"}, "cap")
