"""The first page of the tutorial as a newcomer follows it: `tocsin demo`, a fault, its repair approved and proven."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from tocsin_testing.browsing import idle, opened

pytestmark = [pytest.mark.browser, pytest.mark.server]

WITHIN_SECONDS = 120.0
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-hour.md"
FAULT, REPAIR = "fell off its PCIe bus", "Review and approve: Reboot node"
PROOF = "its effect is seen: new 0 errors, goal at most 0 errors"


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


def test_a_fault_is_understood_and_its_repair_approved_and_proven_within_two_minutes(
    browser: Browser, tmp_path: Path
) -> None:
    tutorial = TUTORIAL.read_text(encoding="utf-8")
    assert all(words in tutorial for words in (FAULT, REPAIR, PROOF))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "tocsin.cli", "demo", "--for", f"{2 * WITHIN_SECONDS:.0f}s"]
    said = tmp_path / "said"
    begun = time.monotonic()
    with (
        said.open("wb") as log,
        subprocess.Popen(command, env=clean | home, cwd=tmp_path, stdout=log, stderr=log) as demo,
    ):
        try:
            with opened(browser, dashboard_of(said, demo)) as page:
                follow(page, begun)
        finally:
            demo.terminate()
            demo.wait(timeout=60)
    print(f"proven {time.monotonic() - begun:.0f} s after the start")


def dashboard_of(said: Path, demo: subprocess.Popen[bytes]) -> str:
    """The address that the demo prints, once something answers there."""
    while True:
        lines = said.read_text(encoding="utf-8").splitlines()
        found = next((line.split()[1] for line in lines if line.startswith("dashboard: http")), "")
        with suppress(OSError):
            if found and urlopen(f"{found}/_stcore/health", timeout=5.0).status == HTTPStatus.OK:
                return found
        assert demo.poll() is None, "\n".join(lines)
        with pytest.raises(subprocess.TimeoutExpired):
            demo.wait(timeout=0.2)
