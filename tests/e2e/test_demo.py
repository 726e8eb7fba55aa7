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
from tocsin.runtime.demo_terminal import WIDTH

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


def without_clock(line: str) -> str:
    return re.sub(r"^\d\d:\d\d ", "", line)


def read_until(demo: subprocess.Popen[str], awaited: set[str]) -> list[str]:
    """Lines of a demo until each of `awaited` was the start of one, or until it ends."""
    lines, missing = [], set(awaited)
    assert demo.stderr is not None
    for line in demo.stderr:
        lines.append(line.rstrip("\n"))
        missing -= {start for start in missing if without_clock(line).startswith(start)}
        if not missing:
            break
    return lines


def urls_in(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith(("api:", "dashboard:"))]


def test_a_newcomer_sees_a_finding_a_prediction_and_a_held_action_within_a_minute_beside_another_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # Dashboards of other tests may run in this process, which they tell their brain by these.
    for name in ("TOCSIN_DASHBOARD__API_URL", "TOCSIN_DASHBOARD__API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    newcomer, other = (
        subprocess.Popen([*TOCSIN, "demo", *more], stderr=subprocess.PIPE, text=True, start_new_session=True)
        for more in (("--for", "60s"), ("--gpus", "8"))
    )
    others = read_until(other, {"dashboard: "})
    awaited = {"dashboard: http://", "journal: ", "found: ", "predicted: ", "hold: "}
    lines = read_until(newcomer, awaited)
    status = subprocess.run([*TOCSIN, "status"], capture_output=True, text=True, timeout=60, check=True)
    ended = []
    for demo, read in ((newcomer, lines), (other, others)):
        os.kill(demo.pid, signal.SIGINT)
        read += demo.communicate(timeout=60)[1].splitlines()
        ended.append((demo.returncode, left_after(demo.pid, seconds=10)))
    assert ended == [(0, []), (0, [])], "\n".join(lines + others)[-3000:]
    assert "Traceback" not in "\n".join(lines + others)
    assert {start for start in awaited if not any(without_clock(line).startswith(start) for line in lines)} == set()
    assert lines[0] == "simulating 64 GPUs; everything shown is simulated"
    holds = [line for line in lines if " hold: " in line]
    names = "|".join([*(guard.name for guard in guards()), SELECTION, PRE_CHECK])
    said = rf" \((?:{names}): .+[)…]$|: waits for you: tocsin approve [0-9a-f]{{16}}$"
    assert all(re.search(said, line) for line in holds), "each says which guard holds and why, or what to do"
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in "".join(lines), "no terminal, no colour"
    assert len({*urls_in(lines), *urls_in(others)}) == 4
    assert status.stdout.splitlines()[0].removeprefix("brain ") in urls_in(lines + others), "another shell finds one"
    assert list((tmp_path / "tocsin").iterdir()) == []


def test_json_without_an_end_is_one_clear_error() -> None:
    done = subprocess.run([*TOCSIN, "demo", "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "tocsin: --json = True: prints a report at the end, which this demo has not; add --for, for example --for 60s"
    ]
