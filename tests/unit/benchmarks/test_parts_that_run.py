"""What stands under "What parts can do" is of modules that a running service reaches, by import or by a setting."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.forecaster.evaluation.result import SectionPlace
from tocsin.plugins import BUILT_IN
from tocsin_testing.structure import Structure

ROOT = Path(__file__).parents[3]
SERVICE = ("tocsin.api", "tocsin.forecaster.live", "tocsin.runtime.agent", "tocsin.runtime.brain")
JUDGES = "tocsin.forecaster.evaluation"
RESEARCH_BESIDE = {"gwdg": "tocsin.forecaster.anomaly"}
"""What a data set measures in sections of research beside those of parts."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return Structure(ROOT).imports


@pytest.fixture(scope="module")
def running(imports: dict[str, set[str]]) -> set[str]:
    plugged = {value.partition(":")[0] for kind in BUILT_IN.values() for value in kind.values()}
    left = [name for name in imports if name.startswith(SERVICE) or name in plugged]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += imports[name]
    return found


def data_sets_of_parts() -> list[str]:
    parts = json.loads((ROOT / "docs" / "accuracy.json").read_text(encoding="utf-8"))["parts"]
    return [name for name, one in parts.items() if any(each["place"] == SectionPlace.PART for each in one["sections"])]


def measured(data_set: str, modules: set[str]) -> Iterator[str]:
    """Modules of the forecaster that the files of a benchmark import."""
    for path in (ROOT / "benchmarks" / "tocsin_benchmarks" / data_set).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tocsin.forecaster"):
                whole = (f"{node.module}.{alias.name}" for alias in node.names)
                yield from (one if one in modules else str(node.module) for one in whole)


def test_every_part_of_the_report_names_the_commit_that_made_it() -> None:
    parts = json.loads((ROOT / "docs" / "accuracy.json").read_text(encoding="utf-8"))["parts"]
    assert [name for name, one in parts.items() if not re.search(r" # commit [0-9a-f]{8}$", one["command"])] == []


@pytest.mark.parametrize("data_set", data_sets_of_parts())
def test_a_part_that_is_measured_is_one_that_the_service_can_run(
    data_set: str, imports: dict[str, set[str]], running: set[str]
) -> None:
    aside = (JUDGES, RESEARCH_BESIDE.get(data_set, JUDGES))
    found = {one for one in measured(data_set, set(imports)) if not one.startswith(aside)}
    assert found, data_set
    assert found - running == set(), f"make these sections of {data_set} research"


def test_what_benchmarks_alone_import_is_told_apart(imports: dict[str, set[str]], running: set[str]) -> None:
    lone = set(measured("quantiles", set(imports))) - running
    assert "tocsin.forecaster.deep.quantiles" in lone
    assert "tocsin.forecaster.trend.growth" in running
