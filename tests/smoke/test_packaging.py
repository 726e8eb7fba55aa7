"""What is installed, and where it comes from."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tocsin

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
MAPPED = {"actions", "collector", "dashboard", "forecaster"}


def listed() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])


def test_the_package_list_is_what_the_folders_hold() -> None:
    inside = {
        ".".join(path.parent.relative_to(ROOT / "src").parts)
        for path in (ROOT / "src" / "tocsin").rglob("__init__.py")
        if not MAPPED & set(path.parent.relative_to(ROOT / "src" / "tocsin").parts[:1])
    }
    mapped = {
        ".".join(("tocsin", *path.parent.relative_to(ROOT).parts))
        for name in MAPPED
        for path in (ROOT / name).rglob("__init__.py")
    }
    assert listed() == inside | mapped
    assert {name.partition(".")[0] for name in listed()} == {"tocsin"}, "benchmarks and dashboards' makers do not ship"


def test_every_package_imports() -> None:
    for name in sorted(listed()):
        importlib.import_module(name)


def test_the_package_runs_as_the_command_does() -> None:
    said = subprocess.run([sys.executable, "-m", "tocsin", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"tocsin, version {tocsin.__version__}\n"


def test_the_wheel_under_test_is_the_one_that_is_imported() -> None:
    expected = os.environ.get("TOCSIN_TEST_WHEEL")
    place = Path(tocsin.__file__).resolve()
    if expected:
        assert place.is_relative_to(Path(expected).resolve())
    else:
        assert place.is_relative_to(ROOT)


def test_nothing_but_tocsin_is_importable_at_top_level(tmp_path: Path) -> None:
    code = f"import importlib.util as u; print(*[n for n in {sorted(MAPPED)!r} if u.find_spec(n)])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


HEAVY = ("torch", "sklearn", "statsmodels", "streamlit", "fastapi", "uvicorn", "polars", "pandas", "influxdb_client")


@pytest.mark.parametrize("module", ["tocsin.runtime.agent.process", "tocsin.cli.main"])
def test_importing_the_agent_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_data_file_is_where_its_package_is() -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src/tocsin", *sorted(MAPPED))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".csv", ".css", ".svg", ".toml", ".json"} or path.name == "py.typed"
    }
    installed = Path(tocsin.__file__).parent
    there = {
        name: installed / name.removeprefix("src/tocsin/")
        for name in wanted
        if not MAPPED & set(Path(name).parts[2:3] if name.startswith("src/") else ())
    }
    assert wanted
    assert [name for name, path in there.items() if not path.exists()] == []
