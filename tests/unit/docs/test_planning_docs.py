"""The commands of docs/planning.md print what the page says, on the state file that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.actions.planning.state import Budget, FleetNode, Pool, Slot, Workload
from tocsin.actions.planning.statefile import parse_state
from tocsin.cli.main import cli
from tocsin.config.settings import Settings

TEXT = (Path(__file__).parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)[0]
COMMANDS = re.findall(r"```console\n\$ tocsin ([^\n]*)\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_prints_what_the_page_says(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("fleet.json").write_text(EXAMPLE)
    result = CliRunner().invoke(cli, command.split())
    assert result.output.rstrip() == shown.rstrip()


def test_every_key_of_a_state_file_is_on_the_page() -> None:
    assert len(COMMANDS) == 4
    assert parse_state(EXAMPLE).works
    for kind in (FleetNode, Slot, Workload, Budget, Pool):
        missing = [name for name in kind.__dataclass_fields__ if f"`{name}`" not in TEXT]
        assert missing == [], kind


def test_every_setting_that_is_named_exists() -> None:
    named = set(re.findall(r"`planning\.([a-z_]+)`", TEXT))
    assert named
    assert named <= type(Settings().planning).model_fields.keys()
