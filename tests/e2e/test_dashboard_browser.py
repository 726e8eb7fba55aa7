"""The dashboard in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.launch import command
from tocsin.domain.decision import DecisionState
from tocsin_testing import fake_fleet as fleet
from tocsin_testing import needs
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.servers import free_port, server

pytestmark = [pytest.mark.browser, pytest.mark.server]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 1_000
WAIT = 30 * SECONDS


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def dashboard(service: FakeService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("dashboard"), free_port()
    with serving(service) as api, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, api)
        patch.setenv("HOME", str(folder))
        base = f"http://127.0.0.1:{port}"
        with server(command("127.0.0.1", port), f"{base}/_stcore/health", folder / "log"):
            yield base


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = needs.program("chromium", "chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, url: str, theme: str = "light") -> Iterator[Page]:
    """A page in a fresh profile; at the end nothing must have gone to the console or to another host."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900},
        color_scheme=theme,  # type: ignore[arg-type]
        locale="en-GB",
    )
    page = context.new_page()
    page.set_default_timeout(WAIT)
    problems: list[str] = []
    elsewhere: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"{message.text} {message.location}")

    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    base = "/".join(url.split("/")[:3])
    page.on(
        "request",
        lambda request: None if request.url.startswith((base, "data:", "blob:")) else elsewhere.append(request.url),
    )
    page.goto(url)
    yield page
    context.close()
    assert problems == []
    assert elsewhere == []


def visit(page: Page, name: str) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name).click()


def settled(page: Page, words: str) -> None:
    expect(page.get_by_text(words).first).to_be_visible(timeout=WAIT)
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=WAIT)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_opens_and_carries_the_badge(browser: Browser, dashboard: str, theme: str, tmp_path: Path) -> None:
    pages = {
        "Overview": "Needs attention now",
        "GPU detail": "Findings",
        "Decisions": "Held by guards",
        "Scoreboard": "Decisions by rule",
    }
    with opened(browser, dashboard, theme) as page:
        for name, words in pages.items():
            visit(page, name)
            settled(page, words)
            expect(page.locator(".tc-sim")).to_have_text("Simulated")
            expect(page.get_by_test_id("stException")).to_have_count(0)
            if name != "Decisions":
                expect(page.locator(".js-plotly-plot").first).to_be_visible()
            picture = tmp_path / f"{name}-{theme}.png"
            page.screenshot(path=picture)
            assert picture.stat().st_size > 20_000


def test_the_pages_speak_chinese(browser: Browser, dashboard: str) -> None:
    with opened(browser, f"{dashboard}/?lang=zh") as page:
        settled(page, "需要立即关注")
        expect(page.locator(".tc-sim")).to_have_text("模拟")
        visit(page, "决策")
        settled(page, "等待人工处理")
        expect(page.locator(".tc-sim")).to_have_text("模拟")
        page.get_by_role("radio", name="English").or_(page.get_by_text("English", exact=True)).first.click()
        settled(page, "Waiting for a person")
        assert "lang=en" in page.url


def test_a_click_on_the_map_leads_to_the_gpu(browser: Browser, dashboard: str) -> None:
    with opened(browser, dashboard) as page:
        settled(page, "Needs attention now")
        point = page.locator(".js-plotly-plot .scatterlayer .textpoint").filter(has_text="◆").first
        expect(point).to_be_visible()
        box = point.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page.locator(".hoverlayer .hovertext").first).to_be_visible()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_url(f"**/gpu?*gpu={fleet.uuid(*fleet.HOT)}*")
        settled(page, "Reaches 93 C, the slowdown threshold")


def test_a_link_of_the_attention_list_leads_to_the_gpu(browser: Browser, dashboard: str) -> None:
    with opened(browser, dashboard) as page:
        settled(page, "Needs attention now")
        page.get_by_role("link", name="gpu-node-06 · GPU 2").click()
        page.wait_for_url(f"**/gpu?*gpu={fleet.uuid(*fleet.LOST)}*")
        settled(page, "GPU has fallen off the bus")


def test_an_approval_in_the_browser_is_recorded(browser: Browser, dashboard: str, service: FakeService) -> None:
    first = next(d for d in service.decisions(10) if d.approvable)
    with opened(browser, dashboard) as page:
        visit(page, "Decisions")
        settled(page, first.sentence)
        page.get_by_role("button", name="Approve").first.click()
        settled(page, "approved by loopback")
        settled(page, "Approved: ")
    assert service.decision(first.id).state is DecisionState.APPROVED
    assert [(e.kind, e.actor) for e in service.journal(1, 5)] == [("approval", "loopback")]
