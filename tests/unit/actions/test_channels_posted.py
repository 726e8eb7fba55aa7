"""What the posting channels send, how they sign it, and what they make of answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.actions.model.alert_labels import alertname, labels_of
from tocsin.actions.notifications import dingtalk, feishu, teams
from tocsin.actions.notifications.alertmanager import PATH
from tocsin.actions.notifications.channel import (
    ChannelDependencies,
    Delivery,
    Message,
    Phase,
    build_channel,
    message_of,
    text_of,
)
from tocsin.actions.notifications.cloudevents import RESOLVED, SUMMARISED
from tocsin.actions.notifications.delivery import LONGEST_REST_SECONDS, SIGNATURE_HEADER
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.decision import NotifyParameters
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Severity
from tocsin.plugins import Kind, plugins
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, means, message
from tocsin_testing.servers import free_port
from tocsin_testing.signed import is_valid

CLOCK = ManualClock(T0)
POSTED = ("alertmanager", "cloudevents", "dingtalk", "feishu", "pagerduty", "slack", "teams")
TAKEN = {"dingtalk": {"errcode": 0, "errmsg": "ok"}, "feishu": {"code": 0, "msg": "success"}}


def _send(httpserver: HTTPServer, kind: str, *messages: Message, **more: Any) -> Delivery:
    made = build_channel(means(kind, CLOCK, **({"url": httpserver.url_for("/hook?access_token=t0k")} | more)))
    try:
        return made.send(messages or [message()])
    finally:
        made.close()


def _answer(httpserver: HTTPServer, kind: str = "", **more: Any) -> None:
    response = Response(json.dumps(TAKEN.get(kind, {})), **more)
    httpserver.expect_request("/hook").respond_with_response(response)


def _last(httpserver: HTTPServer) -> Request:
    return httpserver.log[-1][0]


def _body(httpserver: HTTPServer) -> Any:
    return json.loads(_last(httpserver).get_data())


def test_teams_is_posted_a_card_by_the_flow_that_is_named_by_a_secret(httpserver: HTTPServer) -> None:
    _answer(httpserver, status=202)
    delivery = _send(httpserver, "teams")
    assert (delivery.ok, delivery.detail) == (True, "answered 202")
    sent = _last(httpserver)
    assert sent.headers["Content-Type"] == "application/json; charset=utf-8"
    (attached,) = json.loads(sent.get_data())["attachments"]
    assert (attached["contentType"], attached["contentUrl"]) == ("application/vnd.microsoft.card.adaptive", None)


def test_teams_asks_for_patience_and_its_url_is_never_told(httpserver: HTTPServer) -> None:
    signature = "sig-0123456789abcdef"
    said = f'{{"error": {{"code": "WorkflowTriggerIsThrottled", "message": "?sig={signature}"}}}}'
    httpserver.expect_request("/hook").respond_with_data(said, status=429, headers={"Retry-After": "30"})
    delivery = _send(httpserver, "teams", url=httpserver.url_for(f"/hook?sp=run&sig={signature}"))
    assert (delivery.ok, delivery.again, delivery.rest_seconds) == (False, True, 30.0)
    assert signature not in delivery.detail


@pytest.mark.parametrize("letter", ["\u4e2d", "\U0001f600"])
@pytest.mark.parametrize(("language", "said"), [("en", " more characters)"), ("zh", " \u4e2a\u5b57\u7b26\uff09")])
def test_teams_is_told_how_much_of_a_long_sentence_is_left_out(letter: str, language: str, said: str) -> None:
    text = text_of(message(), LINKS, language)
    long = replace(text, body=letter * 20_000)
    made = teams.fitted(long, language)
    assert len(json.dumps(made)) <= teams.MOST_BYTES + 200
    (run,) = made["attachments"][0]["content"]["body"][1]["inlines"]
    kept = run["text"].count(letter)
    assert str(20_000 - kept) in run["text"]
    assert run["text"].endswith(said)
    assert kept > 1_000
    assert teams.fitted(text, language) == teams.payload(text)


def test_every_kind_of_the_settings_has_a_channel() -> None:
    assert list(plugins(Kind.CHANNEL)) == sorted([*POSTED, "email", "ticket"])


@pytest.mark.parametrize("kind", sorted(set(POSTED) - {"alertmanager"}))
def test_taken(httpserver: HTTPServer, kind: str) -> None:
    _answer(httpserver, kind, status=202)
    assert _send(httpserver, kind) == Delivery(True, "answered 202", 1)
    assert _last(httpserver).args["access_token"] == "t0k"


@pytest.mark.parametrize("kind", sorted(set(POSTED) - {"alertmanager"}))
@pytest.mark.parametrize(
    ("status", "again", "certain"),
    [
        (400, False, True),
        (403, False, True),
        (302, False, True),
        (429, True, True),
        (500, True, False),
        (503, True, False),
    ],
)
def test_refused(httpserver: HTTPServer, kind: str, status: int, again: bool, certain: bool) -> None:
    _answer(httpserver, status=status, headers={"retry-after": "7", "location": "http://127.0.0.1:1/"})
    delivery = _send(httpserver, kind)
    assert (delivery.ok, delivery.again, delivery.certain, delivery.rest_seconds) == (False, again, certain, 7.0)
    assert len(httpserver.log) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("", 0.0), ("Fri, 01 Jan 2027 00:00:00 GMT", 0.0), ("99999", LONGEST_REST_SECONDS), ("-5", 0.0)],
)
def test_retry_after_is_bounded_and_a_date_is_not_read(httpserver: HTTPServer, header: str, seconds: float) -> None:
    _answer(httpserver, status=429, headers={"retry-after": header})
    assert _send(httpserver, "slack").rest_seconds == seconds


@pytest.mark.parametrize("kind", POSTED)
def test_nobody_there_is_tried_again_and_no_secret_is_told(kind: str) -> None:
    made = build_channel(means(kind, CLOCK, url=f"http://127.0.0.1:{free_port()}/hook/5ecret?token=5ecret"))
    delivery = made.send([message()])
    made.close()
    assert (delivery.ok, delivery.again, delivery.certain) == (False, True, True)
    assert "5ecret" not in delivery.detail


@pytest.mark.parametrize(
    ("kind", "answer", "again", "rest"),
    [
        ("feishu", {"code": 19021, "msg": "sign match fail or timestamp is not within one hour"}, False, 0.0),
        ("feishu", {"code": 11232, "msg": "frequency limited"}, True, 60.0),
        ("feishu", {"msg": "no code"}, True, 0.0),
        ("feishu", [1], True, 0.0),
        ("dingtalk", {"errcode": 310000, "errmsg": "sign not match"}, False, 0.0),
        ("dingtalk", {"errcode": 130101, "errmsg": "send too fast, exceed 20 times per minute"}, True, 60.0),
        ("dingtalk", {"errcode": -1, "errmsg": "system busy"}, True, 0.0),
    ],
)
def test_a_refusal_within_a_200(httpserver: HTTPServer, kind: str, answer: object, again: bool, rest: float) -> None:
    httpserver.expect_request("/hook").respond_with_data(json.dumps(answer))
    delivery = _send(httpserver, kind)
    assert (delivery.ok, delivery.again, delivery.rest_seconds) == (False, again, rest)


def test_feishu_says_too_many_also_with_status_400(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data('{"code":11232,"msg":"frequency limited"}', status=400)
    assert _send(httpserver, "feishu").again


def test_feishu_signs_an_empty_text_with_instant_and_secret(httpserver: HTTPServer) -> None:
    _answer(httpserver, "feishu")
    assert _send(httpserver, "feishu", secret="5ecret").ok
    body = _body(httpserver)
    assert body["timestamp"] == str(T0 // 1000)
    digest = hmac.digest(f"{T0 // 1000}\n5ecret".encode(), b"", "sha256")
    assert body["sign"] == base64.b64encode(digest).decode() == feishu.sign("5ecret", T0 // 1000)
    assert list(body["content"]["post"]) == ["en_us"]
    assert _send(httpserver, "feishu", language="zh").ok
    assert list(_body(httpserver)["content"]["post"]) == ["zh_cn"]
    assert "sign" not in _body(httpserver)


def test_dingtalk_signs_the_address(httpserver: HTTPServer) -> None:
    _answer(httpserver, "dingtalk")
    assert _send(httpserver, "dingtalk", secret="SEC+/=").ok
    query = {name: values[0] for name, values in parse_qs(_last(httpserver).query_string.decode()).items()}
    digest = hmac.new(b"SEC+/=", f"{T0}\nSEC+/=".encode(), hashlib.sha256).digest()
    assert query == {"access_token": "t0k", "timestamp": str(T0), "sign": base64.b64encode(digest).decode()}
    assert query["sign"] == dingtalk.sign("SEC+/=", T0)
    assert _body(httpserver)["at"] == {"isAtAll": False, "atMobiles": []}


def test_cloudevents_are_signed_and_the_same_at_every_try(httpserver: HTTPServer) -> None:
    _answer(httpserver, status=200)
    for _ in range(2):
        assert _send(httpserver, "cloudevents", secret="5ecret").ok
    first, second = (request.get_data() for request, _ in httpserver.log)
    assert first == second
    assert is_valid(_last(httpserver).headers[SIGNATURE_HEADER], "5ecret", second, T0)
    assert _body(httpserver)["id"] == DECISION.key


def test_cloudevents_tell_ends_and_summaries_by_types_of_their_own(httpserver: HTTPServer) -> None:
    _answer(httpserver)
    assert _send(httpserver, "cloudevents", message(Phase.RESOLVED)).ok
    event = _body(httpserver)
    assert (event["type"], event["resolves"], event["id"]) == (RESOLVED, DECISION.key, f"{DECISION.key}|resolved")
    both = message_of([DECISION, replace(DECISION, key="k2", severity=Severity.WARNING)], Phase.FIRING)
    assert _send(httpserver, "cloudevents", both).ok
    event = _body(httpserver)
    assert (event["type"], event["data"]["count"]) == (SUMMARISED, 2)
    assert [one["severity"] for one in event["data"]["notifications"]] == ["critical", "warning"]


def test_pagerduty_resolves_what_it_triggered(httpserver: HTTPServer) -> None:
    _answer(httpserver, status=202)
    assert _send(httpserver, "pagerduty").ok
    fired = _body(httpserver)
    assert (fired["event_action"], fired["routing_key"], fired["payload"]["severity"]) == (
        "trigger",
        "R0UT1NG",
        "critical",
    )
    assert _send(httpserver, "pagerduty", message(Phase.RESOLVED)).ok
    assert _body(httpserver) == {
        "event_action": "resolve",
        "routing_key": "R0UT1NG",
        "dedup_key": f"tocsin-{DECISION.id}",
    }
    assert fired["dedup_key"] == f"tocsin-{DECISION.id}"
    assert {"href": "https://docs.example.com/runbooks/actions/cordon.md", "text": "runbook"} in fired["links"]


def test_alertmanager_gets_the_whole_of_a_step_in_one_request(httpserver: HTTPServer) -> None:
    httpserver.expect_request(PATH, method="POST").respond_with_data("")
    other = message(key="b", rule="gpu_silent")
    base = httpserver.url_for("/")
    assert _send(httpserver, "alertmanager", message(), other, url=base, secret="b3arer", labels={"cluster": "a"}).ok
    alerts = _body(httpserver)
    assert [alert["labels"]["alertname"] for alert in alerts] == ["TocsinTemperatureHigh", "TocsinGpuSilent"]
    assert {alert["labels"]["cluster"] for alert in alerts} == {"a"}
    assert _last(httpserver).headers["authorization"] == "Bearer b3arer"
    assert alerts[0]["annotations"]["runbook_url"] == "https://docs.example.com/runbooks/actions/cordon.md"
    assert alerts[0]["endsAt"] == "2026-11-18T11:11:40.000Z"


def test_a_new_fault_outweighs_the_end_of_one_before_it_with_the_same_labels(httpserver: HTTPServer) -> None:
    httpserver.expect_request(PATH).respond_with_data("")
    again = message(key="again", at_ms=T0 + MINUTE)
    assert _send(httpserver, "alertmanager", message(Phase.RESOLVED), again, url=httpserver.url_for("")).ok
    (alert,) = _body(httpserver)
    assert alert["startsAt"] > "2026-11-18T11:07"


@pytest.mark.parametrize("name", ["am_alerts_post_400_bad_label.json", "am_alerts_post_400_bad_time.json"])
def test_what_alertmanager_refuses_is_final_and_says_why(httpserver: HTTPServer, name: str) -> None:
    recorded = json.loads((Path(__file__).parents[2] / "data" / "channels" / name).read_text())["response"]
    body = recorded.get("body_text") or json.dumps(recorded["body"])
    httpserver.expect_request(PATH).respond_with_data(body, status=recorded["status"])
    delivery = _send(httpserver, "alertmanager", url=httpserver.url_for(""))
    assert (delivery.ok, delivery.again) == (False, False)
    assert "invalid" in delivery.detail or "parsing" in delivery.detail


def test_an_escalation_is_an_alert_of_its_own() -> None:
    labels = labels_of(replace(DECISION, parameters=NotifyParameters(escalates="x")), {})
    assert labels["alertname"] == "TocsinActionFailed"
    assert labels != labels_of(DECISION, {})
    assert alertname("xid_79") == "TocsinXid79"


def test_links_name_the_page_of_what_is_meant() -> None:
    assert LINKS.runbook(replace(DECISION, rule="breaker")).endswith("/guards/breaker.md")
    assert LINKS.runbook(replace(DECISION, parameters=NotifyParameters())).endswith("/actions/notify.md")


def test_the_servers_certificate_is_checked(tmp_path: Path) -> None:
    ours, another = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("localhost").configure_cert(context)
    good, bad = tmp_path / "good.pem", tmp_path / "bad.pem"
    ours.cert_pem.write_to_path(str(good))
    another.cert_pem.write_to_path(str(bad))
    with HTTPServer(ssl_context=context) as server:
        server.expect_request("/hook").respond_with_data("ok")
        assert _send(server, "slack", ca_file=str(good)).ok
        refused = _send(server, "slack", ca_file=str(bad))
    assert (refused.ok, refused.again) == (False, True)
    assert "certificate" in refused.detail.lower()
    with pytest.raises(InputError, match="CA file"):
        build_channel(ChannelDependencies(channel_settings("slack", ca_file=str(tmp_path / "none.pem"))))


@pytest.mark.parametrize("kind", ["slack", "cloudevents", "feishu"])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_receiver_that_repeats_its_address_tells_no_secret(httpserver: HTTPServer, kind: str, status: int) -> None:
    path, query = "/services/T0/s3cr3t-path-0123456789", "access_token=s3cr3t-query"
    said = {"code": 9, "path": path, "url": f"{path}?{query}", "token": "s3cr3t-query", "hook": path[13:]}
    text = json.dumps(said) + json.dumps(said).replace("/", "\\/")
    httpserver.expect_request(path).respond_with_response(Response(text, status))
    delivery = _send(httpserver, kind, url=httpserver.url_for(f"{path}?{query}"))
    assert "s3cr3t" not in delivery.detail
    assert f"answered {status}" in delivery.detail
