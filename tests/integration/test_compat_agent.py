"""An agent of commit 2bd2118, from its wheel, before this brain; and what such an agent left on its node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.executors.registry import Dependencies, build_executor
from tocsin.actions.model.decision_json import load_decision
from tocsin.actions.model.executor import Executor
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.client.token_file import stored_token
from tocsin.collector.kernel_log.readers import Position, load_position
from tocsin.collector.spool import Spool
from tocsin.config.settings import Settings
from tocsin.domain.clock import DAY, HOUR, ManualClock, SystemClock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import OrderState
from tocsin.domain.reading import Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.agent.process import Agent
from tocsin.runtime.agent.sources import open_source
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0
from tocsin_testing.compat import FOLDER, expected, identified, install_wheel, old_environment, reading_row, unpack
from tocsin_testing.node_world import FakePower, Node

SMI = Path(__file__).parents[1] / "data" / "nvidia_smi"
TOKEN = "agent-secret-0123456789"
GPU = "GPU-00000000-1111-2222-3333-444444444444"
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed to, nothing else of which is on the path of its process."""
    return install_wheel(tmp_path_factory.mktemp("wheel"))


class Brain:
    """A brain of today with its HTTP server."""

    def __init__(self, folder: Path) -> None:
        chosen = {
            "store": {
                "path": folder / "store.db",
                "raw_days": 10_000,
                "minute_days": 10_000,
                "ten_minute_days": 10_000,
            },
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "actions": {"executors": ["node", "journal_only"]},
            "node": {"lease_seconds": 60},
            "api": {"tokens": [{"name": "agents", "role": "agent", "secret": TOKEN}]},
        }
        self.settings = Settings.model_validate(chosen)
        self.clock = SystemClock()
        self.running: RunningBrain = open_brain(self.settings, self.clock)
        self.brain = self.running.brain
        service = BrainService(self.brain)
        self.server = ApiServer(create_app(service, self.settings.api, self.clock), settings=self.settings.api)
        self.server.start()
        self.url = self.server.url

    def newest(self, simulated: bool) -> list[Reading]:
        return [one for one in self.brain.store.latest(0) if one.gpu.simulated is simulated]

    def executor(self) -> Executor:
        """What puts up orders on this brain's board."""
        return build_executor("node", Dependencies(None, self.settings, self.clock, orders=self.brain.orders.queue))

    def close(self) -> None:
        self.server.stop()
        self.running.stop()


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    folder = tmp_path / "brain"
    folder.mkdir()
    made = Brain(folder)
    yield made
    made.close()


class Old:
    """The old agent in a process of its own."""

    def __init__(self, wheel: Path, folder: Path, brain: Brain | None, script: str = "") -> None:
        self.folder = folder
        begin = [sys.executable, "-m", "tocsin.cli"] if not script else [sys.executable, str(FOLDER / script)]
        self.begin = begin
        self.environment = old_environment(
            wheel,
            TOCSIN_AGENT__LISTEN="127.0.0.1:0",
            TOCSIN_AGENT__INTERVAL_SECONDS="0.2",
            TOCSIN_AGENT__SPOOL=str(folder / "spool.db"),
            TOCSIN_SIMULATION__GPUS="4",
        )
        if brain is not None:
            self.environment |= {"TOCSIN_AGENT__PUSH_URL": brain.url, "TOCSIN_AGENT__PUSH_TOKEN": TOKEN}

    def once(self, source: str) -> list[dict[str, Any]]:
        """What `tocsin agent --once --json` prints."""
        command = [*self.begin, "agent", "--source", source, "--once", "--json"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, timeout=60, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def running(self, source: str) -> Iterator[subprocess.Popen[bytes]]:
        """The agent until the end of the block; its log is in ``agent.log``."""
        with (self.folder / "agent.log").open("wb") as log:
            process = subprocess.Popen(
                [*self.begin, "agent", "--source", source],
                cwd=self.folder,
                env=self.environment,
                stderr=log,
                stdout=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something of another process; fails with its log."""
        never, deadline = threading.Event(), time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come:\n{(self.folder / 'agent.log').read_text()[-4000:]}")
            never.wait(0.05)


def test_the_process_runs_the_old_code(wheel: Path, tmp_path: Path) -> None:
    old = Old(wheel, tmp_path, None)
    asked = "import tocsin, tocsin.cli, tocsin.runtime.agent as a; print(tocsin.__file__, a.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], env=old.environment, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(wheel)) for path in done.stdout.split())


def test_its_readings_arrive_whole(wheel: Path, tmp_path: Path, brain: Brain) -> None:
    old = Old(wheel, tmp_path, brain)
    shown = {row["gpu"]: row for row in old.once("simulated")}
    assert len(shown) == 4
    with old.running("simulated") as process:
        old.until(lambda: len(list(brain.brain.store.readings(0, 2**60))) >= 12, "three readings of each GPU")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    found = brain.newest(simulated=True)
    assert {one.gpu.uuid for one in found} == shown.keys()
    for one in found:
        row = shown[one.gpu.uuid]
        assert one.gpu.host == row["host"]
        assert one.gpu.model
        assert one.gpu.pool
        lacking = {name: reason.label for name, reason in one.missing.items()}
        assert one.values.keys() | lacking.keys() == row["values"].keys() | row["missing"].keys()
        assert {n: r for n, r in lacking.items() if n in row["missing"]} == row["missing"]
    assert Spool(tmp_path / "spool.db", 1 << 20, brain.clock).batches == 0


def test_what_waits_in_its_spool_arrives_with_events_owners_and_reasons(
    wheel: Path, tmp_path: Path, brain: Brain
) -> None:
    unpack(tmp_path)
    shutil.copy(tmp_path / "state" / "agent" / "spool.db", tmp_path / "spool.db")
    old = Old(wheel, tmp_path, brain)
    with old.running("simulated"):
        old.until(
            lambda: len(list(brain.brain.store.readings(T0, T0 + HOUR))) >= len(_spooled()), "the spooled readings"
        )
    _check_spooled(brain)


def test_a_new_agent_drains_the_old_spool(tmp_path: Path, brain: Brain) -> None:
    unpack(tmp_path)
    path = tmp_path / "state" / "agent" / "spool.db"
    chosen = {
        "agent": {"spool": path, "push_url": brain.url, "push_token": TOKEN, "source": "simulated"},
        "simulation": {"gpus": 1},
    }
    settings = Settings.model_validate(chosen)
    agent = Agent(settings, open_source("simulated", settings, brain.clock, brain.brain.metrics), brain.clock)
    while agent.push():
        pass
    agent.close()
    _check_spooled(brain)
    spool = Spool(path, 1 << 20, ManualClock(T0))
    assert spool.batches == 0
    assert [(one.line, one.problem) for one in spool.parked()] == [("gpu,host=x nonsense=1 1", "no such metric")]
    spool.close()


def _spooled() -> list[Reading]:
    texts = expected()["agent"]["spooled"]
    return [one for text in texts for one in decode(text, now_ms=T0 + DAY, precision="ms").batch.readings]


def _check_spooled(brain: Brain) -> None:
    wanted = expected()["stores"]["store/store.db"]
    rows = [reading_row(one) for one in brain.brain.store.readings(T0, T0 + HOUR)]
    assert rows == sorted(map(reading_row, _spooled()), key=lambda row: (row["at_ms"], row["gpu"]))
    assert any(row["owners"] for row in rows)
    assert any(row["missing"] for row in rows)
    assert identified(brain.brain.store.events(0, T0 + 5 * DAY)) == wanted["events"]


# ------------------------------------------------------------------------------------------------ orders


@pytest.fixture
def node(wheel: Path, tmp_path: Path, brain: Brain) -> Old:
    """An old agent of ``node-1`` that may throttle and ask for checkpoints; nvidia-smi and /proc are made up."""
    smi, process = tmp_path / "nvidia-smi", tmp_path / "proc" / "4711"
    smi.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"  -q) exec cat {SMI / 'a100-mig-v12.xml'};;\n  -L) exec cat {SMI / 'a100-mig-list.txt'};;\nesac\nexit 2\n"
    )
    smi.chmod(0o755)
    process.mkdir(parents=True)
    (process / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_71/step_0/user/task_0\n")
    (process / "comm").write_text("train\n")
    (process / "environ").write_bytes(b"")
    (process / "stat").write_text("4711 (train) S " + "1 " * 18 + "100 0 0\n")
    made = Old(wheel, tmp_path, brain, "node_agent.py")
    made.environment |= {
        "TOCSIN_AGENT__HOST": "node-1",
        "TOCSIN_AGENT__NVIDIA_SMI_COMMAND": json.dumps([str(smi)]),
        "TOCSIN_AGENT__PROC": str(tmp_path / "proc"),
        "TOCSIN_AGENT__POD_LOGS": str(tmp_path / "pods"),
        "TOCSIN_AGENT__KERNEL_LOG": "off",
        "TOCSIN_AGENT__HOOK_SOCKET": str(tmp_path / "hook.sock"),
        "TOCSIN_AGENT__HOST_LOAD": "false",
        "TOCSIN_CLOUD__NOTICES": "off",
        "TOCSIN_NODE__ALLOW": '["throttle", "checkpoint"]',
        "TOCSIN_NODE__POLL_SECONDS": "0.2",
        "TOCSIN_NODE__MARKER_FOLDER": str(tmp_path / "limits"),
    }
    return made


def decided(brain: Brain, action: str, **parameters: str) -> Any:
    """A decision about the node's GPU, as the journal has it."""
    now_ms = brain.clock.now_ms()
    return load_decision(
        {
            "rule": "test",
            "subject": {"kind": "gpu", "name": GPU, "host": "node-1", "pool": "default", "detail": ""},
            "action": action,
            "mode": "act",
            "severity": "critical",
            "category": "power",
            "at_ms": now_ms,
            "expires_ms": now_ms + HOUR,
            "key": f"test|gpu:{GPU}|{action}|{len(parameters)}|{now_ms}",
            "sentence": "A test.",
            "parameters": parameters,
        }
    )


def test_it_takes_orders_and_reports_them(node: Old, brain: Brain) -> None:
    executor, board = brain.executor(), brain.brain.orders.queue
    with node.running("nvidia_smi") as process:
        node.until(lambda: any(one.owners for one in brain.newest(simulated=False)), "readings with owners")
        cap = decided(brain, "throttle", power_limit_watts="250", was_watts="400", cause="a budget")
        assert executor.execute(cap).pending
        node.until(lambda: not executor.execute(cap).pending, "the answer to the cap")
        done = executor.execute(cap)
        assert (done.ok, done.pending) == (True, False), done
        (standing,) = board.on_gpu(GPU, ActionKind.THROTTLE)
        assert standing.report is not None
        assert standing.report.requested_before_mw == 400_000
        assert standing.report.requested_after_mw == standing.report.enforced_after_mw == 250_000
        assert [path.name for path in (node.folder / "limits").glob("*.limit.json")] == [f"{GPU}.limit.json"]
        asked = decided(brain, "checkpoint", deadline_ms=str(brain.clock.now_ms() + HOUR))
        node.until(lambda: not executor.execute(asked).pending, "the answer to the request")
        refused = executor.execute(asked)
        assert not refused.ok
        assert "no process" in refused.detail
        back = executor.inverse(cap)
        assert back is not None
        back = replace(back, at_ms=brain.clock.now_ms(), expires_ms=brain.clock.now_ms() + HOUR)
        node.until(lambda: not executor.execute(back).pending, "the answer to the restore")
        assert executor.execute(back).ok
        assert not list((node.folder / "limits").glob("*.limit.json"))
        again = decided(brain, "throttle", power_limit_watts="200")
        node.until(lambda: executor.execute(again).ok and not executor.execute(again).pending, "the second cap")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    # It gives back what it holds, and says so, before it ends.
    states = {one.order.key: one.state for one in board.on_gpu(GPU, ActionKind.THROTTLE)}
    found = board.standing(f"{again.key}@{GPU}")
    assert found is not None
    assert found.state is OrderState.RESTORED, states
    readings = {one.gpu.uuid: one for one in brain.newest(simulated=False)}
    assert {one.gpu.host for one in readings.values()} == {"node-1"}
    owners = {owner for one in readings.values() for owner in one.owners}
    assert [(one.pid, one.process, one.slurm_job) for one in owners if one.pid == 4711] == [(4711, "train", "71.0")]


def test_the_gpus_of_a_job_follow_one_of_them(node: Old, brain: Brain) -> None:
    executor, queue = brain.executor(), brain.brain.orders.queue
    ranks = [["node-1", "GPU-hot"], ["node-1", "GPU-cool"]]
    job = decided(brain, "throttle", ranks=json.dumps(ranks, separators=(",", ":")), cause="heat")
    assert executor.execute(job).pending
    with node.running("nvidia_smi"):
        node.until(lambda: not executor.execute(job).pending, "the answers of both GPUs")
        assert executor.execute(job).ok, executor.execute(job)
        standing = [queue.standing(f"{job.key}@{gpu}") for _, gpu in ranks]
        node.until(
            lambda: len({_limit(queue.standing(f"{job.key}@{gpu}")) for _, gpu in ranks} - {400_000}) == 1,
            "one limit for both",
        )
        assert all(one is not None and one.order.parameters.lead == f"{job.key}@GPU-hot" for one in standing[1:])
        queue.withdraw([f"{job.key}@{gpu}" for _, gpu in ranks])
        node.until(lambda: not list((node.folder / "limits").glob("*.limit.json")), "the return of the limits")


def _limit(standing: Any) -> int | None:
    return None if standing is None or standing.report is None else standing.report.requested_after_mw


def test_what_its_node_does_not_allow_is_refused_in_words(node: Old, brain: Brain) -> None:
    executor = brain.executor()
    clocks = decided(brain, "throttle", sm_clock_max_mhz="1200")
    with node.running("nvidia_smi"):
        node.until(lambda: not executor.execute(clocks).pending, "the answer")
    done = executor.execute(clocks)
    assert not done.ok
    assert 'add "clocks" to node.allow' in done.detail


# ------------------------------------------------------------------------------------------------ what it left


def test_limits_that_it_left_are_given_back(tmp_path: Path) -> None:
    unpack(tmp_path)
    wanted = expected()["agent"]
    power = FakePower(tuple(wanted["limits"]))
    power.limit_mw, power.locked = dict(wanted["limits"]), {gpu: tuple(span) for gpu, span in wanted["locked"].items()}
    assert sorted(power.limit_mw.values()) != [700_000, 700_000]
    node = Node(tmp_path / "state" / "agent" / "limits", power=power)
    assert node.boot == wanted["boot"]
    assert power.limit_mw == {"GPU-a": 700_000, "GPU-b": 700_000}
    assert power.locked == {}
    assert node.markers == []
    older = replace(node.order(), epoch=wanted["epoch"] - 1)
    node.worker.receive([older])
    assert node.state(older) is OrderState.OUTRANKED, "the epoch of the brain that acted last is kept"


def test_its_place_in_the_kernel_log_and_its_token_are_found(tmp_path: Path) -> None:
    agent = unpack(tmp_path) / "agent"
    assert load_position(agent / "kernel_log.json") == Position("boot-1", T0, 4711, "s=abc;i=1")
    path = agent / "tokens.json"
    assert stored_token("https://brain.example:8443", ManualClock(T0), path) == "secret-token"
    assert stored_token("https://brain.example:8443", ManualClock(T0 + 2 * DAY), path) == ""
