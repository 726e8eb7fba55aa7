"""Acknowledgements, snoozes and planned maintenance: their fold, their bounds, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tocsin.actions.guards.base import guards
from tocsin.actions.loop.silence_calls import BREAKER_MS
from tocsin.actions.model.decision_log import Ledger
from tocsin.actions.model.silences import KEPT_MS, MOST_STANDING, Silence, standing
from tocsin.actions.notifications.channel import Phase
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import (
    ActionParameters,
    Decision,
    MigrateParameters,
    Mode,
    Ruling,
    ScaleInParameters,
    ScaleOutParameters,
)
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind, Severity, Subject, SubjectKind
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin_testing.action_world import TICK, World, fleet, settings
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, FakeChannel, NotifyWorld

HOST = Matcher(MatcherKind.HOST, "node-0")
RACK = Matcher(MatcherKind.RACK, "rack-0")
CARD = "c1"


def stand(world: World) -> list[Silence]:
    return standing(world.loop.controls().silences, world.clock.now_ms())


# ---------------------------------------------------------------------- the fold


def test_what_people_said_survives_a_restart_and_a_checkpoint() -> None:
    world = World()
    calls = world.loop.silences
    calls.acknowledge(CARD, ["f1"], "ann", 2 * HOUR, "on my way", personal=True)
    calls.snooze(HOST, "bob", HOUR, levels={"f1": AlertLevel.PAGE})
    ended = calls.plan(RACK, "cid", T0 + HOUR, HOUR)
    calls.end(SilenceKind.MAINTENANCE, [ended.id], "dan")
    before = world.loop.controls().silences
    world.restart()
    assert world.loop.controls().silences == before
    assert Ledger.restored(world.loop.folded()).controls().silences == before
    assert [(one.actor, one.ended_by) for one in before] == [("ann", ""), ("bob", ""), ("cid", "dan")]
    assert (before[0].breaker_until_ms, before[1].breaker_until_ms) == (T0 + 2 * HOUR, 0)


def test_each_stands_from_its_start_to_its_end_on_the_injected_clock() -> None:
    world = World()
    world.loop.silences.plan(RACK, "ann", T0 + HOUR, 2 * HOUR)
    found = []
    for at_ms in (0, HOUR - 1, HOUR, 3 * HOUR - 1, 3 * HOUR):
        world.clock.advance(T0 + at_ms - world.clock.now_ms())
        found.append(len(stand(world)))
    assert found == [0, 0, 1, 1, 0]


def test_a_step_of_the_wall_clock_moves_a_while_and_no_plan() -> None:
    world = World()
    snoozed = world.loop.silences.snooze(HOST, "ann", HOUR)
    begun = world.loop.silences.plan(HOST, "ann", None, HOUR)
    planned = world.loop.silences.plan(RACK, "ann", T0 + DAY, HOUR)
    world.clock.set(world.clock.now_ms() + 3 * HOUR)
    now = {one.id: one for one in world.loop.controls().silences}
    assert now[snoozed.id].until_ms == snoozed.until_ms + 3 * HOUR
    assert now[begun.id].stands(world.clock.now_ms())
    assert now[planned.id] == planned


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda world: world.loop.silences.acknowledge(CARD, [], "ann", DAY + 1), "for_seconds"),
        (lambda world: world.loop.silences.snooze(HOST, "ann", 7 * DAY + 1), "for_seconds"),
        (lambda world: world.loop.silences.snooze(HOST, "ann", MINUTE - 1), "for_seconds"),
        (lambda world: world.loop.silences.plan(HOST, "ann", None, 7 * DAY + 1), "for_seconds"),
        (lambda world: world.loop.silences.plan(HOST, "ann", T0 + 14 * DAY + 1, HOUR), "start"),
        (lambda world: world.loop.silences.plan(HOST, "ann", T0 - HOUR, HOUR), "start"),
        (lambda world: world.loop.silences.snooze(HOST, "ann", HOUR, "w" * 501), "reason"),
        (lambda world: world.loop.silences.snooze(HOST, " ", HOUR), "actor"),
    ],
)
def test_bad_spans_reasons_and_names_are_refused(call: Callable[[World], object], field: str) -> None:
    world = World()
    with pytest.raises(InputError) as refused:
        call(world)
    assert refused.value.field == field
    assert not world.loop.controls().silences


def test_so_many_stand_and_no_more_and_old_ones_are_forgotten() -> None:
    world = World()
    for _ in range(MOST_STANDING):
        world.loop.silences.snooze(HOST, "ann", HOUR)
    with pytest.raises(InputError, match="500 silences stand"):
        world.loop.silences.plan(RACK, "ann", None, HOUR)
    world.clock.advance(HOUR)
    world.loop.silences.snooze(HOST, "ann", HOUR)
    assert len(world.loop.controls().silences) == MOST_STANDING + 1
    world.clock.advance(HOUR + KEPT_MS)
    last = world.loop.silences.snooze(HOST, "ann", HOUR)
    assert world.loop.controls().silences == (last,)


def test_what_does_not_stand_cannot_be_ended() -> None:
    world = World()
    one = world.loop.silences.snooze(HOST, "ann", HOUR)
    with pytest.raises(Conflict):
        world.loop.silences.end(SilenceKind.MAINTENANCE, [one.id], "ann")
    world.loop.silences.end(SilenceKind.SNOOZE, [one.id], "bob")
    with pytest.raises(Conflict):
        world.loop.silences.end(SilenceKind.SNOOZE, [one.id], "bob")
    assert [entry.actor for entry in world.journal.of(EntryKind.SILENCE_ENDED)] == ["bob"]


# ---------------------------------------------------------------------- notifications

MILD = {"severity": Severity.WARNING}


def told(channel: FakeChannel, phase: Phase = Phase.FIRING) -> list[int]:
    """How many notifications each message had."""
    return [len(one.decisions) for one in channel.taken if one.phase is phase]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_snoozed_waits_is_counted_and_is_told_in_one_where_it_still_stands(restarts: bool) -> None:
    channel = FakeChannel("chat")
    rig = NotifyWorld(channel)
    world = rig.world
    world.loop.silences.snooze(HOST, "ann", HOUR)
    for name, rule in (("GPU-0-0", "a"), ("GPU-0-1", "a"), ("GPU-0-0", "over"), ("GPU-1-0", "a")):
        world.break_gpu(name, rule=rule, **MILD)
    report = world.step()
    assert told(channel) == [1], "what lies outside is told at once"
    assert report.counts["withheld_snooze"] == 3
    assert world.step().counts["withheld_snooze"] == 3, "each is counted once"
    del world.faults["over|GPU-0-0"]
    if restarts:
        rig.restart()
    world.step(advance=HOUR)
    assert told(channel) == [1, 2]
    world.step()
    assert told(channel) == [1, 2]
    over = next(s for s in world.loop.statuses() if s.decision.rule == "over" and s.decision.action == "notify")
    assert over.outcome is not None
    assert "ended before it was told" in over.outcome.detail
    world.faults.clear()
    world.step()
    assert sorted(told(channel, Phase.RESOLVED)) in ([1, 2], []), "a chat hears of no end unless it is set to"


def test_each_alert_is_told_by_itself_at_alertmanager_and_a_firing_one_is_refreshed_on() -> None:
    channel = FakeChannel("am", batch=200, keyed=True, refresh_seconds=60.0)
    rig = NotifyWorld(channel)
    world = rig.world
    world.break_gpu("GPU-0-0", **MILD)
    world.step()
    world.loop.silences.snooze(HOST, "ann", HOUR)
    for rule in ("b", "c"):
        world.break_gpu("GPU-0-1", rule=rule, **MILD)
    world.step(advance=2 * MINUTE)
    assert told(channel) == [1, 1], "told once and refreshed, the new ones wait"
    del world.faults["hot|GPU-0-0"]
    world.step()
    assert told(channel, Phase.RESOLVED) == [1], "an end is told at once"
    world.step(advance=HOUR)
    assert told(channel)[2:] == [1, 1]


def test_a_late_message_is_tried_for_a_whole_time_box() -> None:
    channel = FakeChannel("chat")
    rig = NotifyWorld(channel)
    world = rig.world
    world.loop.silences.snooze(HOST, "ann", 6 * HOUR)
    world.break_gpu("GPU-0-0", **MILD)
    world.step()
    channel.raises = None
    channel.delivery = type(channel.delivery)(False, "away", 1)
    world.step(advance=6 * HOUR)
    assert channel.tries
    channel.delivery = type(channel.delivery)(True, "taken", 1)
    world.step(advance=HOUR // 2)
    assert told(channel) == [1]


def test_a_snoozed_cause_that_gets_worse_is_told() -> None:
    channel = FakeChannel("chat")
    world = NotifyWorld(channel).world
    root = world.break_gpu("GPU-0-0", **MILD)
    world.loop.silences.snooze(
        Matcher(MatcherKind.CARD, root.id), "ann", HOUR, causes=[root.id], levels={root.id: AlertLevel.WARNING}
    )
    world.loop.silences.snooze(HOST, "ann", HOUR, levels={root.id: AlertLevel.WARNING})
    world.step()
    assert told(channel) == []
    world.break_gpu("GPU-0-1")
    world.step()
    assert told(channel) == [1], "a page where only warnings were snoozed"


def test_an_acknowledgement_stops_escalations_of_its_cause_and_no_action() -> None:
    world = World(settings(settle_seconds=0.0))
    root = world.break_gpu("GPU-0-0")
    other = world.break_gpu("GPU-1-0")
    world.loop.silences.acknowledge(CARD, [root.id], "ann", HOUR)
    world.executor.result = type(world.executor.result)(False, "no", certain=True)
    for _ in range(3):
        world.step()
    assert {one.findings[0] for one in world.notifier.told} == {other.id}
    assert len(world.executor.done) >= 2, "actions go on"
    assert any(one.parameters.escalates for one in world.notifier.told)  # type: ignore[union-attr]
    world.loop.silences.end(SilenceKind.ACKNOWLEDGEMENT, [one.id for one in stand(world)], "ann")
    world.step()
    assert {one.findings[0] for one in world.notifier.told} == {other.id, root.id}


# ---------------------------------------------------------------------- planned maintenance


def decision_of(action: ActionKind, parameters: ActionParameters) -> Decision:
    """An action on the first GPU of the fleet."""
    subject = Subject(SubjectKind.GPU, "GPU-0-0", "node-0", "default")
    made = replace(DECISION, action=action, subject=subject, parameters=parameters)
    return replace(made, mode=Mode.ACT, findings=())


def test_planned_maintenance_holds_actions_on_what_lies_in_it_and_no_approval_passes() -> None:
    world = World(settings(mode="propose"), fleet(labels={"tier": "a"}))
    world.break_gpu("GPU-0-0")
    planned = world.loop.silences.plan(Matcher(MatcherKind.LABEL, "tier=a"), "ann", None, HOUR)
    world.step()
    assert not world.only().waits_for_person
    world.loop.operator.approve(world.only().decision.id, "bob")
    world.step()
    verdict = world.verdict("planned_maintenance")
    assert (verdict.ruling, verdict.until_ms) == (Ruling.HOLD, planned.until_ms)
    assert not world.executor.done
    world.loop.silences.end(SilenceKind.MAINTENANCE, [planned.id], "ann")
    world.step()
    assert len(world.executor.done) == 1


def test_an_action_waits_where_its_work_would_go_to_what_is_worked_on() -> None:
    world = World()
    moved = decision_of(ActionKind.MIGRATE, MigrateParameters(work=("4711",), to_host=(("node-1",),)))
    asked = next(one for one in guards() if one.name == "planned_maintenance")
    for name, ruling in (("node-0", Ruling.HOLD), ("node-1", Ruling.HOLD), ("node-2", Ruling.ALLOW)):
        made = world.loop.silences.plan(Matcher(MatcherKind.HOST, name), "ann", None, HOUR)
        view = replace(world.view(), controls=world.loop.controls())
        assert asked(moved, view, world.clock.now_ms()).ruling is ruling, name
        world.loop.silences.end(SilenceKind.MAINTENANCE, [made.id], "ann")


def test_a_host_that_is_worked_on_keeps_no_pool_from_growing() -> None:
    world = World()
    world.loop.silences.plan(HOST, "ann", None, HOUR)
    pool = Subject(SubjectKind.POOL, "default", pool="default")
    asked = next(one for one in guards() if one.name == "planned_maintenance")
    for parameters, ruling in (
        (ScaleOutParameters(gpus=8), Ruling.ALLOW),
        (ScaleInParameters(node="node-1"), Ruling.ALLOW),
        (ScaleInParameters(node="node-0"), Ruling.HOLD),
    ):
        wanted = replace(decision_of(parameters.action, parameters), subject=pool)
        view = replace(world.view(), controls=world.loop.controls())
        assert asked(wanted, view, world.clock.now_ms()).ruling is ruling


def test_what_is_undone_waits_as_well_and_the_host_beside_it_does_not() -> None:
    world = World(settings(settle_seconds=0.0))
    world.break_gpu("GPU-0-0")
    for _ in range(2):
        world.step()
    assert len(world.executor.done) == 1
    world.loop.silences.plan(HOST, "ann", None, HOUR)
    world.faults.clear()
    world.break_gpu("GPU-1-0")
    for _ in range(3):
        world.step()
    assert [key.partition("|gpu:")[2][:7] for key in world.executor.done] == ["GPU-0-0", "GPU-1-0"]
    held = [s for s in world.loop.statuses() if s.decision.action is ActionKind.UNCORDON]
    assert held
    assert any(v.guard == "planned_maintenance" and v.ruling is Ruling.HOLD for s in held for v in s.verdicts)


# ---------------------------------------------------------------------- on the word of another system


def test_a_request_begins_one_silence_for_good() -> None:
    """Also where a person has ended it, and over a restart: who sends it again changes nothing."""
    world = World()
    first = world.loop.silences.acknowledge(CARD, ["f1"], "ticket:ops", HOUR, request="r1")
    world.loop.silences.end(SilenceKind.ACKNOWLEDGEMENT, [first.id], "ann")
    for _ in range(2):
        again = world.loop.silences.acknowledge(CARD, ["f1"], "ticket:ops", HOUR, request="r1")
        assert (again.id, again.ended_by) == (first.id, "ann")
        world.restart()
    assert stand(world) == []
    assert world.loop.silences.acknowledge(CARD, ["f1"], "ticket:ops", HOUR, request="r2").id != first.id


def test_a_request_for_what_stands_already_adds_nothing_and_stretches_nothing() -> None:
    world = World()
    calls = world.loop.silences
    first = calls.acknowledge(CARD, ["f1", "f2"], "ticket:ops", HOUR, request="r1")
    world.clock.advance(HOUR // 2)
    assert calls.acknowledge(CARD, ["f1"], "ticket:ops", HOUR, request="r2") == first
    other = calls.acknowledge(CARD, ["f1"], "ticket:it", HOUR, request="r3")
    wider = calls.acknowledge(CARD, ["f1", "f3"], "ticket:ops", HOUR, request="r4")
    assert [one.id for one in stand(world)] == [first.id, other.id, wider.id]


LEVELS = {"f1": AlertLevel.WARNING, "f2": AlertLevel.WARNING}


def test_what_is_taken_for_over_is_hidden_once_however_often_that_is_said() -> None:
    world = World()

    def hide(request: str, **more: AlertLevel) -> Silence:
        return world.loop.silences.hide_once(CARD, LEVELS | more, "ticket:ops", 2 * HOUR, "", request=request)

    first = hide("r1")
    assert (first.kind, first.causes, first.until_ms) == (SilenceKind.SNOOZE, {"f1", "f2"}, T0 + 2 * HOUR)
    assert hide("r2") == first
    world.clock.advance(HOUR)
    world.loop.silences.end(SilenceKind.SNOOZE, [first.id], "ann")
    assert hide("r3").until_ms == T0 + 2 * HOUR, "counted from the first time"
    world.clock.advance(HOUR)
    world.restart()
    with pytest.raises(Conflict, match=r"ticket:ops has hidden card c1 for as long as it may since 2026-"):
        hide("r4")
    with pytest.raises(Conflict):
        hide("r5", f3=AlertLevel.WARNING)
    assert stand(world) == []
    fresh = world.loop.silences.hide_once("c9", {"f9": AlertLevel.NOTE}, "ticket:ops", HOUR, "", request="r6")
    other = world.loop.silences.hide_once(CARD, LEVELS, "ticket:it", HOUR, "", request="r7")
    assert [one.id for one in stand(world)] == [fresh.id, other.id]


# ---------------------------------------------------------------------- the breaker


def broken(hosts: int, **more: object) -> tuple[World, list[str]]:
    world = World(settings(breaker_root_causes=2, confirmations=2, **more))
    return world, [world.break_gpu(f"GPU-{host}-0").id for host in range(hosts)]


@pytest.mark.parametrize(("personal", "trips"), [(True, False), (False, True)])
def test_a_cause_is_kept_out_of_the_breaker_by_a_personal_token_alone(personal: bool, trips: bool) -> None:
    world, (first, _) = broken(2)
    world.loop.silences.acknowledge(CARD, [first], "ann", 2 * HOUR, personal=personal)
    for _ in range(3):
        world.step()
    assert (world.loop.controls().breaker is not None) is trips


def test_a_cause_counts_where_one_of_its_decisions_is_not_acknowledged() -> None:
    world, (first, _) = broken(2)
    world.break_gpu("GPU-0-1", rule="other")
    world.loop.silences.acknowledge(CARD, [first], "ann", 2 * HOUR, personal=True)
    for _ in range(3):
        world.step()
    assert world.loop.controls().breaker is not None


def test_a_cause_counts_again_when_the_acknowledgement_ends() -> None:
    world, (first, _) = broken(2, breaker_window_seconds=6 * 3600.0)
    made = world.loop.silences.acknowledge(CARD, [first], "ann", 2 * HOUR, personal=True)
    for _ in range(3):
        world.step()
    world.restart()
    world.step()
    assert world.loop.controls().breaker is None
    world.loop.silences.end(SilenceKind.ACKNOWLEDGEMENT, [made.id], "ann")
    world.step()
    breaker = world.loop.controls().breaker
    assert breaker is not None
    assert len(breaker.causes) == 2


def test_no_renewal_stretches_the_exemption_beyond_four_hours_from_the_first() -> None:
    world = World()
    calls = world.loop.silences
    first = calls.acknowledge(CARD, ["f1", "f2"], "ann", 3 * HOUR, personal=True)
    assert first.breaker_until_ms == T0 + 3 * HOUR
    world.clock.advance(2 * HOUR)
    again = calls.acknowledge("c2", ["f2", "f3"], "bob", 24 * HOUR, personal=True)
    assert (again.until_ms, again.breaker_until_ms) == (T0 + 26 * HOUR, T0 + BREAKER_MS)
    calls.end(SilenceKind.ACKNOWLEDGEMENT, [again.id], "bob")
    world.restart()
    world.clock.advance(10 * HOUR)
    late = world.loop.silences.acknowledge(CARD, ["f2"], "ann", HOUR, personal=True)
    assert late.breaker_until_ms == late.starts_ms
    other = world.loop.silences.acknowledge("c9", ["f9"], "ann", 24 * HOUR, personal=True)
    assert other.breaker_until_ms == other.starts_ms + BREAKER_MS


def test_what_planned_maintenance_holds_is_not_counted() -> None:
    world, _ = broken(2)
    world.loop.silences.plan(HOST, "ann", None, HOUR)
    for _ in range(3):
        world.step(advance=TICK)
    assert world.loop.controls().breaker is None
