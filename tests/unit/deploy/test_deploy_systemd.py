"""The systemd units: systemd itself finds no fault with them, and they agree with settings and code."""

from __future__ import annotations

import configparser
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.cli.main import cli
from tocsin.config.access import MIN_HOST_KEY, Role
from tocsin.config.load import load_settings
from tocsin.config.settings import Settings
from tocsin.domain.errors import InputError
from tocsin_testing import needs

pytestmark = pytest.mark.server

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
DROP_INS = sorted(path.name for path in (FOLDER / "optional").glob("*.conf"))
MOST_EXPOSED = {"tocsin-agent.service": 20, "tocsin-brain.service": 16, "tocsin-dashboard.service": 16}
"""Tenths of the exposure that `systemd-analyze security` gives, from 0 to 10: below 2.0 and 1.6."""
INSTALLED = "/opt/tocsin/bin/tocsin"


class Unit(configparser.RawConfigParser):
    """A unit file; a directive that is given several times keeps its last value."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, delimiters=("=",), interpolation=None, comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string((FOLDER / name).read_text())

    @property
    def settings(self) -> Path:
        line = next(line for line in str(self["Service"]["Environment"]).split() if "TOCSIN_CONFIG" in line)
        return FOLDER / Path(line.partition("=")[2]).name


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = needs.program("systemd-analyze", "systemd")
    return subprocess.run([program, "--no-pager", *arguments], capture_output=True, text=True, timeout=60, check=False)


def in_place(folder: Path, name: str, drop_in: str = "") -> Path:
    """The unit as it would be installed, of a program that is there."""
    path = folder / name
    path.write_text((FOLDER / name).read_text().replace(INSTALLED, str(Path(sys.executable).with_name("tocsin"))))
    if drop_in:
        (folder / f"{name}.d").mkdir()
        (folder / f"{name}.d" / drop_in).write_text((FOLDER / "optional" / drop_in).read_text())
    return path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_fault(tmp_path: Path, name: str) -> None:
    done = analyze("verify", "--man=no", "--generators=no", str(in_place(tmp_path, name)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("drop_in", DROP_INS)
def test_nor_with_any_drop_in(tmp_path: Path, drop_in: str) -> None:
    done = analyze("verify", "--man=no", "--generators=no", str(in_place(tmp_path, "tocsin-agent.service", drop_in)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_units_are_shut_as_far_as_they_can_be(name: str) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED[name]}", str(FOLDER / name))
    assert done.returncode == 0, done.stdout


def test_a_directive_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    """That the bound binds: without its filter of system calls the agent is beyond it."""
    path = tmp_path / "tocsin-agent.service"
    lines = (FOLDER / path.name).read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(("SystemCallFilter", "CapabilityBounding"))))
    assert analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED[path.name]}", str(path)).returncode != 0


@pytest.mark.parametrize("name", UNITS)
def test_it_starts_a_command_that_there_is(name: str) -> None:
    program, command = Unit(name)["Service"]["ExecStart"].split()
    assert program == INSTALLED
    assert command in cli.commands


@pytest.mark.parametrize("name", UNITS)
def test_a_wrong_setting_is_not_started_again_and_again(name: str) -> None:
    service = Unit(name)["Service"]
    assert service["Restart"] == "always"
    assert int(service["RestartPreventExitStatus"]) == InputError.exit_code


def read(folder: Path, name: str) -> Settings:
    """The settings of the unit, with secrets where it looks for them."""
    text = Unit(name).settings.read_text()
    for place in (
        "agent/token",
        "brain/host_key",
        "brain/dashboard",
        "brain/metrics",
        "brain/admin",
        "dashboard/token",
    ):
        path = folder / "secrets" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a secret for {place}".ljust(MIN_HOST_KEY, "."))
        path.chmod(0o600)
    path = folder / "tocsin.toml"
    path.write_text(text.replace("/etc/tocsin/secrets", str(folder / "secrets")))
    return load_settings(path, environ={})


def test_settings_load_and_write_only_where_the_unit_may(tmp_path: Path) -> None:
    for name in UNITS:
        settings, service = read(tmp_path, name), Unit(name)["Service"]
        state = Path("/var/lib") / service.get("StateDirectory", "none")
        places = {
            "tocsin-agent.service": [settings.agent.spool, settings.node.marker_folder],
            "tocsin-brain.service": [
                settings.store.path, settings.journal.path, settings.forecast.models, settings.actions.lease_file,
            ],
            "tocsin-dashboard.service": [],
        }[name]  # fmt: skip
        assert all(place is not None and place.is_relative_to(state) for place in places)


def test_agent_and_brain_agree_on_roles(tmp_path: Path) -> None:
    brain = read(tmp_path, "tocsin-brain.service")
    assert {token.name: token.role for token in brain.api.tokens} == {
        "dashboard": Role.VIEWER, "metrics": Role.VIEWER, "admin": Role.ADMIN,
    }  # fmt: skip
    assert brain.api.host_key.get_secret_value()
    assert brain.actions.mode == "observe"
    assert read(tmp_path, "tocsin-agent.service").agent.push_url.endswith(brain.api.listen.rpartition(":")[2])


def test_the_run_time_folder_is_where_the_hook_listens() -> None:
    service = Unit("tocsin-agent.service")["Service"]
    assert Path(Settings().agent.hook_socket).parent == Path("/run") / service["RuntimeDirectory"]


def test_users_and_folders_are_made_as_the_units_want_them(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        needs.lack("users of another root are made by root")
    (tmp_path / "etc").mkdir()
    for program, file in (("systemd-sysusers", "sysusers.conf"), ("systemd-tmpfiles", "tmpfiles.conf")):
        more = ["--create"] if program == "systemd-tmpfiles" else []
        command = [needs.program(program, "systemd"), f"--root={tmp_path}", *more, str(FOLDER / file)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    groups = {row.split(":")[0]: int(row.split(":")[2]) for row in (tmp_path / "etc/group").read_text().splitlines()}
    users = {row.split(":")[0] for row in (tmp_path / "etc/passwd").read_text().splitlines()}
    for name in UNITS:
        service = Unit(name)["Service"]
        assert service.get("User", "tocsin") in users
        assert service.get("SupplementaryGroups", "tocsin") in groups
    for owner in ("agent", "brain", "dashboard"):
        found = (tmp_path / "etc/tocsin/secrets" / owner).stat()
        assert stat.S_IMODE(found.st_mode) == 0o750
        assert found.st_gid == groups["tocsin" if owner == "agent" else f"tocsin-{owner}"]
