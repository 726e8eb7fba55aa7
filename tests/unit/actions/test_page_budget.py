"""Two pages in 12 hours for a receiver, whatever the fleet: hard faults page always, the rest is told in one."""

from __future__ import annotations

import json
from typing import Any

from tocsin.actions.notifications.alertmanager import Alertmanager
from tocsin.actions.notifications.channel import Message, Phase, text_of
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.finding import Category, Severity
from tocsin_testing.notify_world import LINKS, FakeChannel, NotifyWorld, means

HARD: dict[str, Any] = {"category": Category.HARDWARE, "severity": Severity.CRITICAL}
SOFT: dict[str, Any] = {"category": Category.CAPACITY, "severity": Severity.CRITICAL, "rule": "maintenance_notice"}
GPUS = [f"GPU-{host}-{place}" for host in range(4) for place in range(2)]


def rig(*channels: FakeChannel) -> NotifyWorld:
    return NotifyWorld(*(channels or (FakeChannel("chat"),)), pages=2)


def levels(channel: FakeChannel) -> list[tuple[AlertLevel, int]]:
    return [(one.level, len(one.decisions)) for one in channel.taken if one.phase is Phase.FIRING]


def test_what_exceeds_the_budget_is_one_summary_page_and_warnings_after_it() -> None:
    world = rig()
    (channel,) = world.channels
    for gpu in GPUS[:5]:
        world.world.break_gpu(gpu, **SOFT)
    world.world.step()
    assert sorted(levels(channel)) == [(AlertLevel.PAGE, 1), (AlertLevel.PAGE, 1), (AlertLevel.PAGE, 3)]
    world.world.break_gpu(GPUS[5], **SOFT)
    world.world.step(advance=HOUR)
    assert levels(channel)[3:] == [(AlertLevel.WARNING, 1)]
    assert "WARNING" in text_of(channel.taken[-1], LINKS, "en").title
    assert len({key for one in channel.taken for key in (each.key for each in one.decisions)}) == 6, "nothing is lost"


def test_hard_faults_page_each_and_use_the_budget_up_first() -> None:
    world = rig()
    (channel,) = world.channels
    for gpu in GPUS[:4]:
        world.world.break_gpu(gpu, **HARD)
    world.world.break_gpu(GPUS[4], **SOFT)
    world.world.step()
    gathered = [one for one in channel.taken if one.gathered]
    assert [len(one.decisions) for one in gathered] == [1]
    assert len(channel.taken) == 5
    assert all(one.level is AlertLevel.PAGE for one in channel.taken)
    world.world.break_gpu(GPUS[5], **HARD)
    world.world.step(advance=MINUTE)
    assert (channel.taken[-1].level, channel.taken[-1].gathered) == (AlertLevel.PAGE, False)


def test_a_restart_forgets_no_page_and_twelve_hours_give_the_budget_back() -> None:
    world = rig()
    (channel,) = world.channels
    for gpu in GPUS[:3]:
        world.world.break_gpu(gpu, **SOFT)
    world.world.step()
    world.restart()
    world.world.break_gpu(GPUS[3], **SOFT)
    world.world.step(advance=HOUR)
    assert levels(channel)[-1] == (AlertLevel.WARNING, 1)
    world.restart()
    world.world.break_gpu(GPUS[4], **SOFT)
    world.world.step(advance=12 * HOUR)
    assert levels(channel)[-1] == (AlertLevel.PAGE, 1)
    assert not channel.taken[-1].gathered


def test_every_receiver_has_a_budget_of_its_own_and_warnings_need_none() -> None:
    first, second = FakeChannel("first"), FakeChannel("second")
    world = NotifyWorld(first, second, pages=2, second={"rules": ["other_*"]})
    for gpu in GPUS[:3]:
        world.world.break_gpu(gpu, **SOFT)
        world.world.break_gpu(gpu, **(SOFT | {"rule": "other_one", "severity": Severity.WARNING}))
    world.world.step()
    assert [level for level, _ in levels(first)].count(AlertLevel.WARNING) == 3
    assert [level for level, _ in levels(second)] == [AlertLevel.WARNING] * 3


def test_a_receiver_that_wants_pages_alone_gets_no_warning() -> None:
    channel = FakeChannel("oncall")
    world = NotifyWorld(channel, pages=2, oncall={"min_level": "page"})
    world.world.break_gpu(GPUS[0], **(SOFT | {"severity": Severity.WARNING}))
    world.world.break_gpu(GPUS[1], **HARD)
    world.world.step()
    assert levels(channel) == [(AlertLevel.PAGE, 1)]


def labels(sent: Message) -> dict[str, str]:
    """The labels by which an Alertmanager tells the alert of a message."""
    made = Alertmanager(means("alertmanager", labels={"notification": "mine"}))
    (alert,) = json.loads(made.encode([sent]).body)
    made.close()
    found: dict[str, str] = alert["labels"]
    return found


def test_the_end_of_one_summary_is_not_the_end_of_another() -> None:
    channel = FakeChannel("alerts", batch=100, keyed=True, refresh_seconds=60.0)
    world = rig(channel)
    for gpu in GPUS[:4]:
        world.world.break_gpu(gpu, **SOFT)
    world.world.step()
    for gpu in GPUS[4:6]:
        world.world.break_gpu(gpu, **SOFT)
    world.world.step(advance=HOUR)
    first, second = dict.fromkeys(one.key for one in channel.taken if one.gathered)
    world.restart()
    for gpu in GPUS[:4]:
        del world.world.faults[f"{SOFT['rule']}|{gpu}"]
    world.world.step(advance=HOUR)
    sent = [one for one in channel.taken if one.gathered]
    by_key = {key: [labels(one) for one in sent if one.key == key] for key in (first, second)}
    assert [len(told) > 1 for told in by_key.values()] == [True, True], "an end, and a reminder"
    assert all(one == told[0] for told in by_key.values() for one in told), "an alert keeps its labels"
    assert by_key[first][0] != by_key[second][0]
    assert [told[0]["level"] for told in by_key.values()] == ["page", "warning"], "beyond the one page for all of them"
    assert [one.key for one in sent if one.resolved] == [first]
