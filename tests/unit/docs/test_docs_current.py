"""Documents cannot lag behind the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.actions.notifications.ticket_template import TicketTemplate
from tocsin.cli.main import cli
from tocsin.cli.reference import PAGES
from tocsin.config.settings import Settings
from tocsin.rules.load import load_rules

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / f"{name}.md").read_text()
    made = CliRunner().invoke(cli, ["reference", name], catch_exceptions=False)
    assert written == made.output, f"run: tocsin reference {name} > docs/{name}.md"


def test_every_picture_is_there() -> None:
    lost = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"!\[[^]]*\]\(([^):]+)\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert lost == []


def test_every_default_rule_is_documented() -> None:
    text = (ROOT / "docs" / "rules.md").read_text()
    assert [rule.name for rule in load_rules(None).rules if f"`{rule.name}`" not in text] == []


def examples(language: str) -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        blocks = re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        found += [(f"{path.relative_to(ROOT)}:{i}", block) for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize(("where", "text"), examples("toml"), ids=[where for where, _ in examples("toml")])
def test_a_documented_toml_example_loads(where: str, text: str, tmp_path: Path) -> None:
    table = tomllib.loads(text)
    if table.keys() <= {"xid", "sxid"}:
        path = tmp_path / "overrides.toml"
        path.write_text(text)
        assert load_rules(None, path).rules
    elif "rules" in table and isinstance(table["rules"], list):
        path = tmp_path / "rules.toml"
        path.write_text(text)
        assert load_rules(path).rules
    elif "find" in table:
        assert TicketTemplate.model_validate(table).resolve
    else:
        Settings.model_validate(table)


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in DOCUMENTS:
        targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text())
        missing = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
        broken += [f"{path.relative_to(ROOT)} -> {target}" for target in missing]
    assert broken == []
