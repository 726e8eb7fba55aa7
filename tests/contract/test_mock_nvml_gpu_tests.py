"""The tests for real GPUs pass on the mock library, so that they are ready when somebody has a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tocsin_testing.mock_gpus import a100, h100, split
from tocsin_testing.mock_nvml import MockFleet

ROOT = Path(__file__).parents[2]


def test_the_tests_for_real_gpus_run(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), split(a100(1), "1g.10gb")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "--benchmark-disable",
            str(ROOT / "tests" / "gpu" / "test_real_gpu.py"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | fleet.environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    assert "skipped" not in done.stdout
    assert fleet.opens > 5
