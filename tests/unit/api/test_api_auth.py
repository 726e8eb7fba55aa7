"""Who may do what, and from where."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.load import load_settings
from tocsin.domain.errors import InputError
from tocsin_testing.fake_service import FakeService

SECRETS = {role: f"{role.value}-secret-0123456789" for role in Role}
LOCAL = ("127.0.0.1", 50000)
READS = [
    "/v1/fleet",
    "/v1/gpus",
    "/v1/decisions",
    "/v1/journal",
    "/v1/scoreboard",
    "/v1/scoreboard/report",
    "/v1/rules",
    "/metrics",
]
OPERATES = ["/v1/pause", "/v1/resume"]


def tokens() -> list[Token]:
    return [Token(name=f"the {role.value}", role=role, secret=SecretStr(SECRETS[role])) for role in Role]


def client(*, with_tokens: bool = True, address: tuple[str, int] = LOCAL, url: str = "http://127.0.0.1") -> TestClient:
    app = create_app(FakeService(), ApiSettings(tokens=tokens() if with_tokens else []))
    return TestClient(app, base_url=url, client=address)


def bearer(role: Role, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {SECRETS[role]}"}


@pytest.mark.parametrize("role", Role)
def test_each_role_reaches_what_it_should(role: Role) -> None:
    http = client()
    reads = {http.get(path, headers=bearer(role)).status_code for path in READS}
    operates = {http.post(path, json={}, headers=bearer(role)).status_code for path in OPERATES}
    reset = http.post("/v1/breaker/reset", json={}, headers=bearer(role)).status_code
    write = http.post("/api/v2/write", content="gpu x=1 1", headers=bearer(role)).status_code
    assert reads == ({403} if role is Role.AGENT else {200})
    assert operates == ({200} if role in {Role.OPERATOR, Role.ADMIN} else {403})
    assert reset == (200 if role is Role.ADMIN else 403)
    assert write == (204 if role in {Role.AGENT, Role.ADMIN} else 403)


def test_the_journal_names_the_token_s_holder() -> None:
    http = client()
    http.post("/v1/pause", json={"reason": "work on the power"}, headers=bearer(Role.OPERATOR))
    entries = http.get("/v1/journal?kind=pause", headers=bearer(Role.VIEWER)).json()
    assert [(e["actor"], e["payload"]) for e in entries] == [("the operator", {"reason": "work on the power"})]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong-0123456789abcdef",
        "Basic dXNlcjpwYXNz",
        SECRETS[Role.ADMIN],
        "Bearer \xff",
    ],
)
def test_without_a_known_token_nothing_is_served(header: str) -> None:
    answer = client().get("/v1/fleet", headers={b"Authorization": header.encode("latin-1")} if header else {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] in {"token_required", "token_unknown"}


def test_the_token_is_asked_for_before_the_body_is_read() -> None:
    answer = client().post("/v1/pause", content="{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 401


def test_influxdb_s_token_scheme_works() -> None:
    answer = client().post("/api/v2/write", content="gpu x=1 1", headers=bearer(Role.AGENT, "Token"))
    assert answer.status_code == 204


def test_me_says_who_holds_the_token() -> None:
    told = client().get("/v1/me", headers=bearer(Role.AGENT)).json()
    assert told == {"name": "the agent", "role": "agent", "scopes": [], "hosts": []}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_without_tokens_the_loopback_address_is_admin(address: str) -> None:
    answer = client(with_tokens=False, address=(address, 1)).get("/v1/me")
    assert answer.json() == {"name": "loopback", "role": "admin", "scopes": [], "hosts": []}


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.4", "::ffff:10.0.0.7", "2001:db8::1", "testclient"])
def test_without_tokens_others_are_refused(address: str) -> None:
    answer = client(with_tokens=False, address=(address, 1)).get("/v1/fleet")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_required")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_without_tokens_a_proxy_does_not_make_its_clients_local(header: str) -> None:
    assert client(with_tokens=False).get("/v1/fleet", headers={header: "10.0.0.7"}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", ""])
def test_without_tokens_a_name_that_points_here_is_refused(host: str) -> None:
    answer = client(with_tokens=False).get("/v1/fleet", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "host_unknown")


@pytest.mark.parametrize("host", ["localhost:8470", "127.0.0.1", "[::1]:8470", "[::1]", "LOCALHOST"])
def test_without_tokens_loopback_names_are_served(host: str) -> None:
    assert client(with_tokens=False).get("/v1/fleet", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/pause", "/api/v2/write"])
def test_a_foreign_web_page_changes_nothing(headers: dict[str, str], path: str) -> None:
    answer = client(with_tokens=False).post(path, json={}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_page_may_send_unasked_changes_nothing(kind: str) -> None:
    answer = client(with_tokens=False).post("/v1/pause", content="{}", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_health_is_open_to_anyone() -> None:
    http = client(address=("10.0.0.7", 1))
    paths = ["/healthz", "/readyz", "/ping", "/api/v2/ping", "/openapi.json"]
    assert [http.get(path).status_code for path in paths] == [200, 200, 204, 204, 200]


@pytest.mark.parametrize("secret", ["", "short", "fifteen-letters"])
def test_a_short_secret_is_refused_and_not_shown(secret: str) -> None:
    tokens = json.dumps([{"name": "ci", "role": "admin", "secret": secret}])
    with pytest.raises(InputError, match=r"api\.tokens\.0\.secret = '\(secret\)': .*at least 16"):
        load_settings(environ={"TOCSIN_API__TOKENS": tokens})


def test_a_secret_given_twice_is_refused() -> None:
    one = Token(name="a", role=Role.VIEWER, secret=SecretStr("x" * 16))
    two = Token(name="b", role=Role.ADMIN, secret=SecretStr("x" * 16))
    with pytest.raises(InputError, match="two tokens have this secret"):
        create_app(FakeService(), ApiSettings(tokens=[one, two]))
