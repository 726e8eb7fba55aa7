"""Files of templates: those that ship are whole, and what is wrong in one is named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.notifications import ticket_template
from tocsin.actions.notifications.channel import ChannelDependencies, build_channel
from tocsin.actions.notifications.ticket_template import (
    MOST_CHARACTERS,
    NAMES,
    SECRETS,
    SHIPPED,
    TEXTS,
    at_path,
    load_template,
)
from tocsin.config.notify import NotifySettings
from tocsin.domain.errors import InputError
from tocsin_testing.notify_world import channel_settings, means
from tocsin_testing.ticket_doubles import DOUBLES

WHOLE = """
[find]
path = "/t"
query = { q = "${id}" }
ticket = "0.key"
[open]
path = "/t"
body = { text = "${text}", team = "${team}", level = "${grade}" }
ticket = "key"
[by_level]
grade = { page = "1", warning = "2", note = "3" }
[[resolve]]
path = "/t/${ticket}"
"""
VALUES = {"team": "gpu"}


def _load(folder: Path, text: str, values: dict[str, str] | None = None) -> None:
    path = folder / "t.toml"
    path.write_text(text)
    load_template(str(path), VALUES if values is None else values)


FOLDER = Path(ticket_template.__file__).parent


def test_every_template_that_ships_is_tried_with_a_double() -> None:
    assert {f"ticket_{name}.toml" for name in SHIPPED} == {path.name for path in FOLDER.glob("*.toml")}
    assert set(SHIPPED) == set(DOUBLES)


@pytest.mark.parametrize("kind", SHIPPED)
def test_each_value_of_a_template_that_ships_is_explained_at_its_head(kind: str) -> None:
    head = (FOLDER / f"ticket_{kind}.toml").read_text().split("[")[0]
    if "as in ticket_jira_cloud.toml" in head:
        head = (FOLDER / "ticket_jira_cloud.toml").read_text().split("[")[0]
    for name in DOUBLES[kind].values:
        assert name in head


def test_a_whole_one_loads(tmp_path: Path) -> None:
    _load(tmp_path, WHOLE)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[find]", "[find", "is not TOML"),
        ("[[resolve]]", "[[resolved]]", "resolve = None: is missing"),
        ('ticket = "key"', "", "open.ticket = None: is missing"),
        ("${text}", "${txt}", r"t.toml: open = '\${txt}': no such word here; did you mean text\?"),
        ("${text}", "${text", "has a word without an end"),
        ("${text}", "${secret}", "no such word here"),
        ("${text}", "${Text}", "no such word here"),
        ('q = "${id}"', 'q = "${sentence}"', "no such word here"),
        ('q = "${id}"', 'q = "${ticket}"', "no such word here"),
        ('path = "/t/${ticket}"', 'path = "/t/${sentence}"', "no such word here"),
        ('path = "/t/${ticket}"', 'path = "//evil.example/"', "is no path"),
        ('path = "/t/${ticket}"', 'path = "/t/../admin"', "is no path"),
        ('path = "/t/${ticket}"', 'path = "/t?x=1"', "is no path"),
        ('text = "${text}"', '"${text}" = "x"', "has a word in key"),
        ('text = "${text}"', "text = 2026-11-26", "which JSON does not know"),
        ('text = "${text}"', "text = nan", "which JSON does not know"),
        (', note = "3"', "", "needs a text for each of"),
        ("grade =", "title =", "is the name of another word"),
        ("grade =", "team =", "is the name of another word"),
        ('ticket = "0.key"', 'ticket = "$.key"', "pattern"),
        ("[find]", 'inert = "ä"\n[find]', "pattern"),
        ("[find]", '[headers]\nX = "${title}"\n[find]', "no such word here"),
        ("[find]", f"# {'x' * MOST_CHARACTERS}\n[find]", "has more than"),
        ("[find]", f"x = {'[' * 5000}\n[find]", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    with pytest.raises(InputError, match=said):
        _load(tmp_path, WHOLE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, r"\${team}"),
        ({"team": "gpu", "projcet": "x"}, "is no word of t.toml"),
        ({"team": "gpu", "secret": "x"}, "is the name of another word"),
    ],
)
def test_values_and_words_go_together(tmp_path: Path, values: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _load(tmp_path, WHOLE, values)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"ticket template = 'gone\.toml'"):
        load_template("gone.toml", {})


def test_a_secret_that_is_no_header_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="authorization") as caught:
        build_channel(means("ticket", secret="5ecret\r\nHost: evil", ticket=_bearer()))
    assert "5ecret" not in str(caught.value)


def _bearer() -> dict[str, Any]:
    made = DOUBLES["jira_data_center"]().channel()["ticket"]
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ({"kind": "slack", "ticket": {"template": "x"}}, "belongs to kind ticket"),
        ({"kind": "ticket", "ticket": None}, "belongs to kind ticket"),
        ({"kind": "ticket", "url": ""}, "needs a url"),
    ],
)
def test_settings_that_do_not_fit(channel: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        channel_settings(channel.pop("kind"), **channel)


@pytest.mark.parametrize(
    ("document", "path", "found"),
    [
        ({"a": [{"b": 1}]}, "a.0.b", 1),
        ({"a": []}, "a.0.b", None),
        ([1, 2], "1", 2),
        ({"0": "x"}, "0", "x"),
    ],
)
def test_what_lies_at_a_path(document: object, path: str, found: object) -> None:
    if found is None:
        assert at_path(document, "a.0") is None
    else:
        assert at_path(document, path) == found


@pytest.mark.parametrize(("document", "path"), [({}, "a"), (None, "a"), ("text", "0"), ([1], "a"), ([1], "-1")])
def test_what_is_shaped_otherwise_is_an_error(document: object, path: str) -> None:
    with pytest.raises(KeyError):
        at_path(document, path)


PAGE = Path(__file__).parents[3] / "docs" / "tickets.md"


def _blocks() -> list[str]:
    return [part.partition("```")[0] for part in PAGE.read_text().split("```toml\n")[1:]]


def test_the_settings_of_the_page_make_a_channel() -> None:
    (channel,) = NotifySettings.model_validate(tomllib.loads(_blocks()[0])["notify"]).channels
    build_channel(ChannelDependencies(channel)).close()


def test_the_template_of_the_page_is_a_whole_one(tmp_path: Path) -> None:
    _load(tmp_path, _blocks()[1], {"queue": "gpu"})
    template = load_template(str(tmp_path / "t.toml"), {"queue": "gpu"})
    assert template.requests().keys() == {"find", "open", "comment", "state", "attach", "resolve.0"}


def test_the_page_names_every_word() -> None:
    table = PAGE.read_text().partition("| words | where |")[2].partition("\n\n")[0]
    for word in SECRETS | NAMES | TEXTS:
        assert f"`{word}`" in table
