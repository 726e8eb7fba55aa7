"""One browser for all browser tests, and a dashboard for each size of fleet; none outlives the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tocsin_testing.browsing import Shown, dashboard, launch
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all browser tests, and gone before any other test: Playwright keeps an event loop running meanwhile."""
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """64 GPUs."""
    service = FakeService()
    with serving(service) as api, dashboard(api, tmp_path_factory.mktemp("small")) as url:
        yield Shown(url, service)


@pytest.fixture(scope="package")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """10,000 GPUs on 1,250 hosts."""
    service = FakeService(hosts=1_250)
    with serving(service) as api, dashboard(api, tmp_path_factory.mktemp("large")) as url:
        yield Shown(url, service)
