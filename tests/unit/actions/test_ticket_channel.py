"""Tickets in Jira and ServiceNow: opened once, followed, with the evidence, resolved; whatever the system answers."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from tocsin.actions.notifications.channel import (
    Channel,
    ChannelDependencies,
    Message,
    Phase,
    build_channel,
)
from tocsin.actions.notifications.ticket import MOST_ATTACHING, TEST_CONTENT
from tocsin.actions.notifications.trial import marked_message
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.finding import Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, message
from tocsin_testing.servers import free_port
from tocsin_testing.ticket_doubles import DOUBLES, SECRET, JiraCloud, RefusedError, ServiceNow, TicketDouble

BUNDLE = b"ustar\0" * 300
KEY = f"ticket|{DECISION.incident}"


class Desk:
    """A double behind a server, and channels to it."""

    def __init__(self, server: HTTPServer, double: TicketDouble) -> None:
        self.server, self.double = server, double
        self.asked_for: list[tuple[str, int, bool]] = []
        self.bundle: bytes | Exception = BUNDLE
        self.built: list[Channel] = []
        server.expect_request(re.compile(".*")).respond_with_handler(double)

    def evidence(self, uuid: str, span_ms: int, with_owners: bool) -> bytes:
        self.asked_for.append((uuid, span_ms, with_owners))
        if isinstance(self.bundle, Exception):
            raise self.bundle
        return self.bundle

    def channel(self, url: str = "", **table: Any) -> Channel:
        """A channel as a brain builds it; one more is the brain after a restart."""
        found = channel_settings("ticket", url=url or self.server.url_for(""), **self.double.channel(**table))
        self.built.append(build_channel(ChannelDependencies(found, LINKS, evidence=self.evidence)))
        return self.built[-1]


@pytest.fixture(params=sorted(DOUBLES))
def desk(request: pytest.FixtureRequest, httpserver: HTTPServer) -> Iterator[Desk]:
    made = Desk(httpserver, DOUBLES[request.param]())
    yield made
    for one in made.built:
        one.close()


@pytest.fixture
def jira(httpserver: HTTPServer) -> Iterator[Desk]:
    made = Desk(httpserver, JiraCloud())
    yield made
    for one in made.built:
        one.close()


def _told(reference: str = "", phase: Phase = Phase.FIRING, **more: Any) -> Message:
    return replace(message(phase, **more), key=KEY, reference=reference)


def _said(ticket: Any) -> str:
    return json.dumps(ticket, ensure_ascii=False)


def test_a_fault_opens_one_ticket_with_the_evidence_and_its_hash(desk: Desk) -> None:
    delivery = desk.channel().send([_told()])
    ticket = desk.double.only
    assert delivery.ok, delivery.detail
    assert delivery.reference == ticket.name
    assert not delivery.partial
    assert desk.double.asked == ["find", "open", "attach"]
    assert ticket.label in (DECISION.incident, f"tocsin-{DECISION.incident}")
    assert ticket.files == {f"tocsin-evidence-{DECISION.incident}.tar": BUNDLE}
    assert hashlib.sha256(BUNDLE).hexdigest() in _said(ticket.fields)
    assert "is at 93 °C for 10 min" in _said(ticket.fields)
    assert "tocsin approve 275eb1a7c0f22cc4" in _said(ticket.fields)
    assert desk.asked_for == [("GPU-5d1f0b7c", 7 * DAY, False)]


def test_what_follows_is_a_comment_and_the_end_resolves(desk: Desk) -> None:
    channel = desk.channel()
    first = channel.send([_told()])
    more = channel.send([_told(first.reference, key="later", sentence="The drain has failed.")])
    assert (more.ok, more.reference) == (True, first.reference)
    ticket = desk.double.only
    assert ticket.open
    assert len(ticket.comments) == len(ticket.files) == 1
    assert "The drain has failed." in _said(ticket.comments)
    end = channel.send([_told(first.reference, Phase.RESOLVED)])
    assert (end.ok, end.detail) == (True, f"resolved {ticket.name}")
    assert not ticket.open


def test_a_ticket_that_a_person_has_resolved_is_left_alone(desk: Desk) -> None:
    channel = desk.channel()
    ticket = channel.send([_told()]).reference
    desk.double.only.open = False
    before = len(desk.double.only.comments)
    end = channel.send([_told(ticket, Phase.RESOLVED)])
    assert (end.ok, end.detail) == (True, f"{ticket} was resolved already")
    assert len(desk.double.only.comments) == before
    assert desk.double.asked[-1] == "state"


def test_a_crash_between_opening_and_remembering_opens_no_second_one(desk: Desk) -> None:
    first = desk.channel().send([_told()])
    desk.bundle = BUNDLE * 2
    again = desk.channel().send([_told()])
    ticket = desk.double.only
    assert (again.ok, again.reference) == (True, first.reference)
    # The new bundle is another one: its hash is told with it.
    assert hashlib.sha256(BUNDLE * 2).hexdigest() in _said(ticket.comments)
    assert list(ticket.files.values()) == [BUNDLE * 2]


def test_an_answer_that_is_lost_opens_no_second_one_and_says_nothing_twice(desk: Desk) -> None:
    channel = desk.channel()
    desk.double.after = lambda step: Response("busy", 503, {"Retry-After": "7"}) if step == "open" else None
    first = channel.send([_told()])
    assert (first.ok, first.again, first.certain, first.rest_seconds) == (False, True, False, 7.0)
    assert first.detail == "open: answered 503: busy"
    desk.double.after = lambda step: None
    second = channel.send([_told()])
    ticket = desk.double.only
    assert (second.ok, second.reference) == (True, ticket.name)
    assert ticket.comments == []
    assert len(ticket.files) == 1
    assert len(desk.asked_for) == 1


def test_an_end_whose_ticket_is_not_remembered_finds_it(desk: Desk) -> None:
    desk.channel().send([_told()])
    assert desk.channel().send([_told("", Phase.RESOLVED)]).ok
    assert not desk.double.only.open
    nothing = desk.channel().send([_told("", Phase.RESOLVED)])
    assert (nothing.ok, nothing.detail) == (True, "no open ticket is found: nothing to resolve")


def test_a_new_fault_of_the_same_name_opens_a_new_ticket_after_the_first_was_resolved(desk: Desk) -> None:
    channel = desk.channel()
    channel.send([_told()])
    desk.double.only.open = False
    channel.send([_told()])
    assert [one.open for one in desk.double.tickets.values()] == [False, True]


def test_resolving_goes_on_where_it_stopped(jira: Desk) -> None:
    channel = jira.channel()
    ticket = channel.send([_told()]).reference
    jira.double.instead = lambda step: Response("", 502) if step == "transition" else None
    end = channel.send([_told(ticket, Phase.RESOLVED)])
    assert (end.ok, end.again, end.detail) == (False, True, "resolve.1: answered 502")
    jira.double.instead = lambda step: None
    assert channel.send([_told(ticket, Phase.RESOLVED)]).ok
    assert len(jira.double.only.comments) == 1
    assert not jira.double.only.open


def test_evidence_that_is_refused_costs_no_ticket_and_is_said(desk: Desk) -> None:
    desk.double.instead = lambda step: Response("too large", 413) if step == "attach" else None
    delivery = desk.channel().send([_told()])
    ticket = desk.double.only
    assert (delivery.ok, delivery.partial, delivery.reference) == (True, True, ticket.name)
    assert "without the evidence: attach: answered 413: too large" in delivery.detail
    assert ticket.files == {}


def test_evidence_is_tried_a_few_times_and_then_let_go(desk: Desk) -> None:
    channel = desk.channel()
    desk.double.instead = lambda step: Response("", 500) if step == "attach" else None
    results = [channel.send([_told()]) for _ in range(MOST_ATTACHING)]
    assert [one.ok for one in results] == [False, False, True]
    assert results[-1].partial
    assert desk.double.asked.count("open") == 1
    assert desk.double.asked.count("attach") == MOST_ATTACHING


@pytest.mark.parametrize(
    ("bundle", "table", "subject", "said"),
    [
        (Unavailable("the store does not answer"), {}, DECISION.subject, "none: the store does not answer"),
        (BUNDLE, {"evidence_bytes": 100}, DECISION.subject, "none: it has 1800 bytes"),
        (BUNDLE, {"evidence": False}, DECISION.subject, "none: it is not asked for"),
        (BUNDLE, {}, Subject(SubjectKind.HOST, "node-7", "node-7"), "none: this is about no single GPU"),
    ],
)
def test_a_ticket_without_evidence_says_why(
    jira: Desk, bundle: bytes | Exception, table: dict[str, Any], subject: Subject, said: str
) -> None:
    jira.bundle = bundle
    delivery = jira.channel(**table).send([_told(subject=subject)])
    assert (delivery.ok, delivery.partial) == (True, False)
    assert said in _said(jira.double.only.fields)
    assert jira.double.only.files == {}


@pytest.mark.parametrize(
    ("step", "answer", "said"),
    [
        ("find", "{}", "find: answered 200 without issues.0.key"),
        ("find", '{"issues": "none"}', "find: answered 200 without issues.0.key"),
        ("find", "<html>log in</html>", "find: answered 200 without issues.0.key"),
        ("find", "[" * 60_000, "find: answered 200 without issues.0.key"),
        ("find", '{"issues": [{"key": "../../admin"}]}', "find: answered 200 with no ticket's name at issues.0.key"),
        ("find", '{"issues": [{"key": true}]}', "find: answered 200 with no ticket's name"),
        ("find", '{"issues": [{"key": {"a": 1}}]}', "find: answered 200 with no ticket's name"),
        ("open", '{"key": ""}', "open: answered 200 with no ticket's name at key"),
        ("open", json.dumps({"key": "A" * 65}), "open: answered 200 with no ticket's name at key"),
        ("open", json.dumps({"key": "GPU-1\n"}), "open: answered 200 with no ticket's name at key"),
        ("open", json.dumps({"key": "ⅧⅨ"}), "open: answered 200 with no ticket's name at key"),
        ("open", json.dumps({"x": "y" * 200_000, "key": "GPU-1"}), "open: answered 200 without key"),
    ],
)
def test_an_answer_that_names_no_ticket_is_final_and_quoted(jira: Desk, step: str, answer: str, said: str) -> None:
    jira.double.instead = lambda asked: Response(answer, 200) if asked == step else None
    delivery = jira.channel().send([_told()])
    assert (delivery.ok, delivery.again, delivery.reference) == (False, False, "")
    assert delivery.detail.startswith(said)
    assert len(delivery.detail) < 400


@pytest.mark.parametrize("step", ["find", "open"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed_with_the_secret(jira: Desk, step: str, status: int) -> None:
    elsewhere = f"http://127.0.0.1:{free_port()}/steal"
    jira.double.instead = lambda asked: Response("", status, {"Location": elsewhere}) if asked == step else None
    delivery = jira.channel().send([_told()])
    assert (delivery.ok, delivery.again, delivery.detail) == (False, False, f"{step}: answered {status}")


def test_what_it_answers_never_brings_the_secret_back(jira: Desk) -> None:
    basic = jira.double.channel()["secret"]
    header = "Basic cm9ib3RAZXhhbXBsZS5jb206dDBrZW4tMDEyMzQ1Njc4OQ=="
    jira.double.instead = lambda step: Response(f"no such user {basic}: {header}", 401)
    delivery = jira.channel().send([_told()])
    assert delivery.detail.startswith("find: answered 401: no such user (url)")
    assert SECRET not in delivery.detail
    assert header.split()[1] not in delivery.detail


def test_one_that_never_answers_is_left_after_the_time_out_and_asked_again(jira: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = channel_settings("ticket", url=url, timeout_seconds=0.2, **jira.double.channel())
        channel = build_channel(ChannelDependencies(found, LINKS))
        delivery = channel.send([_told()])
        channel.close()
    assert (delivery.ok, delivery.again, delivery.certain) == (False, True, False)
    assert delivery.detail.startswith("find: no answer: ReadTimeout")


def test_an_answer_that_drips_is_left(jira: Desk) -> None:
    clock = ManualClock(T0)

    def drops() -> Iterator[bytes]:
        while True:
            clock.advance(10_000)
            yield b" "

    jira.double.instead = lambda step: Response(drops(), 200)
    found = channel_settings("ticket", url=jira.server.url_for(""), **jira.double.channel())
    channel = build_channel(ChannelDependencies(found, LINKS, clock))
    delivery = channel.send([_told()])
    channel.close()
    assert (delivery.ok, delivery.again) == (False, True)
    assert delivery.detail == "find: no answer: ReadTimeout: the answer took longer than 30 s"


def test_a_base_url_may_have_a_path(httpserver: HTTPServer) -> None:
    double = JiraCloud()
    double.api = "/jira/rest/api/3"
    desk = Desk(httpserver, double)
    channel = desk.channel(httpserver.url_for("/jira/"))
    assert channel.send([_told()]).reference == "GPU-1"
    channel.close()


def test_the_number_that_people_use_is_in_the_journal(httpserver: HTTPServer) -> None:
    channel = Desk(httpserver, ServiceNow()).channel()
    assert channel.send([_told()]).detail == "opened INC0000001"
    channel.close()


@pytest.mark.parametrize(("level", "urgency"), [(AlertLevel.PAGE, "1"), (AlertLevel.WARNING, "2")])
def test_the_urgency_goes_by_the_level(httpserver: HTTPServer, level: AlertLevel, urgency: str) -> None:
    desk = Desk(httpserver, ServiceNow())
    channel = desk.channel()
    channel.send([_told(level=level)])
    channel.close()
    assert desk.double.only.fields["urgency"] == urgency


def test_a_trial_opens_attaches_and_resolves(desk: Desk) -> None:
    channel = desk.channel()
    sent = channel.send([marked_message("ticket", T0)])
    assert sent.ok, sent.detail
    ticket = desk.double.only
    assert list(ticket.files.values()) == [TEST_CONTENT]
    assert "nothing is to be done" in _said(ticket.fields)
    end = replace(marked_message("ticket", T0), phase=Phase.RESOLVED, reference=sent.reference)
    assert channel.send([end]).ok
    assert not ticket.open


def test_tickets_that_wait_for_a_system_that_is_away_hold_little(jira: Desk) -> None:
    channel = jira.channel()
    jira.double.instead = lambda step: Response("", 503)
    answers = [channel.send([_told(key=f"k{number}")]) for number in range(20)]
    assert not any(one.ok for one in answers)
    jira.double.instead = lambda step: None
    # The oldest is forgotten: its evidence is made anew.
    made = len(jira.asked_for)
    assert channel.send([_told(key="k0")]).ok
    assert len(jira.asked_for) == made + 1


@pytest.mark.parametrize("text", ["", "x"])
def test_the_double_of_jira_takes_no_empty_text(text: str) -> None:
    leaf = {"type": "text", "text": text}
    document = {"type": "doc", "version": 1, "content": [{"type": "paragraph", "content": [leaf]}]}
    if text:
        JiraCloud().check_text(document)
    else:
        with pytest.raises(RefusedError):
            JiraCloud().check_text(document)


@pytest.mark.parametrize(("language", "said"), [("en", "Evidence: none: it is not asked for"), ("zh", "无：未启用")])
def test_the_evidence_is_told_in_the_channels_language(jira: Desk, language: str, said: str) -> None:
    found = channel_settings(
        "ticket", url=jira.server.url_for(""), language=language, **jira.double.channel(evidence=False)
    )
    channel = build_channel(ChannelDependencies(found, LINKS))
    assert channel.send([_told()]).ok
    channel.close()
    assert said in _said(jira.double.only.fields)
