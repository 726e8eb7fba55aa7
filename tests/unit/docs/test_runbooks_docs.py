"""Every guard and every action has its runbook, and what the pages tell an operator to type and to set is right."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tocsin.actions.guards.base import guards
from tocsin.actions.model.executor import PRE_CHECK
from tocsin.actions.model.ledger_entry import SELECTION
from tocsin.cli.main import cli
from tocsin.config.load import describe
from tocsin.config.settings import Settings
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.rules.load import load_rules
from tocsin_testing import runbook_pages
from tocsin_testing.runbooks import ACTION_SENTENCES, GUARD_VERDICTS

DOCS = Path(__file__).parents[3] / "docs"
BOOKS = DOCS / "operations" / "runbooks"
GUARD_NAMES = [*(guard.name for guard in guards()), SELECTION, PRE_CHECK]
HOWTO = [DOCS / "howto" / f"{name}.md" for name in ("drain-a-node", "approve-or-silence", "backup")]
PAGES = [*sorted(BOOKS.rglob("*.md")), *HOWTO, DOCS / "notifications.md"]
HEADINGS = ["What you see", "How to undo", "How to switch it off", "When to worry"]
SETTINGS = {name.replace("[]", "") for name, _, _ in describe()}
SECTIONS = {name.rpartition(".")[0] for name in SETTINGS}


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", _text(page))


def _prose(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", _text(page))


@pytest.mark.parametrize(("folder", "names"), [("guards", GUARD_NAMES), ("actions", [*ActionKind])])
def test_there_is_one_page_for_each_and_the_index_has_it(folder: str, names: list[str]) -> None:
    pages = {page.stem for page in (BOOKS / folder).glob("*.md")}
    assert sorted(set(names) - pages) == [], "these lack a runbook"
    assert sorted(pages - set(names)) == [], "these runbooks are about nothing"
    index = _text(BOOKS / "README.md")
    assert [name for name in names if f"[`{name}`]({folder}/{name}.md)" not in index] == []


@pytest.mark.parametrize("page", sorted(BOOKS.glob("*/*.md")), ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_pages_are_alike_and_no_part_is_empty(page: Path) -> None:
    first = "What it did" if page.parent.name == "actions" else "What it asks"
    assert _text(page).startswith(f"# `{page.stem}`\n")
    parts = re.split(r"(?m)^## (.*)$", _text(page))[1:]
    assert parts[::2] == [first, *HEADINGS]
    assert all(len(body.split()) > 3 for body in parts[1::2])


@pytest.mark.parametrize("name", GUARD_NAMES)
def test_a_guards_page_shows_what_the_guard_says(name: str) -> None:
    """Another test takes them from the guard."""
    assert _blocks(BOOKS / "guards" / f"{name}.md", "text") == [GUARD_VERDICTS[name] + "\n"]


@pytest.mark.parametrize("name", GUARD_NAMES)
def test_what_a_guards_page_says_of_the_guard_is_made_from_the_page_of_guards(name: str) -> None:
    text = _text(BOOKS / "guards" / f"{name}.md")
    assert text == runbook_pages.runbook(text, name), "run: python -m tocsin_testing.runbook_pages"


def test_the_table_of_guards_is_made_from_the_page_of_guards() -> None:
    text = _text(BOOKS / "README.md")
    assert text == runbook_pages.index(text), "run: python -m tocsin_testing.runbook_pages"


@pytest.mark.parametrize("name", [*ActionKind])
def test_an_actions_page_shows_the_sentence_of_the_product(name: str) -> None:
    text = _text(BOOKS / "actions" / f"{name}.md")
    assert _blocks(BOOKS / "actions" / f"{name}.md", "text") == [ACTION_SENTENCES[name] + "\n"]
    assert text == runbook_pages.action(text, name), "run: python -m tocsin_testing.runbook_pages"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_settings_that_are_named_exist(page: Path) -> None:
    roots = {name.partition(".")[0] for name in SETTINGS}
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", _prose(page)))
    wrong = [name for name in named if name.partition(".")[0] in roots and name not in SETTINGS | SECTIONS]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_settings_that_are_shown_are_taken(page: Path) -> None:
    for block in _blocks(page, "toml"):
        Settings.model_validate(tomllib.loads(block))


def _commands(page: Path) -> Iterator[list[str]]:
    lines = [line for block in _blocks(page, "sh") for line in block.splitlines()]
    lines += re.findall(r"`(tocsin [a-z][^`]*)`", _prose(page))
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and words[0] == "tocsin":
            yield words[1:]


def _parse(command: click.Command, name: str, words: list[str], parent: click.Context | None) -> None:
    """Take `words` as the command line takes them, without running anything."""
    if not isinstance(command, click.Group):
        command.make_context(name, words, parent=parent).close()
        return
    context = click.Context(command, parent=parent, info_name=name)
    rest = command.make_parser(context).parse_args(list(words))[1]
    if rest:
        found, sub, left = command.resolve_command(context, rest)
        assert sub is not None, f"{found}: no such command"
        _parse(sub, found or "", left, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_commands_are_commands(page: Path) -> None:
    for words in _commands(page):
        try:
            _parse(cli, "tocsin", words, None)
        except click.MissingParameter:
            # In the middle of a sentence a command is named without what follows it.
            assert f"`tocsin {' '.join(words)}`" in _prose(page), words
        kinds = {words[at + 1] for at, word in enumerate(words[:-1]) if word == "--kind"}
        assert kinds <= set(EntryKind), words


def test_a_command_that_does_not_exist_is_found() -> None:
    for wrong in (["pauze", "x"], ["notify", "test", "--chanel", "x"], ["journal", "burn"]):
        with pytest.raises(click.ClickException):
            _parse(cli, "tocsin", wrong, None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", _text(page))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_rules_that_are_named_are_rules() -> None:
    known = {rule.name for rule in load_rules(None, None)}
    named = {name for page in PAGES for name in re.findall(r"modes = \{ (\w+) =", _text(page))}
    assert named
    assert named <= known
