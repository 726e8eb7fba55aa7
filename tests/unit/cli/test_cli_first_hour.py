"""What a newcomer's shell meets: the running demo, busy ports, forgotten variables, wrong settings, help by task."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from tocsin.cli import main as cli_main
from tocsin.cli.common import brain_of
from tocsin.cli.main import MODULES, TASKS, cli
from tocsin.client import demo_file
from tocsin.client.control import InjectionOut
from tocsin.client.demo_file import announced, here, process_start, running_demo
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.load import WrongSettings, load_settings, overridden
from tocsin.config.settings import Settings
from tocsin.domain.clock import to_iso
from tocsin.domain.errors import InputError
from tocsin.runtime.dashboard_process import prepare_dashboard
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving

SECRET = "an-operators-secret-0123"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TOCSIN_CONFIG", "TOCSIN_DASHBOARD__API_URL", "TOCSIN_DASHBOARD__API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "tocsin"


@pytest.fixture
def url() -> Iterator[str]:
    with serving(FakeService()) as base:
        yield base


def left(folder: Path, name: str, **changed: object) -> Path:
    """A file as a demo that has ended, or somebody, may leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    start = process_start(os.getpid())
    where = dict(zip(("host", "boot", "pid_namespace"), here(), strict=True))
    about = {"api_url": "http://x", "pid": os.getpid(), "started_ticks": start, "started_ms": 9}
    path.write_text(json.dumps(about | where | changed))
    path.chmod(0o600)
    return path


def test_a_fault_that_is_begun_is_told_in_the_words_of_the_brain(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = InjectionOut(kind="hang", gpu="GPU-1f", at=to_iso(T0), sentence="hang starts in node-1 GPU 3")
    monkeypatch.setattr(FakeService, "inject", lambda *_: told)
    said = CliRunner().invoke(cli, ["inject", "hang", "11", "--api-url", url], catch_exceptions=False).output
    assert said.startswith("ok: hang starts in node-1 GPU 3 (")
    assert "GPU-1f" not in said


def test_commands_of_another_shell_find_the_running_demo(url: str, folder: Path) -> None:
    assert running_demo() is None
    with announced(url, 5) as findable:
        assert findable
        done = CliRunner().invoke(cli, ["pause", "a rehearsal"], standalone_mode=False)
        assert f"(brain {url})" in done.output
        assert (folder / f"demo-{os.getpid()}.json").stat().st_mode & 0o077 == 0
    assert running_demo() is None
    assert list(folder.iterdir()) == []


def test_what_is_said_by_hand_goes_before_a_demo() -> None:
    named = Settings.model_validate({"dashboard": {"api_url": "http://named:1"}})
    with announced("http://demo:1", 5):
        assert brain_of(Settings(), None) == "http://demo:1"
        assert brain_of(Settings(), "http://asked:1") == "http://asked:1"
        assert brain_of(named, None) == "http://named:1"
    assert brain_of(Settings(), None) == Settings().brain_url


@pytest.mark.parametrize(
    "changed",
    [{"started_ticks": 1}, {"started_ticks": 0}, {"pid": 2**22 + 1}, {"pid": -1}, {"pid": 10**30}, {"boot": "before"}],
)
def test_files_of_demos_that_have_ended_are_removed(folder: Path, changed: dict[str, object]) -> None:
    path = left(folder, "demo-1.json", **changed)
    assert running_demo() is None
    assert not path.exists()


@pytest.mark.parametrize(
    "where", [{"host": "another"}, {"pid_namespace": "pid:[1]"}, {"host": "another", "pid": 2**22}]
)
def test_a_demo_of_another_host_or_container_is_neither_found_nor_forgotten(
    folder: Path, where: dict[str, object]
) -> None:
    """A home directory may be shared: nobody here knows whether that process lives."""
    path = left(folder, "demo-1.json", **where)
    assert running_demo() is None
    assert path.exists()


def test_of_several_demos_the_newest_is_found(folder: Path) -> None:
    left(folder, "demo-1.json", api_url="http://old", started_ms=1)
    left(folder, "demo-2.json", api_url="http://new", started_ms=2)
    found = running_demo()
    assert found is not None
    assert found.api_url == "http://new"


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"pid": []}', b"\xff" * 9000])
def test_what_is_no_file_of_a_demo_is_left_alone(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    path = folder / "demo-1.json"
    path.write_bytes(content)
    assert running_demo() is None
    assert path.exists()


def test_a_file_that_others_may_write_or_that_points_elsewhere_is_not_believed(folder: Path) -> None:
    left(folder, "demo-1.json").chmod(0o666)
    (folder / "demo-2.json").symlink_to(left(folder, "other.json"))
    assert running_demo() is None


def test_a_demo_that_cannot_be_announced_runs_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    monkeypatch.setattr(demo_file, "demo_folder", lambda: tmp_path / "state" / "tocsin")
    with announced("http://x", 1) as findable:
        assert not findable


def test_a_token_that_the_brain_ignores_is_said(url: str) -> None:
    done = CliRunner().invoke(cli, ["status", "--api-url", url, "--token", "x" * 20], standalone_mode=False)
    assert "--token is ignored" in done.stderr
    token = Token(name="ann", role=Role.OPERATOR, secret=SecretStr(SECRET))
    with serving(FakeService(), ApiSettings(tokens=[token])) as base:
        done = CliRunner().invoke(cli, ["status", "--api-url", base, "--token", SECRET], standalone_mode=False)
    assert "ignored" not in done.stderr


def test_a_variable_that_takes_the_place_of_the_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "brain.toml"
    path.write_text('[dashboard]\napi_url = "http://of-the-file:1"\nlisten = "127.0.0.1:1"\napi_token = "file-token"\n')
    env = {
        "TOCSIN_DASHBOARD__API_URL": "http://of-the-shell:1",
        "TOCSIN_DASHBOARD__LISTEN": "127.0.0.1:1",
        "TOCSIN_DASHBOARD__API_TOKEN": "shell-token",
        "TOCSIN_LOG__LEVEL": "error",
    }
    said = overridden(path, environ=env)
    assert [line.split()[0] for line in said] == ["TOCSIN_DASHBOARD__API_URL", "TOCSIN_DASHBOARD__API_TOKEN"]
    assert "dashboard.api_url" in said[0]
    assert not any("token" in line.replace("api_token", "").lower().replace("api_token", "") for line in said[:1])
    assert "shell-token" not in "".join(said)
    assert overridden(None, environ=env) == []
    monkeypatch.setenv("TOCSIN_DASHBOARD__API_URL", "http://of-the-shell:1")
    done = CliRunner().invoke(cli, ["--config", str(path), "config", "show"], standalone_mode=False)
    assert done.stderr.count("takes the place of dashboard.api_url") == 1


def test_the_dashboard_refuses_a_busy_port_and_the_demo_takes_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            InputError, match=rf"dashboard.listen = '{listen}': cannot be listened on .* choose another"
        ):
            prepare_dashboard(listen, "http://x", "")
        ready = prepare_dashboard(listen, "http://x", "", exactly=False)
    assert ready.url != f"http://{listen}"
    ready.claim.release()


WRONG = """
[brain]
x = 1
[agent]
interval_seconds = -3
[[api.tokens]]
nme = "alice"
role = "operatr"
secret = "a-secret-of-alice-01"
"""


def test_all_wrong_keys_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(WRONG)
    with pytest.raises(WrongSettings) as caught:
        load_settings(path, environ={})
    keys = {"brain", "agent.interval_seconds", "api.tokens.0.nme", "api.tokens.0.role"}
    assert {error.field for error in caught.value.errors} == keys
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 settings are wrong:"
    assert len(lines) == 5
    assert "a-secret-of-alice-01" not in str(caught.value)
    path.write_text("[agent]\ninterval_seconds = -3\n")
    with pytest.raises(InputError) as single:
        load_settings(path, environ={})
    assert not isinstance(single.value, WrongSettings)


def test_each_module_is_named_with_the_commands_that_it_has() -> None:
    names = [path.stem for path in Path(cli_main.__file__).parent.glob("[a-z]*.py")]
    modules = {name: import_module(f"tocsin.cli.{name}") for name in names}
    having = {name: module.COMMANDS for name, module in modules.items() if hasattr(module, "COMMANDS")}
    assert {name: tuple(sorted(command.name for command in found)) for name, found in having.items()} == MODULES


def test_a_command_loads_no_other() -> None:
    code = "import sys; from tocsin.cli.main import cli; cli.commands['plugins']; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("tocsin.cli.")}
    assert loaded <= {f"tocsin.cli.{name}" for name in ("main", "common", "completion", "plugins", "values")}


def test_each_command_has_one_task_in_the_help() -> None:
    listed = [name for names in TASKS.values() for name in names]
    assert sorted(listed) == sorted(cli.commands)
    shown = CliRunner().invoke(cli_main.cli, ["--help"]).output
    assert all(f"\n{task}:\n" in shown for task in TASKS)
    assert all(f"\n  {name} " in shown for name in cli.commands)
    assert "..." not in shown.partition("\n")[2], "what a command does is said to its end"


def test_settings_about_a_brain_of_ones_own_are_never_about_a_demo(url: str, folder: Path) -> None:
    theirs = Settings.model_validate({"api": {"tokens": [{"name": "a", "role": "operator", "secret": SECRET}]}})
    with announced(url, 5):
        assert brain_of(theirs, None) == theirs.brain_url != url
        assert brain_of(Settings(), None) == url
