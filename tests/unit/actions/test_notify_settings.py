"""Settings of channels: what is missing or does not fit is named, and secrets come from where secrets come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.config.load import load_settings
from tocsin.config.notify import PAGERDUTY_URL
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Severity

FILE = """
[notify]
runbooks_url = "https://docs.example.com/runbooks"

[[notify.channels]]
name = "oncall"
kind = "pagerduty"
min_severity = "critical"
pools = ["train"]

[[notify.channels]]
name = "chat"
kind = "slack"
rules = ["xid_*"]
language = "zh"

[[notify.channels]]
name = "mail"
kind = "email"
mail = { host = "mail.example.com", user = "tocsin", sender = "tocsin@example.com", to = ["oncall@example.com"] }
"""


def test_a_file_with_secrets_in_a_folder_and_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "tocsin.toml"
    path.write_text(FILE)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "notify__secrets__oncall").write_text("r0uting")
    (secrets / "notify__urls__chat").write_text("https://hooks.slack.com/services/T/B/5ecret")
    environ = {"TOCSIN_NOTIFY__SECRETS__MAIL": "passw0rd"}
    found = load_settings(path, environ=environ, secrets=secrets).notify
    oncall, chat, mail = found.channels
    assert (oncall.endpoint, oncall.key, oncall.min_severity) == (PAGERDUTY_URL, "r0uting", Severity.CRITICAL)
    assert chat.endpoint.endswith("/5ecret")
    assert mail.key == "passw0rd"
    assert not any(secret in repr(found) for secret in ("5ecret", "r0uting", "passw0rd"))


HTTP = {"url": "https://example.com/hook"}


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ({"name": "a", "kind": "slack"}, "needs a url"),
        ({"name": "a", "kind": "slack", "url": "hooks.slack.com/5ecret"}, "needs a url"),
        ({"name": "a", "kind": "slack", "url": "https://user:5ecret@example.com/"}, "needs a url"),
        ({"name": "a", "kind": "pagerduty"}, "routing key"),
        ({"name": "a", "kind": "irc", **HTTP}, "no channel has this name; known are"),
        ({"name": "A b", "kind": "slack", **HTTP}, "pattern"),
        ({"name": "webhook", "kind": "slack", **HTTP}, "name of something else"),
        ({"name": "a", "kind": "slack", "per_minute": 0, **HTTP}, "greater than or equal"),
        ({"name": "a", "kind": "email"}, "table `mail`"),
        ({"name": "a", "kind": "slack", "labels": {"x": "y"}, **HTTP}, "labels belong"),
        ({"name": "a", "kind": "feishu", "buttons": True, **HTTP}, "buttons belong to kind slack"),
        ({"name": "a", "kind": "slack", "buttons": True, **HTTP}, "a.buttons = True: needs api.slack.signing_secret"),
        ({"name": "a", "kind": "alertmanager", "labels": {"x-y": "z"}, **HTTP}, "no label name"),
        ({"name": "a", "kind": "alertmanager", "resolved": False, **HTTP}, "needs to know when a fault ends"),
    ],
)
def test_what_does_not_fit_is_named_without_the_secret(channel: dict[str, Any], said: str) -> None:
    environ = {"TOCSIN_NOTIFY__CHANNELS": json.dumps([channel])}
    with pytest.raises(InputError, match=said) as caught:
        load_settings(environ=environ)
    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("mail", "said"),
    [
        ({"to": []}, "at least 1 item"),
        ({"to": ["On Call <a@b.c>"]}, "plain mail address"),
        ({"to": ["a@b.c\nBcc: d@e.f"]}, "plain mail address"),
        ({"sender": "nobody"}, "plain mail address"),
        ({"tls": "none", "user": "a"}, "never sent without TLS"),
        ({"user": "a"}, "the password of a"),
    ],
)
def test_mail_that_does_not_fit(mail: dict[str, Any], said: str) -> None:
    fields = {"host": "mail", "sender": "a@b.c", "to": ["d@e.f"]} | mail
    environ = {"TOCSIN_NOTIFY__CHANNELS": json.dumps([{"name": "mail", "kind": "email", "mail": fields}])}
    with pytest.raises(InputError, match=said):
        load_settings(environ=environ)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TOCSIN_NOTIFY__SECRETS__NOBODY": "x"}, "'nobody', which is no channel"),
        ({"TOCSIN_NOTIFY__RUNBOOKS_URL": "javascript:alert(1)"}, "is no URL"),
        (
            {"TOCSIN_NOTIFY__CHANNELS": json.dumps([{"name": "a", "kind": "slack", **HTTP}] * 2)},
            "two channels have the same name",
        ),
    ],
)
def test_the_section_as_a_whole(environ: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_settings(environ=environ)
