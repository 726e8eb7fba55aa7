"""A ticket over the life of its fault: remembered over restarts, resolved once all of it is over, and never a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from tocsin.actions.model.decision_log import Ledger
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.notifications.channel import ChannelDependencies, build_channel
from tocsin.actions.notifications.fanout import ChannelQueue, FanOut, wants
from tocsin.actions.notifications.report import notice_of
from tocsin.config.notify import ChannelSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.decision import Mode, OutcomeStatus
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.queries.pager_journal import JournalSpan, journal_report
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import World, fleet, settings
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, FakeChannel, channel_settings
from tocsin_testing.ticket_doubles import JiraCloud

HARD: dict[str, Any] = {"category": Category.HARDWARE, "level": AlertLevel.PAGE}
SOFT: dict[str, Any] = {"category": Category.CAPACITY, "severity": Severity.CRITICAL, "rule": "maintenance_notice"}


class Rig:
    """A loop that tells by a ticket system and by a room."""

    def __init__(self, server: HTTPServer, **more: Any) -> None:
        self.jira, self.room = JiraCloud(), FakeChannel("room")
        self.metrics = OwnMetrics()
        server.expect_request(re.compile(".*")).respond_with_handler(self.jira)
        table = {name: more.pop(name) for name in ("categories",) if name in more}
        self.settings = channel_settings("ticket", url=server.url_for(""), **self.jira.channel(**table) | more)
        self.world = World(settings(mode="observe"))
        self.restart()

    def restart(self) -> None:
        world = self.world
        channel = build_channel(ChannelDependencies(self.settings, LINKS, world.clock))
        queues = [
            ChannelQueue(channel, world.clock, self.settings),
            ChannelQueue(self.room, world.clock, channel_settings("slack", name="room")),
        ]
        world.notifier = FanOut(queues, self.metrics, threads=False, pages=2)  # type: ignore[assignment]
        world.restart()

    def told(self) -> list[dict[str, Any]]:
        entries = self.world.journal.entries(kinds={EntryKind.NOTIFICATION})
        return [dict(entry.payload) for entry in entries if entry.payload["channel"] == "ticket"]

    def counted(self, outcome: str) -> float:
        return self.metrics.value("tocsin_channel_deliveries_total", channel="ticket", outcome=outcome)


@pytest.fixture
def rig(httpserver: HTTPServer) -> Iterator[Rig]:
    made = Rig(httpserver)
    yield made
    made.world.loop.close()


def test_the_ticket_is_on_record_and_a_restart_goes_on_with_it(rig: Rig) -> None:
    fault = rig.world.break_gpu("GPU-0-0", **HARD)
    rig.world.step()
    (entry,) = rig.told()
    assert (entry["reference"], entry["message"], entry["ticket"]) == ("GPU-1", f"ticket|{fault.id}", True)
    rig.restart()
    rig.world.step()
    assert rig.jira.asked == ["find", "open"]
    assert rig.world.loop.tickets() == {fault.id: {"ticket": "GPU-1"}}
    rig.world.faults.clear()
    rig.world.step()
    assert rig.jira.asked[2:] == ["state", "comment", "transition"]
    assert not rig.jira.only.open
    assert rig.world.loop.tickets() == {}
    assert json.loads(json.dumps(rig.world.loop.folded()))["plain"]["references"] == {"ticket": {}}
    assert rig.counted("delivered") == rig.counted("resolved") == 1


def test_a_checkpoint_has_the_ticket(rig: Rig) -> None:
    fault = rig.world.break_gpu("GPU-0-0", **HARD)
    rig.world.step()
    state = json.loads(json.dumps(rig.world.loop.folded()))
    assert Ledger.restored(state).deliveries.reference("ticket", f"ticket|{fault.id}") == "GPU-1"
    del state["plain"]["references"]
    assert Ledger.restored(state).deliveries.reference("ticket", f"ticket|{fault.id}") == ""


def test_an_action_that_failed_is_told_in_the_ticket_of_its_fault(httpserver: HTTPServer) -> None:
    rig = Rig(httpserver)
    rig.world = World(settings())
    rig.restart()
    rig.world.executor.result = ExecutionResult(False, "the API server is away")
    rig.world.break_gpu("GPU-0-0", **HARD)
    for _ in range(3):
        rig.world.step()
    assert {one["key"].endswith("escalate") for one in rig.told()} == {False, True}
    ticket = rig.jira.only
    assert len(ticket.comments) == len(rig.told()) - 1
    assert "A person is needed" in json.dumps([ticket.fields, ticket.comments])
    assert ticket.open
    rig.world.faults.clear()
    rig.world.step()
    assert not ticket.open
    rig.world.loop.close()


def test_each_fault_has_a_ticket_and_none_is_summed_up_or_kept_by_the_budget_of_pages(httpserver: HTTPServer) -> None:
    rig = Rig(httpserver, categories=[])
    for index in range(5):
        rig.world.break_gpu(f"GPU-{index // 2}-{index % 2}", **SOFT)
    rig.world.step()
    assert len(rig.jira.tickets) == 5
    assert sum(message.gathered for message in rig.room.taken) == 1
    deliveries = rig.world.loop._decision_log.ledger.deliveries
    assert (deliveries.pages.get("ticket"), deliveries.summaries.get("ticket")) == (None, None)
    rig.world.loop.close()


def test_more_than_the_minutes_bound_wait_for_the_next_minute(httpserver: HTTPServer) -> None:
    rig = Rig(httpserver, per_minute=2)
    for index in range(5):
        rig.world.break_gpu(f"GPU-{index // 2}-{index % 2}", **HARD)
    counts = []
    for _ in range(3):
        rig.world.step(advance=MINUTE)
        counts.append(len(rig.jira.tickets))
    assert counts == [2, 4, 5]
    rig.world.loop.close()


def test_a_system_that_is_away_holds_up_no_room_and_gets_its_ticket_later(rig: Rig) -> None:
    rig.jira.instead = lambda step: Response("", 503, {"Retry-After": "60"})
    rig.world.break_gpu("GPU-0-0", **HARD)
    rig.world.step()
    assert len(rig.room.taken) == 1
    rig.world.step()
    assert rig.jira.asked == ["find"]
    rig.jira.instead = lambda step: None
    rig.world.step(advance=2 * MINUTE)
    assert len(rig.jira.tickets) == 1
    assert rig.counted("retried") == 1


def test_what_a_ticket_goes_without_is_counted(rig: Rig) -> None:
    rig.jira.instead = lambda step: Response("", 403) if step == "attach" else None
    channel = build_channel(ChannelDependencies(rig.settings, LINKS, evidence=lambda *_: b"x"))
    queues = [ChannelQueue(channel, rig.world.clock, rig.settings)]
    rig.world.notifier = FanOut(queues, rig.metrics, threads=False)  # type: ignore[assignment]
    rig.world.restart()
    rig.world.break_gpu("GPU-0-0", **HARD)
    rig.world.step()
    status = rig.world.only(ActionKind.NOTIFY)
    assert status.outcome is not None
    assert status.outcome.status is OutcomeStatus.SUCCEEDED
    assert status.outcome.detail == "opened GPU-1; without the evidence: attach: answered 403"
    assert rig.counted("partial") == rig.counted("delivered") == 1


def test_the_pagers_report_counts_no_ticket(rig: Rig) -> None:
    rig.world.break_gpu("GPU-0-0", **HARD)
    rig.world.step()
    entries = list(rig.world.journal.entries())
    told = JournalSpan(entries, rig.world.loop.statuses(), [], list(fleet().values()), T0, T0 + DAY, frozenset())
    only_room = [one for one in entries if not one.payload.get("ticket")]
    assert journal_report(told, []).pages == 1
    assert [one.payload["channel"] for one in only_room if one.kind == EntryKind.NOTIFICATION] == ["room"]


def _wanted(category: Category, **table: Any) -> bool:
    found: ChannelSettings = channel_settings("ticket", **JiraCloud().channel(**table))
    return wants(found, replace(DECISION, category=category))


def test_tickets_are_for_hardware_unless_set_otherwise() -> None:
    assert [one for one in Category if _wanted(one)] == [Category.HARDWARE]
    assert all(_wanted(one, categories=[]) for one in Category)
    assert [one for one in Category if _wanted(one, categories=["memory"])] == [Category.MEMORY]


def test_a_ticket_system_gets_no_morning_report() -> None:
    report = notice_of(date(2026, 11, 26), "All is well.", "", T0, mode=Mode.OBSERVE, simulated=False)
    assert wants(channel_settings("slack"), report)
    assert not wants(channel_settings("ticket", **JiraCloud().channel(categories=[]), min_level="note"), report)
