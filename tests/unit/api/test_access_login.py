"""Sessions, the file of stored tokens, and log-in from the command line."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner
from pytest_httpserver import HTTPServer

from tocsin.api.app import create_app
from tocsin.api.buckets import same_network
from tocsin.api.directory import Directory, NoRole
from tocsin.api.errors import ApiError
from tocsin.api.login import ADDRESS_FACTOR, LoginService, same_name
from tocsin.api.principal import simple
from tocsin.api.sessions import MAX_SESSIONS, PREFIX, LoginSessions
from tocsin.cli.main import cli
from tocsin.client.control import OidcMethod
from tocsin.client.device import DeviceLogin, LoginRefused
from tocsin.client.token_file import VARIABLE, drop_token, store_token, stored_token, token_path
from tocsin.config.access import ApiSettings, LdapSettings, OidcSettings, Role
from tocsin.domain.clock import SECOND, ManualClock, SystemClock, to_iso
from tocsin.domain.errors import InputError, Unavailable
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.oidc_provider import CLIENT, Provider

URL = "https://brain.example:8470"


# ---------------------------------------------------------------------- sessions


def test_a_session_knows_its_principal_until_its_time() -> None:
    clock = ManualClock(T0)
    sessions = LoginSessions(clock, 60.0)
    token, until_ms = sessions.open(simple("ldap:anna", Role.OPERATOR))
    assert (token.startswith(PREFIX), len(token) > 40, until_ms) == (True, True, T0 + 60 * SECOND)
    found = sessions.find(token)
    assert found is not None
    assert found.name == "ldap:anna"
    assert token not in repr(sessions.__dict__)
    assert sessions.find(token + "x") is None
    clock.advance(60 * SECOND)
    assert sessions.find(token) is None


def test_sessions_are_closed_by_their_digest_and_bounded() -> None:
    sessions = LoginSessions(ManualClock(T0), 60.0)
    first = sessions.open(simple("a", Role.VIEWER))[0]
    second = sessions.open(simple("a", Role.VIEWER))[0]
    found = sessions.find(second)
    assert found is not None
    assert [sessions.close(found.session), sessions.close(found.session)] == [True, False]
    assert sessions.find(first) is not None
    for _ in range(MAX_SESSIONS):
        sessions.open(simple("b", Role.VIEWER))
    assert sessions.find(first) is None


@pytest.mark.parametrize(
    "typed", ["Anna  Maria", " anna maria", "ANNA MARIA", "\uff41nna maria", "\xe1nna maria", "a\u034fnna mar\ufe0fia"]
)
def test_every_way_to_write_a_name_has_the_same_attempts(typed: str) -> None:
    assert same_name(typed) == "anna maria"


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("testclient", "testclient"),
    ],
)
def test_failures_count_for_the_network_that_one_subscriber_has(address: str, key: str) -> None:
    assert same_network(address) == key


def test_addresses_of_one_network_share_their_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ApiSettings()
    clock = ManualClock(T0)
    keeper = LoginService(settings, clock, LoginSessions(clock, 60.0), FakeService())
    nobody = MagicMock()
    nobody.login.return_value = None
    monkeypatch.setattr(keeper, "_directory", nobody)
    codes = []
    for number in range(settings.limits.login_attempts * ADDRESS_FACTOR + 1):
        with pytest.raises(ApiError) as refused:
            keeper.login(f"user-{number}", "guess", f"2001:db8::{number:x}")
        codes.append(refused.value.status_code)
    assert codes[-2:] == [401, 429]


# ---------------------------------------------------------------------- stored tokens


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "tokens.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_where_the_file_lies() -> None:
    assert token_path({VARIABLE: "/x/y"}) == Path("/x/y")
    assert token_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/tocsin/tokens.json")
    assert token_path({}) == Path.home() / ".config" / "tocsin" / "tokens.json"


def test_a_token_is_for_one_api_and_for_its_owner_alone(tokens: Path) -> None:
    clock = ManualClock(T0)
    store_token(URL + "/", "a-token", to_iso(T0 + 60 * SECOND))
    store_token("https://other", "another", to_iso(T0 + 60 * SECOND))
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.parent.stat().st_mode) == 0o700
    assert (stored_token(URL, clock), stored_token("https://evil", clock)) == ("a-token", "")
    clock.advance(60 * SECOND)
    assert stored_token(URL, clock) == ""
    assert [drop_token(URL), drop_token(URL)] == [True, False]
    assert "another" in tokens.read_text()


def test_a_file_that_others_can_read_is_not_used(tokens: Path) -> None:
    store_token(URL, "a-token", to_iso(T0 + 60 * SECOND))
    tokens.chmod(0o640)
    with pytest.raises(InputError, match="others may read it; run chmod 600"):
        stored_token(URL, ManualClock(T0))


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 1}', f'{{"{URL}": {{"token": "t"}}}}', f'{{"{URL}": 3}}'])
def test_a_damaged_file_gives_no_token(tokens: Path, text: str) -> None:
    tokens.parent.mkdir()
    tokens.write_text(text)
    tokens.chmod(0o600)
    if text == "{":
        with pytest.raises(InputError, match="is no JSON"):
            stored_token(URL, ManualClock(T0))
    else:
        assert stored_token(URL, ManualClock(T0)) == ""


# ---------------------------------------------------------------------- the provider's device grant


@pytest.fixture
def provider(httpserver: HTTPServer) -> Provider:
    return Provider(httpserver, SystemClock().now_ms() // SECOND)


def device(provider: Provider, clock: ManualClock, said: list[str], waited: list[float]) -> DeviceLogin:
    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(int(seconds * SECOND))

    method = OidcMethod(issuer=provider.issuer, client_id=CLIENT, scope="openid groups")
    return DeviceLogin(method, clock, said.append, wait)


def test_the_device_grant_waits_as_it_is_told(provider: Provider) -> None:
    provider.pending, provider.token = 3, "the-id-token"
    clock, said, waited = ManualClock(T0), [], []  # type: ignore[var-annotated]
    given = device(provider, clock, said, waited).run()
    assert said == [f"open {provider.issuer}/activate and enter ABCD-EFGH in a browser (code ABCD-EFGH)"]
    assert waited == [2.0, 2.0, 2.0, 7.0]
    assert (given.token, given.expires) == ("the-id-token", to_iso(clock.now_ms() + 300 * SECOND))
    assert provider.asked[0] == {"client_id": CLIENT, "scope": "openid groups"}
    assert provider.asked[-1]["device_code"] == "the-device-code"
    assert provider.asked[-1]["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code"


def test_a_no_and_a_silence_end_it(provider: Provider) -> None:
    provider.refusal = "access_denied"
    with pytest.raises(LoginRefused, match="the person said no"):
        device(provider, ManualClock(T0), [], []).run()
    provider.pending = 1_000
    with pytest.raises(LoginRefused, match="nobody confirmed"):
        device(provider, ManualClock(T0), [], []).run()


def test_a_provider_that_is_none(provider: Provider, httpserver: HTTPServer) -> None:
    provider.claimed_issuer = "https://evil.example"
    with pytest.raises(Unavailable, match="calls itself"):
        device(provider, ManualClock(T0), [], []).run()
    provider.down = True
    with pytest.raises(Unavailable, match="does not answer as a provider does"):
        device(provider, ManualClock(T0), [], []).run()


# ---------------------------------------------------------------------- the commands


@pytest.fixture
def api(provider: Provider) -> Iterator[tuple[str, FakeService]]:
    provider.token = provider.sign()
    oidc = OidcSettings.model_validate(
        {"issuer": provider.issuer, "client_id": CLIENT, "groups": [{"group": "gpu-ops", "role": "operator"}]}
    )
    service = FakeService()
    with serving(service, ApiSettings(oidc=oidc)) as url:
        yield url, service


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output + str(result.exception or "")


def test_who_has_logged_in_needs_no_token_option(
    api: tuple[str, FakeService], provider: Provider, tokens: Path
) -> None:
    url, service = api
    provider.interval = 0.01
    code, output = run("login", "--api-url", url)
    assert code == 0, output
    assert "enter ABCD-EFGH" in output
    assert "ok: oidc:anna (operator) until " in output
    assert provider.token not in output
    assert json.loads(tokens.read_text())[url]["token"] == provider.token
    host = service.gpus()[0].host
    code, output = run("release", "host", host, "--reason", "new GPU", "--api-url", url)
    assert (code, output.startswith(f"ok: host {host} released, left alone until ")) == (0, True)
    assert [(e.actor, e.payload["reason"]) for e in service.journal(0, 10, ["hold_off"])] == [("oidc:anna", "new GPU")]
    # A provider's token cannot be ended here; it is forgotten all the same.
    assert run("logout", "--api-url", url)[1].startswith("ok: logged out (")
    assert json.loads(tokens.read_text()) == {}
    assert "send a token" in run("pause", "x", "--api-url", url)[1]


def test_an_api_without_log_in_says_so(tokens: Path) -> None:
    with serving(FakeService()) as url:
        assert "has no log-in for people" in run("login", "--api-url", url)[1]
        result = CliRunner().invoke(cli, ["login", "--user", "anna", "--api-url", url], input="secret-word\n")
        assert "no api.ldap.url is set" in str(result.exception)
        assert "secret-word" not in result.output
        assert run("logout", "--api-url", url) == (0, "ok: nobody was logged in\n")
    assert not tokens.exists()


@pytest.mark.parametrize(
    ("library", "section", "says"),
    [
        (
            "joserfc",
            {"oidc": {"issuer": "https://sso.example", "client_id": "x", "groups": [{"group": "a", "role": "viewer"}]}},
            r"the library joserfc is missing; install Tocsin with the extra access: pip install '\.\[access\]'",
        ),
        (
            "ldap",
            {
                "ldap": {
                    "url": "ldaps://x",
                    "user_dn": "uid={user}",
                    "group_base": "dc=x",
                    "groups": [{"group": "a", "role": "viewer"}],
                }
            },
            r"the library python-ldap is missing; install Tocsin with the extra ldap: pip install '\.\[ldap\]'",
        ),
    ],
)
def test_a_library_that_lacks_is_named_with_its_extra(
    library: str, section: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=says):
        create_app(FakeService(), ApiSettings.model_validate(section))


# ---------------------------------------------------------------------- the directory's connection


@pytest.mark.parametrize(
    ("url", "encrypted"), [("ldap://dc1.example", True), ("LDAP://dc1.example", True), ("LDAPS://dc1.example", False)]
)
def test_no_spelling_of_the_url_skips_starttls(url: str, encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LDAPS is encrypted from the first byte and cannot be again."""
    library = MagicMock()
    for name in ("INVALID_CREDENTIALS", "INVALID_DN_SYNTAX", "NO_SUCH_OBJECT", "INSUFFICIENT_ACCESS", "LDAPError"):
        setattr(library, name, type(name, (Exception,), {}))
    library.escape_dn_chars = library.escape_filter_chars = str
    connection = library.initialize.return_value
    connection.search_ext_s.return_value = []
    for part in ("ldap", "ldap.dn", "ldap.filter"):
        monkeypatch.setitem(sys.modules, part, library)
    section = {
        "url": url,
        "user_dn": "uid={user},ou=people",
        "group_base": "ou=groups",
        "groups": [{"group": "a", "role": "viewer"}],
    }
    with pytest.raises(NoRole):
        Directory(LdapSettings.model_validate(section)).login("anna", "secret")
    said = [call[0] for call in connection.method_calls if call[0] in {"start_tls_s", "simple_bind_s"}]
    assert said[:2] == (["start_tls_s", "simple_bind_s"] if encrypted else ["simple_bind_s"])
