"""The webhook against a real HTTP server: signature, tries, back-off, and what a failure means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.actions.executors.registry import Dependencies, build_executor, executors
from tocsin.actions.notifications.delivery import LONGEST_PAUSE_SECONDS, SIGNATURE_HEADER, pause_seconds, sign
from tocsin.actions.notifications.fanout import JournalNotifier
from tocsin.actions.notifications.webhook import (
    CLOUDEVENTS_TYPE,
    NOTIFIED,
    REQUESTED,
    SLACK_TYPE,
    WebhookNotifier,
    WebhookSender,
)
from tocsin.config.settings import WebhookSettings
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.decision import Decision, DecisionState, Mode
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.servers import free_port
from tocsin_testing.signed import is_valid

DECISION = Decision(
    rule="hot",
    subject=Subject(SubjectKind.GPU, "GPU-a", "node-1", "train"),
    action=ActionKind.CORDON,
    mode=Mode.ACT,
    severity=Severity.CRITICAL,
    category=Category.THERMAL,
    at_ms=T0,
    expires_ms=T0 + 60 * MINUTE,
    key=f"hot|gpu:GPU-a|cordon|{T0}",
    sentence="Cordon GPU-a on node-1: it is too hot.",
    findings=("f1",),
)


class Rig:
    """A sender towards the test server that never really waits."""

    def __init__(self, url: str, **more: object) -> None:
        self.rests: list[float] = []
        fields = {"url": url, "secret": SecretStr("s3cret"), "timeout_seconds": 5.0, "attempts": 4} | more
        self.sender = WebhookSender(WebhookSettings.model_validate(fields), ManualClock(T0), rest=self.rests.append)


@pytest.fixture
def rig(httpserver: HTTPServer) -> Iterator[Rig]:
    made = Rig(httpserver.url_for("/hook"))
    yield made
    made.sender.close()


def _requests(httpserver: HTTPServer) -> list[Request]:
    return [request for request, _ in httpserver.log]


def _answers(httpserver: HTTPServer, *statuses: int) -> None:
    for status in statuses:
        httpserver.expect_ordered_request("/hook", method="POST").respond_with_data(status=status)


def test_one_signed_event_whose_id_is_the_idempotency_key(httpserver: HTTPServer, rig: Rig) -> None:
    _answers(httpserver, 202)
    delivery = rig.sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts, delivery.detail) == (True, 1, "answered 202")
    (request,) = _requests(httpserver)
    body = request.get_data()
    assert request.headers["Content-Type"] == CLOUDEVENTS_TYPE
    event = json.loads(body)
    assert (event["id"], event["type"], event["specversion"]) == (DECISION.key, REQUESTED, "1.0")
    assert is_valid(request.headers[SIGNATURE_HEADER], "s3cret", body, T0)


def test_a_request_of_a_brain_says_its_epoch_and_a_notification_does_not(httpserver: HTTPServer) -> None:
    """A receiver that keeps the highest one knows a brain whose journal was restored."""
    _answers(httpserver, 200, 200)
    settings = WebhookSettings.model_validate({"url": httpserver.url_for("/hook")})
    sender = WebhookSender(settings, ManualClock(T0), rest=lambda _: None, epoch=7)
    assert sender.send(DECISION, REQUESTED).ok
    assert sender.send(DECISION, NOTIFIED).ok
    request, notification = (json.loads(each.get_data()) for each in _requests(httpserver))
    assert (request["id"], request["epoch"]) == (DECISION.key, 7)
    assert "epoch" not in notification
    sender.close()


def test_without_a_secret_there_is_no_signature(httpserver: HTTPServer) -> None:
    _answers(httpserver, 200)
    rig = Rig(httpserver.url_for("/hook"), secret=SecretStr(""))
    assert rig.sender.send(DECISION, NOTIFIED).ok
    assert SIGNATURE_HEADER not in _requests(httpserver)[0].headers
    rig.sender.close()


@pytest.mark.parametrize("status", [500, 503, 429, 408, 425])
def test_retries_with_growing_rests_and_the_same_body(httpserver: HTTPServer, rig: Rig, status: int) -> None:
    _answers(httpserver, status, status, 200)
    delivery = rig.sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts) == (True, 3)
    assert rig.rests == [0.5, 1.0]
    assert len({request.get_data() for request in _requests(httpserver)}) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 301])
def test_no_retry_where_the_receiver_refuses(httpserver: HTTPServer, rig: Rig, status: int) -> None:
    _answers(httpserver, status)
    delivery = rig.sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts, delivery.again, delivery.certain) == (False, 1, False, True)
    assert rig.rests == []
    assert len(_requests(httpserver)) == 1


def test_tries_end(httpserver: HTTPServer, rig: Rig) -> None:
    _answers(httpserver, 500, 500, 500, 500)
    delivery = rig.sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts, delivery.certain, delivery.again) == (False, 4, False, True)
    assert rig.rests == [0.5, 1.0, 2.0]


def test_one_doubtful_try_makes_the_whole_failure_doubtful(httpserver: HTTPServer, rig: Rig) -> None:
    _answers(httpserver, 500, 400)
    delivery = rig.sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts, delivery.certain) == (False, 2, False)


def test_a_timeout_is_tried_again_and_its_effect_is_in_doubt(httpserver: HTTPServer) -> None:
    answered = threading.Event()

    def late(request: Request) -> Response:
        answered.wait(10)
        return Response(status=200)

    httpserver.expect_request("/hook").respond_with_handler(late)
    rig = Rig(httpserver.url_for("/hook"), timeout_seconds=0.1, attempts=2)
    delivery = rig.sender.send(DECISION, REQUESTED)
    answered.set()
    rig.sender.close()
    assert (delivery.ok, delivery.attempts, delivery.certain) == (False, 2, False)
    assert "ReadTimeout" in delivery.detail


def test_nobody_listens_and_nothing_can_have_happened() -> None:
    rig = Rig(f"http://127.0.0.1:{free_port()}/hook", attempts=2)
    delivery = rig.sender.send(DECISION, REQUESTED)
    rig.sender.close()
    assert (delivery.ok, delivery.attempts, delivery.certain) == (False, 2, True)
    assert "cannot connect" in delivery.detail


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/hook", "nonsense", "http://127.0.0.1:port/"])
def test_an_address_that_cannot_be_used_is_not_tried_again(url: str) -> None:
    rig = Rig(url)
    delivery = rig.sender.send(DECISION, REQUESTED)
    rig.sender.close()
    assert (delivery.ok, delivery.attempts, delivery.again) == (False, 1, False)
    assert "webhook.url" in delivery.detail


def test_closing_ends_a_wait() -> None:
    fields = WebhookSettings(url=SecretStr(f"http://127.0.0.1:{free_port()}/hook"), attempts=5)
    sender = WebhookSender(fields, ManualClock(T0), rest=lambda _: sender.close())
    delivery = sender.send(DECISION, REQUESTED)
    assert (delivery.ok, delivery.attempts) == (False, 1)
    assert sender.send(DECISION, REQUESTED).detail == "closed before the first try"


def test_rests_double_up_to_a_bound() -> None:
    assert [pause_seconds(n) for n in range(1, 5)] == [0.5, 1.0, 2.0, 4.0]
    assert pause_seconds(10_000) == LONGEST_PAUSE_SECONDS


def test_slack_format(httpserver: HTTPServer) -> None:
    _answers(httpserver, 200)
    rig = Rig(httpserver.url_for("/hook"), format="slack")
    assert rig.sender.send(DECISION, NOTIFIED).ok
    rig.sender.close()
    (request,) = _requests(httpserver)
    assert request.headers["Content-Type"] == SLACK_TYPE
    assert list(json.loads(request.get_data())) == ["text"]


def test_notifier_makes_one_try_a_call(httpserver: HTTPServer, rig: Rig) -> None:
    _answers(httpserver, 500)
    delivery = WebhookNotifier(rig.sender).notify(DECISION)
    assert (delivery.ok, delivery.attempts, rig.rests) == (False, 1, [])
    assert json.loads(_requests(httpserver)[0].get_data())["type"] == NOTIFIED


def test_the_journal_alone_takes_every_notification() -> None:
    assert JournalNotifier().notify(DECISION).ok


def test_signature_is_checked_for_body_secret_and_age() -> None:
    header = sign("k", b"body", T0)
    assert is_valid(header, "k", b"body", T0 + 5 * MINUTE)
    assert not is_valid(header, "k", b"body", T0 + 6 * MINUTE)
    assert not is_valid(header, "k", b"other", T0)
    assert not is_valid(header, "other", b"body", T0)
    for broken in ("", "t=,v1=", "v1=00", "t=x,v1=00", f"t={T0 // 1000}", "t=²,v1=00", "t=1,v1=\xff"):
        assert not is_valid(broken, "k", b"body", T0)


def test_an_executor_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(InputError, match="journal_only, kubernetes, node"):
        build_executor("kubernets", Dependencies())
    assert {"journal_only", "kubernetes", "node", "slurm", "webhook"} <= set(executors())


def test_the_webhook_executor_needs_a_receiver_that_acts() -> None:
    with pytest.raises(InputError, match="has no receiver"):
        build_executor("webhook", Dependencies())
    rig = Rig("http://127.0.0.1:9/hook", format="slack")
    with pytest.raises(InputError, match="chat room"):
        build_executor("webhook", Dependencies(rig.sender))
    rig.sender.close()


def test_the_loop_with_the_webhook_posts_each_key_once(httpserver: HTTPServer, rig: Rig) -> None:
    httpserver.expect_request("/hook").respond_with_data(status=202)
    world = World()
    world.executor = build_executor("webhook", Dependencies(rig.sender))  # type: ignore[assignment]
    world.notifier = WebhookNotifier(rig.sender)  # type: ignore[assignment]
    world.restart()
    world.break_gpu("GPU-0-0")
    world.step()
    world.elsewhere.update({"GPU-0-0", "GPU-0-1"})
    for _ in range(3):
        world.step()
    events = [json.loads(request.get_data()) for request in _requests(httpserver)]
    assert sorted(event["type"] for event in events) == [REQUESTED, NOTIFIED]
    status = world.only()
    assert status.state is DecisionState.DONE
    assert status.outcome is not None
    assert status.outcome.detail == "answered 202; its effect is seen"


def test_simulated_actions_never_leave_but_simulated_notifications_say_what_they_are(
    httpserver: HTTPServer, rig: Rig
) -> None:
    httpserver.expect_request("/hook").respond_with_data(status=200)
    world = World()
    world.executor = build_executor("webhook", Dependencies(rig.sender))  # type: ignore[assignment]
    world.notifier = WebhookNotifier(rig.sender)  # type: ignore[assignment]
    world.restart()
    world.break_gpu("GPU-0-0", simulated=True)
    world.step()
    events = [json.loads(request.get_data()) for request in _requests(httpserver)]
    assert [(event["type"], event["simulated"]) for event in events] == [(NOTIFIED, True)]
    assert world.only().state is DecisionState.REJECTED
    assert "never leave" in world.only().reason
