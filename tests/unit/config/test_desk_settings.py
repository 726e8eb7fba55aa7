"""Settings of what comes back: keys are long, each is one sender's, and come from files; people are named once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.config.load import load_settings
from tocsin.domain.errors import InputError

KEY, OTHER = "a-5ecret-of-thirty-two-characters-", "b-5ecret-of-thirty-two-characters-"
OPS = {"name": "ops", "secret": KEY}
ANNA = {"user": "U01AAAAAA", "name": "anna", "role": "operator"}


@pytest.mark.parametrize(
    ("desks", "said"),
    [
        ([{"name": "ops", "secret": "5ecret"}], "at least 32"),
        ([OPS | {"previous_secret": "5ecret"}], "previous_secret has less than 32"),
        ([OPS | {"name": "Ops!"}], "pattern"),
        ([OPS | {"name": "slack"}], "name of something else"),
        ([OPS, OPS | {"secret": OTHER}], "two desks have the same name"),
        ([OPS, {"name": "it", "secret": KEY}], "two secrets of desks are the same"),
        ([OPS | {"previous_secret": KEY}], "two secrets of desks are the same"),
        ([OPS, {"name": "it", "secret": OTHER, "previous_secret": KEY}], "two secrets of desks are the same"),
        ([OPS | {"resolve_seconds": 8 * 86_400}], "less than or equal"),
        ([OPS | {"acknowledge_seconds": 86_401}], "less than or equal"),
        ([{"name": f"d{n}", "secret": f"{KEY}{n}"} for n in range(17)], "at most 16 items"),
    ],
)
def test_a_desk_that_does_not_fit_is_named_without_its_key(desks: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_settings(environ={"TOCSIN_API__DESKS": json.dumps(desks)})
    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("slack", "said"),
    [
        ({"signing_secret": "5ecret", "people": [ANNA]}, "signing_secret has less than 32"),
        ({"signing_secret": KEY}, "go together"),
        ({"people": [ANNA]}, "go together"),
        ({"signing_secret": KEY, "people": [ANNA, ANNA | {"name": "otto"}]}, "two people have the same user"),
        ({"signing_secret": KEY, "people": [ANNA | {"user": "anna"}]}, "pattern"),
        ({"signing_secret": KEY, "people": [ANNA | {"role": "agent"}]}, "role"),
        ({"signing_secret": KEY, "people": [ANNA | {"name": "a:b"}]}, "pattern"),
        ({"signing_secret": KEY, "people": [ANNA], "team": "example"}, "pattern"),
    ],
)
def test_a_slack_that_does_not_fit_is_named_without_its_key(slack: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_settings(environ={"TOCSIN_API__SLACK": json.dumps(slack)})
    assert "5ecret" not in str(caught.value)


def test_keys_come_from_files_and_are_shown_nowhere(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("new", "old", "slack")}
    for name, path in files.items():
        path.write_text(f"{name}-{KEY}\n")
        path.chmod(0o600)
    config = tmp_path / "tocsin.toml"
    config.write_text(
        f'[[api.desks]]\nname = "ops"\nsecret_file = "{files["new"]}"\nprevious_secret_file = "{files["old"]}"\n'
        f'[api.slack]\nsigning_secret_file = "{files["slack"]}"\n'
        'people = [{ user = "U01AAAAAA", name = "anna", role = "operator" }]\n'
    )
    found = load_settings(config, environ={}).api
    assert found.desks[0].keys == (f"new-{KEY}", f"old-{KEY}")
    assert found.slack.key == f"slack-{KEY}"
    assert "5ecret" not in repr(found) + found.model_dump_json()
