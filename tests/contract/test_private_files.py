"""Whatever the programs write for themselves is their owner's alone, also where the umask lets everybody in."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.actions.node.markers import Marker, MarkerFolder
from tocsin.client.token_file import store_token
from tocsin.collector.kernel_log.readers import Position, save_position
from tocsin.domain.atomic_file import make_private
from tocsin.runtime.brain.lease import FileLease
from tocsin_testing.chaos import until

pytestmark = pytest.mark.server

SECRET = "node-secret-of-sixteen"
TOCSIN = Path(sys.executable).with_name("tocsin")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Files below `folder` that others than their owner may touch."""
    found = {file: stat.S_IMODE(file.lstat().st_mode) for file in folder.rglob("*") if file.is_file()}
    assert found
    return {str(file.relative_to(folder)): oct(mode) for file, mode in found.items() if mode & 0o077}


def start(folder: Path, name: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([TOCSIN, *arguments], stderr=log, cwd=folder, env=os.environ | more, umask=0)


def said(folder: Path, name: str, word: str) -> str:
    """The rest of the line that begins with `word`, once it is there."""
    lines: list[str] = []

    def there() -> bool:
        text = (folder / f"{name}.log").read_text()
        lines[:] = [line.removeprefix(word) for line in text.splitlines() if line.startswith(word)]
        return bool(lines)

    until(there, f"{name} says {word}", 60)
    return lines[0]


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_nobody_else_may_read_what_agent_and_brain_keep(tmp_path: Path) -> None:
    state, logs = tmp_path / "state", tmp_path / "logs"
    logs.mkdir()
    brain = {
        "TOCSIN_STORE__PATH": str(state / "store.db"),
        "TOCSIN_JOURNAL__PATH": str(state / "journal.db"),
        "TOCSIN_API__LISTEN": "127.0.0.1:0",
        "TOCSIN_API__TOKENS": json.dumps([{"name": "node", "role": "agent", "secret": SECRET}]),
        "TOCSIN_FORECAST__WORKER": "false",
        "TOCSIN_FORECAST__MODELS": str(state / "models"),
    }
    running = start(logs, "brain", "brain", **brain)
    agent = {
        "TOCSIN_AGENT__SPOOL": str(state / "agent" / "spool.db"),
        "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
        "TOCSIN_AGENT__INTERVAL_SECONDS": "0.2",
        "TOCSIN_AGENT__PUSH_URL": said(logs, "brain", "api: "),
        "TOCSIN_AGENT__PUSH_TOKEN": SECRET,
        "TOCSIN_AGENT__KERNEL_LOG": "off",
        "TOCSIN_AGENT__HOOK_SOCKET": "",
        "TOCSIN_SIMULATION__GPUS": "8",
    }
    node = start(logs, "agent", "agent", "--source", "simulated", **agent)
    said(logs, "agent", "pushing to ")
    until(
        lambda: (state / "store.db-wal").exists() and (state / "store.db-wal").stat().st_size > 100_000, "readings", 60
    )
    before = modes(state)
    end(node)
    end(running)
    for command in ("store", "journal"):
        target = str(state / f"{command}.backup")
        copy = [TOCSIN, command, "backup", target]
        subprocess.run(copy, env=os.environ | brain, cwd=logs, umask=0, check=True, capture_output=True, timeout=60)
    assert before == {}
    assert modes(state) == {}
    names = {file.name for file in state.rglob("*") if file.is_file()}
    assert {"store.db", "journal.db", "spool.db", "store.backup", "journal.backup"} <= names


def test_small_files_are_private_too(tmp_path: Path, open_umask: None) -> None:
    save_position(tmp_path / "kernel" / "position.json", Position("boot", 1, "cursor"))
    store_token("http://brain:8470", SECRET, "2030-01-01T00:00:00Z", tmp_path / "client" / "tokens.json")
    MarkerFolder(tmp_path / "limits").put(Marker("GPU-1", "key", "boot", 1, 2))
    lease = FileLease(tmp_path / "lease", "me")
    lease.tick()
    lease.release()
    assert modes(tmp_path) == {}


def test_files_of_an_earlier_release_are_closed_to_strangers_and_not_to_their_group(
    tmp_path: Path, open_umask: None
) -> None:
    for name, mode in (("a", 0o644), ("b", 0o666), ("c", 0o640), ("d", 0o600)):
        for suffix in ("", "-wal"):
            (tmp_path / f"{name}{suffix}").write_text("kept")
            (tmp_path / f"{name}{suffix}").chmod(mode)
        make_private(tmp_path / name)
        found = {stat.S_IMODE((tmp_path / f"{name}{suffix}").stat().st_mode) for suffix in ("", "-wal")}
        assert found == {mode & 0o770}
        assert (tmp_path / name).read_text() == "kept"


def test_a_file_that_cannot_be_made_is_told_by_who_opens_it(tmp_path: Path) -> None:
    make_private(tmp_path / "no" / "such" / "folder")
    assert not list(tmp_path.iterdir())
