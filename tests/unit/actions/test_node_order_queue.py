"""The brain's queue of orders, and the executor that fills it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.executors.node import NodeAgents
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.ranks import JobOnGpu, ranks_of, work_on
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.actions.node import order_queue
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.planning.facts import NodeState
from tocsin.config.node import NodeSettings
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.decision import (
    Decision,
    DecisionContext,
    Mode,
    Rank,
    Ruling,
    ThrottleParameters,
    encode,
    parameters_of,
    ranks_in,
)
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.order import Order, OrderReport, OrderState
from tocsin.domain.reading import Owner
from tocsin.runtime.brain.orders import OrderService, open_queue
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import fleet, settings, subject_of
from tocsin_testing.builders import T0
from tocsin_testing.node_world import FakePower, Node

GPUS = fleet(2, 2)
HOT = "GPU-0-0"


def written(ranks: tuple[Rank, ...]) -> str:
    return encode(ThrottleParameters(ranks=ranks))["ranks"]


ALL = tuple(Rank(gpu.host, gpu.uuid) for gpu in GPUS.values())


class QueueRig:
    """A queue with its executor, and decisions for it."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.queue = OrderQueue(self.clock, lease_seconds=900.0, hold_seconds=4 * 3600.0)
        self.executor = NodeAgents(self.queue, self.clock)

    def decision(self, action: ActionKind = ActionKind.THROTTLE, gpu: str = HOT, **parameters: str) -> Decision:
        return Decision(
            rule="hot",
            subject=subject_of(GPUS[gpu]),
            action=action,
            mode=Mode.ACT,
            severity=Severity.CRITICAL,
            category=Category.THERMAL,
            at_ms=T0,
            expires_ms=T0 + HOUR,
            key=f"hot|{gpu}|{action}",
            sentence="It is too hot.",
            findings=("f",),
            parameters=parameters_of(action, parameters),
        )

    def say(self, order: Order, state: OrderState, detail: str = "said", **more: object) -> bool:
        report = OrderReport(order, state, detail, self.clock.now_ms(), **more)  # type: ignore[arg-type]
        return self.queue.report(report)


@pytest.fixture
def rig() -> QueueRig:
    return QueueRig()


def view(job: str = "", **more: object) -> FleetView:
    gpus = {uuid: GpuView(gpu, T0, job=job) for uuid, gpu in GPUS.items()}
    return FleetView(T0, 0, gpus, policy=Policy(settings()), **more)  # type: ignore[arg-type]


def test_a_decision_waits_for_its_agent_and_ends_with_its_word(rig: QueueRig) -> None:
    decision = rig.decision()
    first = rig.executor.execute(decision)
    assert (first.ok, first.pending) == (True, True)
    (order,) = rig.queue.for_host("node-0")
    assert (order.gpu, order.lease_seconds, order.decision) == (HOT, 900.0, decision.id)
    assert rig.queue.for_host("node-1") == []
    rig.say(order, OrderState.APPLIED, figures={"limit_lowered_watts": 52.5})
    done = rig.executor.execute(decision)
    assert (done.ok, done.pending, done.lasting) == (True, False, True)
    assert done.effect == {"limit_lowered_watts": 52.5}


def test_one_key_is_one_order_also_after_a_restart_of_the_brain(rig: QueueRig) -> None:
    rig.executor.execute(rig.decision())
    before = rig.queue.for_host("node-0")
    again = QueueRig()
    again.executor.execute(again.decision())
    again.executor.execute(again.decision())
    assert again.queue.for_host("node-0") == before


def test_an_order_that_no_agent_takes_fails_with_the_reason(rig: QueueRig) -> None:
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.clock.advance(HOUR)
    assert rig.queue.for_host("node-0") == []
    result = rig.executor.execute(decision)
    assert (result.ok, result.certain) == (False, True)
    assert "the agent of node-0 took no order in time" in result.detail


def test_an_agent_that_dies_with_an_order_does_not_hold_it_for_ever(rig: QueueRig) -> None:
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.say(rig.queue.for_host("node-0")[0], OrderState.PENDING)
    rig.clock.advance(HOUR + 14 * MINUTE)
    assert rig.executor.execute(decision).pending
    rig.clock.advance(MINUTE)
    result = rig.executor.execute(decision)
    assert (result.ok, result.certain) == (False, False)


@pytest.mark.parametrize(("state", "certain"), [(OrderState.REFUSED, True), (OrderState.FAILED, False)])
def test_a_refusal_is_a_failure_that_says_why(rig: QueueRig, state: OrderState, certain: bool) -> None:
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.say(rig.queue.for_host("node-0")[0], state, "not hot")
    result = rig.executor.execute(decision)
    assert (result.ok, result.detail, result.certain) == (False, "not hot", certain)


def test_one_that_was_not_needed_leaves_nothing_behind(rig: QueueRig) -> None:
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.say(rig.queue.for_host("node-0")[0], OrderState.EXPIRED, "it was not needed")
    result = rig.executor.execute(decision)
    assert (result.ok, result.lasting) == (True, False)


def test_what_stands_is_renewed_and_ends_after_the_hold(rig: QueueRig) -> None:
    rig.executor.execute(rig.decision())
    rig.say(rig.queue.for_host("node-0")[0], OrderState.APPLIED)
    rig.clock.advance(4 * HOUR - 1)
    assert len(rig.queue.for_host("node-0")) == 1
    rig.clock.advance(1)
    assert rig.queue.for_host("node-0") == []


def test_a_restore_closes_the_throttle_and_ends_with_its_own_report(rig: QueueRig) -> None:
    rig.executor.execute(rig.decision())
    throttle = rig.queue.for_host("node-0")[0]
    rig.say(throttle, OrderState.APPLIED)
    back = rig.executor.inverse(rig.decision())
    assert back is not None
    assert rig.executor.execute(back).pending
    (order,) = rig.queue.for_host("node-0")
    assert order.action is ActionKind.RESTORE
    rig.say(order, OrderState.RESTORED, figures={"celsius_per_watt": 0.09})
    assert rig.executor.execute(back).effect == {"celsius_per_watt": 0.09}
    assert rig.executor.verify(back, view()) is True


def test_a_new_brain_learns_what_stands_from_the_next_report(rig: QueueRig) -> None:
    rig.executor.execute(rig.decision())
    order = rig.queue.for_host("node-0")[0]
    new = QueueRig()
    assert new.say(order, OrderState.APPLIED) is True
    assert [each.key for each in new.queue.for_host("node-0")] == [order.key]
    other = replace(order, key="other")
    assert new.say(other, OrderState.RESTORED) is False
    assert new.queue.standing("other") is None


def test_all_ranks_are_ordered_and_the_others_follow_the_hot_one(rig: QueueRig) -> None:
    decision = rig.decision(ranks=written(ALL))
    rig.executor.execute(decision)
    lead, mate = rig.queue.for_host("node-0")
    assert (lead.gpu, "lead" in encode(lead.parameters)) == (HOT, False)
    assert encode(mate.parameters) == {"lead": lead.key}
    assert [encode(order.parameters) for order in rig.queue.for_host("node-1")] == [{"lead": lead.key}] * 2
    rig.say(lead, OrderState.APPLIED, requested_after_mw=600_000, figures={"default_limit_watts": 700.0})
    assert encode(rig.queue.for_host("node-1")[0].parameters)["limit_share"] == "0.857143"


def test_one_rank_that_refuses_restores_the_others_first(rig: QueueRig) -> None:
    decision = rig.decision(ranks=written(ALL))
    rig.executor.execute(decision)
    orders = [*rig.queue.for_host("node-0"), *rig.queue.for_host("node-1")]
    for order in orders[:3]:
        rig.say(order, OrderState.APPLIED, requested_after_mw=600_000)
    rig.say(orders[3], OrderState.REFUSED, "not allowed on this node")
    result = rig.executor.execute(decision)
    assert (result.ok, result.pending) == (True, True)
    backs = [*rig.queue.for_host("node-0"), *rig.queue.for_host("node-1")]
    assert [(order.action, order.gpu) for order in backs] == [(ActionKind.RESTORE, order.gpu) for order in orders[:3]]
    for order in backs:
        rig.say(order, OrderState.RESTORED)
    result = rig.executor.execute(decision)
    assert (result.ok, result.pending) == (False, False)
    assert (
        "GPU-1-1 on node-1 did not take part (not allowed on this node); the others are as they were" in result.detail
    )


def test_ranks_come_from_the_job_of_the_view() -> None:
    assert ranks_of(subject_of(GPUS[HOT]), view()) == ALL[:1]
    found = ranks_of(subject_of(GPUS["GPU-1-0"]), view("slurm 7"))
    assert found[0] == Rank("node-1", "GPU-1-0")
    assert set(found) == set(ALL)
    assert ranks_in(parameters_of(ActionKind.THROTTLE, {"ranks": written(found)})) == found
    assert ranks_in(parameters_of(ActionKind.THROTTLE, {"ranks": "nonsense"})) == ()


@pytest.mark.parametrize(
    ("owners", "job"),
    [
        ([Owner(1, slurm_job="7.0"), Owner(2, slurm_job="7.1")], "slurm 7"),
        ([Owner(1, pod_uid="u")], "pod u"),
        ([Owner(1, container="c")], "node-0 container c"),
        ([Owner(1)], "node-0 process 1"),
        ([Owner(0, container="main", pod="p", namespace="ns")], "pod ns/p"),
        ([Owner(1), Owner(2)], ""),
        ([], ""),
    ],
)
def test_the_job_on_a_gpu(owners: list[Owner], job: str) -> None:
    assert work_on("node-0", owners) == JobOnGpu(job)


def test_pods_of_one_job_are_one_job_on_whatever_node() -> None:
    known = {"u0": "ns/jobset/train", "ns/train-1": "ns/jobset/train", "u2": ""}
    node = NodeState("node-0", True, jobs=known)
    job = JobOnGpu("pods ns/jobset/train")
    assert work_on("node-0", [Owner(1, pod_uid="u0")], node) == job
    assert work_on("node-1", [Owner(2, pod="train-1", namespace="ns")], node) == job
    assert work_on("node-0", [Owner(3, pod_uid="u2")], node) == JobOnGpu("pod u2")
    assert work_on("node-0", [Owner(1, pod_uid="u0"), Owner(3, pod_uid="u2")], node) == JobOnGpu("")
    assert work_on("node-0", [Owner(4, pod_uid="u3", slurm_job="7.0")], node) == JobOnGpu("slurm 7")


def test_a_pod_that_its_manager_has_not_shown_yet_is_known_as_such() -> None:
    pod = [Owner(1, pod_uid="u9")]
    shown = NodeState("node-0", True, jobs={"u0": ""})
    assert work_on("node-0", pod, shown) == JobOnGpu("pod u9", known=False)
    assert work_on("node-0", pod, None, blind=True) == JobOnGpu("pod u9", known=False)
    # No manager knows pods here: the pod stands for itself.
    assert work_on("node-0", pod, NodeState("node-0", True)) == JobOnGpu("pod u9")
    assert work_on("node-0", pod) == JobOnGpu("pod u9")


def test_a_job_is_throttled_only_where_all_of_it_is_seen(rig: QueueRig) -> None:
    check = rig.executor.check
    job = "pods ns/jobset/train"
    whole = rig.decision(ranks=written(ALL))
    held_by = frozenset({job})
    nodes = {host: NodeState(host, True, held_by=held_by) for host in ("node-0", "node-1")}
    assert check(whole, view(job, nodes=nodes)).ruling is Ruling.ALLOW
    hidden = nodes | {"node-9": NodeState("node-9", True, held_by=held_by)}
    verdict = check(whole, view(job, nodes=hidden))
    assert (verdict.ruling, "no reading shows those that it holds on node-9" in verdict.reason) == (Ruling.HOLD, True)
    untold = {uuid: replace(one, job_known=False) for uuid, one in view(job).gpus.items()}
    assert check(whole, replace(view(job), gpus=untold)).ruling is Ruling.HOLD


def test_a_decision_for_one_pod_is_made_anew_once_its_job_is_known(rig: QueueRig) -> None:
    verdict = rig.executor.check(rig.decision(), view("pods ns/job/train"))
    assert (verdict.ruling, verdict.until_ms) == (Ruling.DENY, T0)
    # A cap in watts is for one GPU, whatever runs on it.
    assert rig.executor.check(rig.decision(power_limit_watts="500"), view("slurm 7")).ruling is Ruling.ALLOW


def test_a_cap_in_watts_for_a_job_is_made_anew_once_the_job_has_changed(rig: QueueRig) -> None:
    check = rig.executor.check
    whole = rig.decision(power_limit_watts="500", ranks=written(ALL))
    assert check(whole, view("slurm 7")).ruling is Ruling.ALLOW
    part = rig.decision(power_limit_watts="500", ranks=written(ALL[:2]))
    verdict = check(part, view("slurm 7"))
    assert (verdict.ruling, verdict.until_ms) == (Ruling.DENY, T0)
    assert check(whole, view()).ruling is Ruling.DENY, "the job has gone, and another may be on its other GPUs"


def test_a_host_is_throttled_with_all_ranks_of_the_jobs_on_it() -> None:
    host = Subject(SubjectKind.HOST, "node-0", "node-0")
    assert ranks_of(host, view()) == ALL[:2]
    assert set(ranks_of(host, view("slurm 7"))) == set(ALL)


def test_the_pre_check(rig: QueueRig) -> None:
    check = rig.executor.check
    assert check(rig.decision(), view()).ruling is Ruling.ALLOW
    assert check(replace(rig.decision(), simulated=True), view()).ruling is Ruling.DENY
    changed = rig.decision(ranks=written(ALL[:2]))
    assert check(changed, view("slurm 7")).ruling is Ruling.DENY
    unmanaged = replace(view("slurm 7"), policy=Policy(settings(managed_pools=[])))
    verdict = check(rig.decision(ranks=written(ALL)), unmanaged)
    assert (verdict.ruling, "4 of 4 are not managed" in verdict.reason) == (Ruling.HOLD, True)


def test_a_reset_waits_for_a_drained_node_and_says_so_to_the_agent(rig: QueueRig) -> None:
    decision = rig.decision(ActionKind.RESET_GPU)
    assert rig.executor.check(decision, view()).ruling is Ruling.HOLD
    working = view(nodes={"node-0": NodeState("node-0", False, work=("ns/pod",))})
    assert rig.executor.check(decision, working).ruling is Ruling.HOLD
    empty = view(nodes={"node-0": NodeState("node-0", False)})
    assert rig.executor.check(decision, empty).ruling is Ruling.ALLOW
    rig.executor.execute(decision)
    assert encode(rig.queue.for_host("node-0")[0].parameters) == {"drained": "true"}


def test_a_node_that_is_given_back_before_its_agent_comes_is_not_reset(rig: QueueRig) -> None:
    decision = rig.decision(ActionKind.RESET_GPU)
    state = [NodeState("node-0", False)]
    rig.queue.nodes = lambda: {"node-0": state[0]}
    assert rig.executor.execute(decision).pending
    assert len(rig.queue.for_host("node-0")) == 1
    state[0] = NodeState("node-0", True)
    result = rig.executor.execute(decision)
    assert (result.ok, result.lasting, "takes work again" in result.detail) == (False, False, True)
    assert rig.queue.for_host("node-0") == []


def test_a_reset_goes_on_after_a_restart_once_its_node_is_seen_out_of_service_again(rig: QueueRig) -> None:
    decision = rig.decision(ActionKind.RESET_GPU)
    for state in (None, NodeState("node-0", True), NodeState("node-0", False, work=("ns/pod",))):
        rig.queue.nodes = lambda state=state: {} if state is None else {"node-0": state}  # type: ignore[misc]
        waits = rig.executor.execute(decision)
        assert (waits.pending, waits.detail) == (True, "waits until node-0 is seen out of service and empty again")
        assert rig.queue.for_host("node-0") == []
    rig.queue.nodes = lambda: {"node-0": NodeState("node-0", False)}
    assert rig.executor.execute(decision).pending
    assert encode(rig.queue.for_host("node-0")[0].parameters) == {"drained": "true"}


def test_a_reset_whose_node_is_not_seen_again_ends_as_unknown(rig: QueueRig) -> None:
    rig.clock.advance(HOUR)
    result = rig.executor.execute(rig.decision(ActionKind.RESET_GPU))
    assert (result.ok, result.certain) == (False, False)
    assert "whether its GPU was reset is unknown" in result.detail


def order(gpu: str, action: ActionKind = ActionKind.THROTTLE) -> Order:
    return Order(f"{action}@{gpu}", "d", "node-0", gpu, action, T0, T0 + HOUR)


def test_a_halted_queue_hands_out_only_what_gives_back_or_keeps_limits(rig: QueueRig) -> None:
    applied, armed, unheard = (order(gpu) for gpu in ("GPU-0-0", "GPU-0-1", "GPU-0-2"))
    others = [order(HOT, action) for action in (ActionKind.RESET_GPU, ActionKind.CHECKPOINT, ActionKind.RESTORE)]
    rig.queue.post([applied, armed, unheard, *others])
    rig.say(applied, OrderState.APPLIED)
    rig.say(armed, OrderState.PENDING)
    rig.queue.halt(True)
    found = rig.queue.for_host("node-0")
    assert [(each.action, each.gpu) for each in found] == [(ActionKind.RESTORE, HOT), (ActionKind.THROTTLE, HOT)]
    assert found[1].lease_seconds == 900.0
    rig.clock.advance(20 * MINUTE)
    assert len(rig.queue.for_host("node-0")) == 2
    rig.queue.halt(False)
    assert len(rig.queue.for_host("node-0")) == 6


def test_a_halted_queue_never_fences_off_the_brain_that_acts(rig: QueueRig, tmp_path: Path) -> None:
    """A brain that waits for the lease has begun later than the one that holds it, and may be asked by agents."""
    node = Node(tmp_path / "limits", power=FakePower(("GPU-a", "GPU-b")))
    rig.queue.epoch = 100
    held = replace(node.order(power_limit_watts="500"), key="held")
    rig.queue.post([held])
    node.worker.receive(rig.queue.for_host("node-1"))
    node.seconds(2)
    waiting = QueueRig()
    waiting.queue.epoch = 200
    waiting.queue.halt(True)
    waiting.queue.report(node.report(held))
    waiting.queue.post([replace(node.order(ActionKind.RESTORE, "GPU-b"), key="back")])
    node.seconds(800)
    node.worker.receive(waiting.queue.for_host("node-1"))
    node.seconds(200)
    assert node.watts == 500, "its lease was renewed"
    later = replace(node.order(gpu="GPU-b", power_limit_watts="500"), key="later")
    rig.queue.post([later])
    node.worker.receive([each for each in rig.queue.for_host("node-1") if each.key == "later"])
    node.seconds(2)
    assert node.power.limit_mw["GPU-b"] == 500_000


def test_a_dry_run_asks_every_rank_and_takes_nothing_back(tmp_path: Path) -> None:
    rig = QueueRig()
    rig.executor = NodeAgents(rig.queue, rig.clock, dry_run=True)
    decision = rig.decision(ranks=written(ALL))
    assert rig.executor.execute(decision).pending
    orders = [*rig.queue.for_host("node-0"), *rig.queue.for_host("node-1")]
    assert all(order.parameters.dry_run for order in orders)
    for order in orders:
        rig.say(order, OrderState.RESTORED, "dry run: would do it")
    result = rig.executor.execute(decision)
    assert (result.ok, result.pending, result.lasting, result.detail) == (True, False, False, "dry run: would do it")
    assert rig.executor.verify(decision, view()) is None
    assert rig.queue.for_host("node-0") == []


def test_what_a_dry_run_takes_back_is_a_dry_run_too(rig: QueueRig) -> None:
    rig.executor = NodeAgents(rig.queue, rig.clock, dry_run=True)
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.clock.advance(HOUR)
    late = rig.executor.execute(decision)
    assert (late.ok, late.certain, "took no order in time" in late.detail) == (False, True, True)
    (back,) = rig.queue.for_host("node-0")
    assert (back.action, encode(back.parameters)) == (ActionKind.RESTORE, {"of": "heat", "dry_run": "true"})


def test_an_order_that_a_node_puts_behind_a_newer_brain_waits_for_its_own_to_act_again(tmp_path: Path) -> None:
    rig = QueueRig()
    decision = rig.decision(ActionKind.THROTTLE, HOT, power_limit_watts="500")
    node = Node(tmp_path / "limits", power=FakePower((HOT,)))
    node.rename("node-0")
    node.worker.receive([replace(node.order(ActionKind.RESTORE, HOT), host="node-0", epoch=T0 + 5)])
    rig.queue.epoch = T0
    assert rig.executor.execute(decision).pending
    for _ in range(2):
        node.worker.receive(rig.queue.for_host("node-0"))
        for report in node.worker.reports():
            rig.queue.report(report)
            node.worker.acknowledge(report)
        waits = rig.executor.execute(decision)
        assert (waits.pending, "older brain" in waits.detail) == (True, True)
    rig.clock.advance(10)
    rig.queue.renew_epoch()
    node.worker.receive(rig.queue.for_host("node-0"))
    node.seconds(1)
    for report in node.worker.reports():
        rig.queue.report(report)
    done = rig.executor.execute(decision)
    assert (done.ok, done.pending, node.power.limit_mw[HOT]) == (True, False, 500_000)


def test_one_that_is_outranked_to_its_end_fails_with_the_remedy_and_nothing_done(rig: QueueRig) -> None:
    decision = rig.decision()
    rig.executor.execute(decision)
    rig.say(rig.queue.for_host("node-0")[0], OrderState.OUTRANKED, "from an older brain: remove the file")
    rig.clock.advance(HOUR)
    assert rig.queue.for_host("node-0") == []
    result = rig.executor.execute(decision)
    assert (result.ok, result.pending, result.certain) == (False, False, True)
    assert "remove the file" in result.detail


def test_the_brain_that_took_over_is_followed_whatever_its_journal(tmp_path: Path) -> None:
    node = Node(tmp_path / "limits", power=FakePower(("GPU-a", "GPU-b")))
    first = open_queue(NodeSettings(), node.clock)
    assert first.epoch == T0
    waited = OrderService(open_queue(NodeSettings(), node.clock), OwnMetrics())
    waited.renew_epoch()
    assert waited.queue.epoch == T0 + 1, "two in one millisecond differ"
    node.clock.advance(MINUTE)
    first.renew_epoch()
    first.post([node.order(gpu="GPU-b", power_limit_watts="500")])
    node.worker.receive(first.for_host("node-1"))
    node.clock.advance(MINUTE)
    waited.renew_epoch()
    taken_over = node.order(power_limit_watts="500")
    waited.queue.post([taken_over])
    node.worker.receive(waited.queue.for_host("node-1"))
    node.seconds(2)
    assert node.state(taken_over) is OrderState.APPLIED
    old = replace(node.order(power_limit_watts="400"), key="old")
    first.post([old])
    node.worker.receive(first.for_host("node-1"))
    assert node.state(old) is OrderState.OUTRANKED


def test_the_order_service_halts_its_queue() -> None:
    clock = ManualClock(T0)
    service = OrderService(open_queue(NodeSettings(), clock), OwnMetrics())
    service.queue.post([order(HOT)])
    service.halt(True)
    assert service.orders("node-0") == []
    service.halt(False)
    assert [each.gpu for each in service.orders("node-0")] == [HOT]


def test_an_order_that_was_forgotten_in_between_is_closed_without_an_error(
    rig: QueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_queue, "KEPT", 1)
    rig.queue.post([order(HOT)])
    keys = [each.order.key for each in rig.queue.on_gpu(HOT, ActionKind.THROTTLE)]
    rig.say(order(HOT), OrderState.RESTORED)
    rig.queue.post([order("GPU-0-1")])
    assert rig.queue.standing(keys[0]) is None
    rig.queue.close([*keys, order("GPU-0-1").key])
    assert rig.queue.for_host("node-0") == []


def test_a_job_over_two_agents_from_order_to_restore(rig: QueueRig, tmp_path: Path) -> None:
    """Board, executor and a real worker: the hot GPU leads, the other follows, and both are given back."""
    ranks = (Rank("node-1", "GPU-a"), Rank("node-1", "GPU-b"))
    node = Node(tmp_path / "limits", power=FakePower(("GPU-a", "GPU-b")))
    node.power.celsius["GPU-a"] = 84.0
    decision = replace(
        rig.decision(), parameters=ThrottleParameters(ranks=ranks, context=DecisionContext(host="node-1"))
    )

    def turn(seconds: int) -> None:
        for _ in range(seconds):
            node.worker.receive(rig.queue.for_host("node-1"))
            node.seconds(1)
            for report in node.worker.reports():
                rig.queue.report(report)
                node.worker.acknowledge(report)

    rig.executor.execute(decision)
    turn(10)
    assert not rig.executor.execute(decision).pending
    assert node.power.limit_mw["GPU-a"] == node.power.limit_mw["GPU-b"] == 597_500
    back = rig.executor.inverse(decision)
    assert back is not None
    rig.executor.execute(back)
    turn(3)
    assert rig.executor.execute(back).ok
    assert set(node.power.limit_mw.values()) == {700_000}
