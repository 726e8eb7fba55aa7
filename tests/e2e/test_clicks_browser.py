"""Somebody clicks on whatever there is: no page breaks.

`TOCSIN_CLICKS` sets how often (``make clicks``: 500), `TOCSIN_CLICKS_SEED` on what.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tocsin.dashboard.text import LANGUAGES, Text
from tocsin_testing.browsing import dashboard, idle, opened
from tocsin_testing.fake_service import FakeService, serving

pytestmark = [pytest.mark.browser, pytest.mark.server]

CLICKS = int(os.environ.get("TOCSIN_CLICKS", "30"))
SEED = int(os.environ.get("TOCSIN_CLICKS_SEED", "20261123"))
CHOOSE = """(share) => {
    const kinds = 'button, a[href], summary, canvas, input, [role=tab], [role=radio], [role=option], [role=combobox]';
    const all = [...document.querySelectorAll(kinds)].filter((one) => {
        const box = one.getBoundingClientRect();
        const down = box.bottom > 0 && box.top < innerHeight, across = box.right > 0 && box.left < innerWidth;
        const home = !one.href || new URL(one.href).origin === location.origin;
        return box.width > 0 && down && across && !one.disabled && home;
    });
    return all[Math.floor(share * all.length)] ?? null;
}"""
"""One of the things on the screen that can be clicked and lead to no other site."""


def click_somewhere(page: Page, chance: Random) -> str:
    """Click on something that is on the screen; says what page that was."""
    found = page.evaluate_handle(CHOOSE, chance.random()).as_element()
    # What is drawn anew meanwhile, or lies below something else, is clicked in vain, as by a person.
    with suppress(Error):
        if found is not None:
            found.click(timeout=1_000, no_wait_after=True)
    if chance.random() < 0.2:
        page.keyboard.press("Escape")
    if chance.random() < 0.2:
        page.mouse.wheel(0, chance.choice([-600, 600]))
    return page.url.partition("?")[0].rpartition("/")[2]


def test_clicks_anywhere_break_no_page(browser: Browser, tmp_path: Path) -> None:
    chance, visited = Random(SEED), Counter[str]()
    with serving(FakeService()) as api, dashboard(api, tmp_path) as url, opened(browser, url) as page:
        idle(page)
        for number in range(CLICKS):
            visited[click_somewhere(page, chance)] += 1
            idle(page)
            said = f"after click {number + 1} on {page.url}"
            expect(page.get_by_test_id("stException"), said).to_have_count(0)
            for language in LANGUAGES:
                expect(page.get_by_text(Text(language)("defect")), said).to_have_count(0)
            # By its tag: what is shown on the whole screen hides the rest from assistive technology.
            expect(page.locator("h1"), said).to_have_count(1)
    assert len(visited) > 1, "it never left the first page"
