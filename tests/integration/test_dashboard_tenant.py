"""The dashboard as a tenant sees it, over a real brain: own pages alone, whole, and without names of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tocsin.api.server import ApiServer
from tocsin.config.access import ApiSettings
from tocsin.dashboard import app as frame
from tocsin.dashboard.access import TOKEN_VARIABLE, URL_VARIABLE
from tocsin_testing.tenants import OF_B, SECRETS, two_tenants

APP = Path(frame.__file__)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with two_tenants(tmp_path_factory.mktemp("tenants")) as world:
        assert world.app is not None
        server = ApiServer(world.app, settings=ApiSettings())
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def drawn(page: str) -> str:
    app = AppTest.from_file(str(APP), default_timeout=120).run()
    if page != "overview":
        app.switch_page(f"page_{page}.py").run()
    assert not app.exception
    assert not app.error, [one.value for one in app.error]
    kinds = ("html", "markdown", "caption", "page_link", "selectbox", "plotly_chart")
    return "\n".join(str(one.proto) for kind in kinds for one in app.get(kind))


@pytest.mark.parametrize(
    ("page", "shown"), [("overview", "node-alpha-1"), ("gpu", "GPU-aaaa-0000"), ("usage", "alpha")]
)
def test_a_tenants_pages_are_whole_and_name_nobody_else(
    url: str, monkeypatch: pytest.MonkeyPatch, page: str, shown: str
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setenv(TOKEN_VARIABLE, SECRETS["tenant"])
    text = drawn(page)
    assert shown in text
    assert [one for one in OF_B if one in text] == []


@pytest.mark.parametrize(("who", "pages"), [("tenant", frame.OF_TENANTS), ("fleet", frozenset(frame.PAGES))])
def test_pages_that_a_tenant_may_not_see_are_absent(
    url: str, monkeypatch: pytest.MonkeyPatch, who: str, pages: frozenset[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setenv(TOKEN_VARIABLE, SECRETS[who])
    offered: list[str] = []

    def navigation(found: list[object], **_: object) -> object:
        offered.extend(str(one.url_path or "overview") for one in found)  # type: ignore[attr-defined]
        return found[0]

    monkeypatch.setattr("streamlit.navigation", navigation)
    AppTest.from_file(str(APP), default_timeout=120).run()
    assert set(offered) - {frame.ALIAS} == pages
