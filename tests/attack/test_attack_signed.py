"""Whoever has a key of what comes back: what is signed well and says nothing good changes nothing, and gives no 500."""

from __future__ import annotations

import json
from typing import Any

from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.notifications.slack_buttons import Button, Deed
from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import ManualClock
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService
from tocsin_testing.signed import (
    ANNA,
    DESK_KEY,
    SLACK_KEY,
    STRANGER,
    call_headers,
    desks_and_slack,
    press_body,
    press_headers,
    pressed,
)

LIMITS = {"request_burst": 10**6, "requests_per_second": 1e6}
SERVICE = FakeService()
APP = create_app(SERVICE, ApiSettings.model_validate(desks_and_slack() | {"limits": LIMITS}), ManualClock(fleet.NOW_MS))
HTTP = TestClient(APP, base_url="http://127.0.0.1", raise_server_exceptions=False)
TOLD: list[tuple[str, dict[str, Any]]] = []
APP.state.slack.replies.post = lambda url, answer: TOLD.append((url, answer))

words = st.text(max_size=20)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)
FIELDS = ["type", "user", "team", "actions", "message", "response_url", "trigger_id"]


def before() -> tuple[int, int]:
    return SERVICE.journal(0, 10**6)[-1].seq, len(SERVICE.silences.stand)


def sent(path: str, body: bytes, headers: dict[str, str]) -> int:
    return HTTP.post(path, content=body, headers=headers).status_code


@settings(max_examples=150)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), anything, min_size=1), deed=st.sampled_from(Deed))
def test_a_press_that_slack_would_never_send(changes: dict[str, Any], deed: Deed) -> None:
    was = before()
    payload = pressed(Button(deed, "no-such-thing"), STRANGER) | changes
    body = press_body(payload)
    assert sent("/v1/slack/interactive", body, press_headers(body, fleet.NOW_MS)) in {200, 422}
    assert before() == was


@settings(max_examples=150)
@given(raw=st.binary(max_size=300) | anything.map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_anything(raw: bytes) -> None:
    was = before()
    assert sent("/v1/slack/interactive", raw, press_headers(raw, fleet.NOW_MS)) in {200, 422}
    assert sent("/v1/desk", raw, call_headers(raw, fleet.NOW_MS)) in {404, 422}
    assert before() == was


@settings(max_examples=100)
@given(value=words | st.tuples(st.sampled_from(Deed), words, words).map(":".join), wrong=st.integers(0, 9))
def test_a_button_without_a_seal(value: str, wrong: int) -> None:
    """By one who may post as the app, and makes an operator press it."""
    was = before()
    held = next(one.id for one in SERVICE.decisions(50) if one.approvable)
    for forged in (value, f"approve:{held}:", f"approve:{held}:{wrong:032x}", Button(Deed.APPROVE, held).value("k")):
        payload = pressed(Button(Deed.APPROVE, held), ANNA)
        payload["actions"][0]["value"] = forged
        body = press_body(payload)
        assert sent("/v1/slack/interactive", body, press_headers(body, fleet.NOW_MS)) == 200
    assert before() == was


def test_nested_beyond_all_measure() -> None:
    for deep in (b"[" * 15_000, b'{"a":' * 3_000, b'{"action":' + b"[" * 10_000):
        assert sent("/v1/desk", deep, call_headers(deep, fleet.NOW_MS)) == 422
        form = b"payload=" + deep.replace(b"{", b"%7B").replace(b'"', b"%22")
        assert sent("/v1/slack/interactive", form, press_headers(form, fleet.NOW_MS)) == 422
    payload = pressed(Button(Deed.APPROVE, "x"))
    payload["message"]["blocks"] = [{"type": "section", "x": json.loads("[" * 900 + "]" * 900)}]
    body = press_body(payload)
    assert sent("/v1/slack/interactive", body, press_headers(body, fleet.NOW_MS)) in {200, 422}


def test_one_way_back_gives_no_key_to_the_other() -> None:
    body = json.dumps({"action": "acknowledge", "card": SERVICE.cards(1).items[0].id}).encode()
    form = press_body(pressed(Button(Deed.APPROVE, "x")))
    assert sent("/v1/desk", body, call_headers(body, fleet.NOW_MS, SLACK_KEY)) == 401
    assert sent("/v1/slack/interactive", form, press_headers(form, fleet.NOW_MS, DESK_KEY)) == 401
    slack = press_headers(body, fleet.NOW_MS, DESK_KEY) | {"Content-Type": "application/json"}
    assert sent("/v1/desk", body, slack) == 401
    mac = slack["X-Slack-Signature"].removeprefix("v0=")
    crossed = {**slack, "Tocsin-Signature": f"t={slack['X-Slack-Request-Timestamp']},v1={mac}"}
    assert sent("/v1/desk", body, crossed) == 401


def test_an_address_of_the_senders_own_is_answered_by_nobody() -> None:
    """The press counts; where it may be answered is not the sender's to say."""
    del APP.state.slack.replies.post
    lost = SERVICE.calls_back["slack", "unanswered"]
    body = press_body(pressed(Button(Deed.APPROVE, "x"), response_url="http://169.254.169.254/latest"))
    assert sent("/v1/slack/interactive", body, press_headers(body, fleet.NOW_MS)) == 200
    assert SERVICE.calls_back["slack", "unanswered"] == lost + 1
