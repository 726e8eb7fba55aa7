"""What the agent costs on a node of 8 H100, in CPU time, on the mock NVML library.

A round is one minute: twelve cycles, 5 s apart by a clock that the test moves, so that what is read once a minute
counts as it falls due. The time of a cycle is the mean over the minute. Baselines: the same ctypes calls and nothing
else, and nvitop-exporter on the same library.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle as cycle_through
from pathlib import Path
from typing import Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.reading import Reading, sanitise
from tocsin.runtime.agent.process import Agent
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.log import configure_logging
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

GPUS = 8
INTERVAL = 5 * SECOND
CYCLES = MINUTE // INTERVAL
ROUNDS = 10
MOST_SECONDS = 0.002
"""Of a cycle, the library's own work with it: the mock's answers cost next to nothing."""
CYCLE = f"agent, mean of {CYCLES} cycles of {GPUS} GPUs, CPU"
STEPS = f"agent, the steps of a cycle of {GPUS} GPUs, CPU"
READING = f"agent beside nvitop-exporter, one reading of {GPUS} GPUs, CPU"


class Node:
    """The mock node and clock; sources and agents over it are closed at its end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.fleet = MockFleet(folder, [h100(number) for number in range(GPUS)])
        stack.enter_context(self.fleet.loaded())
        self.clock = ManualClock(T0)

    def source(self) -> NvmlSource:
        source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
        self.stack.callback(source.close)
        return source

    def agent(self, **more: str) -> Agent:
        """As it ships: at level info it says nothing of a cycle."""
        configure_logging("info")
        alone = {"kernel_log": "off", "hook_socket": ""}
        agent = Agent(Settings.model_validate({"agent": {**alone, **more}}), self.source(), self.clock)
        self.stack.callback(agent.close)
        return agent

    def cycling(self, work: Callable[[], object]) -> Callable[[], object]:
        """`work` after the clock moved on by one interval, past the first minute, in which all is read for once."""

        def cycle() -> object:
            self.clock.advance(INTERVAL)
            return work()

        for _ in range(CYCLES + 1):
            cycle()
        return cycle


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


def measure(benchmark: BenchmarkFixture, cycle: Callable[[], object]) -> None:
    benchmark.pedantic(cycle, rounds=ROUNDS, iterations=CYCLES, warmup_rounds=1)


def metrics_of(readings: list[Reading]) -> int:
    """How many metrics the GPU that has fewest has; variants of one metric count once."""
    return min(len({key.split("{")[0] for key in reading.values}) for reading in readings)


@pytest.mark.benchmark(group=CYCLE, timer=time.process_time)
def test_full_cycle_read_encode_spool(benchmark: BenchmarkFixture, node: Node) -> None:
    agent = node.agent(push_url="http://127.0.0.1:9", spool=str(node.folder / "spool.db"))
    measure(benchmark, node.cycling(agent.read))
    if not benchmark.disabled:
        assert benchmark.stats.stats.min < MOST_SECONDS
    batch = agent.read()
    assert len(batch.readings) == GPUS
    assert metrics_of(list(batch.readings)) >= 90
    benchmark.extra_info["metrics per GPU"] = metrics_of(list(batch.readings))


class Recorder:
    """Stands before the library and keeps what is called, with its arguments, while `calls` is a list."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: list[tuple[Any, tuple[Any, ...]]] | None = None

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name.startswith("nvmlEventSet"):
            return function

        def call(*arguments: Any) -> Any:
            if self.calls is not None:
                self.calls.append((function, arguments))
            return function(*arguments)

        return call


@pytest.mark.benchmark(group=CYCLE, timer=time.process_time)
def test_baseline_the_same_calls_by_bare_ctypes(
    benchmark: BenchmarkFixture, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(pynvml.nvmlLib)
    monkeypatch.setattr(pynvml, "nvmlLib", recorder)
    source = node.source()
    read = node.cycling(lambda: source.read(node.clock.now_ms()))
    recorder.calls = []
    for _ in range(CYCLES):
        read()
    minute, recorder.calls = recorder.calls, None

    assert len(minute) > 10 * GPUS * CYCLES
    answered = sum(function(*arguments) == pynvml.NVML_SUCCESS for function, arguments in minute)
    assert answered > 0.9 * len(minute), "the others are what a GPU refused when it was first asked"
    share = -(-len(minute) // CYCLES)
    parts = cycle_through([minute[start : start + share] for start in range(0, len(minute), share)])

    def cycle() -> None:
        for function, arguments in next(parts):
            function(*arguments)

    measure(benchmark, cycle)
    benchmark.extra_info["calls per cycle"] = len(minute) / CYCLES


@pytest.mark.benchmark(group=STEPS, timer=time.process_time)
def test_step_read(benchmark: BenchmarkFixture, node: Node) -> None:
    source = node.source()
    measure(benchmark, node.cycling(lambda: source.read(node.clock.now_ms())))


@pytest.mark.benchmark(group=STEPS, timer=time.process_time)
def test_step_check(benchmark: BenchmarkFixture, node: Node) -> None:
    batch = node.source().read(T0)
    measure(benchmark, lambda: [sanitise(reading) for reading in batch.readings])


@pytest.mark.benchmark(group=STEPS, timer=time.process_time)
def test_step_encode(benchmark: BenchmarkFixture, node: Node) -> None:
    batch = node.source().read(T0)
    measure(benchmark, lambda: encode(batch))


@pytest.mark.benchmark(group=READING, timer=time.process_time)
def test_reading_of_tocsin(benchmark: BenchmarkFixture, node: Node) -> None:
    agent = node.agent()
    measure(benchmark, node.cycling(agent.read))
    benchmark.extra_info["metrics per GPU"] = metrics_of(list(agent.read().readings))


@pytest.mark.benchmark(group=READING, timer=time.process_time)
def test_baseline_nvitop_exporter(benchmark: BenchmarkFixture, node: Node) -> None:
    exporter = importlib.import_module("nvitop_exporter")
    nvitop = importlib.import_module("nvitop")
    logging.getLogger("nvitop").setLevel(logging.ERROR)
    registry = CollectorRegistry()
    devices = nvitop.Device.all()
    made = exporter.PrometheusExporter(devices, hostname="node-1", registry=registry)

    def update() -> None:
        for device in devices:
            made.update_device(device)

    measure(benchmark, update)
    names = {
        sample.name
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.get("uuid") == node.fleet.gpus[0].uuid and "pid" not in sample.labels
    }
    ours = metrics_of(list(node.agent().read().readings))
    assert 20 < len(names) < ours
    benchmark.extra_info["metrics per GPU"] = len(names)
