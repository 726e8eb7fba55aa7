"""Every page in a real browser, over what the brain has to tell, languages, themes and screens."""

from __future__ import annotations

import ast
from itertools import combinations, product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import tocsin.dashboard
from tocsin.dashboard.app import FIRST, PAGES
from tocsin.dashboard.text import Text
from tocsin_testing.browsing import Worlds, barriers, idle, opened, overflow

pytestmark = [pytest.mark.browser, pytest.mark.server]

SCREENS = {"wide": (1440, 900), "phone": (400, 850)}
ROWS = (("en", "light", "wide"), ("zh", "dark", "wide"), ("zh", "light", "phone"), ("en", "dark", "phone"))
"""Language, theme and screen: each pair of two of the three occurs."""
EVERY = list(product(("en", "zh"), ("light", "dark"), SCREENS))
PAIRS = [(row, next(other for other in EVERY if not set(row) & set(other))) for row in ROWS]
"""Each row, and what shares nothing with it."""
FLEETS = ("small", "large")
"""64 GPUs, and 10,000 on 1,250 hosts."""
STATES = ("empty", "young", "busy", "broken")
"""No GPU has reported; some for five minutes; more is asked than is answered; the answer has a defect."""
CASES = [
    (page, fleet, *row)
    for place, page in enumerate(PAGES)
    for fleet, row in zip(FLEETS if place < len(ROWS) else FLEETS[::-1], PAIRS[place % len(ROWS)], strict=True)
]
"""A page is seen over both fleets, once as a row says and once the other way round."""
OTHERS = [
    (list(PAGES)[(len(ROWS) * place + number) % len(PAGES)], state, *row)
    for place, state in enumerate(STATES)
    for number, row in enumerate(ROWS)
]
ONE_SCREEN = {"overview"}


def docstrings(file: str) -> list[str]:
    """First lines of the strings that stand by themselves in a page's script: Streamlit's magic would draw them."""
    body = ast.parse(Path(tocsin.dashboard.__file__).with_name(file).read_text(encoding="utf-8")).body
    values = [one.value.value for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    return [str(value).splitlines()[0] for value in values]


@pytest.mark.parametrize(("cases", "first"), [(CASES, tuple(PAGES)), (OTHERS, ()), (CASES, FLEETS)])
def test_each_pair_of_factors_occurs(cases: list[tuple[str, ...]], first: tuple[str, ...]) -> None:
    factors = [("en", "zh"), ("light", "dark"), tuple(SCREENS)]
    chosen = [list(case[2:]) for case in cases]
    if first:
        factors.append(first)
        chosen = [[*case[2:], next(name for name in case[:2] if name in first)] for case in cases]
    for one, other in combinations(range(len(factors)), 2):
        assert {(case[one], case[other]) for case in chosen} == set(product(factors[one], factors[other]))


def test_each_state_is_seen_in_each_row_and_each_page_in_some_state() -> None:
    assert {case[1:] for case in OTHERS} == {(state, *row) for state, row in product(STATES, ROWS)}
    assert {case[0] for case in OTHERS} == set(PAGES)


@pytest.mark.parametrize(("name", "state", "language", "theme", "screen"), [*CASES, *OTHERS])
def test_the_page_keeps_what_every_page_promises(
    worlds: Worlds,
    browser: Browser,
    tmp_path: Path,
    name: str,
    state: str,
    language: str,
    theme: str,
    screen: str,
) -> None:
    url, text = worlds.be(state).url, Text(language)
    path = "" if name == FIRST else name
    with opened(browser, f"{url}/{path}?lang={language}", theme, SCREENS[screen]) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(text(f"page.{name}"))
        if state in FLEETS:
            expect(page.locator(".tc-sim").first).to_have_text(text("simulated"))
        idle(page)
        stands(page, text, name)
        if state in FLEETS:
            says_much(page, tmp_path / "page.png", name)
        if name == FIRST:
            the_first_page(page, text, state, screen)


def stands(page: Page, text: Text, name: str) -> None:
    """The page has words of ours, nothing runs over its edge, and nobody is kept out."""
    expect(page.get_by_test_id("stException")).to_have_count(0)
    expect(page.get_by_text(text("defect"))).to_have_count(0)
    words = page.get_by_test_id("stMain").inner_text()
    assert len(words) > 40
    assert [line for line in docstrings(PAGES[name][0]) if line in words] == []
    assert overflow(page)[0] <= 0
    assert barriers(page) == []


def says_much(page: Page, picture: Path, name: str) -> None:
    """Over a fleet with faults no page is short, nor is it an error."""
    expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)
    assert len(page.get_by_test_id("stMain").inner_text()) > 200
    assert overflow(page)[1] <= 0 or name not in ONE_SCREEN or page.viewport_size != {"width": 1440, "height": 900}
    page.screenshot(path=picture)
    assert picture.stat().st_size > 20_000


def the_first_page(page: Page, text: Text, state: str, screen: str) -> None:
    """What needs attention comes first on a phone, beside the map else; without a GPU it says what to do."""
    if state == "empty":
        expect(page.get_by_text(text("no_gpus")).first).to_be_visible()
    if state not in ("young", *FLEETS):
        return
    attention = page.get_by_text(text("attention"), exact=True).first.bounding_box()
    canvas = page.locator("canvas").bounding_box()
    assert attention is not None
    assert canvas is not None
    if screen == "phone":
        assert attention["y"] < canvas["y"]
    else:
        assert attention["x"] >= canvas["x"] + canvas["width"]
