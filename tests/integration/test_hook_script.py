"""Real training scripts, the one of the documentation among them, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tocsin.collector.hook_peers import ProcessState
from tocsin.collector.hook_server import HookServer
from tocsin.domain.clock import MINUTE, SystemClock
from tocsin.telemetry.metrics import OwnMetrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "hook.md"
PATIENCE = 90.0

PLAIN = """
import sys
import torch

layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
assert sys.argv == ["plain.py", "--forever"]
while True:
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FORKING = """
import os
import threading
import tocsin.hook

tocsin.hook.watch(seconds=0.1)
pause = threading.Event()
child = os.fork()
while True:
    tocsin.hook.step()
    pause.wait(0.01)
"""


class Agent:
    """A server that is served while a test waits for something."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SystemClock()
        self.server = HookServer(path, self.clock, OwnMetrics())

    def wait(self, condition: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + PATIENCE
        while not condition():
            assert self.clock.monotonic() < end, "nothing came in time"
            self.server.turn(0.2)

    def stepping(self, count: int = 1) -> list[ProcessState]:
        """Processes that have told of steps, as soon as there are `count` of them."""
        self.wait(lambda: sum(state.stats.steps > 0 for state in self.server.processes()) >= count)
        return [state for state in self.server.processes() if state.stats.steps > 0]

    def restart(self) -> None:
        self.server.close()
        self.server = HookServer(self.path, self.clock, OwnMetrics())


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "hook.sock")
    yield made
    made.server.close()


@contextmanager
def running(agent: Agent, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "TOCSIN_HOOK_SOCKET": str(agent.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, 9)


def script_of_the_documentation() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_script_of_the_documentation_is_watched_and_saves_when_asked(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of_the_documentation())
    with running(agent, tmp_path, "train.py", "1000000000") as process:
        (state,) = agent.stepping()
        assert state.pid == process.pid
        assert state.process == "train.py"
        assert state.stats.checkpoint
        assert state.stats.step_seconds is not None
        name = agent.server.request(state.pid, "checkpoint", agent.clock.now_ms() + MINUTE)
        agent.wait(lambda: bool(agent.server.outcomes()))
        (outcome,) = agent.server.outcomes()
        assert (outcome.id, outcome.outcome, outcome.detail) == (name, "done", "1 function called")
        assert (tmp_path / "checkpoint.safetensors").stat().st_size > 0
        agent.restart()
        assert agent.stepping()[0].stats.steps > state.stats.steps
    agent.wait(lambda: not agent.server.processes())


def test_the_script_of_the_documentation_ends_as_it_would_without_an_agent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of_the_documentation())
    environment = {**os.environ, "TOCSIN_HOOK_SOCKET": str(tmp_path / "none.sock")}
    ended = subprocess.run(
        [sys.executable, "train.py", "3"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_an_unchanged_script_is_watched_by_its_start(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    with running(agent, tmp_path, "-m", "tocsin.hook", "plain.py", "--forever") as process:
        (state,) = agent.stepping()
        assert (state.pid, state.process) == (process.pid, "plain.py")
        name = agent.server.request(state.pid, "checkpoint", agent.clock.now_ms() + MINUTE)
        agent.wait(lambda: bool(agent.server.outcomes()))
        assert [(found.id, found.outcome) for found in agent.server.outcomes()] == [(name, "refused")]


def test_a_module_is_watched_too(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import tocsin.hook\nwhile True:\n    tocsin.hook.step()\n")
    with running(agent, tmp_path, "-m", "tocsin.hook", "-m", "plain") as process:
        assert [state.pid for state in agent.stepping()] == [process.pid]


def test_a_forked_child_speaks_for_itself(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    with running(agent, tmp_path, "-W", "ignore::DeprecationWarning", "forking.py") as process:
        states = agent.stepping(2)
        assert len({state.pid for state in states}) == 2
        assert process.pid in {state.pid for state in states}


def test_without_a_script_it_says_how() -> None:
    ended = subprocess.run([sys.executable, "-m", "tocsin.hook"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("usage: python -m tocsin.hook")


def test_importing_it_loads_the_standard_library_alone() -> None:
    code = (
        "import sys, tocsin.hook\n"
        "known = sys.stdlib_module_names | {'tocsin', '__main__'}\n"
        "print([name for name in sys.modules if name.split('.')[0] not in known])"
    )
    ended = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, env={
        "PYTHONPATH": str(Path(__file__).parents[2] / "src")
    })  # fmt: skip
    assert ended.stdout.strip() == "[]", ended.stderr
