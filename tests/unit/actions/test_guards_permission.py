"""Mode, pause, managed, opt-out, hold-off and approval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.guards.permission import hold_off
from tocsin.actions.loop.decide import decide
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import DecisionState, Mode, Ruling, ScaleInParameters
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World, finding, fleet, settings


def test_observe_holds_every_action_and_says_what_would_have_been_done() -> None:
    world = World(settings(mode=Mode.OBSERVE))
    world.break_gpu("GPU-0-0")
    world.step()
    verdict = world.verdict("mode")
    assert (verdict.ruling, "would have been done" in verdict.reason) == (Ruling.HOLD, True)
    assert world.executor.done == []
    assert [d.action for d in world.notifier.told] == [ActionKind.NOTIFY]
    assert "intended: cordon GPU-0-0 on node-0, observe mode" in world.notifier.told[0].sentence


def test_a_rule_in_observe_is_held_in_a_service_that_acts() -> None:
    world = World()
    world.policy = type(world.policy)(world.policy.settings, {"hot": Mode.OBSERVE})
    world.restart()
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.verdict("mode").ruling is Ruling.HOLD


def test_a_rule_cannot_go_further_than_the_service() -> None:
    world = World(settings(mode=Mode.OBSERVE))
    world.policy = type(world.policy)(world.policy.settings, {"hot": Mode.ACT})
    world.restart()
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.executor.done == []


def test_a_new_mode_reaches_decisions_that_wait() -> None:
    world = World(settings(mode=Mode.OBSERVE))
    world.break_gpu("GPU-0-0")
    world.step()
    world.policy = type(world.policy)(settings(mode=Mode.ACT))
    world.restart()
    world.step()
    assert world.only().decision.mode is Mode.ACT
    assert len(world.executor.done) == 1


def test_pause_holds_until_resume_and_names_the_person() -> None:
    world = World()
    world.loop.operator.pause("ann", "power works")
    world.break_gpu("GPU-0-0")
    world.step()
    assert "paused by ann" in world.verdict("pause").reason
    assert "power works" in world.verdict("pause").reason
    assert world.executor.done == []
    assert len(world.notifier.told) == 1
    with pytest.raises(Conflict, match="already paused by ann"):
        world.loop.operator.pause("bob")
    world.loop.operator.resume("bob")
    world.step()
    assert len(world.executor.done) == 1
    with pytest.raises(Conflict, match="not paused"):
        world.loop.operator.resume("bob")


def test_pause_survives_a_restart() -> None:
    world = World()
    world.loop.operator.pause("ann")
    world.restart()
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.executor.done == []


def test_nothing_is_managed_without_pool_or_label() -> None:
    world = World(settings(managed_pools=[]))
    world.break_gpu("GPU-0-0")
    world.step()
    verdict = world.verdict("managed")
    assert verdict.ruling is Ruling.HOLD
    assert "tocsin.io/managed=true" in verdict.reason


def test_one_unmanaged_neighbour_keeps_its_host_from_being_cordoned() -> None:
    gpus = fleet(labels={"tocsin.io/managed": "true"})
    gpus["GPU-0-1"] = fleet()["GPU-0-1"]
    world = World(settings(managed_pools=[]), gpus)
    world.break_gpu("GPU-0-0")
    world.break_gpu("GPU-1-0")
    world.step()
    assert [key.split("|")[1] for key in world.executor.done] == ["gpu:GPU-1-0"]


@pytest.mark.parametrize(("label", "held"), [("true", True), ("True ", True), ("false", False), ("", False)])
def test_opt_out_label_outranks_a_managed_pool(label: str, held: bool) -> None:
    world = World(gpus=fleet(labels={"tocsin.io/opt-out": label}))
    world.break_gpu("GPU-0-0")
    world.step()
    assert (world.verdict("opt_out").ruling is Ruling.HOLD) == held


def test_propose_waits_for_a_named_person() -> None:
    world = World(settings(mode=Mode.PROPOSE))
    world.break_gpu("GPU-0-0")
    world.step()
    identity = world.only().decision.id
    assert identity in world.verdict("approval").reason
    with pytest.raises(InputError, match="actor"):
        world.loop.operator.approve(identity, " ")
    world.loop.operator.approve(identity, "ann")
    assert world.only().state is DecisionState.APPROVED
    with pytest.raises(Conflict, match="already approved by ann"):
        world.loop.operator.approve(identity, "bob")
    world.step()
    assert world.only().state is DecisionState.VERIFYING
    assert world.only().approved_by == "ann"
    with pytest.raises(Conflict, match="already verifying"):
        world.loop.operator.approve(identity, "ann")


def test_approval_survives_a_restart_and_other_guards_are_asked_again() -> None:
    world = World(settings(mode=Mode.PROPOSE))
    world.break_gpu("GPU-0-0")
    world.step()
    world.loop.operator.approve(world.only().decision.id, "ann")
    world.restart()
    world.stale.add("GPU-0-0")
    world.step()
    assert world.verdict("fresh_data").ruling is Ruling.HOLD
    assert world.only().state is DecisionState.APPROVED
    world.stale.clear()
    world.step()
    assert len(world.executor.done) == 1


def test_approval_is_refused_where_it_is_pointless() -> None:
    world = World(settings(mode=Mode.OBSERVE))
    world.break_gpu("GPU-0-0")
    world.step()
    with pytest.raises(Conflict, match="observe"):
        world.loop.operator.approve(world.only().decision.id, "ann")
    with pytest.raises(Conflict, match="no decision"):
        world.loop.operator.approve("0" * 16, "ann")
    with pytest.raises(Conflict, match="only notifies"):
        world.loop.operator.approve(world.only(ActionKind.NOTIFY).decision.id, "ann")


def test_an_expired_proposal_is_not_approved() -> None:
    world = World(settings(mode=Mode.PROPOSE, time_box_seconds=60.0))
    world.break_gpu("GPU-0-0")
    world.step()
    world.clock.advance(60_000)
    with pytest.raises(Conflict, match="expired"):
        world.loop.operator.approve(world.only().decision.id, "ann")


def test_rejection_is_final_and_starts_a_hold_off_of_the_subject() -> None:
    world = World(settings(mode=Mode.PROPOSE, hold_off_seconds=3600.0))
    world.break_gpu("GPU-0-0")
    world.step()
    identity = world.only().decision.id
    world.loop.operator.reject(identity, "ann", "not now")
    assert world.only().state is DecisionState.REJECTED
    with pytest.raises(Conflict, match="already rejected"):
        world.loop.operator.reject(identity, "ann")
    world.break_gpu("GPU-0-0", rule="hotter")
    world.restart()
    world.step()
    later = next(s for s in world.loop.statuses() if s.decision.rule == "hotter" and s.decision.action != "notify")
    verdict = next(v for v in later.verdicts if v.guard == "hold_off")
    assert (verdict.ruling, "ann" in verdict.reason) == (Ruling.HOLD, True)
    assert verdict.until_ms is not None
    assert verdict.until_ms - world.clock.now_ms() <= HOUR


def test_hold_off_of_a_host_covers_its_gpus_and_that_of_a_gpu_its_hosts_cordon() -> None:
    world = World()
    world.loop.operator.release(Subject(SubjectKind.HOST, "node-0"), "ann")
    world.loop.operator.release(Subject(SubjectKind.GPU, "GPU-1-0"), "ann")
    for uuid in ("GPU-0-0", "GPU-1-1", "GPU-2-0"):
        world.break_gpu(uuid)
    world.step()
    assert [key.split("|")[1] for key in world.executor.done] == ["gpu:GPU-2-0"]


def test_hold_off_of_a_host_covers_the_scale_in_that_would_take_it() -> None:
    world = World()
    world.loop.operator.release(Subject(SubjectKind.HOST, "node-1"), "ann")
    view = replace(world.view(), controls=world.loop.controls())
    pool = finding(Subject(SubjectKind.POOL, "default"), world.clock.now_ms(), action=ActionKind.SCALE_IN)
    world.faults["idle"] = pool
    (made,) = [
        one for one in decide(world.view().incidents, [], view, world.policy) if one.action is ActionKind.SCALE_IN
    ]
    rulings = [
        hold_off(replace(made, parameters=ScaleInParameters(node=node)), view, view.now_ms).ruling
        for node in ("node-0", "node-1")
    ]
    assert rulings == [Ruling.ALLOW, Ruling.HOLD]


def test_releasing_a_host_frees_it_cancels_the_incident_and_holds_off() -> None:
    world = World(settings(hold_off_seconds=60.0))
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step()
    assert len(world.loop.controls().effects) == 1
    world.loop.operator.release(Subject(SubjectKind.HOST, "node-0"), "ann", "looked at it")
    assert world.loop.controls().effects == {}
    world.step(advance=HOUR)
    world.step()
    assert len(world.executor.done) == 1


def test_an_unknown_subject_is_managed_by_nobody() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    view = world.view()
    empty = type(view)(view.now_ms, view.started_ms, {}, view.findings, view.incidents, view.confirmations)
    world.loop.step(empty, view.incidents, [])
    assert "none is managed" in world.verdict("managed").reason


def test_a_mig_instance_is_guarded_with_its_parent_and_by_its_own_label() -> None:
    gpus = fleet(hosts=1, per_host=1)
    part = Gpu("MIG-1", "node-0", parent="GPU-0-0", labels={"tocsin.io/opt-out": "true"})
    other = Gpu("MIG-2", "node-0", parent="GPU-0-0")
    world = World(gpus={**gpus, part.uuid: part, other.uuid: other})
    world.break_gpu("MIG-1", action=ActionKind.RESET_GPU)
    world.step()
    assert "MIG-1 is labelled" in world.verdict("opt_out", ActionKind.RESET_GPU).reason
    world.faults.clear()
    world.break_gpu("MIG-2", action=ActionKind.RESET_GPU)
    view = world.step() and world.view()
    assert [view.whole(uuid).gpu.uuid for uuid in ("MIG-1", "GPU-0-0")] == ["GPU-0-0", "GPU-0-0"]
    assert len(view.physical) == 1
    assert len(world.executor.done) == 1


def test_a_host_that_is_given_back_is_not_taken_out_at_once() -> None:
    world = World(settings(settle_seconds=60.0))
    world.break_gpu("GPU-0-0")
    for _ in range(8):
        world.step(advance=15_000)
    world.faults.clear()
    while len(world.executor.done) < 2:
        world.step(advance=15_000)
    world.break_gpu("GPU-0-1")
    world.step(advance=15_000)
    waiting = next(one for one in world.loop.statuses() if one.decision.subject.name == "GPU-0-1" and one.verdicts[1:])
    assert "uncordon runs on the host" in [verdict.reason for verdict in waiting.verdicts]
    for _ in range(8):
        world.step(advance=15_000)
    assert len(world.executor.done) == 3
