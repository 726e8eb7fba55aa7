"""Orders at their node: taken or refused, carried out, given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.ports import Asked, ResetFacts
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import OrderState, ThrottleOrderParameters, order_parameters_of
from tocsin.domain.power import Obstacle
from tocsin_testing.node_world import FakePower, Node

HOT = 84.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "limits", power=FakePower(("GPU-a", "GPU-b")))
    made.power.celsius["GPU-a"] = HOT
    return made


def test_a_hot_gpu_is_throttled_and_restored_on_word_of_the_brain(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    assert node.state(order) is OrderState.PENDING
    node.seconds(3)
    assert node.state(order) is OrderState.APPLIED
    assert node.watts == 597.5
    report = node.report(order)
    assert (report.requested_before_mw, report.enforced_before_mw) == (700_000, 700_000)
    assert (report.requested_after_mw, report.enforced_after_mw) == (597_500, 597_500)
    back = node.order(ActionKind.RESTORE)
    node.worker.receive([order, back])
    assert node.watts == 700
    assert (node.state(order), node.state(back)) == (OrderState.RESTORED, OrderState.RESTORED)
    assert node.report(back).figures["limit_lowered_watts"] == 102.5
    assert node.markers == []


def test_a_cool_gpu_is_refused(node: Node) -> None:
    order = node.order(gpu="GPU-b")
    node.worker.receive([order])
    assert node.state(order) is OrderState.REFUSED
    assert "not hot: 27 C are left" in node.report(order).detail


def test_one_that_never_gets_hot_enough_lapses_untouched(node: Node) -> None:
    node.power.celsius["GPU-a"] = 80.0
    order = node.order()
    node.worker.receive([order])
    node.seconds(600)
    assert node.state(order) is OrderState.EXPIRED
    assert node.writes == []


def test_a_silent_brain_costs_the_limit_after_the_lease(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(600)
    assert node.watts < 700
    node.worker.receive([order])
    node.seconds(899)
    assert node.watts < 700
    node.seconds(1)
    assert node.watts == 700
    assert "did not renew" in node.report(order).detail


def test_a_step_of_the_wall_clock_changes_no_lease(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(10)
    node.clock.set(order.expires_ms + 10**9)
    node.worker.tick()
    assert node.watts < 700


def test_the_end_of_the_agent_gives_everything_back(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(5)
    node.worker.close()
    assert (node.watts, node.state(order), node.markers) == (700, OrderState.RESTORED, [])


def test_a_killed_agent_leaves_it_to_the_next(node: Node) -> None:
    node.worker.receive([node.order()])
    node.seconds(5)
    assert node.watts < 700
    node.restart()
    assert (node.watts, node.markers) == (700, [])


def test_a_given_limit_is_set_at_once_and_clamped(node: Node) -> None:
    order = node.order(gpu="GPU-b", power_limit_watts="100")
    node.worker.receive([order])
    node.seconds(1)
    assert node.power.limit_mw["GPU-b"] == 200_000
    assert node.report(order).detail == "limit 200 W, 200 W in force"


def test_a_follower_takes_its_leads_share(node: Node) -> None:
    waiting = node.order(gpu="GPU-b", lead="throttle@GPU-a")
    node.worker.receive([waiting])
    node.seconds(5)
    assert node.power.limit_mw["GPU-b"] == 700_000
    node.worker.receive([replace(waiting, parameters=ThrottleOrderParameters(lead="throttle@GPU-a", limit_share=0.85))])
    node.seconds(1)
    assert node.power.limit_mw["GPU-b"] == 595_000
    assert node.state(waiting) is OrderState.APPLIED


def test_clocks_are_locked_and_seen_to_follow(node: Node) -> None:
    order = node.order(gpu="GPU-b", sm_clock_max_mhz="1200")
    node.worker.receive([order])
    node.seconds(10)
    said = "the driver does not report the lock, so the clock itself is watched"
    assert node.report(order).detail == f"SM clock locked to 1200 MHz, 1200 at most since; {said}"
    assert node.report(order).figures["highest_sm_clock_mhz"] == 1200
    node.power.clocks_held = True
    node.seconds(1)
    assert node.report(order).detail.endswith("the driver reports the lock")


def test_a_lock_that_somebody_ends_is_found_out_later_too(node: Node) -> None:
    order = node.order(gpu="GPU-b", sm_clock_max_mhz="1200")
    node.worker.receive([order])
    node.seconds(60)
    assert node.state(order) is OrderState.APPLIED
    node.power.locked.clear()
    node.seconds(2)
    assert node.state(order) is OrderState.FAILED
    assert "1950 MHz in spite of a lock to 1200" in node.report(order).detail


def test_a_lock_that_does_nothing_is_found_out(node: Node) -> None:
    node.power.ignores = True
    order = node.order(gpu="GPU-b", sm_clock_max_mhz="1200")
    node.worker.receive([order])
    node.seconds(10)
    assert node.state(order) is OrderState.FAILED
    assert "in spite of a lock" in node.report(order).detail


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"host": "node-2"}, "for node-2"),
        ({"simulated": True}, "simulated"),
        ({"expires_ms": 0}, "expired"),
        ({"action": ActionKind.DRAIN}, "does not carry out"),
        ({"parameters": order_parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "many"})}, "no positive number"),
    ],
)
def test_what_is_not_for_this_node_is_refused(node: Node, changes: dict[str, object], problem: str) -> None:
    order = replace(node.order(), **changes)  # type: ignore[arg-type]
    node.worker.receive([order])
    assert node.state(order) is OrderState.REFUSED
    assert problem in node.report(order).detail
    assert node.writes == []


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    node = Node(tmp_path / "limits", allow=())
    for action in (ActionKind.THROTTLE, ActionKind.CHECKPOINT, ActionKind.DEFRAGMENT):
        order = node.order(action)
        node.worker.receive([order])
        assert "not allowed on this node" in node.report(order).detail


def test_an_older_brain_is_not_followed_even_after_a_restart(node: Node) -> None:
    node.worker.receive([replace(node.order(gpu="GPU-b"), epoch=7)])
    node.restart()
    order = replace(node.order(key="old"), epoch=6)
    node.worker.receive([order])
    assert node.state(order) is OrderState.OUTRANKED
    assert "older brain" in node.report(order).detail
    assert f"remove {node.folder / 'epoch'} while the agent is stopped" in node.report(order).detail


def test_what_was_outranked_is_done_once_its_brain_acts_again(node: Node) -> None:
    node.worker.receive([replace(node.order(gpu="GPU-b", power_limit_watts="500"), epoch=7)])
    order = node.order(key="mine", power_limit_watts="500")
    for _ in range(2):
        node.worker.receive([replace(order, epoch=6)])
        assert node.state(order) is OrderState.OUTRANKED
        node.worker.acknowledge(node.report(order))
    assert node.watts == 700
    node.worker.receive([replace(order, epoch=8)])
    node.seconds(1)
    assert (node.state(order), node.watts) == (OrderState.APPLIED, 500)


def test_a_restore_is_followed_whichever_brain_it_is_from(node: Node) -> None:
    node.worker.receive([replace(node.order(), epoch=40)])
    node.seconds(3)
    assert node.watts < 700
    back = replace(node.order(ActionKind.RESTORE), epoch=3)
    node.worker.receive([back])
    assert (node.state(back), node.watts) == (OrderState.RESTORED, 700)


def test_a_folder_that_keeps_no_epoch_stops_no_restore(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.worker.receive([node.order()])
    node.seconds(3)

    def full(_self: MarkerFolder, _epoch: int) -> None:
        raise InputError("node.marker_folder", "limits", "cannot be written (No space left)", "make room")

    monkeypatch.setattr(MarkerFolder, "remember_epoch", full)
    node.worker.receive([replace(node.order(ActionKind.RESTORE), epoch=2)])
    assert node.watts == 700


def test_a_folder_turned_read_only_leaves_no_gpu_capped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [node.order(gpu=gpu, power_limit_watts="500") for gpu in ("GPU-a", "GPU-b")]
    node.worker.receive(orders)
    node.seconds(2)
    assert set(node.power.limit_mw.values()) == {500_000}

    def read_only(_self: MarkerFolder, _gpu: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(MarkerFolder, "take_away", read_only)
        node.worker.close()
        assert set(node.power.limit_mw.values()) == {700_000}
        assert "marker in" in node.report(orders[0]).detail
        assert "cannot be removed (Read-only file system)" in node.report(orders[0]).detail
        node.worker.close()
        assert [write.outcome for write in node.writes].count("refused") >= 2, "each attempt is counted"
    node.seconds(1)
    assert (node.markers, node.worker.busy) == ([], False)


def test_an_order_that_comes_again_is_answered_and_not_done_again(node: Node) -> None:
    order = node.order(gpu="GPU-b")
    node.worker.receive([order])
    node.worker.acknowledge(node.report(order))
    assert node.worker.reports() == ()
    node.worker.receive([order])
    assert node.state(order) is OrderState.REFUSED


@pytest.mark.parametrize("parameters", [{}, {"power_limit_watts": "500"}])
def test_two_orders_of_one_kind_never_share_a_gpu(node: Node, parameters: dict[str, str]) -> None:
    node.worker.receive([node.order(**parameters)])
    second = node.order(key="second", **parameters)
    node.worker.receive([second])
    assert "under another order" in node.report(second).detail


def test_a_driver_that_says_no_ends_the_order(node: Node) -> None:
    node.power.fail("set_limit", Obstacle.PERMISSION)
    order = node.order()
    node.worker.receive([order])
    node.seconds(3)
    assert node.state(order) is OrderState.FAILED
    assert node.markers == []


def test_a_gpu_that_is_lost_in_between_is_given_back_when_it_returns(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(5)
    for name in ("heat", "limits", "set_limit"):
        node.power.fail(name, Obstacle.LOST)
    node.seconds(900)
    assert node.state(order) is OrderState.EXPIRED
    assert "tried again" in node.report(order).detail
    assert node.worker.busy
    node.power.trouble.clear()
    node.seconds(300)
    assert (node.watts, node.markers, node.worker.busy) == (700, [], False)


def test_somebody_elses_limit_ends_the_order_and_stays(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(5)
    node.power.limit_mw["GPU-a"] = 300_000
    node.seconds(60)
    assert node.state(order) is OrderState.FAILED
    assert node.watts == 300


def test_a_restore_of_nothing_is_done_at_once(node: Node) -> None:
    order = node.order(ActionKind.RESTORE)
    node.worker.receive([order])
    assert node.state(order) is OrderState.RESTORED


def test_a_standing_order_is_reported_again_each_minute(node: Node) -> None:
    order = node.order()
    node.worker.receive([order])
    node.seconds(5)
    node.power.celsius["GPU-a"] = 80.0
    node.worker.acknowledge(node.report(order))
    node.seconds(50)
    assert node.worker.reports() == ()
    node.seconds(10)
    assert node.state(order) is OrderState.APPLIED


def test_processes_are_asked_for_a_checkpoint(node: Node) -> None:
    order = node.order(ActionKind.CHECKPOINT)
    node.worker.receive([order])
    assert node.state(order) is OrderState.PENDING
    assert node.hooks.asked == [("GPU-a", "checkpoint")]
    node.hooks.given = [Asked(1, "done", 2.5, ""), Asked(2, "done", 4.0, "")]
    node.seconds(1)
    assert node.state(order) is OrderState.APPLIED
    assert node.report(order).figures == {"processes_asked": 2.0, "processes_done": 2.0, "slowest_seconds": 4.0}


def test_a_process_that_refuses_fails_the_request(node: Node) -> None:
    order = node.order(ActionKind.DEFRAGMENT)
    node.worker.receive([order])
    assert node.hooks.asked == [("GPU-a", "empty_cache")]
    node.hooks.given = [Asked(1, "done", 0.1, ""), Asked(2, "refused", 0.0, "too many requests wait")]
    node.seconds(1)
    assert node.state(order) is OrderState.FAILED
    assert node.report(order).detail == "2 asked: 1 done, 1 refused (too many requests wait)"


def test_a_request_without_answers_ends_by_itself(node: Node) -> None:
    order = node.order(ActionKind.CHECKPOINT)
    node.worker.receive([order])
    node.seconds(3631)
    assert node.report(order).detail == "2 asked: 2 without an answer"


def test_nobody_to_ask_is_a_refusal(node: Node) -> None:
    node.hooks.count = 0
    order = node.order(ActionKind.CHECKPOINT)
    node.worker.receive([order])
    assert node.state(order) is OrderState.REFUSED


def reset(node: Node, **parameters: str) -> tuple[OrderState, str]:
    order = node.order(ActionKind.RESET_GPU, **parameters)
    node.worker.receive([order])
    node.seconds(1)
    report = node.report(order)
    assert not node.machine.asked_to_let_go
    return report.state, report.detail


def test_a_reset_needs_a_drained_node(node: Node) -> None:
    assert reset(node) == (OrderState.REFUSED, "not reset: the node is not drained")


def test_a_reset_needs_a_gpu_without_work(node: Node) -> None:
    node.machine.known["GPU-a"] = ResetFacts(("process 4242",), 2)
    state, detail = reset(node, drained="true")
    assert state is OrderState.REFUSED
    assert detail == "not reset: GPU-a is in use: process 4242; GPU-a has 2 MIG instances"


def test_a_reset_takes_its_nvlink_peers_or_none(node: Node) -> None:
    node.machine.known["GPU-a"] = ResetFacts(peers=("GPU-a", "GPU-b"))
    node.machine.known["GPU-b"] = ResetFacts(("process 7",))
    assert reset(node, drained="true")[0] is OrderState.REFUSED
    node.machine.known["GPU-b"] = ResetFacts()
    order = node.order(ActionKind.RESET_GPU, key="again", drained="true")
    node.worker.receive([order])
    assert node.machine.resets == [(("GPU-a", "GPU-b"), False)]


def test_the_fabric_manager_lets_go_before_gpus_are_reset_together(node: Node) -> None:
    node.machine.fabric_by = ["nv-fabricmanager (9)"]
    assert reset(node, drained="true")[0] is OrderState.APPLIED
    node.restart()
    both = ResetFacts(peers=("GPU-a", "GPU-b"))
    node.machine.known = {"GPU-a": both, "GPU-b": both}
    assert reset(node, drained="true") == (OrderState.REFUSED, "not reset: still open by nv-fabricmanager (9)")


def test_a_gpu_that_does_not_come_back_from_its_reset_is_a_failure(node: Node) -> None:
    node.machine.gone_after = {"GPU-a"}
    state, detail = reset(node, drained="true")
    assert (state, detail) == (OrderState.FAILED, "reset, no answer since: GPU-a (GPU-a does not answer)")


def test_a_reset_waits_for_its_clients_and_gives_up(node: Node) -> None:
    node.machine.open_by = ["dcgm (77)"]
    assert reset(node, drained="true") == (OrderState.REFUSED, "not reset: still open by dcgm (77)")
    assert node.machine.waits == 3


def test_a_reset_that_is_not_allowed_is_gone_through_but_for_the_last_call(tmp_path: Path) -> None:
    node = Node(tmp_path / "limits", allow=())
    assert reset(node, drained="true") == (OrderState.APPLIED, "dry run")
    assert node.machine.resets == [(("GPU-a",), True)]


def test_a_reset_that_fails_says_what_the_tool_said(node: Node) -> None:
    node.machine.failure = "nvidia-smi -r -i GPU-a ended with 3: In use by another client"
    assert reset(node, drained="true") == (OrderState.REFUSED, node.machine.failure)


@pytest.mark.parametrize("whole_node", [True, False])
@pytest.mark.parametrize(
    ("action", "parameters", "said"),
    [
        (ActionKind.THROTTLE, {}, "would keep the limit between 700 W and 420 W by the heat of the GPU"),
        (ActionKind.THROTTLE, {"power_limit_watts": "500"}, "would set the limit from 700 W to 500 W"),
        (ActionKind.THROTTLE, {"power_limit_watts": "50"}, "would set the limit from 700 W to 200 W"),
        (ActionKind.THROTTLE, {"sm_clock_max_mhz": "1200"}, "would lock the SM clock to 210 to 1200 MHz"),
        (ActionKind.THROTTLE, {"lead": "other"}, "would follow the limit of the job's hot GPU, from 700 W"),
        (ActionKind.RESTORE, {}, "would restore nothing"),
        (ActionKind.CHECKPOINT, {}, "would ask 2 processes for checkpoint"),
        (ActionKind.DEFRAGMENT, {}, "would ask 2 processes for empty_cache"),
        (ActionKind.RESET_GPU, {"drained": "true"}, ""),
    ],
)
def test_a_dry_run_looks_and_changes_nothing(
    tmp_path: Path, whole_node: bool, action: ActionKind, parameters: dict[str, str], said: str
) -> None:
    node = Node(tmp_path / "limits", dry_run=whole_node)
    node.power.celsius["GPU-a"] = HOT
    order = node.order(action, **parameters, **({} if whole_node else {"dry_run": "true"}))
    node.worker.receive([order])
    node.seconds(30)
    report = node.report(order)
    assert report.state in (OrderState.RESTORED, OrderState.APPLIED)
    assert report.detail == (f"dry run: {said}" if said else "dry run")
    assert (node.watts, node.writes, node.markers, node.hooks.asked) == (700, [], [], [])
    assert [dry for _, dry in node.machine.resets] == ([True] if action is ActionKind.RESET_GPU else [])


def test_a_dry_run_refuses_what_would_be_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "limits", dry_run=True)
    cool = node.order()
    node.worker.receive([cool])
    assert (node.state(cool), "not hot" in node.report(cool).detail) == (OrderState.REFUSED, True)
    node.hooks.count = 0
    asked = node.order(ActionKind.CHECKPOINT)
    node.worker.receive([asked])
    assert node.state(asked) is OrderState.REFUSED
