"""Log-in of people in the dashboard: sessions, the cookie, the form, roles, and the end of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_httpserver import HTTPServer
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.config.access import ApiSettings, OidcSettings
from tocsin.dashboard import access, login, server
from tocsin.dashboard.access import TOKEN_VARIABLE, URL_VARIABLE
from tocsin.dashboard.sessions import COOKIE, LEEWAY_MS, MOST, SESSION_PATH, TICKET_HEADER, TICKET_MS, Login, Sessions
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, SECOND, ManualClock, SystemClock
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.oidc_provider import CLIENT, Provider
from tocsin_testing.people import OWN_TOKEN, PASSWORD, guarded_api

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
ANNA = Login("the-token", "ldap:anna", "operator", T0 + HOUR, by_password=True)


# ---------------------------------------------------------------------- sessions


def test_a_session_is_found_by_its_name_until_its_token_ends() -> None:
    clock = ManualClock(T0)
    sessions = Sessions(clock)
    name = sessions.open(ANNA)
    assert sessions.find(name) == ANNA
    assert name not in repr(sessions.__dict__)
    assert sessions.find(name + "x") is None
    assert sessions.find("") is None
    clock.advance(HOUR - LEEWAY_MS)
    assert sessions.find(name) is None


def test_a_closed_session_is_gone_and_there_are_not_endlessly_many() -> None:
    sessions = Sessions(ManualClock(T0))
    name = sessions.open(ANNA)
    sessions.close(name)
    sessions.close(name)
    assert sessions.find(name) is None
    first = sessions.open(ANNA)
    for _ in range(MOST):
        sessions.open(ANNA)
    assert sessions.find(first) is None


def test_a_ticket_is_good_once_and_soon() -> None:
    clock = ManualClock(T0)
    sessions = Sessions(clock)
    name = sessions.open(ANNA)
    ticket = sessions.ticket(name)
    assert sessions.redeem(ticket) == (name, 3600)
    assert sessions.redeem(ticket) is None
    late = sessions.ticket(name)
    clock.advance(TICKET_MS)
    assert sessions.redeem(late) is None
    ended = sessions.ticket(name)
    sessions.close(name)
    assert sessions.redeem(ended) is None


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    sessions = Sessions(SystemClock())
    for module in (access, login, server):
        monkeypatch.setattr(module, "SESSIONS", sessions)
    monkeypatch.setattr(login, "_known", {})
    return sessions


def browser(base: str = "http://dash") -> TestClient:
    return TestClient(Starlette(routes=[Route(SESSION_PATH, server.keep, methods=["POST"])]), base_url=base)


@pytest.mark.parametrize(("base", "secure"), [("http://dash", False), ("https://dash", True)])
def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(kept: Sessions, base: str, secure: bool) -> None:
    name = kept.open(Login("t", "n", "viewer", SystemClock().now_ms() + HOUR))
    answer = browser(base).post(SESSION_PATH, headers={TICKET_HEADER: kept.ticket(name)})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={name};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert ("Secure" in cookie) == secure
    assert 3_500 < int(re.findall(r"Max-Age=(\d+)", cookie)[0]) <= 3_600


@pytest.mark.parametrize("headers", [{}, {TICKET_HEADER: "guessed"}])
def test_without_a_ticket_there_is_no_cookie(kept: Sessions, headers: dict[str, str]) -> None:
    answer = browser().post(SESSION_PATH, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_the_server_takes_the_ticket_where_the_pages_send_it() -> None:
    assert [(route.path, route.methods) for route in server.app._user_routes] == [(SESSION_PATH, {"POST"})]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- by password


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def guarded(service: FakeService, kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An API where people log in by password."""
    del kept
    with guarded_api(service) as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        yield url


def opened(**query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def logged_in(user: str, app: AppTest | None = None) -> AppTest:
    app = app or opened()
    name, password = app.text_input
    name.set_value(user)
    password.set_value(PASSWORD)
    next(button for button in app.button if button.label == "Log in with password").click().run()
    assert not app.exception
    return app


def html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def test_nothing_is_shown_before_the_log_in(guarded: str) -> None:
    app = opened()
    assert [each.label for each in app.text_input] == ["Name", "Password"]
    assert "Needs attention" not in html(app)
    assert not app.error


def test_a_person_sees_the_fleet_and_their_role(guarded: str, service: FakeService) -> None:
    app = logged_in("anna")
    shown = html(app)
    assert "Needs attention now" in shown
    assert '<span class="tc-who">anna</span>' in shown
    assert ">operator</span>" in shown
    assert [(e.kind, e.actor) for e in service.journal(1, 9)] == [("login", "ldap:anna")]


def test_the_token_stays_with_the_server(guarded: str, kept: Sessions) -> None:
    app = logged_in("anna")
    token = next(iter(kept._logins.values())).token
    sent = html(app) + "".join(str(element) for element in app) + repr(dict(app.query_params))
    assert token not in sent
    assert PASSWORD not in sent


def test_the_browser_is_told_to_fetch_its_cookie_once(guarded: str) -> None:
    app = logged_in("anna")
    ticket = re.findall(rf'"{TICKET_HEADER}": "([^"]+)"', html(app))
    assert len(ticket) == 1
    assert browser().post(SESSION_PATH, headers={TICKET_HEADER: ticket[0]}).status_code == 204
    app.run()
    assert TICKET_HEADER not in html(app)


def test_a_wrong_password_is_said(guarded: str) -> None:
    app = opened()
    name, password = app.text_input
    name.set_value("anna")
    password.set_value("wrong")
    app.button[0].click().run()
    assert "The log-in failed." in app.error[0].value
    assert "Needs attention" not in html(app)


def test_log_out_ends_it_at_the_brain_too(guarded: str, service: FakeService) -> None:
    app = logged_in("anna")
    next(button for button in app.button if button.label == "Log out").click().run()
    assert [each.label for each in app.text_input] == ["Name", "Password"]
    assert [e.kind for e in service.journal(1, 9)] == ["login", "logout"]


def test_a_log_in_that_the_brain_has_forgotten_leads_back_to_the_form(guarded: str, kept: Sessions) -> None:
    app = logged_in("anna")
    key, known = next(iter(kept._logins.items()))
    kept._logins[key] = Login("tocsin-gone", known.name, known.role, known.expires_ms, by_password=True)
    app.run()
    assert [each.label for each in app.text_input] == ["Name", "Password"]
    assert app.info[0].value == "Your log-in has ended; log in again."


def test_a_log_in_that_is_over_leads_back_to_the_form(guarded: str, kept: Sessions) -> None:
    app = logged_in("anna")
    for key, known in list(kept._logins.items()):
        kept._logins[key] = Login(known.token, known.name, known.role, SystemClock().now_ms() + SECOND)
    app.run()
    assert app.info[0].value == "Your log-in has ended; log in again."


def test_a_log_in_of_the_cookie_that_ends_leads_back_to_the_form_too(
    kept: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = SystemClock().now_ms()
    login_ = Login("tocsin-mine", "ldap:anna", "operator", now_ms + HOUR)
    name = kept.open(login_)
    state: dict[str, object] = {}
    page = SimpleNamespace(session_state=state, context=SimpleNamespace(cookies={COOKIE: name}))
    monkeypatch.setattr(access, "st", page)
    assert access.current_login() == login_
    assert not access.login_ended()
    kept.close(name)
    assert access.current_login() is None
    assert access.login_ended()


def test_roles_that_are_too_low_are_explained(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, OWN_TOKEN)
    with access.client_with(OWN_TOKEN) as client:
        who = client.me()
    why = access.lacking(who, Text("en"), *access.DECIDERS)
    assert why == "Your role is viewer; this needs operator or admin."
    assert access.lacking(who, Text("zh"), "viewer") == ""


def test_the_dashboard_s_own_token_shows_the_fleet_and_people_may_log_in_on_top(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, OWN_TOKEN)
    app = opened()
    assert "Needs attention now" in html(app)
    next(button for button in app.button if button.label == "Log in").click().run()
    next(button for button in app.button if button.label == "Continue without log-in").click().run()
    assert "Needs attention now" in html(app)
    next(button for button in app.button if button.label == "Log in").click().run()
    assert '<span class="tc-who">anna</span>' in html(logged_in("anna", app))


# ---------------------------------------------------------------------- at a provider


@pytest.fixture
def provider(httpserver: HTTPServer) -> Provider:
    return Provider(httpserver, SystemClock().now_ms() // SECOND)


@pytest.fixture
def federated(
    service: FakeService, provider: Provider, kept: Sessions, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An API whose people come from a provider."""
    del kept
    groups = [{"group": "gpu-ops", "role": "operator"}]
    oidc = OidcSettings.model_validate({"issuer": provider.issuer, "client_id": CLIENT, "groups": groups})
    with serving(service, ApiSettings(oidc=oidc)) as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        yield url


def asked(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Log in at your provider").click().run()
    assert not app.exception
    return app


def test_a_person_confirms_at_the_provider(federated: str, provider: Provider) -> None:
    provider.token, provider.pending = provider.sign(), 1
    app = asked(opened())
    assert "ABCD-EFGH" in html(app)
    assert app.get("link_button")[0].proto.url == f"{provider.issuer}/activate"
    for _ in range(3):
        if "Needs attention now" in html(app):
            break
        app.run()
    assert '<span class="tc-who">anna</span>' in html(app)
    assert "Needs attention now" in html(app)


def test_a_refusal_of_the_provider_is_said(federated: str, provider: Provider) -> None:
    provider.refusal = "access_denied"
    app = asked(opened())
    assert "The log-in was not confirmed" in app.error[0].value
    assert "the person said no" in app.error[0].value


def test_a_provider_that_does_not_answer_is_said(federated: str, provider: Provider) -> None:
    provider.down = True
    app = asked(opened())
    assert "The log-in failed." in app.error[0].value


def test_who_has_no_role_is_told_so(federated: str, provider: Provider) -> None:
    provider.token = provider.sign(groups=["strangers"])
    app = asked(opened())
    assert "is in no group of api.oidc.groups" in app.error[0].value


# ---------------------------------------------------------------------- without any


def test_without_a_way_to_log_in_everything_is_as_before(
    service: FakeService, kept: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    del kept
    with serving(service) as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        app = opened()
    assert "Needs attention now" in html(app)
    assert not any(button.label in {"Log in", "Log out"} for button in app.button)
