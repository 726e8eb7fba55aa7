"""The container file: a linter finds no fault with it, and what it names is there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from pytest_httpserver import HTTPServer

from tocsin import __version__
from tocsin.cli.main import cli
from tocsin.config.address import split_address
from tocsin.config.load import load_settings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "container"
TARGETS = ("agent", "brain", "dashboard")
HEAVY = {"torch", "scikit-learn", "pandas", "polars", "streamlit", "fastapi", "uvicorn", "ray", "pyarrow"}


@dataclass
class Stage:
    """One FROM and what follows it, as (instruction, value)."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return next((value for name, value in reversed(self.steps) if name == instruction), "")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    path = tmp_path_factory.mktemp("image") / "Dockerfile"
    path.write_text((FOLDER / "Containerfile").read_text())
    found: dict[str, Stage] = {}
    for step in DockerfileParser(str(path)).structure:
        name, value = step["instruction"], step["value"]
        if name == "FROM":
            base, _, stage = re.split(r"\s+", value)
            found[stage] = Stage(base)
        elif name != "COMMENT" and found:
            found[next(reversed(found))].steps.append((name, value))
    return found


def test_a_linter_finds_no_fault() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, FOLDER / "Containerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_there(stages: dict[str, Stage]) -> None:
    allowed = {line[1:] for line in (FOLDER / "Containerfile.dockerignore").read_text().split() if line[0] == "!"}
    for name, stage in stages.items():
        for instruction, value in stage.steps:
            sources = value.split()[:-1] if instruction == "COPY" else []
            if sources and sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in stages, name
                continue
            for source in sources:
                assert (ROOT / source).exists(), f"{name}: {source}"
                assert any(source == each or source.startswith(f"{each}/") for each in allowed), source


def test_a_package_is_built_of_all_its_folders(stages: dict[str, Stage]) -> None:
    mapped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    copied = {source for name, value in stages["build"].steps if name == "COPY" for source in value.split()[:-1]}
    assert {Path(folder).parts[0] for folder in mapped.values()} <= copied


def extras(stages: dict[str, Stage], target: str) -> set[str]:
    stage = stages[f"install-{target}"]
    installed = next(value for name, value in stage.steps if name == "RUN" and "pip" in value)
    arguments = dict(value.split("=", 1) for name, value in stage.steps if name == "ARG")
    found = re.search(r"\[([^]]+)\]", installed)
    text = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], found[1]) if found else ""
    return set(filter(None, text.split(",")))


def brought(wanted: set[str]) -> set[str]:
    """Names of what these extras of Tocsin ask for themselves."""
    environment = {"extra": ""}
    requirements = [Requirement(line) for line in importlib.metadata.requires("tocsin") or []]
    return {
        each.name
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({**environment, "extra": one}) for one in {"", *wanted})
    }


def test_extras_are_those_of_the_package_and_an_agent_has_none(stages: dict[str, Stage]) -> None:
    known = set(importlib.metadata.metadata("tocsin").get_all("Provides-Extra") or [])
    for target in TARGETS:
        assert extras(stages, target) <= known
        assert "constraints.txt" in stages[f"install-{target}"].last("RUN")
    assert extras(stages, "agent") == set()
    assert not brought(extras(stages, "agent")) & HEAVY
    assert "torch" not in brought(extras(stages, "brain"))
    assert {"fastapi", "kubernetes"} <= brought(extras(stages, "brain"))


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_a_command_as_nobody_and_knows_how_it_is(stages: dict[str, Stage], target: str) -> None:
    stage = stages[target]
    assert stage.base == "run"
    assert (stage.last("USER") or stages["run"].last("USER")) == "10001:10001"
    assert json.loads(stages["run"].last("ENTRYPOINT")) == ["tocsin"]
    (command,) = json.loads(stage.last("CMD"))
    assert command == target
    assert command in cli.commands
    settings = load_settings(FOLDER / f"{target}.toml", environ={})
    listens = {"agent": settings.agent.listen, "brain": settings.api.listen, "dashboard": settings.dashboard.listen}
    host, port = split_address(listens[target], target)
    assert (host, str(port)) == ("0.0.0.0", stage.last("EXPOSE"))
    url = re.search(r"TOCSIN_HEALTH_URL=(\S+)", stage.last("ENV"))
    assert url is not None
    assert f":{port}/" in url[1]
    assert "healthcheck" in stage.last("HEALTHCHECK")


def test_no_image_is_the_latest(stages: dict[str, Stage]) -> None:
    text = (FOLDER / "Containerfile").read_text()
    base = re.search(r"(?m)^ARG BASE=(\S+)$", text)
    assert base is not None
    assert re.search(r":\d[\w.-]+$", base[1])
    assert {stage.base for stage in stages.values()} - set(stages) == {"${BASE}"}
    assert f"tocsin-agent:{__version__}" in text


def copied(value: str, folder: Path) -> None:
    """What a COPY out of the repository does."""
    *sources, target = value.split()
    for source in sources:
        place = ROOT / source
        if place.is_dir():
            shutil.copytree(place, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder / target)


def test_the_steps_of_the_agent_s_image_run_plainly_and_bring_nothing_heavy(
    stages: dict[str, Stage], tmp_path: Path
) -> None:
    """Its stages one after the other in plain folders in place of a container's, up to the command that it starts."""
    source, home = tmp_path / "src", tmp_path / "tocsin"
    source.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TOCSIN_"))}
    clean |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for instruction, value in (*stages["build"].steps, *stages["install-agent"].steps):
        if instruction == "COPY":
            copied(value, source)
        elif instruction == "RUN":
            step = value.replace("/opt/tocsin", str(home)).replace("/wheels", str(tmp_path / "wheels"))
            done = subprocess.run(
                ["sh", "-ec", step], cwd=source, env=clean, capture_output=True, text=True, timeout=280, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    found = {each.name for each in importlib.metadata.distributions(path=[str(packages)])}
    assert "tocsin" in found
    assert not found & HEAVY
    clean |= {"TOCSIN_CONFIG": str(FOLDER / "agent.toml"), "TOCSIN_AGENT__SPOOL": str(tmp_path / "spool.db")}
    command = [home / "bin" / "tocsin", *json.loads(stages["agent"].last("CMD")), "--source", "simulated", "--once"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "values" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(("status", "code"), [(200, 0), (204, 1), (503, 1)])
def test_the_health_check_tells_well_from_unwell(httpserver: HTTPServer, status: int, code: int) -> None:
    httpserver.expect_request("/healthz").respond_with_data("", status=status)
    environment = {**os.environ, "TOCSIN_HEALTH_URL": httpserver.url_for("/healthz")}
    command = [sys.executable, str(FOLDER / "healthcheck.py")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == code
    gone = subprocess.run(
        command, env={**environment, "TOCSIN_HEALTH_URL": "http://127.0.0.1:1/"}, capture_output=True, timeout=30
    )
    assert gone.returncode == 1
    assert b"Traceback" not in gone.stderr
