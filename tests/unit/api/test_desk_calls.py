"""What ticket systems send back: whose it is, what it changes, and what it cannot."""

from __future__ import annotations

import json

import httpx2
import pytest
from fastapi.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import HOUR, MINUTE, ManualClock, from_iso
from tocsin.domain.silence import SilenceKind
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService
from tocsin_testing.signed import DESK_KEY, OLD_DESK_KEY, call_headers, desks_and_slack

OTHER_KEY = "another-key-of-thirty-two-characters"


class Desk:
    """A ticket system in front of a fake brain."""

    def __init__(self, **more: object) -> None:
        settings = desks_and_slack()
        settings["desks"][0] |= more
        settings["desks"].append({"name": "chat", "secret": OTHER_KEY})
        self.service = FakeService()
        self.clock = ManualClock(fleet.NOW_MS)
        app = create_app(self.service, ApiSettings.model_validate(settings), self.clock)
        self.http = TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.1", 1))
        self.card = self.service.cards(1).items[0].id

    def send(self, action: str = "acknowledge", key: str = DESK_KEY, **more: str) -> httpx2.Response:
        body = json.dumps({"action": action, "card": self.card, **more}).encode()
        return self.post(body, call_headers(body, self.clock.now_ms(), key))

    def post(self, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        return self.http.post("/v1/desk", content=body, headers=headers)

    def code(self, answer: httpx2.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_card_is_acknowledged_by_the_ticket_system_and_by_no_person(desk: Desk) -> None:
    answer = desk.send(ticket="OPS-1", by="Anna\n\x1b[31m", note="fan on order")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "done")
    (made,) = desk.service.silences.stand
    assert (made.by, made.silence, made.breaker_until) == ("ticket:ops", SilenceKind.ACKNOWLEDGEMENT, None)
    assert made.reason == "OPS-1 taken on by Anna [31m: fan on order"
    assert from_iso(made.until) - from_iso(made.start) == 4 * HOUR
    assert answer.json()["until"] == made.until
    assert desk.service.calls_back == {("ops", "done"): 1}


def test_what_is_resolved_there_is_hidden_for_a_while_and_not_acknowledged_any_more(desk: Desk) -> None:
    desk.send()
    answer = desk.send("resolve").json()
    (made,) = desk.service.silences.stand
    assert (made.silence, made.by, made.until) == (SilenceKind.SNOOZE, "ticket:ops", answer["until"])
    assert answer["sentence"].startswith(f"the fault of card {desk.card} is still there: it is hidden until 20")


def test_what_is_opened_again_there_takes_back_what_it_said(desk: Desk) -> None:
    desk.send()
    desk.send(key=OTHER_KEY)
    assert desk.send("reopen").json()["outcome"] == "done"
    assert [one.by for one in desk.service.silences.stand] == ["ticket:chat"]
    assert desk.send("reopen").status_code == 200


@pytest.mark.parametrize(("key", "actor"), [(DESK_KEY, "ops"), (OLD_DESK_KEY, "ops"), (OTHER_KEY, "chat")])
def test_whose_it_is_shows_by_the_key(desk: Desk, key: str, actor: str) -> None:
    assert desk.send(key=key).status_code == 200
    assert [one.by for one in desk.service.silences.stand] == [f"ticket:{actor}"]


def test_the_same_request_is_taken_once(desk: Desk) -> None:
    body = json.dumps({"action": "acknowledge", "card": desk.card}).encode()
    headers = call_headers(body, desk.clock.now_ms())
    assert desk.post(body, headers).json()["outcome"] == "done"
    desk.service.silences.stand.clear()
    desk.clock.advance(5 * MINUTE)
    again = desk.post(body, headers)
    assert (again.status_code, again.json()["outcome"], desk.service.silences.stand) == (200, "repeated", [])


def test_what_failed_can_be_sent_again(desk: Desk) -> None:
    card, desk.card = desk.card, "nothing"
    body = json.dumps({"action": "acknowledge", "card": "nothing"}).encode()
    headers = call_headers(body, desk.clock.now_ms())
    assert [desk.code(desk.post(body, headers)) for _ in range(2)] == [(404, "not_found")] * 2
    desk.card = card
    assert desk.send().status_code == 200
    assert desk.service.calls_back == {("ops", "refused"): 2, ("ops", "done"): 1}


@pytest.mark.parametrize("minutes", [-6, 6])
def test_a_signature_of_another_time_is_refused(desk: Desk, minutes: int) -> None:
    body = json.dumps({"action": "acknowledge", "card": desk.card}).encode()
    answer = desk.post(body, call_headers(body, desk.clock.now_ms() + minutes * MINUTE))
    assert desk.code(answer) == (401, "signature_old")
    assert desk.service.refusals["signature_old"] == 1


def test_what_is_not_signed_by_a_known_key_is_refused(desk: Desk) -> None:
    body = json.dumps({"action": "acknowledge", "card": desk.card}).encode()
    good = call_headers(body, desk.clock.now_ms())
    assert desk.code(desk.send(key="x" * 32)) == (401, "signature_wrong")
    assert desk.code(desk.post(body + b" ", good)) == (401, "signature_wrong")
    good.pop("Tocsin-Signature")
    assert desk.code(desk.post(body, good)) == (401, "signature_required")
    for header in ("t=1", "v1=ab", "t=1,v1=zz", "t=1,t=2,v1=" + "a" * 64, "t=-1,v1=" + "a" * 64, "x" * 300):
        answer = desk.post(body, {**good, "Tocsin-Signature": header})
        assert desk.code(answer) == (401, "signature_required"), header
    assert desk.service.silences.stand == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"action": "approve", "card": "c"}',
        b'{"action": "resolve"}',
        b'{"action": "resolve", "card": "c", "until": "2099"}',
        b'{"action": "resolve", "card": "a b"}',
        b'{"action": "resolve", "card": "' + b"c" * 65 + b'"}',
        b'{"action": "resolve", "card": "c", "note": ' + b"[" * 8_000,
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_read_is_one_error(desk: Desk, body: bytes) -> None:
    assert desk.code(desk.post(body, call_headers(body, desk.clock.now_ms()))) == (422, "invalid_request")


def test_a_large_body_is_refused_before_it_is_checked(desk: Desk) -> None:
    body = b" " * (16 * 1024 + 1)
    assert desk.code(desk.post(body, call_headers(body, desk.clock.now_ms()))) == (413, "content_too_large")


def test_it_is_json(desk: Desk) -> None:
    body = b"{}"
    headers = {**call_headers(body, desk.clock.now_ms()), "Content-Type": "text/plain"}
    assert desk.code(desk.post(body, headers)) == (415, "unsupported_media_type")


@pytest.mark.parametrize("action", ["acknowledge", "resolve", "reopen"])
def test_scopes_bind_a_ticket_system_too(action: str) -> None:
    desk = Desk(scopes=[{"pools": ["nowhere"]}])
    assert desk.code(desk.send(action)) == (403, "scope_lacking")
    assert desk.service.silences.stand == []


def test_acknowledging_alone_hides_nothing() -> None:
    desk = Desk(scopes=[{"actions": ["acknowledge"]}])
    assert desk.send().status_code == 200
    assert desk.code(desk.send("resolve")) == (403, "scope_lacking")


def test_without_desks_nothing_comes_back() -> None:
    app = create_app(FakeService(), ApiSettings())
    answer = TestClient(app, base_url="http://127.0.0.1").post("/v1/desk", json={})
    assert answer.json()["error"]["message"] == "no api.desks are set: no ticket system may send anything back"
