"""The other cells on the overview: how they are, and that one which does not answer is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.config.cell import CellSettings
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.domain.clock import SystemClock
from tocsin.journal.postgres.fleet import KnownCell
from tocsin.queries.cells import CellQueries
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")


class Listed:
    def __init__(self, *known: KnownCell) -> None:
        self.known = list(known)

    def cells(self) -> list[KnownCell]:
        return self.known


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fleet of three cells, of which one is gone."""
    with ExitStack() as stack:
        own, other = FakeService(), FakeService()
        url = stack.enter_context(serving(own))
        known = [
            KnownCell("east", url, 8, 1.0, True),
            KnownCell("gone<b>", "http://127.0.0.1:9", 64, 900.0, False),
            KnownCell("west", stack.enter_context(serving(other)), 8, 1.0, True),
        ]
        settings = CellSettings(fleet="gpus", url=url, answer_seconds=20)
        own.cells = CellQueries("east", settings, Listed(*known), SystemClock())
        stack.callback(own.cells.close)
        monkeypatch.setenv(URL_VARIABLE, url)
        yield


def html_of(**query: str) -> str:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return "\n".join(str(getattr(element.proto, "body", "")) for element in app.get("html"))


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("lang", "partial", "title"),
    [
        ("en", "Not the whole fleet: gone&lt;b&gt; did not answer", "Cells of the fleet"),
        ("zh", "并非整个机群：gone&lt;b&gt; 没有应答", "机群的各单元"),
    ],
)
def test_the_overview_has_all_cells_and_names_what_is_missing(lang: str, partial: str, title: str) -> None:
    page = html_of(lang=lang)
    assert title in page
    assert partial in page
    assert "gone<b>" not in page
    assert ">west</span>" in page
    assert "Open in other cells" in page or "其他单元的未决事项" in page


def test_a_cell_that_is_the_whole_fleet_says_nothing_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeService()) as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        assert "Cells of the fleet" not in html_of()
