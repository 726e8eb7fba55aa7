"""What the glossary and the architecture name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
NAMES = sorted(set(re.findall(r"`(tocsin\.[A-Za-z_.]+)`", GLOSSARY.read_text())))


def _found(module: str) -> Path | None:
    path = ROOT / "src" / Path(*module.split("."))
    return next((here for here in (path.with_suffix(".py"), path / "__init__.py") if here.is_file()), None)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_glossary_names_exists(name: str) -> None:
    if _found(name) is not None:
        return
    module, _, last = name.rpartition(".")
    path = _found(module)
    assert path is not None, f"no module {module}"
    assert last in {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}


def test_each_term_is_explained_once() -> None:
    rows = [line.split("|") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    terms = [row[1].strip() for row in rows if row[1].strip() not in {"term", "---"}]
    assert terms == list(dict.fromkeys(terms))


def test_the_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\b([a-z_]+/[a-z_/]+\.py)\b", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / "src" / "tocsin" / path).is_file()] == []
