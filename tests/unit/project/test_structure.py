"""How the product is cut: no module too long, no word of the old vocabulary, no kind of test fewer than before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tocsin_testing.structure import BASE, Structure, circles

ROOT = Path(__file__).parents[3]

DELETED: dict[str, tuple[int, str]] = {"property": (1, "p-values of conformal scores")}
"""Tests that went on purpose: kind to how many, and what they tested."""


@pytest.fixture(scope="module")
def structure() -> Structure:
    return Structure(ROOT)


@pytest.mark.parametrize("what", ["modules_over_700", "functions_over_40", "modules_of_an_old_word"])
def test_there_is_none(structure: Structure, what: str) -> None:
    assert structure.lists[what] == []


def test_no_kind_of_tests_has_become_fewer(structure: Structure) -> None:
    before = json.loads(BASE.read_text())["figures"]
    fewer = {
        kind: (before[f"tests_{kind}"], number)
        for kind, number in structure.tests().items()
        if number < before[f"tests_{kind}"] - DELETED.get(kind, (0, ""))[0]
    }
    assert fewer == {}


def test_circles_are_found_whatever_leads_into_them() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["d", "e"], "d": ["b"], "e": ["f"], "f": ["e"], "g": ["a", "g"]}
    assert circles(graph) == [["b", "c", "d"], ["e", "f"]]
    assert circles({"a": ["b"], "b": []}) == []


def test_imports_inside_functions_and_of_submodules_count(tmp_path: Path) -> None:
    package = tmp_path / "src" / "tocsin"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "__init__.py").write_text("")
    (package / "room" / "one.py").write_text("from tocsin.room import two\nfrom tocsin.room.two import y, z\n")
    (package / "room" / "two.py").write_text("def y():\n    import tocsin.three\n    return 1\n\n\nz = 2\n")
    (package / "three.py").write_text("class A: ...\nclass B: ...\n")
    (package / "record.py").write_text("from tocsin.room.one import two\nclass A: ...\n")
    found = Structure(tmp_path)
    assert found.imports["tocsin.room.one"] == {"tocsin.room.two"}
    assert found.imports["tocsin.room.two"] == {"tocsin.three"}
    assert found.lists["modules_of_an_old_word"] == ["tocsin.record"]
    assert found.repeated_classes() == {"A": ["tocsin.record", "tocsin.three"]}
    assert found.helpers() == ["tocsin.room.two"]
