"""Shell completion: the scripts, asked the way a shell asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.sim.faults import fault_kinds
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving

LIMIT_S = 60


def script(shell: str) -> str:
    return CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False).output


def offered(*words: str) -> list[str]:
    """What a shell is offered for the last of `words`."""
    found = ShellComplete(cli, {}, "tocsin", "_TOCSIN_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_can_read(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(script(shell))
    assert "_TOCSIN_COMPLETE" in path.read_text()
    if shutil.which(shell) is None:
        assert shell != "bash", "bash is everywhere"
        return
    subprocess.run([shell, "-n", path], check=True, timeout=LIMIT_S)


def test_bash_itself_completes(tmp_path: Path) -> None:
    """The command in the path is this tree's, as an installed one would be."""
    program = tmp_path / "tocsin"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tocsin.cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "tocsin.bash").write_text(script("bash"))
    lines = [
        "source ./tocsin.bash",
        "complete -p tocsin > /dev/null || exit 9",
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _tocsin_completion tocsin; '
        'echo "${COMPREPLY[*]}"; }',
        "ask tocsin stat",
        "ask tocsin inject thermal_d",
    ]
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.splitlines() == ["status", "thermal_drift"], done.stderr


def test_commands_options_and_choices() -> None:
    assert offered("jour") == ["journal"]
    assert offered("journal", "ver") == ["verify"]
    assert offered("status", "--js") == ["--json"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]
    assert offered("release", "h") == ["host"]


def test_values_that_the_code_knows() -> None:
    assert offered("inject", "") == sorted(fault_kinds())
    assert "simulated" in offered("agent", "--source", "")
    assert "hazard" in offered("train", "--model", "h")
    assert offered("backtest", "--dataset", "ti") == ["titan"]
    assert "pause" in offered("journal", "show", "--kind", "p")


def test_values_that_a_brain_tells() -> None:
    service = FakeService()
    waiting = {decision.id for decision in service.decisions(100) if decision.approvable}
    with serving(service) as url:
        assert set(offered("approve", "--api-url", url, "")) == waiting
        assert offered("inject", "--api-url", url, "hang", fleet.uuid(2, 5)[:20]) == [
            fleet.uuid(2, index) for index in range(8)
        ]
        assert offered("release", "--api-url", url, "host", "gpu-node-03") == ["gpu-node-03"]
        assert offered("diagnose", "--api-url", url, "--host", "gpu-node-0") == [
            f"gpu-node-0{number}" for number in range(1, 9)
        ]


def test_without_a_brain_nothing_is_offered_and_nothing_is_said() -> None:
    assert offered("approve", "--api-url", "http://127.0.0.1:9", "") == []
    assert offered("--config", "/none.toml", "models", "promote", "") == []
