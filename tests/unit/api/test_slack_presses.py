"""Presses of buttons in Slack: who may, what they do, and what the person is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from tocsin.actions.notifications.slack_buttons import Button, Deed
from tocsin.api import routes_slack
from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import HOUR, MINUTE, ManualClock, from_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Conflict
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService
from tocsin_testing.signed import ANNA, STRANGER, VERA, desks_and_slack, press_body, press_headers, pressed

ADDRESS = "https://hooks.slack.com/actions/T0TEAM/1/secret-part-of-it"


class Room:
    """A Slack in front of a fake brain; `told` is what it was answered, by address."""

    def __init__(self, **more: object) -> None:
        settings = desks_and_slack()
        settings["slack"] |= more
        self.service = FakeService()
        self.clock = ManualClock(fleet.NOW_MS)
        self.app = create_app(self.service, ApiSettings.model_validate(settings), self.clock)
        self.http = TestClient(self.app, base_url="http://127.0.0.1", client=("192.0.2.1", 1))
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.app.state.slack.replies.post = lambda url, answer: self.told.append((url, answer))
        self.decision = next(one.id for one in self.service.decisions(50) if one.approvable)
        self.card = self.service.cards(1).items[0].id

    def button(self, deed: Deed) -> Button:
        return Button(deed, self.card if deed is Deed.ACKNOWLEDGE else self.decision)

    def press(self, deed: Deed, user: str = ANNA, **more: object) -> httpx2.Response:
        return self.send(press_body(pressed(self.button(deed), user, **more)))

    def send(self, body: bytes, **more: str) -> httpx2.Response:
        headers = press_headers(body, self.clock.now_ms()) | more
        return self.http.post("/v1/slack/interactive", content=body, headers=headers)

    def whispered(self) -> str:
        """The one answer, which only the person who pressed sees."""
        ((url, answer),) = self.told
        assert (url, answer["response_type"], answer["replace_original"]) == (ADDRESS, "ephemeral", False)
        return str(answer["text"])

    def state(self) -> DecisionState:
        return self.service.decision(self.decision).state


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize(
    ("deed", "state", "said"),
    [
        (Deed.APPROVE, DecisionState.APPROVED, "Approved by anna. It runs once the guards allow it."),
        (Deed.DECLINE, DecisionState.REJECTED, "Declined by anna."),
    ],
)
def test_a_press_settles_and_the_message_says_who(room: Room, deed: Deed, state: DecisionState, said: str) -> None:
    answer = room.press(deed)
    assert (answer.status_code, answer.content) == (200, b"")
    assert room.state() is state
    ((url, told),) = room.told
    assert (url, told["replace_original"], told["text"]) == (ADDRESS, True, said)
    header, note, left = told["blocks"]
    assert header["text"]["text"] == "Tocsin PAGE"
    assert note["elements"][0]["text"] == said
    assert [one["action_id"] for one in left["elements"]] == ["tocsin_acknowledge"], "that one is not used up"
    assert room.service.calls_back == {("slack", "done"): 1}


def test_the_journal_has_the_person(room: Room) -> None:
    room.press(Deed.APPROVE)
    assert room.service.journal(0, 100)[-1].actor == "slack:anna"


def test_acknowledging_is_a_persons_own(room: Room) -> None:
    room.press(Deed.ACKNOWLEDGE)
    (made,) = room.service.silences.stand
    assert (made.by, made.name, made.breaker_until is not None) == ("slack:anna", room.card, True)
    assert from_iso(made.until) - from_iso(made.start) == HOUR
    ((_, told),) = room.told
    assert told["text"] == f"Acknowledged by anna until {made.until}."
    assert [block["type"] for block in told["blocks"]] == ["header", "context"], "no button is left"


def test_chinese_messages_are_answered_in_chinese(room: Room) -> None:
    sent = pressed(room.button(Deed.DECLINE))
    sent["actions"][0]["block_id"] = "tocsin-zh"
    room.send(press_body(sent))
    assert room.told[0][1]["text"] == "已由 anna 拒绝。"


def test_a_stranger_is_told_so(room: Room) -> None:
    room.press(Deed.APPROVE, STRANGER)
    assert room.whispered() == f"Nothing was done: Slack user {STRANGER} is none of api.slack.people."
    assert room.state() is DecisionState.HELD


def test_a_role_that_is_too_low_is_told_so(room: Room) -> None:
    room.press(Deed.APPROVE, VERA)
    assert room.whispered() == "Nothing was done: token slack:vera is viewer; this needs operator or admin."
    assert room.state() is DecisionState.HELD
    room.told.clear()
    room.press(Deed.ACKNOWLEDGE, VERA)
    assert "this needs operator or admin" in room.whispered()
    assert room.service.silences.stand == []


@pytest.mark.parametrize("deed", list(Deed))
def test_scopes_bind_people_in_slack_too(deed: Deed) -> None:
    anna = {"user": ANNA, "name": "anna", "role": "operator", "scopes": [{"pools": ["nowhere"]}]}
    room = Room(people=[anna])
    room.press(deed)
    assert "may not" in room.whispered()
    assert (room.state(), room.service.silences.stand) == (DecisionState.HELD, [])


def test_what_is_settled_already_is_told_so(room: Room) -> None:
    room.service.approve(room.decision, "otto")
    room.press(Deed.APPROVE)
    assert room.whispered().startswith("Nothing was done: decision")
    assert room.service.decision(room.decision).approved_by == "otto"


def test_what_has_expired_is_told_so(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def expired(_decision: str, _actor: str) -> None:
        raise Conflict("decision d has expired")

    monkeypatch.setattr(room.service, "approve", expired)
    room.press(Deed.APPROVE)
    assert room.whispered() == "Nothing was done: decision d has expired."


def test_a_failure_of_the_brain_is_told_without_its_details(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_decision: str, _actor: str) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(room.service, "approve", broken)
    assert room.press(Deed.APPROVE).status_code == 200
    assert room.whispered() == "Nothing was done: the brain failed; its log has the details."


@pytest.mark.parametrize("team", [{"id": "T0OTHER"}, None])
def test_presses_of_another_workspace_are_those_of_strangers(team: object) -> None:
    room = Room(team="T0TEAM")
    sent = pressed(room.button(Deed.APPROVE), team=team) | {"user": {"id": ANNA, "team_id": "T0OTHER"}}
    room.send(press_body(sent))
    assert "is none of api.slack.people" in room.whispered()
    room.told.clear()
    room.press(Deed.APPROVE)
    assert room.state() is DecisionState.APPROVED


def test_a_button_that_somebody_made_up_does_nothing(room: Room) -> None:
    """Whoever has the URL of the webhook can post one, and Slack signs that it was pressed."""
    sent = pressed(room.button(Deed.APPROVE))
    sent["actions"][0]["value"] = f"approve:{room.decision}:{'0' * 32}"
    room.send(press_body(sent))
    assert room.whispered() == "Nothing was done: the button is none of this service."
    assert room.state() is DecisionState.HELD


def test_a_press_that_comes_again_does_nothing(room: Room) -> None:
    body = press_body(pressed(room.button(Deed.ACKNOWLEDGE)))
    headers = press_headers(body, room.clock.now_ms())
    for _ in range(2):
        assert room.http.post("/v1/slack/interactive", content=body, headers=headers).status_code == 200
    assert len(room.told) == len(room.service.silences.stand) == 1
    assert room.service.calls_back == {("slack", "done"): 1, ("slack", "repeated"): 1}


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_only_slack_is_believed(room: Room) -> None:
    body = press_body(pressed(room.button(Deed.APPROVE)))
    now_ms = room.clock.now_ms()
    for headers, wanted in (
        (press_headers(body, now_ms, "x" * 32), "signature_wrong"),
        (press_headers(body + b"+", now_ms), "signature_wrong"),
        (press_headers(body, now_ms - 6 * MINUTE), "signature_old"),
        (press_headers(body, now_ms + 6 * MINUTE), "signature_old"),
        (press_headers(body, now_ms) | {"X-Slack-Signature": "v1=" + "a" * 64}, "signature_required"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "signature_required"),
    ):
        answer = room.http.post("/v1/slack/interactive", content=body, headers=headers)
        assert code(answer) == (401, wanted)
    assert (room.state(), room.told) == (DecisionState.HELD, [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"payload=",
        b"payload=%7B",
        b"payload=%FF",
        b"other=%7B%7D",
        b"payload=%7B%7D&payload=%7B%7D",
        b"&".join([b"a=b"] * 50_000),
        b"payload=" + b"%5B" * 60_000,
        b"payload=" + b"[" * 200_000,
        press_body({"type": "block_actions"}),
        press_body({"type": "block_actions", "user": {"id": "U" * 101}, "actions": []}),
        press_body({"type": "block_actions", "user": {"id": "U1"}, "message": {"blocks": [{}] * 51}}),
        press_body({"type": "block_actions", "user": {"id": "U1"}, "response_url": "h" * 501}),
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_read_is_one_error(room: Room, body: bytes) -> None:
    assert code(room.send(body)) == (422, "invalid_request")


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "view_submission", "user": {"id": ANNA}},
        {"type": "block_actions", "user": {"id": ANNA}, "actions": [{"action_id": "of_another_app"}]},
        {"type": "block_actions", "user": {"id": ANNA}, "actions": []},
    ],
)
def test_what_is_no_button_of_ours_is_passed_by(room: Room, payload: dict[str, object]) -> None:
    assert room.send(press_body(payload)).status_code == 200
    assert (room.told, room.service.calls_back) == ([], {("slack", "ignored"): 1})


def test_it_is_a_form_of_bounded_size(room: Room) -> None:
    assert code(room.send(b"{}", **{"Content-Type": "application/json"})) == (415, "unsupported_media_type")
    assert code(room.send(b"payload=" + b"x" * 300_000)) == (413, "content_too_large")


def test_without_a_secret_nobody_decides_in_slack() -> None:
    app = create_app(FakeService(), ApiSettings())
    http = TestClient(app, base_url="http://127.0.0.1")
    assert http.post("/v1/slack/interactive", data={"payload": "{}"}).status_code == 409


def test_slack_is_answered_in_time_and_the_press_goes_on(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_slack, "ANSWER_SECONDS", 0.01)
    gate, ended = threading.Event(), threading.Event()
    slow = room.service.approve

    def approve(decision_id: str, actor: str) -> object:
        assert gate.wait(10)
        return slow(decision_id, actor)

    monkeypatch.setattr(room.service, "approve", approve)
    room.app.state.slack.replies.post = lambda _url, _answer: ended.set()
    body = press_body(pressed(room.button(Deed.APPROVE)))
    headers = press_headers(body, room.clock.now_ms())

    async def pressing() -> None:
        await room.app.state.slack.take(headers["X-Slack-Request-Timestamp"], headers["X-Slack-Signature"], body)
        assert room.state() is DecisionState.HELD, "Slack has its answer before"
        gate.set()
        assert await asyncio.to_thread(ended.wait, 10)

    asyncio.run(pressing())
    assert room.state() is DecisionState.APPROVED
