"""A real browser in front of the dashboard, and what every page must keep in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, expect

from tocsin.dashboard.access import TOKEN_VARIABLE, URL_VARIABLE
from tocsin.dashboard.launch import command
from tocsin_testing import needs
from tocsin_testing.fake_service import FakeService
from tocsin_testing.servers import free_port, server

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 90_000
"""What is late on a machine that does other things as well is not lost: what never comes costs this long, once."""
expect.set_options(timeout=WAIT)
WIDTH, HEIGHT = 1440, 900
ASKED_BY_STREAMLIT = ("/_stcore/health", "/_stcore/host-config")
"""Streamlit looks for its server below the path of the page first, where it is not, and then at the root."""
NOT_OURS: Mapping[str, str] = {}
"""Rules of axe-core that Streamlit's own elements break, with the reason."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


@dataclass(frozen=True, slots=True)
class Shown:
    """A dashboard over a fake fleet."""

    url: str
    service: FakeService


class Worlds:
    """One dashboard whose brain is whichever of `services` was asked for last."""

    def __init__(self, services: Mapping[str, Any]) -> None:
        self.url = ""
        self._services = services
        self._now = next(iter(services.values()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    def be(self, name: str) -> Shown:
        self._now = self._services[name]
        return Shown(self.url, self._now)


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium: the build without windows, which costs a fifth less, else the whole of it, headless."""
    program = shutil.which("chromium-headless-shell") or needs.program("chromium", "chromium-headless-shell")
    return playwright.chromium.launch(executable_path=program, args=ARGUMENTS)


@contextmanager
def dashboard(api: str, folder: Path, token: str = "") -> Iterator[str]:
    """A dashboard of its own process over the API at `api`; yields its base URL."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    kept = {name: os.environ.get(name) for name in (URL_VARIABLE, TOKEN_VARIABLE, "HOME")}
    os.environ.update({URL_VARIABLE: api, TOKEN_VARIABLE: token, "HOME": str(folder)})
    try:
        with server(command("127.0.0.1", port), f"{base}/_stcore/health", folder / "log"):
            yield base
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_PAGES: WeakKeyDictionary[Browser, Page] = WeakKeyDictionary()


def _page(browser: Browser) -> Page:
    """The page of `browser` that all tests use: what it has loaded of Streamlit is loaded once, which is half the cost
    of a visit."""
    if browser not in _PAGES:
        _PAGES[browser] = browser.new_context(locale="en-GB").new_page()
        _PAGES[browser].set_default_timeout(WAIT)
    return _PAGES[browser]


@contextmanager
def opened(browser: Browser, url: str, theme: str = "light", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Iterator[Page]:
    """A page that nobody has been on; at the end nothing must have gone to the console or to another host."""
    base = "/".join(url.split("/")[:3])
    page = _page(browser)
    problems: list[str] = []
    elsewhere: list[str] = []

    def note(message: ConsoleMessage) -> None:
        asked = str(message.location.get("url", ""))
        if message.type == "error" and not asked.endswith(ASKED_BY_STREAMLIT):
            problems.append(f"{message.text} {message.location}")

    def thrown(error: object) -> None:
        problems.append(str(error))

    def sent(request: Request) -> None:
        if not request.url.startswith((base, "data:", "blob:")):
            elsewhere.append(request.url)

    listeners: list[tuple[Any, Any]] = [("console", note), ("pageerror", thrown), ("request", sent)]
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    for event, listener in listeners:
        page.on(event, listener)
    try:
        page.goto(url)
        yield page
        _forget(page)
    except BaseException:
        _PAGES.pop(browser).context.close()
        raise
    for event, listener in listeners:
        page.remove_listener(event, listener)
    assert problems == []
    assert elsewhere == []


def _forget(page: Page) -> None:
    """Leave no session, cookie or note behind."""
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.goto("about:blank")
    page.context.clear_cookies()


def idle(page: Page) -> None:
    """Wait until no script runs."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning", timeout=WAIT)
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=WAIT)


def settled(page: Page, words: str) -> None:
    """Wait until `words` are to be seen and no script runs."""
    expect(page.get_by_text(words).first).to_be_visible(timeout=WAIT)
    idle(page)


def visit(page: Page, name: str) -> None:
    """Go to the page called `name` by the side bar."""
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()


def overflow(page: Page) -> tuple[int, int]:
    """Pixels by which the page is wider, and higher, than what is seen of it."""
    wide, high = page.evaluate(
        """() => {
            const main = document.querySelector('[data-testid="stMain"]');
            return [Math.max(main.scrollWidth - main.clientWidth, document.body.scrollWidth - window.innerWidth),
                    main.scrollHeight - main.clientHeight];
        }"""
    )
    return int(wide), int(high)


def barriers(page: Page) -> list[str]:
    """What axe-core finds wrong, less `NOT_OURS`: a line for each element."""
    from axe_playwright_python.sync_playwright import Axe

    rules = {name: {"enabled": False} for name in NOT_OURS}
    options = {"resultTypes": ["violations"], "runOnly": list(RULES), "rules": rules}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node['html'][:160]} {_why(node)}" for one in found for node in one["nodes"]
    ]


def _why(node: Mapping[str, Any]) -> str:
    return "; ".join(str(check["message"]) for group in ("any", "all", "none") for check in node[group])[:240]
