"""Fresh data, live cause, confirmations, boot grace, time box."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.guards.base import evaluate, worst
from tocsin.actions.model.view import Confirmations, FleetView, GpuView
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.decision import Decision, DecisionState, Rank, Ruling, ThrottleParameters, Verdict
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import TICK, World, finding, settings
from tocsin_testing.builders import T0


def _case(world: World) -> tuple[FleetView, Decision]:
    world.break_gpu("GPU-0-0")
    world.step()
    return world.view(), world.only().decision


def _says(guard: str, decision: Decision, view: FleetView, now_ms: int | None = None) -> Verdict:
    verdicts = evaluate(decision, view, view.now_ms if now_ms is None else now_ms)
    return next(v for v in verdicts if v.guard == guard)


@pytest.fixture
def world() -> World:
    return World(settings(confirmations=1000))


@pytest.mark.parametrize(
    ("age_ms", "ruling"),
    [
        (0, Ruling.ALLOW),
        (120 * SECOND, Ruling.ALLOW),
        (121 * SECOND, Ruling.HOLD),
        (-5 * MINUTE, Ruling.ALLOW),
        (-6 * MINUTE, Ruling.HOLD),
        (None, Ruling.HOLD),
    ],
)
def test_fresh_data(world: World, age_ms: int | None, ruling: Ruling) -> None:
    view, decision = _case(world)
    gpu = view.gpus["GPU-0-0"].gpu
    read_ms = None if age_ms is None else view.now_ms - age_ms
    aged = replace(view, gpus={**view.gpus, gpu.uuid: GpuView(gpu, read_ms)})
    assert _says("fresh_data", decision, aged).ruling is ruling


def test_a_host_needs_more_than_half_of_its_gpus_fresh(world: World) -> None:
    view, decision = _case(world)
    host = replace(decision, subject=Subject(SubjectKind.HOST, "node-0"))
    assert _says("fresh_data", host, view).ruling is Ruling.ALLOW
    half = replace(view, gpus={**view.gpus, "GPU-0-1": GpuView(view.gpus["GPU-0-1"].gpu, None)})
    assert "1 of 2 GPUs" in _says("fresh_data", host, half).reason


@pytest.mark.parametrize(
    ("age_ms", "word"), [(0, ""), (120 * SECOND, ""), (10 * MINUTE, "may be over"), (-6 * MINUTE, "future")]
)
def test_a_cause_from_replayed_history_is_not_acted_on(world: World, age_ms: int, word: str) -> None:
    view, decision = _case(world)
    root = replace(view.findings[decision.findings[0]], last_ms=view.now_ms - age_ms)
    verdict = _says("still_live", decision, replace(view, findings={root.id: root}))
    assert (verdict.ruling is Ruling.HOLD, word in verdict.reason) == (bool(word), True)


def test_a_cause_that_is_gone_holds(world: World) -> None:
    view, decision = _case(world)
    assert "not seen any more" in _says("still_live", decision, replace(view, findings={})).reason


def test_giving_back_waits_for_the_cause_to_be_gone(world: World) -> None:
    view, decision = _case(world)
    undo = replace(decision, action=ActionKind.UNCORDON)
    assert _says("still_live", undo, view).ruling is Ruling.HOLD
    assert _says("still_live", undo, replace(view, findings={})).ruling is Ruling.ALLOW


def test_evidence_counts_consecutive_confirmations() -> None:
    world = World(settings(confirmations=3))
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.verdict("evidence").reason == "seen 1 of 3 consecutive times"
    world.step()
    assert world.executor.done == []
    world.step()
    assert len(world.executor.done) == 1


def test_an_evaluation_that_comes_twice_confirms_once() -> None:
    counts = Confirmations()
    fault = finding(Subject(SubjectKind.GPU, "g"))
    for at_ms, seen in ((T0, 1), (T0, 1), (T0 + TICK, 2), (T0 + TICK, 2)):
        assert counts.update([fault], at_ms)[fault.id] == seen
    assert counts.update([], T0 + 2 * TICK) == {}
    assert counts.update([fault], T0 + 3 * TICK)[fault.id] == 1


def test_boot_grace_only_watches_after_every_start() -> None:
    world = World(settings(boot_grace_seconds=60.0))
    world.break_gpu("GPU-0-0")
    world.step()
    assert world.verdict("boot_grace").until_ms == world.started_ms + MINUTE
    world.step(advance=MINUTE)
    assert len(world.executor.done) == 1
    world.restart()
    world.break_gpu("GPU-1-0")
    world.step()
    assert len(world.executor.done) == 1


def test_a_finding_not_yet_seen_after_a_restart_expires_nothing() -> None:
    world = World(settings(boot_grace_seconds=60.0))
    world.break_gpu("GPU-0-0")
    world.step()
    world.restart()
    fault = world.faults.pop("hot|GPU-0-0")
    world.step()
    assert world.only().state is DecisionState.HELD
    world.faults["hot|GPU-0-0"] = fault
    world.step(advance=MINUTE)
    assert len(world.executor.done) == 1


def test_a_decision_whose_cause_ended_expires() -> None:
    world = World(settings(confirmations=5))
    world.break_gpu("GPU-0-0")
    world.step()
    world.faults.clear()
    report = world.step()
    assert world.only().state is DecisionState.EXPIRED
    assert world.only().reason == "its cause ended"
    assert report.ended == (world.only().decision.id,)


def test_time_box(world: World) -> None:
    view, decision = _case(world)
    assert _says("time_box", decision, view, decision.expires_ms - 1).ruling is Ruling.ALLOW
    assert _says("time_box", decision, view, decision.expires_ms).ruling is Ruling.DENY


def test_an_expired_decision_whose_cause_lives_is_followed_by_one_with_a_new_key() -> None:
    world = World(settings(confirmations=10_000))
    world.break_gpu("GPU-0-0")
    world.step()
    first = world.only().decision
    world.step(advance=HOUR)
    world.step()
    states = {s.decision.key: s.state for s in world.loop.statuses() if s.decision.action is ActionKind.CORDON}
    assert states == {first.key: DecisionState.EXPIRED, f"{first.key}|2": DecisionState.HELD}


def test_what_is_only_observed_is_not_decided_again() -> None:
    world = World(settings(mode="observe"))
    world.break_gpu("GPU-0-0")
    world.step()
    for _ in range(3):
        world.step(advance=HOUR)
    assert world.only().state is DecisionState.EXPIRED


def test_a_key_that_has_been_started_is_denied(world: World) -> None:
    view, decision = _case(world)
    started = replace(view, controls=replace(view.controls, started={decision.key: T0}))
    denied = _says("not_done", decision, started)
    reason = "already started at 2026-11-18T11:06:40.000Z"
    assert (denied.guard, denied.ruling, denied.reason) == ("not_done", Ruling.DENY, reason)


@pytest.mark.parametrize(
    ("watts", "ranks", "ruling"),
    [
        (None, ("GPU-0-0", "GPU-0-1"), Ruling.HOLD),
        (500.0, ("GPU-0-0", "GPU-0-1"), Ruling.ALLOW),
        (None, ("GPU-0-1", "GPU-0-2"), Ruling.ALLOW),
    ],
)
def test_a_gpu_that_is_throttled_with_its_job_is_not_throttled_again(
    world: World, watts: float | None, ranks: tuple[str, str], ruling: Ruling
) -> None:
    view, decision = _case(world)
    mine = replace(decision, action=ActionKind.THROTTLE)
    limit = ThrottleParameters(ranks=tuple(Rank("node-0", uuid) for uuid in ranks), power_limit_watts=watts)
    about = replace(decision.subject, name="GPU-0-1")
    other = replace(mine, key="other", subject=about, parameters=limit)
    standing = replace(view, controls=replace(view.controls, effects={other.key: other}))
    assert _says("not_done", mine, standing).ruling is ruling


def test_worst_is_deny_before_hold_before_allow() -> None:
    allow, hold, deny = (Verdict("x", r) for r in (Ruling.ALLOW, Ruling.HOLD, Ruling.DENY))
    assert worst([]) is Ruling.ALLOW
    assert worst([allow, hold, allow]) is Ruling.HOLD
    assert worst([hold, deny, allow]) is Ruling.DENY
