"""The agent as a process: it says where it is, serves, ends cleanly on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

ENVIRONMENT = {
    "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
    "TOCSIN_AGENT__INTERVAL_SECONDS": "0.2",
    "TOCSIN_SIMULATION__GPUS": "4",
}


@contextmanager
def agent(folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [Path(sys.executable).with_name("tocsin"), "agent", "--source", "simulated"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **more},
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


def page_with(url: str, text: str) -> str:
    """The page, as soon as it holds `text`; a busy look of some seconds."""
    for _ in range(3_000):
        page = httpx2.get(url).text
        if text in page:
            return page
    raise AssertionError(f"no {text} at {url}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with agent(tmp_path) as process:
        url = url_of(process)
        text = page_with(url, "gpu_temperature_celsius{")
        assert text.count("\ngpu_temperature_celsius{") == 4
        assert 'tocsin_build_info{version="' in text
        process.send_signal(number)
        assert process.wait(20) == 0
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")


def test_a_receiver_that_is_away_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    with agent(tmp_path, TOCSIN_AGENT__PUSH_URL="http://127.0.0.1:9", TOCSIN_AGENT__SPOOL="spool.db") as process:
        page_with(url_of(process), 'tocsin_push_requests_total{outcome="again"}')
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert (tmp_path / "spool.db").stat().st_size > 0


def test_a_bad_address_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with agent(tmp_path, TOCSIN_AGENT__LISTEN="nowhere") as process:
        assert process.wait(30) == 2
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert "agent.listen = 'nowhere'" in line
