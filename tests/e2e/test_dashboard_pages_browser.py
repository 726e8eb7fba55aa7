"""Every page in a real browser, over languages, themes and sizes of the fleet, each pair of which occurs."""

from __future__ import annotations

import ast
from itertools import combinations, product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import tocsin.dashboard
from tocsin.dashboard.app import FIRST, PAGES
from tocsin.dashboard.text import Text
from tocsin_testing.browsing import barriers, idle, opened, overflow

pytestmark = [pytest.mark.browser, pytest.mark.server]

FACTORS = {"language": ("en", "zh"), "theme": ("light", "dark"), "size": ("small", "large")}
PATTERNS = (
    (("en", "light", "small"), ("zh", "dark", "large")),
    (("zh", "light", "small"), ("en", "dark", "large")),
    (("en", "light", "large"), ("zh", "dark", "small")),
    (("en", "dark", "small"), ("zh", "light", "large")),
)
"""Two rows a page, opposite to each other, taken in turn."""
CASES = [(page, *row) for place, page in enumerate(PAGES) for row in PATTERNS[place % len(PATTERNS)]]
ONE_SCREEN = {"overview"}
PATHS = {FIRST: ""}


def docstrings(file: str) -> list[str]:
    """First lines of the strings that stand by themselves in a page's script: Streamlit's magic would draw them."""
    body = ast.parse(Path(tocsin.dashboard.__file__).with_name(file).read_text(encoding="utf-8")).body
    values = [one.value.value for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    return [str(value).splitlines()[0] for value in values]


def test_each_pair_of_factors_occurs() -> None:
    levels = [tuple(PAGES), *FACTORS.values()]
    for one, other in combinations(range(len(levels)), 2):
        assert {(case[one], case[other]) for case in CASES} == set(product(levels[one], levels[other]))


@pytest.mark.parametrize(("name", "language", "theme", "size"), CASES)
def test_the_page_keeps_what_every_page_promises(
    request: pytest.FixtureRequest,
    browser: Browser,
    tmp_path: Path,
    name: str,
    language: str,
    theme: str,
    size: str,
) -> None:
    url, text = request.getfixturevalue(size).url, Text(language)
    with opened(browser, f"{url}/{PATHS.get(name, name)}?lang={language}", theme) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(text(f"page.{name}"))
        expect(page.locator(".tc-sim").first).to_have_text(text("simulated"))
        idle(page)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)
        words = page.get_by_test_id("stMain").inner_text()
        assert len(words) > 200
        assert [line for line in docstrings(PAGES[name][0]) if line in words] == []
        wide, high = overflow(page)
        assert wide <= 0
        assert high <= 0 or name not in ONE_SCREEN
        picture = tmp_path / f"{name}-{language}-{theme}-{size}.png"
        page.screenshot(path=picture)
        assert picture.stat().st_size > 20_000
        assert barriers(page) == []
