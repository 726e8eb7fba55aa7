"""Acknowledging, snoozing and planning over HTTP: who may, what is refused, and whose token is whose."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.config.access import AccessScope, ApiSettings, Role, Token
from tocsin.domain.clock import HOUR, from_iso
from tocsin_testing.fake_service import FakeService

SECRET = "a-secret-0123456789-{}"
TOKENS = {
    "olga": Token(name="olga", role=Role.OPERATOR, secret=SecretStr(SECRET.format("olga")), personal=True),
    "shift": Token(name="shift", role=Role.OPERATOR, secret=SecretStr(SECRET.format("shift"))),
    "vera": Token(name="vera", role=Role.VIEWER, secret=SecretStr(SECRET.format("vera")), personal=True),
    "train": Token(
        name="train",
        role=Role.OPERATOR,
        secret=SecretStr(SECRET.format("train")),
        scopes=[AccessScope(pools=["nowhere"], actions=["*"])],
    ),
}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    app = create_app(service, ApiSettings(tokens=list(TOKENS.values())))
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRET.format(name)}"}


def test_a_card_is_acknowledged_shown_so_and_given_back(http: TestClient) -> None:
    card = http.get("/v1/cards", headers=by("vera")).json()["items"][0]["id"]
    path = f"/v1/cards/{card}/acknowledge"
    made = http.post(path, json={"for_seconds": 7200, "reason": "mine"}, headers=by("olga"))
    assert made.status_code == 200
    assert from_iso(made.json()["until"]) - from_iso(made.json()["start"]) == 2 * HOUR
    shown = http.get(f"/v1/cards/{card}", headers=by("vera")).json()
    assert (shown["state"], shown["acknowledged_by"]) == ("acknowledged", "olga")
    assert http.get("/v1/cards", params={"state": "acknowledged"}, headers=by("vera")).json()["total"] == 1
    assert [one["name"] for one in http.delete(path, headers=by("shift")).json()] == [card]
    assert http.delete(path, headers=by("shift")).status_code == 409
    assert http.get(f"/v1/cards/{card}", headers=by("vera")).json()["state"] == "open"


def test_only_a_personal_token_keeps_the_cause_out_of_the_breaker(http: TestClient) -> None:
    card = http.get("/v1/cards", headers=by("vera")).json()["items"][0]["id"]
    made = {
        who: http.post(f"/v1/cards/{card}/acknowledge", json={}, headers=by(who)).json() for who in ("olga", "shift")
    }
    assert made["olga"]["breaker_until"] is not None
    assert made["shift"]["breaker_until"] is None


@pytest.mark.parametrize(("path", "more"), [("snoozes", {}), ("maintenance", {"start": "2027-01-01T02:00:00+02:00"})])
def test_snoozes_and_maintenance_are_made_listed_and_ended(
    http: TestClient, service: FakeService, path: str, more: dict[str, str]
) -> None:
    host = service.gpus()[0].host
    body = {"kind": "host", "name": host, "for_seconds": 3600, "reason": "fans", **more}
    made = http.post(f"/v1/{path}", json=body, headers=by("olga")).json()
    assert (made["kind"], made["name"], made["by"], made["reason"]) == ("host", host, "olga", "fans")
    assert not more or made["start"] == "2027-01-01T00:00:00.000Z"
    assert [one["id"] for one in http.get(f"/v1/{path}", headers=by("vera")).json()] == [made["id"]]
    assert http.delete(f"/v1/{path}/{made['id']}", headers=by("olga")).json()["id"] == made["id"]
    assert http.delete(f"/v1/{path}/{made['id']}", headers=by("olga")).status_code == 404


def test_hidden_cards_are_counted_and_listed_where_they_are_asked_for(http: TestClient) -> None:
    before = http.get("/v1/cards", headers=by("vera")).json()
    card = before["items"][0]["id"]
    http.post("/v1/snoozes", json={"kind": "card", "name": card, "for_seconds": 60}, headers=by("olga"))
    after = http.get("/v1/cards", headers=by("vera")).json()
    hidden = http.get("/v1/cards", params={"hidden": "true"}, headers=by("vera")).json()
    assert (before["hidden"], after["hidden"], after["snoozes"]) == (0, 1, 1)
    assert after["total"] == before["total"] - 1
    assert [(one["id"], one["hidden"]["by"]) for one in hidden["items"]] == [(card, "olga")]


def test_who_may_not_is_refused(http: TestClient, service: FakeService) -> None:
    card, host = service.cards(1).items[0].id, service.gpus()[0].host
    place = {"kind": "host", "name": host, "for_seconds": 3600}
    for path, body in ((f"cards/{card}/acknowledge", {}), ("snoozes", place), ("maintenance", place)):
        assert http.post(f"/v1/{path}", json=body).status_code == 401
        low = http.post(f"/v1/{path}", json=body, headers=by("vera"))
        far = http.post(f"/v1/{path}", json=body, headers=by("train"))
        assert [one.json()["error"]["code"] for one in (low, far)] == ["role_too_low", "scope_lacking"]
        assert http.post(f"/v1/{path}", content="{}", headers=by("olga")).status_code == 415
    made = http.post("/v1/snoozes", json=place, headers=by("olga")).json()["id"]
    for who, code in (("vera", "role_too_low"), ("train", "scope_lacking")):
        assert http.delete(f"/v1/snoozes/{made}", headers=by(who)).json()["error"]["code"] == code
    assert len(service.silences.stand) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("snoozes", {"kind": "host", "name": "nowhere", "for_seconds": 60}, 404),
        ("snoozes", {"kind": "fleet", "name": "x", "for_seconds": 60}, 422),
        ("snoozes", {"kind": "host", "name": "x" * 254, "for_seconds": 60}, 422),
        ("snoozes", {"kind": "host", "name": "x", "for_seconds": 60, "reason": "w" * 501}, 422),
        ("snoozes", {"kind": "pool", "name": "x"}, 422),
        ("snoozes", {"kind": "pool", "name": "x", "for_seconds": 8 * 86_400}, 400),
        ("maintenance", {"kind": "card", "name": "x", "for_seconds": 60}, 422),
        ("maintenance", {"kind": "pool", "name": "x", "for_seconds": 60, "start": "tomorrow"}, 422),
        ("maintenance", {"kind": "pool", "name": "x", "for_seconds": 60, "start": "0000-00-00T00:00:00.000Z"}, 422),
        ("cards/nothing/acknowledge", {}, 404),
    ],
)
def test_what_cannot_be_is_refused(http: TestClient, path: str, body: dict[str, object], status: int) -> None:
    assert http.post(f"/v1/{path}", json=body, headers=by("olga")).status_code == status
