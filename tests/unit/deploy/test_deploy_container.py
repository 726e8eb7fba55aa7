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
from tocsin_testing.servers import free_port, wait_until_ready

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


CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TOCSIN_"))} | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # Most of what is installed never runs here.
    "PIP_NO_COMPILE": "1",
}


def ran(step: str, folder: Path, **more: str) -> None:
    """What a RUN does."""
    done = subprocess.run(
        ["sh", "-ec", step], cwd=folder, env=CLEAN | more, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def build(stages: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources, and beside them the wheels, that the stage `build` leaves to all others."""
    folder = tmp_path_factory.mktemp("build") / "src"
    folder.mkdir()
    for instruction, value in stages["build"].steps:
        if instruction == "COPY":
            copied(value, folder)
        elif instruction == "RUN":
            ran(value.replace("/wheels", str(folder.with_name("wheels"))), folder)
    return folder


def installed(stages: dict[str, Stage], target: str, build: Path, home: Path) -> set[str]:
    """What the stages of a target install into `home`, in place of a container's folder: the names of the packages."""
    steps = stages[f"install-{target}"].steps
    arguments = dict(value.split("=", 1) for name, value in steps if name == "ARG")
    assert {name for name, _ in steps} <= {"ARG", "RUN"}
    for instruction, value in steps:
        if instruction == "RUN":
            step = value.replace("/opt/tocsin", str(home)).replace("/wheels", str(build.with_name("wheels")))
            ran(step, build, **arguments)
    (packages,) = home.glob("lib/python*/site-packages")
    return {each.name for each in importlib.metadata.distributions(path=[str(packages)])}


def test_the_steps_of_the_agent_s_image_run_plainly_and_bring_nothing_heavy(
    stages: dict[str, Stage], build: Path, tmp_path: Path
) -> None:
    """Up to the command that it starts."""
    home = tmp_path / "tocsin"
    found = installed(stages, "agent", build, home)
    assert "tocsin" in found
    assert not found & HEAVY
    clean = CLEAN | {"TOCSIN_CONFIG": str(FOLDER / "agent.toml"), "TOCSIN_AGENT__SPOOL": str(tmp_path / "spool.db")}
    command = [home / "bin" / "tocsin", *json.loads(stages["agent"].last("CMD")), "--source", "simulated", "--once"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "values" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("target", ["brain", "dashboard"])
def test_the_steps_of_an_image_that_serves_run_plainly_until_it_is_well(
    stages: dict[str, Stage], target: str, build: Path, tmp_path: Path
) -> None:
    """Its command runs on what its own stages installed, and the health check of the image finds it well."""
    home = tmp_path / "tocsin"
    found = installed(stages, target, build, home)
    assert {"tocsin", "uvicorn" if target == "brain" else "streamlit"} <= found
    assert "torch" not in found
    port = free_port()
    url = re.search(r"TOCSIN_HEALTH_URL=(\S+)", stages[target].last("ENV"))
    assert url is not None
    section = {"brain": "API", "dashboard": "DASHBOARD"}[target]
    clean = CLEAN | {
        "HOME": str(tmp_path),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "TOCSIN_CONFIG": str(FOLDER / f"{target}.toml"),
        "TOCSIN_HEALTH_URL": re.sub(r":\d+/", f":{port}/", url[1]),
        f"TOCSIN_{section}__LISTEN": f"127.0.0.1:{port}",
        "TOCSIN_STORE__PATH": str(tmp_path / "store.db"),
        "TOCSIN_JOURNAL__PATH": str(tmp_path / "journal.db"),
        "TOCSIN_FORECAST__MODELS": str(tmp_path / "models"),
    }
    log = tmp_path / "log"
    command = [home / "bin" / "tocsin", *json.loads(stages[target].last("CMD"))]
    check = [home / "bin" / "python", FOLDER / "healthcheck.py"]
    with log.open("w") as out, subprocess.Popen(command, cwd=tmp_path, env=clean, stdout=out, stderr=out) as served:
        try:
            # Asked from here until it answers: a new interpreter each time would take the processor that it starts on.
            wait_until_ready(clean["TOCSIN_HEALTH_URL"], served, log, seconds=120)
            assert subprocess.run(check, env=clean, capture_output=True, check=False).returncode == 0
        finally:
            served.terminate()
    assert "Traceback" not in log.read_text()


def test_the_user_and_folder_of_the_images_are_made(stages: dict[str, Stage], tmp_path: Path) -> None:
    """The steps of the stage `run`, in a folder in place of the root."""
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", tmp_path / "etc" / name)
    for instruction, value in stages["run"].steps:
        if instruction == "RUN":
            step = re.sub(r"\b(groupadd|useradd)\b", rf"\1 --prefix {tmp_path}", value)
            ran(re.sub(r"(0750 )(/var/lib/tocsin)", rf"\1{tmp_path}\2", step), tmp_path)
    passwd = dict(line.split(":", 1) for line in (tmp_path / "etc" / "passwd").read_text().splitlines())
    assert passwd["tocsin"].split(":")[1:3] == ["10001", "10001"]
    assert passwd["tocsin"].endswith("/var/lib/tocsin:/usr/sbin/nologin")
    state = (tmp_path / "var/lib/tocsin").stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (10001, 10001, 0o750)


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
