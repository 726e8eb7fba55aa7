"""The first page of the tutorial as a newcomer follows it: `tocsin demo`, a fault, its repair approved and proven."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from tocsin.actions.guards.base import guards
from tocsin.actions.model.executor import PRE_CHECK
from tocsin.actions.model.ledger_entry import SELECTION
from tocsin.runtime.demo_terminal import WIDTH
from tocsin_testing.browsing import idle, opened

pytestmark = [pytest.mark.browser, pytest.mark.server]

WITHIN_SECONDS = 120.0
SEEN_WITHIN_SECONDS = 60.0
SEEN = ("journal: ", "found: ", "predicted: ", "hold: ")
"""How lines of the terminal begin that a newcomer is to see within a minute."""
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-hour.md"
FAULT, REPAIR = "fell off its PCIe bus", "Review and approve: Reboot node"
PROOF = "its effect is seen: no new errors (goal: none)"
TOCSIN = (sys.executable, "-m", "tocsin.cli")


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that runs, and the file of what it says."""

    process: subprocess.Popen[bytes]
    said: Path

    def lines(self) -> list[str]:
        return self.said.read_text(encoding="utf-8").splitlines()

    def begins(self, start: str) -> str:
        """The first line that begins so, its clock apart; empty where none does yet."""
        return next((line for line in self.lines() if re.sub(r"^\d\d:\d\d ", "", line).startswith(start)), "")

    def urls(self) -> list[str]:
        return [line.split()[1] for line in self.lines() if line.startswith(("api:", "dashboard:"))]

    def wait(self) -> None:
        """A moment, in which it must not end."""
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.2)

    def dashboard(self) -> str:
        """The address that it prints, where something answers by then."""
        while not self.begins("dashboard: http"):
            self.wait()
        found = self.begins("dashboard: http").split()[1]
        assert urlopen(f"{found}/_stcore/health", timeout=5.0).status == HTTPStatus.OK
        return found


@contextmanager
def demo(folder: Path, name: str, environment: Mapping[str, str], *more: str) -> Iterator[Demo]:
    """`tocsin demo`, ended as by Ctrl-C: without a fault, and with no process left behind."""
    said = folder / name
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*TOCSIN, "demo", *more], env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield Demo(process, said)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        code = process.wait(timeout=60)
    told = said.read_text(encoding="utf-8")
    assert (code, left_after(process.pid, seconds=10)) == (0, []), told[-3000:]
    assert "Traceback" not in told


def left_after(session: int, seconds: float) -> list[int]:
    """Processes of a session that do not end by themselves: a helper of the interpreter may outlive it by a moment."""
    never, waited = threading.Event(), 0.0
    while (left := children_of(session)) and waited < seconds:
        never.wait(0.1)
        waited += 0.1
    return left


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


def follow(page: Page, begun: float) -> None:
    """What the tutorial says, as far as its proof; each step as soon as it can be taken."""

    def left_ms() -> float:
        return 1000.0 * max(1.0, begun + WITHIN_SECONDS - time.monotonic())

    card = page.locator('[class*="st-key-card-"]').filter(has_text=FAULT).first
    expect(card).to_be_visible(timeout=left_ms())
    card.get_by_role("button", name=REPAIR).or_(card.get_by_role("link", name=REPAIR)).first.click(timeout=left_ms())
    page.wait_for_url("**/decisions?*", timeout=left_ms())
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_have_count(1, timeout=left_ms())
    idle(page)
    approve.click(timeout=left_ms())
    expect(page.get_by_text("Approved: ").first).to_be_visible(timeout=left_ms())
    expect(page.get_by_text(PROOF).first).to_be_visible(timeout=left_ms())


def the_terminal_tells_a_newcomer(lines: list[str]) -> None:
    """What is simulated says so, and each held action says why; in 100 columns, without colour where it is a file."""
    assert "simulating 64 GPUs; everything shown is simulated" in lines
    names = "|".join([*(guard.name for guard in guards()), SELECTION, PRE_CHECK])
    said = rf" \((?:{names}): .+[)…]$|: waits for you: tocsin approve [0-9a-f]{{16}}$"
    assert all(re.search(said, line) for line in lines if " hold: " in line)
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in "".join(lines)


def test_a_fault_is_understood_and_its_repair_approved_and_proven_within_two_minutes(
    browser: Browser, tmp_path: Path
) -> None:
    tutorial = TUTORIAL.read_text(encoding="utf-8")
    assert all(words in tutorial for words in (FAULT, REPAIR, PROOF))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    environment, begun = clean | home, time.monotonic()
    with demo(tmp_path, "newcomer", environment, "--for", f"{2 * WITHIN_SECONDS:.0f}s") as newcomer:
        with demo(tmp_path, "other", environment, "--gpus", "8") as other:
            url = newcomer.dashboard()
            while len(other.urls()) < 2:
                other.wait()
            status = subprocess.run([*TOCSIN, "status"], env=environment, capture_output=True, text=True, check=True)
            found = status.stdout.splitlines()[0].removeprefix("brain ")
            assert found in newcomer.urls() + other.urls(), "another shell finds one"
            assert set(newcomer.urls()).isdisjoint(other.urls())
        with opened(browser, url) as page:
            while not all(map(newcomer.begins, SEEN)):
                assert time.monotonic() - begun < SEEN_WITHIN_SECONDS, newcomer.lines()
                newcomer.wait()
            follow(page, begun)
            print(f"proven {time.monotonic() - begun:.0f} s after the start")
    the_terminal_tells_a_newcomer(newcomer.lines())
    assert list((tmp_path / "state" / "tocsin").iterdir()) == []
