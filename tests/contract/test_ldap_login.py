"""Log-in by password against a real OpenLDAP server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from tocsin.api.app import create_app
from tocsin.api.directory import Directory, NoRole
from tocsin.config.access import ApiSettings, LdapSettings, Role
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin_testing import needs, slapd
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService
from tocsin_testing.servers import free_port

pytestmark = pytest.mark.server

GROUPS = [
    {"group": "GPU-Admins", "role": "admin"},
    {"group": "train-ops", "role": "operator", "scopes": [{"pools": ["train-*"]}]},
    {"group": "staff", "role": "viewer"},
]
PEOPLE = f"ou=people,{slapd.SUFFIX}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slapd.Directory]:
    if importlib.util.find_spec("ldap") is None:
        needs.lack("python-ldap is not installed; `make setup-servers` brings what it is built against")
    with slapd.slapd(tmp_path_factory.mktemp("slapd")) as running:
        yield running


def settings(server: slapd.Directory, **more: object) -> LdapSettings:
    base = {
        "url": server.ldap,
        "ca": server.ca,
        "user_dn": f"uid={{user}},{PEOPLE}",
        "group_base": f"ou=groups,{slapd.SUFFIX}",
        "groups": GROUPS,
        **more,
    }
    return LdapSettings.model_validate(base)


def searching(server: slapd.Directory, **more: object) -> LdapSettings:
    account = {"bind_dn": slapd.ADMIN, "bind_password": slapd.ADMIN_PASSWORD}
    return settings(server, user_dn="", search_base=PEOPLE, **{**account, **more})


@pytest.fixture(params=["template", "search", "ldaps"])
def directory(request: pytest.FixtureRequest, server: slapd.Directory) -> Directory:
    wanted = {"template": settings(server), "search": searching(server), "ldaps": settings(server, url=server.ldaps)}
    return Directory(wanted[request.param])


def test_the_right_password_gives_name_role_and_scope(directory: Directory) -> None:
    anna = directory.login("anna", slapd.PASSWORDS["anna"])
    olga = directory.login("olga", slapd.PASSWORDS["olga"])
    assert anna is not None
    assert olga is not None
    assert (anna.name, anna.role, anna.scope_texts()) == ("ldap:anna", Role.ADMIN, [])
    assert (olga.name, olga.role, olga.scope_texts()) == ("ldap:olga", Role.OPERATOR, ["train-*: *"])


def test_one_person_has_one_name_however_it_is_typed(directory: Directory) -> None:
    for typed in ("Anna", "ANNA", " anna "):
        who = directory.login(typed, slapd.PASSWORDS["anna"])
        assert who is not None
        assert who.name == "ldap:anna"


def test_a_wrong_password_and_an_unknown_name_are_the_same(directory: Directory) -> None:
    assert directory.login("anna", "wrong") is None
    assert directory.login("nobody", "wrong") is None
    assert directory.login("anna", slapd.PASSWORDS["olga"]) is None


def test_a_bind_without_password_proves_nothing(directory: Directory, server: slapd.Directory) -> None:
    import ldap

    connection = ldap.initialize(server.ldap)
    connection.simple_bind_s(f"uid=anna,{PEOPLE}", "")
    connection.unbind_s()
    for password in ("", "\0", "\0anything"):
        assert directory.login("anna", password) is None
    assert directory.login("", slapd.PASSWORDS["anna"]) is None


@pytest.mark.parametrize(
    "name",
    [
        "*",
        "an*",
        "anna)(uid=*",
        "*)(objectClass=*",
        "anna,ou=people",
        "anna+cn=anna",
        "an\\6ea",
        "anna\0",
        "anna\n",
        "a" * 300,
        f"anna,{PEOPLE}",
    ],
)
def test_a_name_is_no_piece_of_a_query(directory: Directory, name: str) -> None:
    assert directory.login(name, slapd.PASSWORDS["anna"]) is None


def test_a_password_may_have_any_letters(directory: Directory) -> None:
    with pytest.raises(NoRole, match="ldap:vera is in no group"):
        directory.login("vera", slapd.PASSWORDS["vera"])


def test_a_certificate_of_another_ca_is_refused(server: slapd.Directory, tmp_path: Path) -> None:
    import trustme

    other = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(other)
    for url in (server.ldap, server.ldaps):
        with pytest.raises(Unavailable, match="the directory cannot be asked"):
            Directory(settings(server, url=url, ca=other)).login("anna", slapd.PASSWORDS["anna"])


def test_a_certificate_for_another_name_is_refused(server: slapd.Directory) -> None:
    with pytest.raises(Unavailable, match="the directory cannot be asked"):
        Directory(settings(server, url=server.ldaps.replace("127.0.0.1", "127.0.0.2"))).login("anna", "x")


def test_a_directory_that_is_not_there(server: slapd.Directory) -> None:
    gone = settings(server, url=f"ldaps://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match="Can't contact LDAP server"):
        Directory(gone).login("anna", "x")


def test_the_searching_account_s_trouble_is_not_the_person_s(server: slapd.Directory) -> None:
    for password in ("wrong", ""):
        with pytest.raises(Unavailable, match="nobody can log in"):
            Directory(searching(server, bind_password=password)).login("anna", slapd.PASSWORDS["anna"])


def test_a_filter_that_finds_two_people_finds_none(server: slapd.Directory) -> None:
    both = searching(server, search_filter="(|(uid={user})(uid=olga))")
    assert Directory(both).login("anna", slapd.PASSWORDS["anna"]) is None


def test_an_unprotected_connection_is_for_loopback_alone(server: slapd.Directory) -> None:
    plain = settings(server, start_tls=False)
    assert Directory(plain).login("anna", slapd.PASSWORDS["anna"]) is not None
    with pytest.raises(ValidationError, match="in the clear"):
        settings(server, url="ldap://ldap.example.org", start_tls=False)


# ---------------------------------------------------------------------- through the API


def http_for(
    server: slapd.Directory, service: FakeService, clock: ManualClock, address: str = "127.0.0.1"
) -> TestClient:
    app = create_app(service, ApiSettings(ldap=settings(server), session_seconds=600), clock)
    return TestClient(app, base_url="http://127.0.0.1", client=(address, 1))


def log_in(http: TestClient, user: str, password: str) -> tuple[int, dict[str, str]]:
    answer = http.post("/v1/login", json={"user": user, "password": password})
    return answer.status_code, answer.json() if answer.is_success else answer.json()["error"]


def test_a_session_lasts_until_it_ends(server: slapd.Directory) -> None:
    service, clock = FakeService(), ManualClock(T0)
    http = http_for(server, service, clock)
    assert http.get("/v1/login/methods").json() == {"password": True, "oidc": None}
    status, opened = log_in(http, "Anna", slapd.PASSWORDS["anna"])
    assert (status, opened["name"], opened["role"]) == (200, "ldap:anna", "admin")
    bearer = {"Authorization": f"Bearer {opened['token']}"}
    assert http.post("/v1/pause", json={}, headers=bearer).status_code == 200
    clock.advance(599 * SECOND)
    assert http.get("/v1/me", headers=bearer).status_code == 200
    clock.advance(SECOND)
    late = http.get("/v1/me", headers=bearer)
    assert (late.status_code, late.json()["error"]["code"]) == (401, "token_expired")
    assert [(e.kind, e.actor) for e in service.journal(1, 10)] == [("login", "ldap:anna"), ("pause", "ldap:anna")]


def test_a_log_out_ends_it_at_once(server: slapd.Directory) -> None:
    service = FakeService()
    http = http_for(server, service, ManualClock(T0))
    bearer = {"Authorization": f"Bearer {log_in(http, 'anna', slapd.PASSWORDS['anna'])[1]['token']}"}
    assert http.post("/v1/logout", json={}, headers=bearer).status_code == 204
    assert http.get("/v1/me", headers=bearer).status_code == 401
    assert http.post("/v1/logout", json={}, headers=bearer).status_code == 401
    assert service.journal(0, 10)[-1].kind == "logout"


def test_wrong_passwords_lock_the_name_and_then_longer(server: slapd.Directory) -> None:
    service, clock = FakeService(), ManualClock(T0)
    http = http_for(server, service, clock)
    codes = [log_in(http, "anna", f"wrong {n}") for n in range(6)]
    assert [status for status, _ in codes] == [401] * 5 + [429]
    assert codes[5][1]["code"] == "login_locked"
    # The right password must not tell that it is right while the lock holds, whichever way the name is written.
    assert log_in(http, "ANNA", slapd.PASSWORDS["anna"])[0] == 429
    assert log_in(http, "olga", slapd.PASSWORDS["olga"])[0] == 200
    clock.advance(30 * SECOND)
    assert log_in(http, "anna", "wrong again")[0] == 401
    clock.advance(59 * SECOND)
    assert log_in(http, "anna", slapd.PASSWORDS["anna"])[0] == 429
    clock.advance(SECOND)
    assert log_in(http, "anna", slapd.PASSWORDS["anna"])[0] == 200
    locked = service.journal(0, 100, ["login_locked"])
    assert [entry.payload["seconds"] for entry in locked] == [30.0, 60.0]
    assert {entry.payload["user"] for entry in locked} == {"anna"}


def test_an_address_that_tries_many_names_is_locked(server: slapd.Directory) -> None:
    http = http_for(server, FakeService(), ManualClock(T0))
    codes = [log_in(http, f"guess-{n}", "x")[0] for n in range(21)]
    assert codes == [401] * 20 + [429]
    assert log_in(http, "anna", slapd.PASSWORDS["anna"])[0] == 429


def test_who_has_no_role_is_told_and_opens_nothing(server: slapd.Directory) -> None:
    service = FakeService()
    status, error = log_in(http_for(server, service, ManualClock(T0)), "vera", slapd.PASSWORDS["vera"])
    assert (status, error["code"]) == (403, "no_role")
    assert service.journal(1, 10) == []


def test_no_secret_is_echoed(server: slapd.Directory, capsys: pytest.CaptureFixture[str]) -> None:
    service = FakeService()
    http = http_for(server, service, ManualClock(T0))
    password = slapd.PASSWORDS["anna"]
    opened = log_in(http, "anna", password)[1]
    wrong = http.post("/v1/login", json={"user": "anna", "password": password + "x"})
    bad = http.post("/v1/login", json={"user": "anna", "password": [password]})
    seen = wrong.text + bad.text + str(service.journal(0, 100)) + "".join(capsys.readouterr())
    assert bad.status_code == 422
    assert password not in seen
    assert opened["token"] not in seen
