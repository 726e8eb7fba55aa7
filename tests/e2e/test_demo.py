"""The demo: what a newcomer sees, by the command that the README names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tocsin.actions.guards.base import guards
from tocsin.actions.loop.loop import SELECTION
from tocsin.actions.model.executor import PRE_CHECK

pytestmark = pytest.mark.xdist_group("demo")

TOCSIN = [sys.executable, "-m", "tocsin.cli"]


def children_of(session: int) -> list[int]:
    """Processes of a session that still exist."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def left_after(session: int, seconds: float) -> list[int]:
    """Processes of a session that do not end by themselves: a helper of the interpreter may outlive it by a moment."""
    never, waited = threading.Event(), 0.0
    while (left := children_of(session)) and waited < seconds:
        never.wait(0.1)
        waited += 0.1
    return left


def test_the_whole_loop_in_one_minute() -> None:
    command = [*TOCSIN, "demo", "--gpus", "256", "--for", "60s", "--speed", "600", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["simulated"] is True
    assert report["gpus"] >= 256
    assert report["journal"]["verified"] is True
    counts = {name: report[name] for name in ("readings", "findings", "predictions", "decisions")}
    assert all(isinstance(count, int) and count >= 1 for count in counts.values()), counts
    assert isinstance(report["journal"]["events"], int)
    assert any(guard != "mode" and count > 0 for guard, count in report["held_by"].items())
    assert "found:" in done.stderr
    assert "hold:" in done.stderr


def test_a_newcomer_sees_a_finding_a_prediction_and_a_held_action_within_a_minute() -> None:
    awaited = {"dashboard: http://", "journal: ", "  found: ", "  predicted: ", "  hold: "}
    demo = subprocess.Popen([*TOCSIN, "demo", "--for", "60s"], stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert demo.stderr is not None
    for line in demo.stderr:
        lines.append(line.rstrip("\n"))
        awaited -= {start for start in awaited if line.startswith(start)}
        if not awaited:
            break
    os.kill(demo.pid, signal.SIGINT)
    lines += demo.communicate(timeout=60)[1].splitlines()
    assert demo.returncode == 0, "\n".join(lines)[-3000:]
    assert awaited == set()
    assert lines[0] == "simulating 64 GPUs; everything shown is simulated"
    holds = [line for line in lines if line.startswith("  hold: ")]
    names = "|".join([*(guard.name for guard in guards()), SELECTION, PRE_CHECK])
    assert all(re.search(rf" \((?:{names}): .+\)$", line) for line in holds), "each says which guard holds and why"


def test_two_demos_beside_each_other_and_an_end_by_ctrl_c_without_a_child_left() -> None:
    command = [*TOCSIN, "demo", "--gpus", "8"]
    demos = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    ]
    urls, hints = [], []
    for demo in demos:
        assert demo.stderr is not None
        for line in demo.stderr:
            urls += [line.split()[1]] if line.startswith(("api:", "dashboard:")) else []
            hints += [line] if "TOCSIN_DASHBOARD__API_URL=" in line else []
            if line.startswith("dashboard:"):
                break
    assert len(set(urls)) == 4
    assert any("export" in line and line.split("=")[1].strip() in urls for line in hints), "one has not the usual port"
    for demo in demos:
        os.kill(demo.pid, signal.SIGINT)
    ended = [(demo, demo.communicate(timeout=60)[1]) for demo in demos]
    for demo, errors in ended:
        assert demo.returncode == 0, errors[-3000:]
        assert left_after(demo.pid, seconds=10) == []
        assert "Traceback" not in errors


def test_json_without_an_end_is_one_clear_error() -> None:
    done = subprocess.run([*TOCSIN, "demo", "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "tocsin: --json = True: prints a report at the end, which this demo has not; add --for, for example --for 60s"
    ]
