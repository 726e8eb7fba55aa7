"""Notifications go out in every mode, once, and are not lost while the receiver is away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.model.policy import Policy
from tocsin.actions.notifications.channel import Delivery, Phase
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.decision import DecisionState, Mode, OutcomeStatus
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin_testing.action_world import World, incident, settings
from tocsin_testing.notify_world import FakeChannel, NotifyWorld

AWAY = Delivery(False, "cannot connect", 1)
REFUSED = Delivery(False, "answered 400", 1, again=False)


@pytest.mark.parametrize("mode", list(Mode))
def test_they_go_out_in_every_mode_paused_tripped_unmanaged_and_in_boot_grace(mode: Mode) -> None:
    world = World(settings(mode=mode, managed_pools=[], boot_grace_seconds=HOUR / 1000, breaker_root_causes=1))
    world.loop.operator.pause("ann")
    world.stale.update(world.gpus)
    world.break_gpu("GPU-0-0")
    world.step()
    assert [d.action for d in world.notifier.told] == [ActionKind.NOTIFY]
    assert world.executor.done == []


def test_each_goes_out_once_also_over_restarts() -> None:
    world = World()
    world.break_gpu("GPU-0-0")
    for _ in range(3):
        world.step()
        world.restart()
    assert len(world.notifier.told) == 1


def test_a_fault_that_ended_before_the_receiver_came_back_is_still_told() -> None:
    world = World(settings(mode="observe"))
    world.notifier.delivery = AWAY
    world.break_gpu("GPU-0-0")
    world.step()
    world.faults.clear()
    world.step()
    world.notifier.delivery = Delivery(True, "told", 1)
    world.restart()
    world.step()
    assert len(world.notifier.told) == 1


def test_a_dead_receiver_costs_one_try_a_step_and_rests_grow() -> None:
    world = World(settings(mode="observe"))
    world.notifier.delivery = AWAY
    for host in range(4):
        world.break_gpu(f"GPU-{host}-0")
    world.step()
    assert world.notifier.tries == 1
    world.step(advance=100)
    assert world.notifier.tries == 1
    report = world.step(advance=400)
    assert world.notifier.tries == 2
    assert report.counts["notification_tries_failed"] == 2
    world.notifier.delivery = Delivery(True, "told", 1)
    world.step()
    assert len(world.notifier.told) == 4
    assert max(e.payload["outcome"]["attempts"] for e in world.journal.of(EntryKind.NOTIFICATION)) == 3  # type: ignore[index]


def test_a_receiver_that_never_answers_ends_as_failed_and_is_counted() -> None:
    world = World(settings(mode="observe", time_box_seconds=60.0))
    world.notifier.delivery = AWAY
    world.break_gpu("GPU-0-0")
    world.step()
    report = world.step(advance=60_000)
    status = world.only(ActionKind.NOTIFY)
    assert status.state is DecisionState.FAILED
    assert status.outcome is not None
    assert (status.outcome.status, status.outcome.attempts) == (OutcomeStatus.FAILED, 2)
    assert report.counts["notifications_lost"] == 1


def test_after_long_downtime_each_still_has_a_try() -> None:
    world = World(settings(mode="observe"))
    world.notifier.delivery = AWAY
    world.break_gpu("GPU-0-0")
    world.step()
    world.clock.advance(9 * HOUR)
    world.notifier.delivery = Delivery(True, "told", 1)
    world.restart()
    world.step()
    assert len(world.notifier.told) == 1


def test_what_the_receiver_refuses_is_lost_at_once_and_the_next_goes_on() -> None:
    world = World(settings(mode="observe"))
    world.notifier.delivery = REFUSED
    world.break_gpu("GPU-0-0")
    world.break_gpu("GPU-1-0")
    report = world.step()
    assert world.notifier.tries == 2
    assert report.counts["notifications_lost"] == 2


def test_what_was_told_ends_with_the_incident_and_not_with_its_first_cause() -> None:
    channel = FakeChannel("alerts", keyed=True)
    made = NotifyWorld(channel)
    world = made.world
    world.policy = Policy(settings(mode="observe", boot_grace_seconds=0))
    made.restart()
    root, effect = world.break_gpu("GPU-0-0"), world.break_gpu("GPU-1-0", rule="sympathetic")
    open_one = incident(root, effect)
    world.loop.step(world.view(), [open_one], [])
    del world.faults["hot|GPU-0-0"]
    world.clock.advance(MINUTE)
    world.loop.step(world.view(), [replace(open_one, cleared=(root.id,))], [])
    assert channel.told(Phase.RESOLVED) == []
    world.faults.clear()
    world.clock.advance(MINUTE)
    world.loop.step(world.view(), [], [])
    assert channel.told(Phase.RESOLVED) == channel.told(Phase.FIRING)
    assert len(channel.told(Phase.FIRING)) == 1
