"""Every command that prints an answer prints it as JSON, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tocsin.cli.common import SaidCommand, SaidGroup
from tocsin.cli.main import cli
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving

WITHOUT = {
    "tocsin brain": "a service: it runs until it is stopped, and prints no answer",
    "tocsin dashboard": "a service",
    "tocsin mcp": "a service, which speaks JSON by a protocol of its own",
    "tocsin completion": "prints a script for a shell",
    "tocsin reference": "prints a page or a file in the format of its own",
    "tocsin rehearse set": "keeps a report of JSON for each run in its folder",
    "tocsin rehearse prior": "writes its file of JSON",
    "tocsin journal export": "prints entries in the format that --format names, JSON lines unless told otherwise",
}
"""Commands without ``--json``, and why."""


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from leaves(child, f"{name} {child.name}")
    else:
        yield name, command


def test_every_command_takes_json_but_those_that_have_a_reason() -> None:
    without = {
        name
        for name, command in leaves(cli, "tocsin")
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT.keys()


def told(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_what_a_running_brain_is_told_answers_with_what_stands_now() -> None:
    service = FakeService()
    waiting = [decision.id for decision in service.decisions(100) if decision.approvable]
    with serving(service) as url:
        to = ("--api-url", url)
        assert told("pause", "why", *to).items() >= {"ok": True, "paused": True, "paused_reason": "why"}.items()
        assert told("resume", *to)["paused"] is False
        breaker = told("breaker", "reset", *to)["breaker"]
        assert isinstance(breaker, dict)
        assert breaker["tripped"] is False
        for command, decision_id, state in (("approve", waiting[0], "approved"), ("reject", waiting[1], "rejected")):
            decision = told(command, decision_id, *to)["decision"]
            assert isinstance(decision, dict)
            assert (decision["id"], decision["state"]) == (decision_id, state)
        assert told("release", "host", "gpu-node-01", *to)["held_off_until"]
        assert told("inject", "thermal_drift", fleet.uuid(0, 0), *to)["kind"] == "thermal_drift"


def test_files_and_stores_answer_with_figures() -> None:
    assert told("config", "check").keys() == {"ok", "settings", "rules"}
    assert told("config", "show").keys() >= {"agent", "api", "store"}
    assert told("store", "init") == {"ok": True, "store": "sqlite"}
    assert told("store", "prune") == {"ok": True, "removed": 0, "compacted": 0, "rolled": 0, "joined": 0}
    assert told("store", "backup", "copy.db") == {"ok": True, "target": "copy.db"}
    assert told("store", "restore", "copy.db")["ok"] is True
    rules = json.loads(CliRunner().invoke(cli, ["rules", "list", "--json"]).output)
    assert rules[0].keys() == {"name", "severity", "level", "category", "action", "mode", "meaning"}


@pytest.mark.parametrize("code", [0, 1])
def test_lines_of_a_command_become_json(code: int) -> None:
    @click.group(cls=SaidGroup)
    def group() -> None: ...

    @group.command()
    def speak() -> int:
        click.echo("... begins")
        click.echo("done" if code == 0 else "failed")
        return code

    assert isinstance(speak, SaidCommand)
    plain = CliRunner().invoke(group, ["speak"], standalone_mode=False)
    assert (plain.output, plain.return_value) == (f"... begins\n{'failed' if code else 'done'}\n", code)
    spoken = CliRunner().invoke(group, ["speak", "--json"], standalone_mode=False)
    said = ["... begins", "failed" if code else "done"]
    assert json.loads(spoken.output) == {"ok": code == 0, "exit_code": code, "said": said}
    assert spoken.return_value == code
