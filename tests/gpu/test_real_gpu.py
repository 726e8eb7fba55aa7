"""The NVML source and the agent on this machine's own GPUs.

`python -m pytest -m gpu tests/gpu` runs them; `python -m tocsin_testing.capture_gpu OUT` records what the GPUs answer.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import SECOND, SystemClock
from tocsin.domain.metrics import METRICS, MetricKind, spec_of
from tocsin.domain.reading import Missing, Reading, sanitise
from tocsin_testing import capture_gpu, needs

pytestmark = pytest.mark.gpu

EVERY_GPU = (
    "gpu_temperature_celsius",
    "gpu_power_watts",
    "gpu_memory_total_bytes",
    "gpu_memory_free_bytes",
    "gpu_sm_clock_hertz",
    "gpu_memory_clock_hertz",
    "gpu_performance_state",
)
"""What any data-centre GPU of the last ten years answers."""


@pytest.fixture
def source() -> Iterator[NvmlSource]:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        needs.lack("this machine has no NVIDIA driver")
    opened = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
    yield opened
    opened.close()


def whole(source: NvmlSource, at_ms: int) -> list[Reading]:
    return [reading for reading in source.read(at_ms).readings if not reading.gpu.parent]


def test_every_gpu_has_its_basic_metrics_and_nothing_is_implausible(source: NvmlSource) -> None:
    readings = whole(source, SystemClock().now_ms())
    assert readings
    for reading in readings:
        assert reading.gpu.uuid.startswith("GPU-")
        assert reading.gpu.model
        assert [name for name in EVERY_GPU if name not in reading.values] == []
        assert sanitise(reading)[1] == []
        assert all(spec_of(key) is not None for key in (*reading.values, *reading.missing))


def test_values_and_reasons_tell_of_every_metric_of_the_source(source: NvmlSource) -> None:
    for reading in whole(source, SystemClock().now_ms()):
        told = {key.split("{")[0] for key in (*reading.values, *reading.missing)}
        assert told <= METRICS.keys()
        assert len(told) >= 90
        assert len({key.split("{")[0] for key in reading.values}) >= 40


def test_a_second_reading_has_rates_and_no_new_gaps(source: NvmlSource) -> None:
    now_ms = SystemClock().now_ms()
    first = {reading.gpu.uuid: reading for reading in whole(source, now_ms)}
    second = {reading.gpu.uuid: reading for reading in whole(source, now_ms + SECOND)}
    assert first.keys() == second.keys()
    for uuid, reading in second.items():
        kept = {key for key in first[uuid].values if not key.startswith("gpu_process_")}
        gone = kept - reading.values.keys()
        assert gone == set()
        assert Missing.TIMED_OUT not in reading.missing.values()
        counters = {
            key
            for key in kept
            if METRICS[key.split("{")[0]].kind is MetricKind.COUNTER and not key.startswith("gpu_xid")
        }
        assert {key for key in counters if reading.values[key] < first[uuid].values[key]} == set()


def test_a_reading_of_all_gpus_stays_within_its_deadline(source: NvmlSource) -> None:
    clock = SystemClock()
    source.read(clock.now_ms())
    begun = clock.monotonic()
    source.read(clock.now_ms() + SECOND)
    assert clock.monotonic() - begun < source.deadline_seconds


def test_the_agent_prints_one_row_for_each_gpu(source: NvmlSource, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("tocsin")), "agent", "--source", "nvml", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["gpu"] for row in rows} == {gpu.uuid for gpu in source.gpus()}


def test_a_capture_can_be_recorded(source: NvmlSource, tmp_path: Path) -> None:
    out = tmp_path / "capture.json"
    capture_gpu.main([str(out), "--pause", "0.2"])
    found = json.loads(out.read_text())
    assert len(found["gpus"]) == len({gpu.index for gpu in source.gpus()})
    for gpu in found["gpus"]:
        assert sum(entry["code"] == 0 for entry in gpu["fields"].values()) > 10
        assert gpu["calls"]["nvmlDeviceGetTemperatureV(0,)"]["code"] in (0, 13)
    assert all(gpu.uuid not in out.read_text() for gpu in source.gpus())
