"""The pages of usage, cost, versions and the scoreboard, and that of a GPU, over two cells of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.config.cell import CellSettings
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.text import LANGUAGES, Text
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.usage import Prices
from tocsin.journal.postgres.fleet import KnownCell
from tocsin.queries.cells import CellQueries
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
PATIENT = 20.0
EN = Text("en")


class Listed:
    """The fleet's list of cells."""

    def __init__(self) -> None:
        self.known: list[KnownCell] = []

    def cells(self) -> list[KnownCell]:
        return self.known


class Fleet:
    """Cells east, whose brain the dashboard asks, and west."""

    def __init__(self, stack: ExitStack) -> None:
        self.listed = Listed()
        self.east, self.west = FakeService(), FakeService()
        settings = CellSettings(fleet="gpus", url="http://east.test", answer_seconds=PATIENT)
        self.east.cells = CellQueries("east", settings, self.listed, SystemClock())
        stack.callback(self.east.cells.close)
        self.url = stack.enter_context(serving(self.east))
        for name, url in (("east", self.url), ("west", stack.enter_context(serving(self.west)))):
            self.listed.known.append(KnownCell(name, url, 8, 1.0, True))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = Fleet(stack)
        monkeypatch.setenv(URL_VARIABLE, made.url)
        yield made


def run(page: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    app.switch_page(f"page_{page}.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    assert not [one for one in app.error if "defect" in one.value]
    return app


def opened(page: str, **query: str) -> str:
    """All that the page says, as one text."""
    app = run(page, **query)
    told = [str(getattr(getattr(one, "proto", None), "body", "")) for one in app.get("html")]
    return "\n".join([*told, *(one.value for one in (*app.info, *app.error, *app.caption))])


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", ["usage", "cost", "versions", "scoreboard"])
def test_each_page_is_of_all_cells_and_names_those_that_do_not_answer(fleet: Fleet, page: str, language: str) -> None:
    text = Text(language)
    shown = opened(page, lang=language)
    assert text("cells.every", n=2) in shown
    assert text("cells.partial", cells="") not in shown
    fleet.listed.known.append(KnownCell("north", "http://127.0.0.1:9", 8, 1.0, True))
    fleet.east.cells._tried = float("-inf")  # type: ignore[attr-defined]
    shown = opened(page, lang=language)
    # In the banner, and on the page itself.
    assert shown.count(text("cells.partial", cells="north")) == 2
    one = opened(page, lang=language, cell="west")
    assert text("cells.one", cell="west") in one
    assert text("cells.partial", cells="north") not in one


def test_usage_is_added_up_and_money_of_two_currencies_is_not(fleet: Fleet) -> None:
    assert "768 EUR" in opened("usage", by="job")
    assert "east/research/notebook" in opened("usage", by="job")
    told = fleet.west.usage

    def in_dollars(first: int, last: int, by: list[object], limit: int) -> object:
        return told(first, last, by, limit).model_copy(update={"currency": "USD", "first": "2026-11-17"})  # type: ignore[arg-type]

    fleet.west.usage = in_dollars  # type: ignore[assignment,method-assign]
    shown = opened("usage", by="job")
    assert EN("cells.currencies", names="EUR, USD") in shown
    assert EN("cells.mixed") in shown
    assert "768" not in shown
    since = EN("usage.since", day="2026-11-17")
    assert EN("cells.also", cell="west", headline=since) in shown


def test_cost_says_what_each_cell_lacks(fleet: Fleet) -> None:
    shown = opened("cost")
    empty = EN("cost.empty", n=1, wanted=24)
    assert EN("cells.also", cell="east, west", headline=empty) in shown
    assert EN("cost.bare_kwh", n="").strip(" .") not in shown
    fleet.west.prices = Prices()
    shown = opened("cost")
    assert "kWh have no price and are in no cost of energy" in shown
    fleet.west.prices = Prices(currency="USD", gpu_hour_default=1.0)
    shown = opened("cost")
    assert EN("cells.currencies", names="EUR, USD") in shown
    assert EN("cost.no_price") not in shown, "there are prices"


def test_a_group_in_two_cells_is_judged_as_one(fleet: Fleet) -> None:
    shown = opened("versions", pool="lab")
    assert EN("versions.cells") in shown
    assert EN("versions.in_group", n=4) in shown
    # Two hosts in each cell would be too few.
    assert EN("versions.standing.mixed") in shown


def test_the_scoreboard_is_one_and_reports_and_records_are_each_cells(fleet: Fleet) -> None:
    shown = opened("scoreboard")
    assert str(2 * fleet.east.scoreboard().decisions) in shown
    sentences = [one.text for one in fleet.east.morning_report(24).sentences]
    assert [line for line in sentences if f"In cell east, west: {line}" not in shown] == []
    assert f"west/{fleet.west.rule_records()[0].rule}" in shown
    assert "12 / 14" in shown
    assert EN("score.cells") not in shown
    assert EN("score.cells") in opened("scoreboard", board="hazards")


def test_where_no_cell_answers_the_page_says_so(fleet: Fleet) -> None:
    def busy(*_more: object) -> object:
        raise Unavailable("the store is away")

    for service in (fleet.east, fleet.west):
        service.drift = busy  # type: ignore[assignment,method-assign]
    assert "cell east: the store is away" in opened("versions")


def test_the_page_of_a_gpu_fetches_the_map_of_its_cell_alone(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    gone, *rest = fleet.east.gpus()
    fleet.east.gpus = lambda: rest  # type: ignore[method-assign]
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.run()
    caplog.clear()
    app.switch_page("page_gpu.py")
    app.query_params["gpu"] = gone.uuid
    app.run()
    assert not app.exception
    asked = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert [line for line in asked if "/v1/cells/at/east/" in line] == []
    assert len([line for line in asked if "/v1/cells/at/west/v1/map" in line]) == 1
    (cell,) = [one for one in app.get("button_group") if one.proto.id.endswith("gpu.cell")]
    assert [option.content for option in cell.proto.options] == ["east", "west"]
    assert app.session_state["gpu.cell"] == "west"
    assert app.query_params["gpu"] in (gone.uuid, [gone.uuid])
