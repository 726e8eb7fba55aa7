"""docs/models.md: its examples run, and its tables name what there is."""

from __future__ import annotations

import doctest
import importlib
from dataclasses import fields
from pathlib import Path

import pytest

from tocsin.forecaster.hazard.registry import names
from tocsin.forecaster.hazard.scorer import Common

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
OWN_PAGE = ("lstm", "rate")


def test_the_examples_of_the_page_are_true() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0


def test_the_page_has_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in names() if f"\n| `{name}`" not in text] == []


@pytest.mark.parametrize("name", [name for name in names() if name not in OWN_PAGE])
def test_the_page_has_every_setting_with_its_default(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    row = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")][-1]
    module = importlib.import_module(f"tocsin.forecaster.hazard.scorer_{name}")
    shared = {one.name for one in fields(Common)}
    own = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Common)]
    (settings,) = [one for one in own if one.__module__ == module.__name__]
    for one in fields(settings):
        if one.name in shared:
            continue
        assert f"`{one.name}`" in row
        if isinstance(one.default, int | float) and not isinstance(one.default, bool):
            assert f"`{one.name}` {one.default}" in row, one.name
