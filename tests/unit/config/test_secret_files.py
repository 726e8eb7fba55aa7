"""Secrets that a setting names a file for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tocsin.config.load import MAX_SECRET_BYTES, load_settings
from tocsin.domain.errors import InputError

pytestmark = pytest.mark.smoke


def secret_in(folder: Path, text: str | bytes = "the-secret-0123456789", mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_every_secret_may_be_in_a_file(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    config = tmp_path / "tocsin.toml"
    config.write_text(
        f'[webhook]\nsecret_file = "{secret}"\n[store]\ntoken_file = "{secret}"\n'
        f'[[api.tokens]]\nname = "ci"\nrole = "viewer"\nsecret_file = "{secret}"\n'
        f'[api.ldap]\nbind_password_file = "{secret}"\n'
    )
    environ = {"TOCSIN_NODE__TOKEN_FILE": str(secret), "TOCSIN_DASHBOARD__API_TOKEN_FILE": str(secret)}
    found = load_settings(config, environ=environ)
    held = [
        found.webhook.secret,
        found.store.token,
        found.api.tokens[0].secret,
        found.api.ldap.bind_password,
        found.node.token,
        found.dashboard.api_token,
    ]
    assert {secret.get_secret_value() for secret in held} == {"the-secret-0123456789"}
    assert "the-secret" not in found.model_dump_json()


def test_a_file_that_is_read_again_stays_a_file(tmp_path: Path) -> None:
    """Read into the secret at the start, it could not be renewed."""
    path = secret_in(tmp_path)
    environ = {
        "TOCSIN_AGENT__PUSH_TOKEN_FILE": str(path),
        "TOCSIN_SLURM__REST_TOKEN_FILE": str(path),
        "TOCSIN_SLURM__REST_URL": "https://slurm.example",
    }
    found = load_settings(environ=environ)
    assert (found.agent.push_token_file, found.slurm.rest_token_file) == (path, path)
    assert not found.agent.push_token.get_secret_value() + found.slurm.rest_token.get_secret_value()
    with pytest.raises(InputError, match="give one of them"):
        load_settings(environ=environ | {"TOCSIN_AGENT__PUSH_TOKEN": "x"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("word\n", "word"), ("word\r\n", "word"), ("word\n\n", "word"), (" word ", " word "), ("a\nb\n", "a\nb")],
)
def test_newlines_at_the_end_do_not_count(tmp_path: Path, text: str, value: str) -> None:
    environ = {"TOCSIN_WEBHOOK__SECRET_FILE": str(secret_in(tmp_path, text))}
    assert load_settings(environ=environ).webhook.secret.get_secret_value() == value


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("", 0o600, "is empty"),
        ("\n", 0o600, "is empty"),
        ("x", 0o602, "everybody may change it; run chmod 600"),
        (b"\xff\xfe", 0o600, "is no text"),
        ("x" * (MAX_SECRET_BYTES + 1), 0o600, "too large"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str | bytes, mode: int, says: str) -> None:
    path = secret_in(tmp_path, text, mode)
    with pytest.raises(InputError, match=says) as caught:
        load_settings(environ={"TOCSIN_WEBHOOK__SECRET_FILE": str(path)})
    assert str(caught.value).startswith(f"webhook.secret_file = '{path}'"[:100])


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    config = tmp_path / "tocsin.toml"
    config.write_text('[[api.tokens]]\nname = "a"\nrole = "viewer"\nsecret_file = "/no/such/file"\n')
    with pytest.raises(InputError, match=r"api\.tokens\.0\.secret_file = '/no/such/file': No such file"):
        load_settings(config, environ={})


def test_a_secret_given_in_two_ways_is_refused_without_showing_it(tmp_path: Path) -> None:
    environ = {"TOCSIN_WEBHOOK__SECRET": "shown?", "TOCSIN_WEBHOOK__SECRET_FILE": str(secret_in(tmp_path))}
    with pytest.raises(InputError, match=r"webhook\.secret is given as well; keep one") as caught:
        load_settings(environ=environ)
    assert "shown?" not in str(caught.value)


def test_only_secrets_have_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"webhook\.format_file = .*unknown key"):
        load_settings(environ={"TOCSIN_WEBHOOK__FORMAT_FILE": str(secret_in(tmp_path))})


def test_a_file_that_everybody_may_read_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secret_in(tmp_path, mode=0o644)
    with caplog.at_level(logging.WARNING, "tocsin.config"):
        load_settings(environ={"TOCSIN_WEBHOOK__SECRET_FILE": str(path)})
    assert f"webhook.secret_file: everybody on this host may read {path}" in caplog.text
    assert "the-secret" not in caplog.text
    caplog.clear()
    path.chmod(0o640)
    load_settings(environ={"TOCSIN_WEBHOOK__SECRET_FILE": str(path)})
    assert caplog.text == ""


def test_urls_that_let_who_knows_them_post_are_nowhere_printed(tmp_path: Path) -> None:
    """Before: `tocsin config show` and every repr of the settings had `webhook.url` in clear."""
    url = "https://chat.example/services/T0/B0/the-secret-0123456789"
    (tmp_path / "secret").write_text(url)
    (tmp_path / "secret").chmod(0o600)
    shown = load_settings(
        environ={"TOCSIN_WEBHOOK__URL": url, "TOCSIN_SCALE_WEBHOOK__URL_FILE": str(tmp_path / "secret")}
    )
    assert shown.webhook.url.get_secret_value() == shown.scale_webhook.url.get_secret_value() == url
    for text in (shown.model_dump_json(), repr(shown), str(shown.model_dump())):
        assert "the-secret" not in text
