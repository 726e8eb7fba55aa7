"""The pages of figures and of the audit, and that of a GPU, over two cells of a fleet."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.client.client import Client
from tocsin.client.models import JournalPage, JournalQuery
from tocsin.config.access import ApiSettings
from tocsin.config.cell import CellSettings
from tocsin.dashboard import page_audit
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.page_audit import exported_all
from tocsin.dashboard.text import LANGUAGES, Text, number, percent
from tocsin.domain.clock import SystemClock
from tocsin.domain.entry import Verification
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.domain.usage import Prices
from tocsin.journal.postgres.fleet import KnownCell
from tocsin.queries.cells import CellQueries
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
PATIENT = 20.0
EN = Text("en")
WIDE = ApiSettings.model_validate({"limits": {"requests_per_second": 1e5, "request_burst": 100_000}})
"""A check that never ends asks as fast as it is answered."""


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
        self.url = stack.enter_context(serving(self.east, WIDE))
        for name, url in (("east", self.url), ("west", stack.enter_context(serving(self.west, WIDE)))):
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
    return words(run(page, **query))


def words(app: AppTest) -> str:
    told = [str(getattr(getattr(one, "proto", None), "body", "")) for one in app.get("html")]
    return "\n".join([*told, *(one.value for one in (*app.info, *app.error, *app.caption))])


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", ["usage", "cost", "versions", "scoreboard", "audit"])
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_fragmentation_is_of_all_cells_and_so_are_its_plans(fleet: Fleet, language: str) -> None:
    text, one = Text(language), fleet.east.fragmentation(8)
    shown = opened("fragmentation", lang=language)
    assert text("cells.every", n=2) in shown
    assert text("cells.partial", cells="") not in shown
    for key, value in (("free", one.fleet.free), ("stranded", one.fleet.stranded), ("unusable", one.fleet.unusable)):
        assert re.search(rf">{text(f'frag.{key}')}<.{{0,200}}>{number(2 * value)}<", shown, re.DOTALL), key
    assert text("frag.mig.free.note", n=f"{2 * one.mig_slices:,}", gpus=2 * one.mig_gpus) in shown
    share = percent(one.fleet.fragmented / one.fleet.free)
    assert f"{share} · {text('frag.f.note')}" in shown, "a ratio is made anew of the sums"
    host = one.hosts[0].host
    assert f"east/{host}" in shown
    assert f"west/{host}" in shown
    measured = text("frag.mix.settings", mix=", ".join(_task(text, one.mix[n].gpus) for n in range(2)))
    assert text("cells.also", cell="east, west", headline=measured) in shown
    assert [shown.count(f">{text('cells.one', cell=name)}<") for name in ("east", "west")] == [1, 1], "a plan of each"
    fleet.listed.known.append(KnownCell("north", "http://127.0.0.1:9", 8, 1.0, True))
    fleet.east.cells._tried = float("-inf")  # type: ignore[attr-defined]
    # In the banner, at the figures and at the plans.
    assert opened("fragmentation", lang=language).count(text("cells.partial", cells="north")) == 3
    alone = opened("fragmentation", lang=language, cell="west")
    assert "west/" not in alone
    assert text("cells.partial", cells="north") not in alone


def _task(text: Text, gpus: float) -> str:
    return text("frag.task.one" if gpus == 1 else "frag.task", share=percent(0.5), gpus=f"{gpus:g}")


def test_a_cell_that_still_plans_holds_up_no_other(fleet: Fleet) -> None:
    fleet.west.working = True
    shown = opened("fragmentation")
    assert EN("cells.partial", cells="west") in shown
    assert EN("cells.one", cell="east") in shown
    assert EN("cells.one", cell="west") not in shown
    fleet.east.working = True
    shown = opened("fragmentation")
    assert "cell east: the plan of defragment is being worked out" in shown
    assert EN("cells.none", problem="").strip() in shown
    assert EN("ahead.working") not in shown, "a cell that does not answer works nothing out"


def test_a_place_in_the_journal_of_a_cell_that_is_none_is_left_out(fleet: Fleet) -> None:
    logged_in(fleet, west=0)
    many = ",".join(f"north-{n}:3" for n in range(200))
    for before in ("Foo:3", f"{many},east:3", "east:0,:7,west:x"):
        shown = opened("audit", before=before)
        assert "tc-audit" in shown
        assert people(shown)


def logged_in(fleet: Fleet, west: int) -> None:
    """Ten people in each cell, those of west each `west` milliseconds after those of east."""
    for n in range(10):
        fleet.east._record("login", f"east-{n}", {})
        fleet.west._record("login", f"west-{n}", {})
    fleet.west._journal[:] = [replace(one, at_ms=one.at_ms + west) for one in fleet.west._journal]


def people(shown: str) -> list[str]:
    return re.findall(r"<b>((?:east|west)-\d)</b>", shown)


def test_the_audit_merges_the_journals_in_the_order_of_time(fleet: Fleet) -> None:
    logged_in(fleet, west=3)
    app = run("audit")
    shown = words(app)
    assert "<th>Cell</th>" in re.sub(r"<th[^>]*>", "<th>", shown)
    made = [(n + 3 * later, name, n) for n in range(10) for later, name in ((0, "east"), (1, "west"))]
    wanted = [f"{name}-{n}" for at, name, n in sorted(made, key=lambda one: (-one[0], one[1]))]
    # What is left are the oldest two of 22, both of east.
    assert people(shown) == [name for name in wanted if name != "east-0"]
    assert EN("cells.also", cell="east", headline=EN("audit.shown", first=11, last=3, head=11)) in shown
    assert EN("cells.also", cell="west", headline=EN("audit.shown", first=11, last=1, head=11)) in shown
    app.button(key="older").click().run()
    assert app.query_params["before"] in ("east:3,west:1", ["east:3,west:1"])
    shown = words(app)
    assert people(shown) == ["east-0"]
    assert EN("cells.also", cell="east", headline=EN("audit.shown", first=2, last=1, head=11)) in shown
    assert app.button(key="older").disabled
    # Of one cell alone, which has numbers of its own, that place is none.
    assert people(opened("audit", cell="west", before="east:3,west:1"))[0] == "west-9"


def test_each_cell_s_chain_is_checked_and_told_by_itself(fleet: Fleet) -> None:
    app = run("audit")
    both = words(app)
    fine = EN("audit.chain.ok", n=1, at="@").split(". ")[0]
    for name in ("east", "west"):
        assert EN("cells.also", cell=name, headline=fine) in both
    fleet.west.verify_journal = lambda _after, _previous: Verification(False, 1, "entry 2 was edited")  # type: ignore[method-assign]
    app.button(key="check").click().run()
    shown = words(app)
    broken = EN("audit.chain.broken", problem="entry 2 was edited")
    assert f"✕ {EN('cells.also', cell='west', headline=broken)}" in shown
    assert f"✓ {EN('cells.also', cell='east', headline=fine)}" in shown

    def slow(_after: int, _previous: str) -> Verification:
        raise Unavailable("the disk is slow")

    fleet.east.verify_journal = slow  # type: ignore[method-assign]
    app.button(key="check").click().run()
    assert re.search(r"In cell east: [^<]*the disk is slow", words(app))


def test_a_cell_whose_check_never_ends_is_left(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say that there is always more, or say so without getting on: neither holds up who looks, nor a cell after
    it."""

    def more(after: int, _previous: str) -> Verification:
        return Verification(True, after + 1, done=False, hash="0", head=10)

    fleet.east.verify_journal = more  # type: ignore[method-assign]
    monkeypatch.setattr(page_audit, "UNASKED_SECONDS", 2.0)
    app = run("audit")
    unknown = f"? {EN('cells.also', cell='east', headline=EN('audit.chain.unchecked'))}"
    fine = EN("cells.also", cell="west", headline=EN("audit.chain.ok", n=1, at="@").split(". ")[0])
    assert unknown in words(app)
    assert fine in words(app)
    fleet.east.verify_journal = lambda _after, _previous: Verification(True, 0, done=False)  # type: ignore[method-assign]
    app.button(key="check").click().run()
    assert unknown in words(app)
    assert fine in words(app)
    assert re.search(r"In cell east: [^<]*checks no journal entry after 0, nor is it done", words(app))


def test_long_journals_of_several_cells_are_checked_only_when_asked(fleet: Fleet) -> None:
    for service in (fleet.east, fleet.west):
        long = partial(_long, service.journal_page, page_audit.QUICK_CHECK // 2 + 1)
        service.journal_page = long  # type: ignore[method-assign]
    shown = opened("audit")
    for name in ("east", "west"):
        assert f"? {EN('cells.also', cell=name, headline=EN('audit.chain.unchecked'))}" in shown


def _long(told: Callable[..., JournalPage], head: int, *asked: object) -> JournalPage:
    return told(*asked).model_copy(update={"head": head})


def test_after_so_long_the_chain_of_no_further_cell_is_begun(fleet: Fleet) -> None:
    with Client(fleet.url) as client:
        assert page_audit.verified(client, ["east", "west"], -1.0) == ({}, {})
        found, problems = page_audit.verified(client, ["east", "north"], PATIENT)
    assert (list(found), list(problems)) == (["east"], ["north"])


def test_an_export_of_all_cells_has_a_file_of_each_chain(fleet: Fleet) -> None:
    logged_in(fleet, west=0)
    query = JournalQuery(kinds=("login",))
    with exported_all("jsonl", query, "", ["east", "west"]) as found, zipfile.ZipFile(found) as archive:
        assert archive.namelist() == ["tocsin-journal-east.jsonl", "tocsin-journal-west.jsonl"]
        lines = archive.read("tocsin-journal-west.jsonl").decode().splitlines()
        assert [json.loads(line)["actor"] for line in lines] == [f"west-{n}" for n in range(10)]


def test_an_export_of_all_cells_says_which_of_them_are_silent(fleet: Fleet) -> None:
    with exported_all("jsonl", JournalQuery(), "", ["east", "north"]) as found, zipfile.ZipFile(found) as archive:
        assert archive.namelist() == ["tocsin-journal-east.jsonl", "INCOMPLETE.txt"]
        (line,) = archive.read("INCOMPLETE.txt").decode().splitlines()
        assert line.startswith("north: ")
    with pytest.raises(TocsinError):
        exported_all("jsonl", JournalQuery(), "", ["north"])


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
