"""The demo by its command: the report at its end, and an error. What a newcomer sees: test_first_page_browser."""

from __future__ import annotations

import json
import subprocess
import sys

TOCSIN = [sys.executable, "-m", "tocsin.cli"]


def test_the_whole_loop_in_half_a_minute() -> None:
    command = [*TOCSIN, "demo", "--gpus", "64", "--for", "30s", "--speed", "600", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["simulated"] is True
    assert report["gpus"] >= 64
    assert report["journal"]["verified"] is True
    counts = {name: report[name] for name in ("readings", "findings", "predictions", "decisions")}
    assert all(isinstance(count, int) and count >= 1 for count in counts.values()), counts
    assert isinstance(report["journal"]["events"], int)
    assert any(guard != "mode" and count > 0 for guard, count in report["held_by"].items())
    assert " found: " in done.stderr
    assert " hold: " in done.stderr


def test_json_without_an_end_is_one_clear_error() -> None:
    done = subprocess.run([*TOCSIN, "demo", "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "tocsin: --json = True: prints a report at the end, which this demo has not; add --for, for example --for 60s"
    ]
