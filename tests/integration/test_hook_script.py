"""Real training scripts, the one of the documentation among them, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tocsin.collector.training_hook.server import HookServer, ProcessState
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


HOOKED = """
import threading
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
import tocsin.hook
from tocsin.hook.watch import ProcessWatch

late = ProcessWatch("none.sock")

def attach(*_):
    thread = threading.Thread(target=late._attach)
    thread.start()
    thread.join()

layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
register_optimizer_step_post_hook(attach)
tocsin.hook.watch("none.sock")
register_optimizer_step_post_hook(lambda *_: None)
register_optimizer_step_post_hook(lambda *_: None)
watch = tocsin.hook._watch
tocsin.hook.on_checkpoint(tocsin.hook.stop)
for _ in range(3):
    layer(torch.ones(2, 4)).sum().backward()
    if watch.steps == 1:
        watch.orders.take({"id": "a", "do": "checkpoint", "expires_s": 60})
        watch._due = True
    optimizer.step()
late._attach()
optimizer.step()
print(watch.steps, late.steps)
"""
"""Other libraries have hooks too; the watch comes and goes while PyTorch walks them."""

LAST = """
import threading
import tocsin.hook
from tocsin.hook.watch import Link

send = Link.send

def slow(link, message):
    pause.wait(0.2)
    return send(link, message)

Link.send = slow
tocsin.hook.watch(seconds=0.1)
saved = threading.Event()
tocsin.hook.on_checkpoint(saved.set)
pause = threading.Event()
while not saved.is_set():
    tocsin.hook.step()
    pause.wait(0.01)
"""
"""Ends at once when it has saved, while the hook's thread has not yet said so."""

BLOCKING = """
import os
import signal
import tocsin.hook

tocsin.hook.watch("none.sock")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1)
"""

SPAWNING = """
import sys
import torch
from torch.utils.data import DataLoader
import tocsin.hook

if __name__ == "__main__":
    tocsin.hook.watch("none.sock", seconds=0.1)
    seen = 0
    for context in ("fork", "spawn"):
        for batch in DataLoader(list(range(64)), batch_size=8, num_workers=2, multiprocessing_context=context):
            tocsin.hook.step()
            seen += len(batch)
    print(seen)
"""

RANKS = """
import os
import torch
import torch.distributed as dist

launcher = os.getppid()
dist.init_process_group("gloo")
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
while os.getppid() == launcher:
    optimizer.zero_grad()
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
"""The launcher puts its ranks into sessions of their own: they end by themselves when it is gone."""


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
        """Processes that have told how long their steps take, as soon as there are `count` of them."""
        self.wait(lambda: sum(state.stats.step_seconds is not None for state in self.server.processes()) >= count)
        return [state for state in self.server.processes() if state.stats.step_seconds is not None]

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
            with suppress(ProcessLookupError):
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
        assert state.stats.steps > 1
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


def test_every_rank_of_a_distributed_job_speaks_for_itself(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "tocsin.hook", "ranks.py")
    with running(agent, tmp_path, *launch) as launcher:
        states = agent.stepping(2)
        assert [state.process for state in states] == ["ranks.py"] * 2
        assert launcher.pid not in {state.pid for state in states}


def test_what_was_done_last_is_acknowledged_before_the_process_ends(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    with running(agent, tmp_path, "last.py") as process:
        (state,) = agent.stepping()
        name = agent.server.request(state.pid, "checkpoint", agent.clock.now_ms() + MINUTE)
        agent.wait(lambda: bool(agent.server.outcomes()))
        assert [(found.id, found.outcome) for found in agent.server.outcomes()] == [(name, "done")]
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("script", "said"),
    [(HOOKED, "2 1"), (BLOCKING, "True"), (SPAWNING, "128")],
    ids=["hooks-of-others", "blocked-signals", "workers"],
)
def test_a_script_does_what_it_would_do_unwatched(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.strip()) == (0, said), ended.stderr


@pytest.mark.parametrize(("options", "found"), [((), True), (("-P",), False)])
def test_the_folder_of_the_script_is_importable_as_python_has_it(
    tmp_path: Path, options: tuple[str, ...], found: bool
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    (folder / "script.py").write_text(
        "import argparse, importlib.util\nprint(importlib.util.find_spec('beside') is not None)"
    )
    environment = {**os.environ, "TOCSIN_HOOK": "off"}
    plain, watched = (
        subprocess.run(
            [sys.executable, *options, *module, "scripts/script.py"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )
        for module in ((), ("-m", "tocsin.hook"))
    )  # fmt: skip
    assert plain.stdout == watched.stdout == f"{found}\n", watched.stderr


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
