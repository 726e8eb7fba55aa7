"""The agent as a process on the mock library: what it reads of each product, how much memory it takes and loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.domain.metrics import METRICS
from tocsin_testing.mock_gpus import a100, b200, h100, split, t4
from tocsin_testing.mock_nvml import MockFleet

TOCSIN = str(Path(sys.executable).with_name("tocsin"))
HEAVY = {
    "fastapi",
    "influxdb_client",
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "scipy",
    "sklearn",
    "statsmodels",
    "streamlit",
    "torch",
    "uvicorn",
}
MOST_RSS_MB = 80


def environment(fleet: MockFleet, **more: str) -> dict[str, str]:
    return {**os.environ, **fleet.environment(), "TOCSIN_AGENT__HOST": "node-1", **more}


def once(fleet: MockFleet) -> list[dict[str, Any]]:
    done = subprocess.run(
        [TOCSIN, "agent", "--source", "nvml", "--once", "--json"],
        capture_output=True,
        text=True,
        cwd=fleet.script.parent,
        env=environment(fleet),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def names(row: dict[str, Any]) -> set[str]:
    return {key.split("{")[0] for key in row["values"]}


def test_an_h100_has_at_least_90_metrics_of_the_table(tmp_path: Path) -> None:
    rows = once(MockFleet(tmp_path, [h100(n) for n in range(8)]))
    assert len(rows) == 8
    for row in rows:
        assert names(row) <= METRICS.keys()
        assert len(names(row)) >= 90


def test_each_product_has_what_it_has_and_reasons_for_the_rest(tmp_path: Path) -> None:
    rows = once(MockFleet(tmp_path, [split(a100(0), "3g.40gb", "1g.10gb"), t4(1), b200(2)]))
    by_uuid = {row["gpu"]: row for row in rows}
    assert len(by_uuid) == 5
    ampere, turing, blackwell = (row for row in rows if row["gpu"].startswith("GPU-"))
    assert len(names(ampere)) > 70
    assert ampere["missing"]["gpu_thermal_margin_celsius"] == "unsupported"
    assert ampere["missing"]["gpu_utilization_ratio"] == "unsupported", "MIG takes it away"
    assert turing["values"]["gpu_retired_pages_corrected_total"] == 2
    assert turing["missing"]["gpu_row_remap_failure"] == "unsupported"
    assert len(names(blackwell)) >= 90
    instances = [row for row in rows if row["gpu"].startswith("MIG-")]
    assert [row["values"]["gpu_memory_used_ratio"] > 0.3 for row in instances] == [True, True]


@contextmanager
def running(fleet: MockFleet, **more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [TOCSIN, "agent", "--source", "nvml"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=fleet.script.parent,
        env=environment(fleet, TOCSIN_AGENT__LISTEN="127.0.0.1:0", **more),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("metrics: "):
            return line.removeprefix("metrics: ").strip()
    raise AssertionError("the agent ended without saying where /metrics is")


def page_after(url: str, readings: int) -> str:
    """The page as soon as the agent has taken that many readings; a busy look of some seconds."""
    for _ in range(20_000):
        page = httpx2.get(url).text
        for line in page.splitlines():
            if line.startswith('tocsin_readings_total{source="nvml"}') and float(line.split()[-1]) >= readings:
                return page
    raise AssertionError(f"never {readings} readings at {url}")


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_the_agent_of_8_gpus_stays_below_80_mb_while_it_reads_spools_and_pushes(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(n) for n in range(8)])
    pushing = {"TOCSIN_AGENT__PUSH_URL": "http://127.0.0.1:9", "TOCSIN_AGENT__SPOOL": "spool.db"}
    with running(fleet, TOCSIN_AGENT__INTERVAL_SECONDS="0.1", **pushing) as process:
        url = url_of(process)
        early = (page_after(url, 8 * 10), rss_mb(process.pid))
        page, late = page_after(url, 8 * 60), rss_mb(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert early[1] < MOST_RSS_MB
    assert late < MOST_RSS_MB
    assert len({line.split("{")[0] for line in page.splitlines() if line.startswith("gpu_")}) >= 90
    assert fleet.opens == 1, "one opening for the life of the process"


def test_an_agent_is_not_stopped_by_a_gpu_that_hangs(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(n) for n in range(3)])
    with running(fleet, TOCSIN_AGENT__INTERVAL_SECONDS="0.3") as process:
        url = url_of(process)
        page_after(url, 6)
        fleet.gpus[1].hang()
        fleet.apply()
        page = page_after(url, 24)
        assert fleet.waiting == 1
        temperature = [line for line in page.splitlines() if line.startswith("gpu_temperature_celsius{")]
        assert [fleet.gpus[n].uuid for n in range(3) if any(fleet.gpus[n].uuid in line for line in temperature)] == [
            fleet.gpus[0].uuid,
            fleet.gpus[2].uuid,
        ]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, "a stuck call does not keep the agent from ending"


def test_an_agent_goes_on_over_a_reloaded_driver(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    with running(fleet, TOCSIN_AGENT__INTERVAL_SECONDS="0.3") as process:
        url = url_of(process)
        page_after(url, 1)
        fleet.reload()
        page = page_after(url, 6)
        assert 'tocsin_events_total{kind="driver_reload",source="nvml"} 1.0' in page
        assert "gpu_temperature_celsius{" in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert (fleet.opens, fleet.stale_handles) == (2, 0)


def test_an_agent_ends_where_the_driver_was_replaced_so_that_its_supervisor_starts_a_new_one(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    with running(fleet, TOCSIN_AGENT__INTERVAL_SECONDS="0.3") as process:
        page_after(url_of(process), 1)
        fleet.system.fail("*", "LIB_RM_VERSION_MISMATCH")
        fleet.apply()
        assert process.wait(30) not in (0, None)
        assert process.stderr is not None
        said = process.stderr.read()
    assert "the NVIDIA driver was replaced while its old library was loaded; restart the agent" in said
    assert "Traceback" not in said


def loaded_modules(program: str, fleet: MockFleet) -> set[str]:
    program += "\nimport sys\nprint('modules', *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=fleet.script.parent,
        env=environment(fleet),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()[1:]}


READ_ONCE = """
from tocsin.config.load import load_settings
from tocsin.domain.clock import SystemClock
from tocsin.runtime.agent import process as agent
assert len(list(agent.once(load_settings(), "nvml", SystemClock()))) == 1
"""

COMMAND = """
import contextlib, sys
from tocsin.cli.main import main
sys.argv = ["tocsin", "agent", "--source", "nvml", "--once"]
with contextlib.suppress(SystemExit):
    main()
"""


@pytest.mark.parametrize("program", ["import tocsin.runtime.agent.process", READ_ONCE, COMMAND])
def test_the_agent_loads_no_heavy_library(tmp_path: Path, program: str) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    loaded = loaded_modules(program, fleet)
    assert "tocsin" in loaded
    assert loaded & HEAVY == set()


def processes_of(values: Sequence[str]) -> list[str]:
    return [key for key in values if key.startswith("gpu_process_memory_used_bytes")]


def test_a_gpu_is_read_beside_its_processes(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.gpus[0].process(4242, 1 << 30)
    fleet.apply()
    (row,) = once(fleet)
    assert processes_of(row["values"]) == [
        'gpu_process_memory_used_bytes{pid="40000"}',
        'gpu_process_memory_used_bytes{pid="4242"}',
    ]
