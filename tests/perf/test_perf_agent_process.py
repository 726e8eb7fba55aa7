"""What a real agent process costs on a node of 8 H100, on the mock NVML library: CPU time per 5 s, all threads.

One per cent of a core is 50 ms per 5 s. The limit of memory is for an ordinary test,
`tests/contract/test_mock_nvml_agent.py`; here it is only said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

GPUS = 8
SECONDS = 5.0
SHORT_SECONDS = 0.2
"""Where nothing is measured."""
PATIENCE_SECONDS = 60.0
_CPU_OF_PROCESS = 2
"""Kind of clock in the low bits of a clock id (man clock_getcpuclockid)."""

watched: list[int] = []


def child_cpu() -> float:
    """CPU seconds of the watched process and of all its threads, those that ended among them."""
    return time.clock_gettime(~watched[-1] << 3 | _CPU_OF_PROCESS)


@contextmanager
def agent(fleet: MockFleet, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        **fleet.environment(),
        "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
        "TOCSIN_AGENT__INTERVAL_SECONDS": str(seconds),
        "TOCSIN_AGENT__PUSH_URL": "http://127.0.0.1:9",
        "TOCSIN_AGENT__SPOOL": "spool.db",
    }
    command = [str(Path(sys.executable).with_name("tocsin")), "agent", "--source", "nvml"]
    folder = fleet.script.parent
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stderr=log)
        watched.append(process.pid)
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(30) == 0, (folder / "agent.log").read_text()


def wait_for_cycles(fleet: MockFleet, count: int) -> None:
    """Until the agent has begun so many more cycles."""
    wanted = fleet.calls("nvmlDeviceGetUtilizationRates", gpu=0) + count
    end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while fleet.calls("nvmlDeviceGetUtilizationRates", gpu=0) < wanted:
        assert time.monotonic() < end, "the agent does not read"
        pause.wait(0.02)


@pytest.mark.benchmark(group=f"agent as a process, {GPUS} GPUs, CPU per {SECONDS:g} s", timer=child_cpu)
def test_one_interval_of_a_running_agent(
    benchmark: BenchmarkFixture, tmp_path: Path, say: Callable[[str], None]
) -> None:
    fleet = MockFleet(tmp_path, [h100(number) for number in range(GPUS)])
    with agent(fleet, SECONDS if benchmark.enabled else SHORT_SECONDS) as process:
        wait_for_cycles(fleet, 2)
        benchmark.pedantic(wait_for_cycles, args=(fleet, 1), rounds=4)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    say(f"memory that the agent held: {pages * os.sysconf('SC_PAGE_SIZE') / 1e6:.0f} MB")
    assert fleet.opens == fleet.closes == 1
