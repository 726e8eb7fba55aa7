"""Log-in in a real browser: it lasts over a reload and in other tabs, nothing of it is in the URL, and it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tocsin.dashboard.sessions import COOKIE
from tocsin_testing.browsing import Shown, barriers, dashboard, idle, opened
from tocsin_testing.fake_service import FakeService
from tocsin_testing.people import PASSWORD, guarded_api

pytestmark = [pytest.mark.browser, pytest.mark.server]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    service = FakeService()
    with guarded_api(service) as api, dashboard(api, tmp_path_factory.mktemp("guarded")) as url:
        yield Shown(url, service)


def log_in(page: Page, user: str, password: str = PASSWORD) -> None:
    page.get_by_role("textbox", name="Name").fill(user)
    page.get_by_role("textbox", name="Password").fill(password)
    page.get_by_role("button", name="Log in with password").click()


def test_a_log_in_lasts_and_ends(browser: Browser, guarded: Shown) -> None:
    with opened(browser, guarded.url) as page:
        expect(page.get_by_role("textbox", name="Password")).to_be_visible()
        idle(page)
        assert barriers(page) == []
        log_in(page, "anna")
        page.locator("canvas[data-cells]").wait_for()
        expect(page.locator(".tc-who")).to_have_text("anna")
        expect(page.get_by_text("operator", exact=True)).to_be_visible()
        page.wait_for_function("fetch('/_stcore/health').then(() => true)")
        (cookie,) = [one for one in page.context.cookies() if one["name"] == COOKIE]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert cookie["value"] not in page.url
        page.reload()
        expect(page.locator(".tc-who")).to_have_text("anna")
        other = page.context.new_page()
        other.goto(f"{guarded.url}/decisions")
        expect(other.locator(".tc-who")).to_have_text("anna")
        other.close()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("textbox", name="Password")).to_be_visible()
        page.reload()
        expect(page.get_by_role("textbox", name="Password")).to_be_visible()
    assert [(e.kind, e.actor) for e in guarded.service.journal(1, 9)] == [
        ("login", "ldap:anna"),
        ("logout", "ldap:anna"),
    ]


def test_a_wrong_password_and_a_low_role_are_explained(browser: Browser, guarded: Shown) -> None:
    with opened(browser, f"{guarded.url}/decisions?lang=en") as page:
        expect(page.get_by_role("textbox", name="Password")).to_be_visible()
        log_in(page, "ben", "wrong")
        expect(page.get_by_text("The log-in failed.")).to_be_visible()
        log_in(page, "ben")
        expect(page.locator(".tc-who")).to_have_text("ben")
        expect(page.get_by_role("button", name="Approve").first).to_be_disabled()
