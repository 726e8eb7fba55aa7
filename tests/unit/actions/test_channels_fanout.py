"""Several channels: each is told once, none waits for a dead one, ends are told, storms are summed up."""

from __future__ import annotations

import threading

import pytest

from tocsin.actions.loop.notifications import UNWANTED
from tocsin.actions.notifications.channel import Delivery, Phase, text_of
from tocsin.actions.notifications.fanout import ChannelQueue, FanOut, build_notifier, portions, wants
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.decision import DecisionState, NotifyParameters, OutcomeStatus
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Severity, Subject, SubjectKind
from tocsin_testing.action_world import World, fleet, settings
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, FakeChannel, NotifyWorld, channel_settings, message

AWAY = Delivery(False, "cannot connect", 1)
REFUSED = Delivery(False, "answered 404", 1, again=False)
TAKEN = Delivery(True, "taken", 1)


def _many(world: World, count: int, **more: object) -> None:
    for index in range(count):
        world.break_gpu(f"GPU-{index // 2}-{index % 2}", **more)


def test_every_channel_is_told_once_also_over_restarts() -> None:
    rig = NotifyWorld(FakeChannel("a"), FakeChannel("b"))
    rig.world.break_gpu("GPU-0-0")
    for _ in range(3):
        rig.world.step()
        rig.restart()
    assert [len(c.taken) for c in rig.channels] == [1, 1]
    status = rig.world.only(ActionKind.NOTIFY)
    assert status.state is DecisionState.DONE
    assert status.outcome is not None
    assert (status.outcome.executor, status.outcome.detail) == ("a,b", "a: taken; b: taken")
    assert rig.outcome("a", "delivered") == rig.outcome("b", "delivered") == 1


def test_a_dead_channel_holds_up_no_other_and_makes_none_repeat() -> None:
    rig = NotifyWorld(FakeChannel("dead"), FakeChannel("live"))
    dead, live = rig.channels
    dead.delivery = AWAY
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    rig.world.break_gpu("GPU-1-0")
    rig.world.step()
    rig.restart()
    rig.world.step()
    assert len(live.taken) == len(live.tries) == 2
    assert dead.taken == []
    assert {s.state for s in rig.world.loop.statuses() if s.decision.action is ActionKind.NOTIFY} == {
        DecisionState.HELD
    }
    dead.delivery = TAKEN
    rig.restart()
    report = rig.world.step()
    assert len(report.notified) == len(dead.taken) == 2
    assert len(live.tries) == 2


def test_what_one_channel_never_takes_is_delivered_by_the_other() -> None:
    rig = NotifyWorld(FakeChannel("refuses"), FakeChannel("takes"))
    rig.channels[0].delivery = REFUSED
    rig.world.break_gpu("GPU-0-0")
    report = rig.world.step()
    outcome = rig.world.only(ActionKind.NOTIFY).outcome
    assert outcome is not None
    assert outcome.status is OutcomeStatus.SUCCEEDED
    assert outcome.detail == "refuses: answered 404; takes: taken"
    assert (rig.outcome("refuses", "failed"), rig.outcome("takes", "delivered")) == (1, 1)
    assert "notifications_lost" not in report.counts


def test_only_what_no_channel_took_counts_as_lost() -> None:
    rig = NotifyWorld(FakeChannel("a"), FakeChannel("b"))
    rig.channels[0].delivery = REFUSED
    rig.channels[1].delivery = AWAY
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    report = rig.world.step(advance=2 * HOUR)
    status = rig.world.only(ActionKind.NOTIFY)
    assert status.state is DecisionState.FAILED
    assert status.outcome is not None
    assert status.outcome.attempts == 3
    assert report.counts["notifications_lost"] == 1
    assert (rig.outcome("a", "failed"), rig.outcome("b", "failed"), rig.outcome("b", "retried")) == (1, 1, 2)


def test_a_mistake_in_one_channel_is_its_own() -> None:
    rig = NotifyWorld(FakeChannel("broken"), FakeChannel("live"))
    rig.channels[0].raises = UnicodeError("odd")
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    outcome = rig.world.only(ActionKind.NOTIFY).outcome
    assert outcome is not None
    assert outcome.detail == "broken: unexpected UnicodeError: odd; live: taken"
    assert len(rig.channels[1].taken) == 1


def test_a_receiver_that_asks_for_rest_gets_it() -> None:
    rig = NotifyWorld(FakeChannel("busy"))
    rig.channels[0].delivery = Delivery(False, "answered 429", 1, rest_seconds=120.0)
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    for _ in range(7):
        rig.world.step(advance=15 * SECOND)
    assert len(rig.channels[0].tries) == 1
    rig.world.step(advance=15 * SECOND)
    assert len(rig.channels[0].tries) == 2


NOTHING = {"parameters": NotifyParameters()}


@pytest.mark.parametrize(
    ("fields", "decision", "taken"),
    [
        ({}, {}, True),
        ({"min_severity": "critical"}, {}, True),
        ({"min_severity": "critical"}, {"severity": Severity.WARNING}, False),
        ({"min_severity": "critical"}, {"severity": Severity.WARNING, "level": AlertLevel.PAGE}, True),
        ({}, {"severity": Severity.INFO}, False),
        ({"pools": ["train"]}, {}, True),
        ({"pools": ["serve"]}, {}, False),
        ({"pools": ["serve"]}, {"subject": Subject(SubjectKind.POOL, "serve")}, True),
        (
            {"pools": ["serve"]},
            {"subject": Subject(SubjectKind.FLEET, "fleet"), **NOTHING},
            True,
        ),
        ({"pools": ["train"]}, {"subject": Subject(SubjectKind.HOST, "node-7")}, True),
        (
            {"pools": ["train"]},
            {"subject": Subject(SubjectKind.HOST, "node-7"), **NOTHING},
            True,
        ),
        ({"rules": ["xid_*", "temperature_high"]}, {}, True),
        ({"rules": ["xid_*"]}, {}, False),
        ({"simulated": False}, {"simulated": True}, False),
        ({"simulated": False}, {}, True),
    ],
)
def test_routes_by_severity_pool_rule_and_world(
    fields: dict[str, object], decision: dict[str, object], taken: bool
) -> None:
    assert wants(channel_settings("slack", **fields), message(**decision).first) is taken


def test_what_no_channel_asks_for_is_recorded_and_ends() -> None:
    rig = NotifyWorld(FakeChannel("a"), a={"rules": ["other"]})
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    outcome = rig.world.only(ActionKind.NOTIFY).outcome
    assert outcome is not None
    assert (outcome.detail, outcome.executor) == (UNWANTED, "journal")
    assert rig.channels[0].tries == []


def test_an_end_is_told_once_where_the_receiver_knows_ends() -> None:
    rig = NotifyWorld(FakeChannel("pager", keyed=True), FakeChannel("room"))
    pager, room = rig.channels
    found = rig.world.break_gpu("GPU-0-0")
    rig.world.break_gpu("GPU-1-0")
    rig.world.step()
    rig.restart()
    rig.world.faults = {key: f for key, f in rig.world.faults.items() if f.id != found.id}
    rig.world.step()
    rig.restart()
    rig.world.step()
    assert [m.first.findings[0] for m in pager.taken if m.resolved] == [found.id]
    ended = next(m for m in pager.taken if m.resolved)
    assert ended.key in pager.told()
    assert ended.at_ms > ended.first.at_ms
    assert not any(m.resolved for m in room.taken)
    assert rig.outcome("pager", "resolved") == 1


def test_a_room_hears_of_ends_where_it_is_set_and_of_many_as_one() -> None:
    rig = NotifyWorld(FakeChannel("room"), room={"resolved": True, "per_minute": 4})
    _many(rig.world, 3)
    rig.world.step()
    rig.world.faults.clear()
    rig.world.step(advance=HOUR)
    assert [len(m.decisions) for m in rig.channels[0].taken if m.resolved] == [1, 1, 1]
    _many(rig.world, 8)
    rig.world.step(advance=HOUR)
    rig.world.faults.clear()
    rig.world.step(advance=HOUR)
    assert [len(m.decisions) for m in rig.channels[0].taken[-4:]] == [1, 1, 1, 5]
    assert rig.outcome("room", "resolved") == 11
    rig.world.step(advance=HOUR)
    assert len(rig.channels[0].tries) == 3 + 3 + 4 + 4


def test_nothing_is_taken_for_ended_while_a_new_brain_only_watches() -> None:
    rig = NotifyWorld(FakeChannel("pager", keyed=True))
    rig.world = World(settings(mode="observe", boot_grace_seconds=300.0))
    rig.restart()
    rig.world.break_gpu("GPU-0-0")
    rig.world.step(advance=6 * MINUTE)
    rig.restart()
    rig.world.faults.clear()
    rig.world.step()
    assert not any(m.resolved for m in rig.channels[0].taken)
    rig.world.step(advance=6 * MINUTE)
    assert [m.phase for m in rig.channels[0].taken] == [Phase.FIRING, Phase.RESOLVED]


def test_an_end_that_cannot_be_told_waits_and_is_given_up_after_a_time_box() -> None:
    rig = NotifyWorld(FakeChannel("pager", keyed=True))
    pager = rig.channels[0]
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    pager.delivery = AWAY
    rig.world.faults.clear()
    rig.world.step()
    rig.world.step(advance=10 * MINUTE)
    assert {m.at_ms for tried in pager.tries[1:] for m in tried} == {pager.tries[1][0].at_ms}
    rig.world.step(advance=HOUR)
    assert rig.outcome("pager", "unresolved") == 1
    tries = len(pager.tries)
    rig.world.step(advance=HOUR)
    assert len(pager.tries) == tries


def test_the_breakers_notification_ends_when_a_person_closes_it() -> None:
    rig = NotifyWorld(FakeChannel("pager", keyed=True))
    rig.world = World(settings(breaker_root_causes=1))
    rig.restart()
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    rig.world.step()
    tripped = [m.key for m in rig.channels[0].taken if m.first.rule == "breaker"]
    assert len(tripped) == 1
    rig.world.faults.clear()
    rig.world.loop.operator.reset_breaker("ann")
    rig.world.step()
    assert tripped[0] in [m.key for m in rig.channels[0].taken if m.resolved]


def test_a_receiver_that_forgets_is_reminded_and_at_once_after_a_restart() -> None:
    alerts = FakeChannel("alerts", batch=200, keyed=True, refresh_seconds=60.0)
    rig = NotifyWorld(alerts)
    _many(rig.world, 3)
    rig.world.step()
    assert [len(tried) for tried in alerts.tries] == [3]
    for _ in range(3):
        rig.world.step(advance=15 * SECOND)
    assert len(alerts.tries) == 1
    rig.world.step(advance=15 * SECOND)
    assert [len(tried) for tried in alerts.tries] == [3, 3]
    rig.restart()
    rig.world.step(advance=SECOND)
    assert len(alerts.tries) == 3
    notes = rig.world.journal.of(EntryKind.NOTIFICATION)
    assert len(notes) == 3
    rig.world.faults.clear()
    rig.world.step(advance=SECOND)
    rig.world.step(advance=HOUR)
    assert [m.phase for m in alerts.tries[3]] == [Phase.RESOLVED] * 3
    assert len(alerts.tries) == 4


def test_a_failed_reminder_is_no_lost_notification() -> None:
    alerts = FakeChannel("alerts", batch=200, keyed=True, refresh_seconds=60.0)
    rig = NotifyWorld(alerts)
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    alerts.delivery = AWAY
    report = rig.world.step(advance=2 * HOUR)
    assert "notifications_lost" not in report.counts
    assert rig.outcome("alerts", "retried") == 1
    alerts.delivery = TAKEN
    rig.world.step(advance=MINUTE)
    assert len(alerts.taken) == 2


def test_a_storm_is_told_in_a_bounded_number_of_messages_the_gravest_by_themselves() -> None:
    rig = NotifyWorld(FakeChannel("room"), room={"per_minute": 5})
    rig.world = World(settings(mode="observe"), fleet(hosts=40))
    rig.restart()
    _many(rig.world, 60, severity=Severity.WARNING)
    rig.world.break_gpu("GPU-39-1")
    report = rig.world.step()
    room = rig.channels[0]
    assert [len(m.decisions) for m in room.taken] == [1, 1, 1, 1, 57]
    assert room.taken[0].severity is Severity.CRITICAL
    assert len(report.notified) == len(set(room.told())) == 61
    assert (rig.outcome("room", "delivered"), rig.outcome("room", "summarised")) == (4, 57)
    rig.world.break_gpu("GPU-39-0")
    rig.world.step(advance=15 * SECOND)
    assert len(room.taken) == 5
    rig.world.step(advance=46 * SECOND)
    assert len(room.taken) == 6


def test_the_end_of_a_summary_is_told_when_all_of_it_has_ended() -> None:
    rig = NotifyWorld(FakeChannel("pager", keyed=True), pager={"per_minute": 1})
    _many(rig.world, 3)
    rig.world.step()
    (sent,) = rig.channels[0].taken
    rig.restart()
    last = dict(list(rig.world.faults.items())[2:])
    rig.world.faults = last
    rig.world.step(advance=2 * MINUTE)
    assert len(rig.channels[0].taken) == 1
    rig.world.faults = {}
    rig.world.step(advance=2 * MINUTE)
    ended = rig.channels[0].taken[1]
    assert (ended.key, ended.resolved, len(ended.decisions)) == (sent.key, True, 3)


def test_portions_keep_all_and_their_order() -> None:
    assert list(portions([1, 2, 3], None)) == [[1], [2], [3]]
    assert list(portions([1, 2, 3], 3)) == [[1], [2], [3]]
    assert list(portions([1, 2, 3], 2)) == [[1], [2, 3]]
    assert list(portions([1, 2, 3], 1)) == [[1, 2, 3]]
    assert list(portions([1, 2, 3], 0)) == []


def test_a_channel_that_hangs_costs_a_step_no_more_than_its_patience() -> None:
    class Hanging(FakeChannel):
        go = threading.Event()

        def send(self, messages):  # type: ignore[no-untyped-def]
            self.go.wait(30)
            return super().send(messages)

    world = World(settings(mode="observe"))
    hanging, live = Hanging("hanging"), FakeChannel("live")
    fan = FanOut([ChannelQueue(c, world.clock, None) for c in (hanging, live)], patience=0.05)
    world.notifier = fan  # type: ignore[assignment]
    world.restart()
    world.break_gpu("GPU-0-0")
    world.step()
    world.break_gpu("GPU-1-0")
    world.step()
    assert hanging.tries == []
    Hanging.go.set()
    fan.close()
    assert len(live.taken) == 2
    assert len(hanging.tries) == 1
    assert hanging.closed


def test_after_the_end_of_the_loop_nothing_is_sent() -> None:
    rig = NotifyWorld(FakeChannel("a"))
    rig.world.loop.close()
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    assert rig.channels[0].tries == []
    assert rig.world.only(ActionKind.NOTIFY).state is DecisionState.HELD


def test_built_of_settings() -> None:
    clock = ManualClock(T0)
    found = Settings.model_validate(
        {
            "webhook": {"url": "http://127.0.0.1:1/"},
            "notify": {
                "channels": [
                    {"name": "oncall", "kind": "pagerduty", "secret": "k"},
                    {"name": "alerts", "kind": "alertmanager", "url": "http://127.0.0.1:1"},
                ]
            },
        }
    )
    sender = WebhookSender(found.webhook, clock)
    fan = build_notifier(found, sender, clock)
    assert [(queue.name, queue.reports_end) for queue in fan.queues] == [
        ("webhook", False),
        ("oncall", True),
        ("alerts", True),
    ]
    fan.close()
    sender.close()
    (journal,) = build_notifier(Settings(), None, clock).queues
    assert journal.name == "journal"
    assert journal.channel.send([message()]).ok
    assert DECISION.key == message().key


def test_who_is_told_of_a_proposal_is_told_how_to_approve_it() -> None:
    room = FakeChannel("room")
    rig = NotifyWorld(room)
    rig.world = World(settings(mode="propose"))
    rig.restart()
    rig.world.break_gpu("GPU-0-0")
    rig.world.step()
    proposal = rig.world.only(ActionKind.CORDON).decision.id
    facts = dict(text_of(room.taken[0], LINKS, "en").facts)
    assert facts["to approve"] == f"tocsin approve {proposal}"
    rig.world.loop.operator.approve(proposal, "ann")
