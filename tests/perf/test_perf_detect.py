"""From an XID line in the kernel log to the manager's first call, with a fleet that reports and, once, a worker that
forecasts all the time.

The whole way is real: kernel log, agent, spool, uplink, HTTP, store, rules, guards, journal, executor, HTTP; brain and
fleet are processes of their own. One fault at a time, each on a node that reports like the rest of the fleet before and
after it: the driver is loaded anew before the next, so that its finding is over. `make detect
FAULTS=1000` asks for more faults. Run without --benchmark-only it is a small fleet, for correctness alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.client.client import Client
from tocsin.collector.kernel_log.companion import KernelLogCompanion
from tocsin.collector.kernel_log.readers import KmsgReader
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.agent.companions import Context
from tocsin.runtime.agent.process import Agent
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.brain_child import start_brain
from tocsin_testing.fleet_feeder import feeding
from tocsin_testing.scale import fleet
from tocsin_testing.stopwatch import KEPT, Lap, laps

Say = Callable[[str], None]

FAULTS = int(os.environ.get("TOCSIN_FAULTS", "40"))
GPUS, SMALL = 8_000, 16
INTERVAL, SMALL_INTERVAL = 10.0, 0.5
PATIENCE = 30.0
CALM = {
    "gpu_temperature_celsius": 55.0,
    "gpu_memory_temperature_celsius": 60.0,
    "gpu_power_watts": 420.0,
    "gpu_utilization_ratio": 0.6,
    "gpu_memory_used_ratio": 0.5,
    "gpu_sm_clock_hertz": 1.7e9,
    "gpu_fan_speed_ratio": 0.4,
    "gpu_xid_last_code": 0.0,
}
LIMITS = {
    "max_concurrent": 10_000,
    "max_concurrent_ratio": 1.0,
    "max_per_host": 8,
    "max_per_rack": 10_000,
    "min_available_ratio": 0.0,
}


class Calls:
    """The manager: notes when each decision first reached it."""

    def __init__(self, server: HTTPServer) -> None:
        self.at: dict[str, float] = {}
        self.times: dict[str, int] = {}
        self._changed = threading.Condition()
        server.expect_request("/act").respond_with_handler(self._take)

    def _take(self, request: Request) -> Response:
        event: dict[str, Any] = request.get_json()
        if event["type"] == "io.tocsin.action.requested":
            host = event["data"]["subject"]["host"]
            with self._changed:
                self.at.setdefault(host, time.perf_counter())
                self.times[host] = self.times.get(host, 0) + 1
                self._changed.notify_all()
        return Response(status=202)

    def wait_for(self, host: str) -> float:
        """The instant of the first call about `host`."""
        with self._changed:
            assert self._changed.wait_for(lambda: host in self.at, PATIENCE), host
            return self.at[host]


class Source:
    """One calm GPU."""

    name = "list"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.reads = 0

    def gpus(self) -> list[Gpu]:
        return [self._gpu]

    def read(self, now_ms: int) -> Batch:
        self.reads += 1
        return Batch(readings=[Reading(self._gpu, now_ms, CALM)])

    def close(self) -> None:
        """Nothing to end."""


class Node:
    """An agent of one GPU with a kernel log of its own."""

    def __init__(self, folder: Path, gpu: Gpu, url: str) -> None:
        folder.mkdir()
        self._log = folder / "kmsg"
        os.mkfifo(self._log)
        clock, self._gpu = SystemClock(), gpu
        reader = KmsgReader(clock, path=self._log)
        self._writer = os.open(self._log, os.O_WRONLY)
        settings = Settings.model_validate({"agent": {"push_url": url, "spool": folder / "spool.db", "host": gpu.host}})

        def kernel_log(around: Context) -> KernelLogCompanion:
            made = KernelLogCompanion(
                reader, OwnMetrics(), host=gpu.host, state=folder / "position.json", alarm=around.alarm
            )
            made.start()
            return made

        self._source = Source(gpu)
        self.agent = Agent(settings, self._source, clock, companions=[("kernel_log", kernel_log)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.agent.run, args=(self._stop,))
        self._thread.start()

    def is_known(self) -> bool:
        """Whether the brain has a reading of it."""
        spool = self.agent.spool
        assert spool is not None
        return self._source.reads > 0 and spool.batches == 0

    def fail(self) -> float:
        """The GPU falls off the bus; the instant before the kernel says so."""
        micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        bus = self._gpu.pci_bus_id.removeprefix("0000").rpartition(".")[0]
        line = (
            f"3,1,{micros},-;NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        )
        begun = time.perf_counter()
        os.write(self._writer, line.encode())
        return begun

    def repair(self) -> None:
        """The driver is loaded anew, as after a reset."""
        micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        said = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.57.08  Tue May 30 05:11:37 UTC 2025"
        os.write(self._writer, f"3,2,{micros},-;{said}\n".encode())

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self.agent.close()
        os.close(self._writer)


def _settings(folder: Path, receiver: str, every_seconds: float) -> Settings:
    rules = resources.files("tocsin.rules").joinpath("defaults.toml").read_text(encoding="utf-8")
    allowed = rules.replace('name = "xid_bus"\n', 'name = "xid_bus"\nmode = "act"\n')
    assert allowed != rules
    (folder / "rules.toml").write_text(allowed, encoding="utf-8")
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"models": folder / "models", "every_seconds": every_seconds},
            "rules": {"path": folder / "rules.toml"},
            "webhook": {"url": receiver},
            # All nodes come from one address here.
            "api": {"listen": "127.0.0.1:0", "limits": {"requests_per_second": 10_000, "request_burst": 100_000}},
            "actions": {
                "mode": "act",
                "earn_waived": ["*"],
                "executors": ["webhook"],
                "managed_pools": ["default"],
                "boot_grace_seconds": 0,
                "breaker_root_causes": 10_000,
                "limits": LIMITS,
            },
        }
    )


@dataclass(frozen=True)
class Site:
    """A brain with a fleet that reports to it, and the manager."""

    url: str
    calls: Calls
    brain: BaseProcess
    marks: Path


@contextmanager
def site(folder: Path, manager: HTTPServer, gpus: int, every_seconds: float, victims: Sequence[Gpu]) -> Iterator[Site]:
    calls = Calls(manager)
    settings = _settings(folder, manager.url_for("/act"), every_seconds)
    marks = folder / "marks"
    brain, url = start_brain(settings, marks)
    try:
        with closing(Client(url)) as person:
            person.resume()
        known = [*(replace(gpu, pool="default") for gpu in fleet(gpus)), *victims]
        with feeding(url, known, CALM, INTERVAL if gpus == GPUS else SMALL_INTERVAL):
            yield Site(url, calls, brain, marks)
    finally:
        brain.terminate()
        brain.join(PATIENCE)
        brain.kill()


@pytest.mark.parametrize(("worker", "every_seconds", "most"), [("idle", 3_600.0, 0.2), ("scoring", 1.0, 0.4)])
def test_from_the_kernel_log_to_the_managers_first_call(
    benchmark: BenchmarkFixture,
    tmp_path: Path,
    httpserver: HTTPServer,
    say: Say,
    worker: str,
    every_seconds: float,
    most: float,
) -> None:
    faults = 2 if benchmark.disabled else FAULTS
    taken: list[tuple[float, float]] = []
    victims = [
        Gpu(f"GPU-{number:08d}", f"node-{number}", index=0, pci_bus_id="00000000:41:00.0", rack=f"rack-{number}")
        for number in range(faults)
    ]
    with site(tmp_path, httpserver, SMALL if benchmark.disabled else GPUS, every_seconds, victims) as place:
        cpu, since = _cpu_seconds(place.brain), time.monotonic()
        with closing(Client(place.url)) as person:
            for gpu in victims:
                node = Node(tmp_path / gpu.host, gpu, place.url)
                try:
                    _until(node.is_known)
                    begun = node.fail()
                    taken.append((begun, place.calls.wait_for(gpu.host)))
                    node.repair()
                    _until(lambda: not [one for one in person.findings() if one.rule == "xid_bus"])
                finally:
                    node.close()
        used = (_cpu_seconds(place.brain) - cpu) / (time.monotonic() - since)
    assert set(place.calls.times.values()) == {1}
    benchmark.pedantic(lambda: None, rounds=1)
    seconds = [end - begin for begin, end in taken]
    worst = float(np.quantile(seconds, 0.99))
    say(
        f"kernel log to first call, worker {worker} ({faults} faults, 8,000 GPUs report, the brain uses {used:.2f} of a"
        f" core, load {os.getloadavg()[1]:.1f} on {os.cpu_count()} processors): median {np.median(seconds):.3f} s, "
        f"p99 {worst:.3f} s, slowest {max(seconds):.3f} s"
    )
    for line in _ways(list(laps(place.marks)), taken):
        say(f"of it, worker {worker}, {line}")
    if not benchmark.disabled:
        assert worst < most


def _ways(found: Sequence[Lap], taken: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Where the time goes: each part of the way with its wall-clock time, and what of it is CPU of the brain's thread;
    the rest is waiting, for a processor, the interpreter or the disk."""
    parts: dict[str, list[tuple[float, float]]] = {}
    for begun, called in taken:
        way = [one for one in found if begun <= one.begin.at <= called]
        first = {one.name: one for one in reversed(way)}
        kept = first[KEPT]
        steps = [
            ("the agent sees the line and pushes it", None, kept.begin),
            # The thread that judges is woken before the sender is told that it is kept.
            (
                "the brain keeps it in the store",
                kept.begin,
                replace(kept.end, at=min(kept.end.at, first[JUDGED].begin.at)),
            ),
            ("it waits for the thread that judges", None, first[JUDGED].begin),
            ("rules and incidents", first[JUDGED].begin, first["Recorder.record"].begin),
            ("the finding goes on record", first["Recorder.record"].begin, first["Recorder.record"].end),
            ("the state for the guards", first["Recorder.record"].end, first["ActionLoop.step_alone"].begin),
            (
                "decisions and verdicts go on record",
                first["ActionLoop.step_alone"].begin,
                first["ActionLoop._execute"].begin,
            ),
            (
                "guards once more, the start goes on record",
                first["ActionLoop._execute"].begin,
                first["Execution.begin"].end,
            ),
        ]
        before = begun
        for name, since, until in steps:
            busy = until.cpu - since.cpu if since is not None else np.nan
            parts.setdefault(name, []).append((until.at - before, busy))
            before = until.at
        parts.setdefault("the manager is called", []).append((called - before, np.nan))
    for name, spent in parts.items():
        wall, busy = np.array(spent).T * 1000
        cpu = f"; CPU median {np.median(busy):.1f} ms, p99 {np.quantile(busy, 0.99):.1f} ms"
        yield (
            f"{name}: median {np.median(wall):.1f} ms, p99 {np.quantile(wall, 0.99):.1f} ms"
            f"{'' if np.isnan(busy).any() else cpu}"
        )


JUDGED = "RuleEngine.judge_events"


def _cpu_seconds(process: BaseProcess) -> float:
    """CPU time of the process, without its children."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until(true: Callable[[], bool]) -> None:
    ended = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not true():
        assert time.monotonic() < ended
        pause.wait(0.01)
