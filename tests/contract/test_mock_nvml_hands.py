"""The agent as a process on the mock library: it takes an order from a brain, and gives back what it changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from tocsin.domain.clock import HOUR, SystemClock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order
from tocsin_testing.chaos import until
from tocsin_testing.fake_fleet import NOW_MS
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

TOCSIN = str(Path(sys.executable).with_name("tocsin"))


@contextmanager
def agent(fleet: MockFleet, url: str) -> Iterator[subprocess.Popen[str]]:
    settings = {
        "TOCSIN_AGENT__HOST": "node-1",
        "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
        "TOCSIN_AGENT__KERNEL_LOG": "off",
        "TOCSIN_NODE__ALLOW": '["throttle"]',
        "TOCSIN_NODE__BRAIN_URL": url,
        "TOCSIN_NODE__POLL_SECONDS": "0.2",
        "TOCSIN_NODE__ENGAGE_SAMPLES": "1",
        "TOCSIN_LOG__FORMAT": "json",
    }
    process = subprocess.Popen(
        [TOCSIN, "agent", "--source", "nvml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=fleet.script.parent,
        env={**os.environ, **fleet.environment(), **settings},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    begun = SystemClock().monotonic()
    for line in process.stdout:
        if text in line:
            return
        assert SystemClock().monotonic() - begun < 60, f"no {text} within a minute"
    raise AssertionError(f"the agent ended without {text}")


def throttled(fleet: MockFleet) -> tuple[FakeService, Order]:
    """A hot GPU, and a brain that orders its throttle."""
    fleet.gpus[0].set("nvmlDeviceGetMarginTemperature", to=3)
    fleet.apply()
    service = FakeService()
    order = Order("k@g", "d", "node-1", fleet.gpus[0].uuid, ActionKind.THROTTLE, NOW_MS, NOW_MS + HOUR)
    service.order_service.queue.post([order])
    return service, order


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_agent_the_limit_is_as_it_was(tmp_path: Path, how: signal.Signals) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    service, order = throttled(fleet)
    with fleet.loaded(), serving(service) as url:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with agent(fleet, url) as process:
            wait_for(process, '"outcome": "written"')
            assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) < 700_000
            process.send_signal(how)
            process.wait(30)
        if how is signal.SIGKILL:
            assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) < 700_000
            service.order_service.queue.close([order.key])
            with agent(fleet, url) as process:
                wait_for(process, '"outcome": "restored"')
                process.send_signal(signal.SIGTERM)
                process.wait(30)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 700_000
        pynvml.nvmlShutdown()
    assert list((tmp_path / "var" / "agent" / "limits").glob("*.limit.json")) == []


def test_a_limit_is_given_back_although_a_reading_hangs(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    service, _ = throttled(fleet)
    with fleet.loaded(), serving(service) as url:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with agent(fleet, url) as process:
            wait_for(process, '"outcome": "written"')
            fleet.gpus[1].hang()
            fleet.system.hang("nvmlShutdown")
            fleet.apply()
            until(lambda: fleet.waiting, "a call that hangs")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 700_000
        fleet.heal()
        pynvml.nvmlShutdown()
