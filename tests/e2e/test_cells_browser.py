"""The dashboard over two cells, each with a brain of its own on one real PostgreSQL, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tocsin.client.client import Client
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SystemClock
from tocsin_testing import servers
from tocsin_testing.browsing import dashboard, opened
from tocsin_testing.builders import gpu, reading, xid
from tocsin_testing.cell_brains import Cell, until

pytestmark = pytest.mark.server


OF_BOTH = {
    "usage": ["Whole days in UTC"],
    "cost": ["What GPUs did", "1 faults: "],
    "fragmentation": ["In cell east: Measured by one job of 5 GPUs", "In cell west: Measured by one job of 4 GPUs"],
    "audit": ["In cell east: The hash chain is valid", "In cell west: The hash chain is valid"],
    "versions": [r"580\.95\.05 on 1: east-1", r"550\.163\.01 on 1: west-1"],
    "scoreboard": ["In cell east: (Nothing|1 fault)", "In cell west: 1 fault began", "In cell east, west: No forecast"],
}
"""Pages, and what they say that one cell alone could not, or that is there in any case."""


@dataclass
class Fleet:
    """Cells east, whose dashboard is looked at, and west, which has a fault."""

    url: str
    east: Cell
    west: Cell


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with servers.postgres() as server:
        east = Cell(tmp_path / "east", server.url, "east", hosts=["east-*"])
        west = Cell(tmp_path / "west", server.url, "west", hosts=["west-*"])
        try:
            with Client(east.url) as one, Client(west.url) as two:
                until(lambda: one.ready().ready and two.ready().ready)
                until(lambda: len(one.cells()) == 2)
                _tell(east, west)
                until(lambda: bool(two.cards().items))
                with dashboard(east.url, tmp_path) as url:
                    yield Fleet(url, east, west)
        finally:
            east.stop()
            west.stop()


def _tell(east: Cell, west: Cell) -> None:
    now_ms = SystemClock().now_ms()
    for cell, first, host, driver in ((east, 0, "east-1", "580.95.05"), (west, 8, "west-1", "550.163.01")):
        labels = {"driver_version": driver}
        mine = [gpu(first + n, host=host, labels=labels) for n in range(4)]
        seen = [reading(one, now_ms, temperature_celsius=50.0, power_watts=300.0) for one in mine]
        events = [xid(79, gpu(first + 1, host=host), now_ms)] if cell is west else []
        cell.send(Batch(seen, events))


def _choose_cell(page: Page, name: str) -> None:
    page.get_by_role("combobox", name="Cell").first.click()
    page.get_by_role("option", name=name, exact=True).click()


def test_the_pages_show_all_cells_and_act_at_the_one_that_has_the_card(browser: Browser, fleet: Fleet) -> None:
    with opened(browser, f"{fleet.url}/?lang=en") as page:
        banner = page.locator(".tc-bar").first
        expect(banner).to_contain_text("All 2 cells")
        table = page.locator("table.tc").first
        expect(table).to_contain_text("east")
        expect(table).to_contain_text("west")
        expect(page.locator(".tc-kpi", has_text="GPUs").last).to_contain_text("8")
        card = page.locator(".tc-item", has_text="west-1").first
        expect(card).to_contain_text("Cell west")
        page.get_by_role("button", name=re.compile("^Take on|^Acknowledge|take it", re.IGNORECASE)).first.click()
        with Client(fleet.west.url) as west, Client(fleet.east.url) as east:
            until(lambda: any(one.acknowledged_by for one in west.cards().items))
            assert east.cards().total == 0
        _choose_cell(page, "east")
        expect(banner).to_contain_text("Cell east")
        expect(page.locator(".tc-item")).to_have_count(0)
        expect(page).to_have_url(re.compile("cell=east"))
        _choose_cell(page, "All cells")
        expect(page.locator(".tc-item", has_text="west-1").first).to_be_visible()
    # It was in east an hour ago.
    before = reading(gpu(9, host="east-1"), SystemClock().now_ms() - HOUR, temperature_celsius=50.0)
    fleet.east.send(Batch([before]))
    with opened(browser, f"{fleet.url}/gpu?lang=en&gpu=GPU-00000009") as page:
        expect(page.locator("body")).to_contain_text("GPU-00000009")
        expect(page.get_by_role("radio", name="west")).to_be_checked()
        expect(page.locator("body")).to_contain_text("Its history from before it moved is in cell east")
    with opened(browser, f"{fleet.url}/forecast?lang=en") as page:
        expect(page.locator(".tc-bar").first).to_contain_text("All 2 cells")
        # One of each cell, which have no past yet.
        expect(page.locator("body")).to_contain_text("2 smaller pools are not forecast", timeout=60_000)
    for name, told in OF_BOTH.items():
        with opened(browser, f"{fleet.url}/{name}?lang=en") as page:
            expect(page.locator(".tc-bar").first).to_contain_text("All 2 cells")
            for words in told:
                expect(page.locator("body")).to_contain_text(re.compile(words))
            expect(page.locator("body")).not_to_contain_text("Not the whole fleet")
    fleet.west.stop()
    for name in ("forecast", *OF_BOTH):
        with opened(browser, f"{fleet.url}/{name}?lang=en") as page:
            # The banner says it too.
            said = page.locator(".tc-note", has_text="Not the whole fleet: west did not answer").first
            expect(said).to_be_visible(timeout=60_000)
    with opened(browser, f"{fleet.url}/?lang=en") as page:
        expect(page.locator(".tc-bar").first).to_contain_text("Not the whole fleet: west did not answer")
        expect(page.locator("table.tc").first).to_contain_text("stale")
