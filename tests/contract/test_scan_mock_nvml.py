"""`tocsin scan` as a process on the mock NVML library: each verdict with its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

TOCSIN = str(Path(sys.executable).with_name("tocsin"))


def scanned(fleet: MockFleet, *options: str, **settings: str) -> tuple[int, str]:
    done = subprocess.run(
        [TOCSIN, "scan", "--source", "nvml", *options],
        capture_output=True,
        text=True,
        cwd=fleet.script.parent,
        env={**os.environ, **fleet.environment(), "TOCSIN_AGENT__KERNEL_LOG": "off", **settings},
        check=False,
    )
    print(done.stderr)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout or done.stderr


def healthy(fleet: MockFleet) -> None:
    """Nothing is wrong."""


def hot(fleet: MockFleet) -> None:
    fleet.gpus[1].set("nvmlDeviceGetTemperatureV", 0, to=88)


def remap_failed(fleet: MockFleet) -> None:
    fleet.gpus[1].field(145, 1, "uint")


def lost(fleet: MockFleet) -> None:
    fleet.gpus[1].lose()


def hanging(fleet: MockFleet) -> None:
    fleet.gpus[1].hang("nvmlDeviceGetPowerUsage")
    fleet.gpus[1].hang("nvmlDeviceGetFieldValues")


@pytest.mark.parametrize(
    ("trouble", "code", "health"),
    [
        (healthy, 0, ["healthy", "healthy"]),
        (hot, 1, ["healthy", "attention"]),
        (remap_failed, 2, ["healthy", "act now"]),
        (lost, 2, ["healthy", "act now"]),
        (hanging, 3, ["healthy", "cannot see"]),
    ],
)
def test_each_verdict_has_its_exit_code(
    tmp_path: Path, trouble: Callable[[MockFleet], None], code: int, health: list[str]
) -> None:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    trouble(fleet)
    fleet.apply()
    status, text = scanned(fleet, "--json", TOCSIN_AGENT__INTERVAL_SECONDS="1")
    report: dict[str, Any] = json.loads(text)
    assert (status, report["exit_code"]) == (code, code), text
    assert [each["health"] for each in report["gpus"]] == health
    assert report["gpus"][0]["metrics"] >= 90
    assert report["blind"] == []


def test_without_a_driver_it_cannot_see(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.system.fail("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    fleet.apply()
    status, text = scanned(fleet)
    assert status == 3
    assert "modprobe nvidia" in text


def test_a_kernel_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    status, text = scanned(fleet, TOCSIN_AGENT__KERNEL_LOG="journald", PATH="/nonexistent")
    assert status == 0
    assert "not seen: the kernel log" in text
