"""One view over several cells: brains that answer, refuse, hang and are gone, and what is said of each."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner, Result
from werkzeug import Request, Response

from tocsin.api.service import Asked
from tocsin.api.tenancy import Names
from tocsin.cli.main import cli
from tocsin.client import whole
from tocsin.client.agent import OrderLink
from tocsin.client.client import Client
from tocsin.client.errors import BadRequest, Denied, NotFound
from tocsin.client.models import JournalPage, JournalQuery
from tocsin.client.models_cells import AnswerState, WholeJournal
from tocsin.client.models_usage import UsageOut
from tocsin.client.moved import ASSIGNED_ONLY
from tocsin.client.whole_places import home_of, worst_of
from tocsin.collector.spool import Spool
from tocsin.collector.uplink import MOST_MOVES, PushTarget, Uplink
from tocsin.config.access import ApiSettings
from tocsin.config.cell import CellSettings
from tocsin.domain.clock import HOUR, ManualClock, SystemClock
from tocsin.domain.errors import Conflict, TocsinError, Unavailable
from tocsin.journal.archive_files import ArchiveMissing
from tocsin.journal.postgres.fleet import KnownCell
from tocsin.queries import cells as cell_queries
from tocsin.queries.cells import CellQueries
from tocsin.queries.tenants import TenantCells
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.quick_server import QuickHttpServer

PATIENT, DEADLINE = 20.0, 0.5
"""Seconds: long enough for a machine that others use, and for a cell that hangs."""


class Listed:
    """The fleet's list of cells."""

    def __init__(self) -> None:
        self.known: list[KnownCell] = []
        self.away = False

    def cells(self) -> list[KnownCell]:
        if self.away:
            raise Unavailable("the database is away")
        return list(self.known)

    def add(self, name: str, url: str, hosts: tuple[str, ...] = ()) -> None:
        self.known.append(KnownCell(name, url, 8, 1.0, True, hosts))


class Fleet:
    """Cells `a` and `b` of one fleet, each a service of its own behind a real server."""

    def __init__(self, stack: ExitStack, settings: ApiSettings | None = None) -> None:
        self.listed = Listed()
        self.a, self.b = FakeService(), FakeService()
        wanted = CellSettings(fleet="gpus", url="http://a.test", answer_seconds=PATIENT)
        self.a.cells = CellQueries("a", wanted, self.listed, SystemClock())
        stack.callback(self.a.cells.close)
        self.url_a = stack.enter_context(serving(self.a, settings))
        self.url_b = stack.enter_context(serving(self.b, settings))
        self.listed.add("a", self.url_a)
        self.listed.add("b", self.url_b)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def fleet(stack: ExitStack) -> Fleet:
    return Fleet(stack)


@pytest.fixture
def client(stack: ExitStack, fleet: Fleet) -> Client:
    return stack.enter_context(Client(fleet.url_a))


@pytest.fixture
def strange(stack: ExitStack) -> QuickHttpServer:
    return stack.enter_context(QuickHttpServer())


def asked(fleet: Fleet, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--api-url", fleet.url_a], standalone_mode=False)


def test_any_brain_answers_for_all(fleet: Fleet, client: Client) -> None:
    found = client.cells_gpus()
    assert not found.partial
    assert {name: len(gpus) for name, gpus in found.answers.items()} == {
        "a": len(fleet.a.gpus()), "b": len(fleet.b.gpus())
    }  # fmt: skip
    assert [(one.cell, one.own, one.state) for one in found.cells] == [
        ("a", True, AnswerState.ANSWERED), ("b", False, AnswerState.ANSWERED)
    ]  # fmt: skip
    for read in (client.cells_summary, client.cells_incidents, client.cells_predictions, client.cells_scoreboard):
        assert sorted(read().answers) == ["a", "b"]
    assert sorted(client.cells_cards(5).answers) == ["a", "b"]
    assert client.cells_decisions(3).answers["b"] == client.decisions(3)
    assert client.cells_report(12).answers["b"] == client.morning_report(12)
    assert client.cells_forecast(3).answers["b"] == client.forecast(3)
    assert client.cells_capacity().answers["b"] == client.capacity()
    assert client.cells_usage(by=["team", "pool"], limit=2).answers["b"] == client.usage(by=["team", "pool"], limit=2)
    assert client.cells_usage("2026-11-16", "2026-11-18").answers["b"] == client.usage("2026-11-16", "2026-11-18")
    assert client.cells_right_size(limit=1).answers["b"] == client.right_size(limit=1)
    assert client.cells_drift("training", ["driver"]).answers["b"] == client.drift("training", ["driver"])
    assert client.cells_rules().answers["b"] == client.rule_records()
    assert client.cells_fragmentation(3).answers["b"] == client.fragmentation(3)
    assert client.cells_plan("mig").answers["b"] == client.plan("mig")
    assert [(one.name, one.own, one.active) for one in client.cells()] == [("a", True, True), ("b", False, True)]


def test_on_standby_the_active_brain_of_the_cell_answers_for_it(stack: ExitStack, fleet: Fleet, client: Client) -> None:
    active, reason = FakeService(), "this brain is on standby: x is the active one; ask there"
    gone, *rest = active.gpus()
    active.gpus = lambda: rest  # type: ignore[method-assign]
    fleet.listed.known[0] = replace(fleet.listed.known[0], url=stack.enter_context(serving(active)))
    fleet.a.standby, fleet.a.cells._standby = reason, lambda: reason  # type: ignore[attr-defined]
    found = client.cells_gpus()
    assert {name: len(gpus) for name, gpus in found.answers.items()} == {"a": len(rest), "b": len(rest) + 1}
    assert gone.uuid not in {one.uuid for one in found.answers["a"]}
    assert not found.partial
    client.pause_cells("power")
    assert active.summary().paused, "the active brain takes what is meant for the cell"
    assert not fleet.a.summary().paused
    # What stands by as well, this one among them, answers for no cell.
    active.standby = reason
    found = client.cells_summary()
    assert (sorted(found.answers), found.partial) == (["b"], True)
    assert [one.state for one in found.cells] == [AnswerState.UNREACHABLE, AnswerState.ANSWERED]
    assert found.cells[0].detail.startswith(reason)
    last = client.cells_gpus()
    assert len(last.answers["a"]) == len(rest), "the active one's last answer stands in for a while"
    assert last.cells[0].state is AnswerState.STALE


def test_a_list_of_cells_that_comes_meanwhile_takes_no_answer_away() -> None:
    listed = Listed()
    listed.add("b", "http://b.test", ("west-*",))
    asked = CellQueries("a", CellSettings(fleet="gpus", url="http://a.test"), listed, SystemClock())
    look = asked._home_of

    def meanwhile(host: str, cells: Sequence[KnownCell]) -> tuple[str, str] | None:
        asked._homes = {}
        return look(host, cells)

    asked._home_of = meanwhile  # type: ignore[method-assign]
    assert asked.elsewhere("west-1") == ("b", "http://b.test")
    asked.close()


def test_the_question_about_cost_is_one_for_an_hour_and_has_the_same_answer(
    fleet: Fleet, client: Client, strange: QuickHttpServer
) -> None:
    asked_for: list[str] = []

    def answer(request: Request) -> Response:
        asked_for.append(str(request.query_string.decode()))
        there = httpx2.get(f"{fleet.url_b}/v1/cost?{asked_for[-1]}")
        return Response(there.content, there.status_code, content_type="application/json")

    strange.expect_request("/v1/cost").respond_with_handler(answer)
    fleet.listed.add("c", strange.url_for(""))
    hours = T0 // HOUR * HOUR
    end_ms = hours - HOUR + 1
    for later in (0, 1_000):
        found = client.cells_cost(end_ms - 5 * HOUR + later, end_ms + later)
        assert found.answers["b"] == found.answers["c"] == client.cost(hours - 6 * HOUR, hours)
    assert len(set(asked_for)) == 1, "the last answer could not stand in"


def test_the_cells_say_where_a_gpu_and_a_host_are(fleet: Fleet, client: Client) -> None:
    gone, *rest = fleet.a.gpus()
    fleet.a.gpus = lambda: rest  # type: ignore[method-assign]
    found = client.cells_where(gone.uuid, gone.host)
    assert found.answers["a"].state is None
    assert found.answers["b"].state is gone.state
    assert found.answers["b"].host
    assert home_of(found.answers) == "b"
    assert found.answers["b"] == client.at("b").where(gone.uuid, gone.host)
    assert found.answers["b"].worst == worst_of(fleet.b.fleet_map())
    assert not client.cells_where().answers["a"].host


def test_a_tenant_reads_its_own_of_every_cell_and_nothing_of_the_cells(stack: ExitStack) -> None:
    tokens = [{"name": "ann", "role": "viewer", "secret": "a" * 20, "namespaces": ["alpha"]}]
    fleet = Fleet(stack, ApiSettings.model_validate({"tokens": tokens}))
    seen = list[str]()
    for service in (fleet.a, fleet.b):
        service.for_tenant = partial(_of_tenant, service, seen)  # type: ignore[method-assign]
        service.names_of_others = lambda _namespaces, _words: Names()  # type: ignore[attr-defined]
    with Client(fleet.url_a, "a" * 20) as client:
        found = client.cells_usage()
        assert sorted(found.answers) == ["a", "b"]
        assert {one.gpus for one in found.cells} == {None}
        assert seen == ["ann", "ann"], "a cell answered the fleet"
        for read in (client.cells_summary, client.cells_gpus, client.cells_predictions, client.cells_cards):
            seen.clear()
            assert sorted(read().answers) == ["a", "b"]
            assert seen == ["ann", "ann"]
        of_the_cells = (
            client.cells_incidents, client.cells_decisions, client.cells_cost, client.cells_drift, client.cells_where,
            client.cells_fragmentation, partial(client.cells_plan, "mig"), client.cells_journal,
        )  # fmt: skip
        for refused in of_the_cells:
            with pytest.raises(Denied):
                refused()


def _of_tenant(service: FakeService, seen: list[str], name: str, _namespaces: frozenset[str]) -> object:
    """As much of a tenant's service as is asked for."""
    seen.append(name)
    asked = {one: getattr(service, one) for one in ("now_ms", "usage", "summary", "gpus", "predictions", "cards")}
    return SimpleNamespace(cells=TenantCells(service.cells, name), **asked)


def test_each_cell_is_asked_for_the_journal_below_its_own_number(fleet: Fleet, client: Client) -> None:
    for service, count in ((fleet.a, 3), (fleet.b, 7)):
        for n in range(count):
            service._record("login", f"user-{n}", {})
    newest = client.cells_journal(limit=2)
    assert {name: [one.seq for one in page.entries] for name, page in newest.answers.items()} == {
        "a": [4, 3], "b": [8, 7]
    }  # fmt: skip
    older = client.cells_journal(before={"a": 2, "b": 7}, limit=2)
    assert {name: [one.seq for one in page.entries] for name, page in older.answers.items()} == {"a": [1], "b": [6, 5]}
    assert older.answers["b"] == client.at("b").journal_page(before=7, limit=2)
    assert client.cells_journal(JournalQuery(kinds=("login",), actor="user-6")).answers["a"].entries == []
    (one,) = client.cells_journal(JournalQuery(kinds=("login",), actor="user-6")).answers["b"].entries
    assert one.seq == 8
    with pytest.raises(BadRequest, match="west:1200"):
        client._get(WholeJournal, "/v1/cells/journal/page", {"before": ["b"]})
    refused = httpx2.get(f"{fleet.url_a}/v1/cells/journal/page", params={"limit": 201})
    assert refused.status_code == 422, "an answer of many cells is bounded"


def test_a_last_page_of_a_journal_stands_in_for_that_page_alone(fleet: Fleet, client: Client) -> None:
    for n in range(5):
        fleet.b._record("login", f"user-{n}", {})
    first = client.cells_journal(before={"b": 6}, limit=2).answers["b"]

    def away(*_asked: object) -> JournalPage:
        raise Unavailable("the disk is slow")

    fleet.b.journal_page = away  # type: ignore[method-assign]
    found = client.cells_journal(before={"b": 6}, limit=2)
    assert (found.partial, found.answers["b"]) == (True, first)
    assert "b" not in client.cells_journal(before={"b": 4}, limit=2).answers


@pytest.mark.parametrize("error", [ArchiveMissing("2026-01.tar"), Unavailable("busy")])
def test_the_asked_cell_s_own_journal_may_be_what_is_missing(fleet: Fleet, client: Client, error: TocsinError) -> None:
    def away(*_asked: object) -> JournalPage:
        raise error

    fleet.a.journal_page = away  # type: ignore[method-assign]
    found = client.cells_journal()
    assert list(found.answers) == ["b"]
    assert [(one.cell, one.detail) for one in whole.missing(found)] == [("a", str(error))]


def test_questions_of_tenants_hold_up_nobody_else_s(fleet: Fleet, client: Client) -> None:
    """A cell that hangs on them still answers what others ask, and takes a pause."""
    hang, hanging = threading.Event(), threading.Event()

    def usage(*_asked: object) -> UsageOut:
        hanging.set()
        assert hang.wait(PATIENT)
        raise Unavailable("it is too late")

    fleet.b.usage = usage  # type: ignore[method-assign]
    question = Asked("/v1/usage", cells=["b"], aside=True)
    threads = [
        threading.Thread(target=fleet.a.cells.gather, args=(question, UsageOut, fleet.a.usage)) for _ in range(4)
    ]
    for one in threads:
        one.start()
    try:
        assert hanging.wait(PATIENT)
        assert not client.cells_incidents().partial
        assert not client.pause_cells("work on the cooling").partial
    finally:
        hang.set()
        for one in threads:
            one.join()


def test_who_asks_while_the_first_list_is_on_its_way_waits_for_it() -> None:
    here, go = threading.Event(), threading.Event()

    class Slow(Listed):
        def cells(self) -> list[KnownCell]:
            here.set()
            assert go.wait(PATIENT)
            return super().cells()

    listed = Slow()
    listed.known = [KnownCell(name, f"http://{name}", 0, 0.0, True) for name in "ab"]
    asked = CellQueries("a", CellSettings(fleet="gpus", url="http://a", answer_seconds=PATIENT), listed, SystemClock())
    found: list[list[str]] = []

    def look() -> None:
        found.append([one.name for one in asked.known()])

    threads = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    threads[0].start()
    assert here.wait(PATIENT)
    for one in threads[1:]:
        one.start()
    go.set()
    for one in threads:
        one.join()
    asked.close()
    assert found == [["a", "b"]] * 3


def test_a_cell_may_be_chosen_and_an_unknown_one_is_refused(client: Client) -> None:
    assert list(client.cells_summary(["b"]).answers) == ["b"]
    with pytest.raises(Exception, match="name one of a, b"):
        client.cells_summary(["nowhere"])


def test_any_brain_passes_a_request_on_to_the_cell_that_it_names(
    fleet: Fleet, client: Client, stack: ExitStack
) -> None:
    there, direct = (
        stack.enter_context(Client(fleet.url_a, cell="b")), stack.enter_context(Client(fleet.url_b))
    )  # fmt: skip
    assert there.cards(3) == direct.cards(3)
    card = there.cards(3).items[0]
    there.acknowledge(card.id, 600)
    assert {one.id: one.acknowledged_by for one in direct.cards(9).items}[card.id]
    assert not {one.id: one.acknowledged_by for one in client.cards(9).items}[card.id]
    there.end_acknowledgement(card.id)
    assert not {one.id: one.acknowledged_by for one in direct.cards(9).items}[card.id]
    found, tag = there.fleet_map()
    assert found is not None
    assert there.fleet_map(tag) == (None, tag)
    with pytest.raises(NotFound, match="GPU-no ne"):
        there.gpu("GPU-no ne")
    own = stack.enter_context(Client(fleet.url_a, cell="a"))
    assert own.pause("by name").paused
    assert client.summary().paused
    assert not direct.summary().paused
    fleet.listed.add("c", "http://127.0.0.1:9")
    fleet.a.cells._tried = float("-inf")  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match=r"cell c at http://127\.0\.0\.1:9 does not answer"):
        stack.enter_context(Client(fleet.url_a, cell="c")).summary()
    with pytest.raises(Exception, match="name one of a, b, c"):
        stack.enter_context(Client(fleet.url_a, cell="d")).summary()


@pytest.mark.parametrize("path", ["v1/cells", "v1/cells/at/b/v1/gpus", "v1/login", "metrics", "v1/orders"])
def test_what_has_a_proof_of_its_own_is_not_passed_on(fleet: Fleet, path: str) -> None:
    assert httpx2.get(f"{fleet.url_a}/v1/cells/at/b/{path}").status_code == 404


def test_a_cell_that_is_gone_is_said_to_be_missing(fleet: Fleet, client: Client) -> None:
    fleet.listed.add("c", "http://127.0.0.1:9")
    found = client.cells_summary()
    assert found.partial
    (gone,) = whole.missing(found)
    assert (gone.cell, gone.state, gone.gpus) == ("c", AnswerState.UNREACHABLE, 8)
    assert whole.said(found)[0] == "3 cells: a, b, c; PARTIAL, 1 did not answer"
    assert sorted(found.answers) == ["a", "b"]


def test_one_that_hangs_costs_the_deadline_and_its_last_answer_is_shown(
    fleet: Fleet, client: Client, strange: QuickHttpServer
) -> None:
    go, hang = threading.Event(), threading.Event()

    def answer(_request: Request) -> Response:
        if hang.is_set():
            go.wait(10)
        return Response(httpx2.get(f"{fleet.url_b}/v1/fleet").content, content_type="application/json")

    strange.expect_request("/v1/fleet").respond_with_handler(answer)
    fleet.listed.add("c", strange.url_for(""))
    assert not client.cells_summary().partial
    hang.set()
    cells = fleet.a.cells
    cells._settings = cells._settings.model_copy(update={"answer_seconds": DEADLINE})  # type: ignore[attr-defined]
    clock = SystemClock()
    begun = clock.monotonic()
    found = client.cells_summary()
    took = clock.monotonic() - begun
    go.set()
    assert took < PATIENT / 2
    stale = next(one for one in found.cells if one.cell == "c")
    assert stale.state is AnswerState.STALE
    assert stale.age_s is not None
    assert "no answer within 0.5 s" in stale.detail
    assert "c" in found.answers


def test_the_last_answer_of_one_person_is_shown_to_no_other(stack: ExitStack, strange: QuickHttpServer) -> None:
    tokens = [{"name": name, "role": "viewer", "secret": name * 20} for name in ("x", "y")]
    fleet = Fleet(stack, ApiSettings.model_validate({"tokens": tokens}))
    seen: list[str] = []

    def answer(request: Request) -> Response:
        seen.append(request.headers["Authorization"])
        return Response(
            httpx2.get(f"{fleet.url_b}/v1/fleet", headers={"Authorization": seen[0]}).content
            if len(seen) == 1 else b"{}", content_type="application/json"
        )  # fmt: skip

    strange.expect_request("/v1/fleet").respond_with_handler(answer)
    fleet.listed.add("c", strange.url_for(""))
    with Client(fleet.url_a, "x" * 20) as one, Client(fleet.url_a, "y" * 20) as other:
        assert one.cells_summary().answers.keys() == {"a", "b", "c"}
        assert one.cells_summary().answers.keys() == {"a", "b", "c"}, "an answer that cannot be read is none"
        assert other.cells_summary().answers.keys() == {"a", "b"}
    assert seen == ["Bearer " + "x" * 20, "Bearer " + "x" * 20, "Bearer " + "y" * 20], "each with their own token"


def test_a_cell_that_knows_no_such_token_refuses(stack: ExitStack) -> None:
    token = {"name": "ann", "role": "viewer", "secret": "a" * 20}
    fleet = Fleet(stack, ApiSettings.model_validate({"tokens": [token]}))
    other = ApiSettings.model_validate({"tokens": [token | {"secret": "b" * 20}]})
    fleet.listed.add("c", stack.enter_context(serving(FakeService(), other)))
    with Client(fleet.url_a, "a" * 20) as client:
        refused = next(one for one in client.cells_gpus().cells if one.cell == "c")
        assert (refused.state, refused.detail) == (AnswerState.REFUSED, "the token is none of api.tokens")
        assert httpx2.get(f"{fleet.url_a}/v1/cells/fleet").status_code == 401


def test_an_answer_without_end_is_cut_off(
    fleet: Fleet, client: Client, strange: QuickHttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_queries, "MOST_BYTES", 100_000)
    strange.expect_request("/v1/fleet").respond_with_data("x" * 200_000)
    fleet.listed.add("c", strange.url_for(""))
    cut = next(one for one in client.cells_summary().cells if one.cell == "c")
    assert cut.state is AnswerState.UNREACHABLE
    assert "larger than" in cut.detail


def test_kept_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_queries, "MOST_BYTES", 10)
    kept = cell_queries._Answers()
    kept.keep(("a",), cell_queries._Kept(b"12345678", 0.0))
    kept.keep(("b",), cell_queries._Kept(b"1234", 0.0))
    assert kept.find(("a",), 1.0) is None
    assert kept.find(("b",), 1.0) is not None
    assert kept.find(("b",), 1.0 + cell_queries.KEPT_SECONDS) is None


def test_a_list_that_cannot_be_read_makes_no_cell_unknown(
    fleet: Fleet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(client.cells()) == 2
    monkeypatch.setattr(cell_queries, "LISTED_SECONDS", -1.0)
    fleet.listed.away = True
    assert len(client.cells()) == 2


def test_a_pause_is_for_all_cells_and_says_which_it_did_not_reach(fleet: Fleet, client: Client) -> None:
    done = asked(fleet, "pause", "power works")
    assert done.return_value == 0
    assert "ok: paused in cell a, b" in done.output
    assert fleet.a.summary().paused
    assert fleet.b.summary().paused
    fleet.listed.add("c", "http://127.0.0.1:9")
    fleet.a.cells._tried = float("-inf")  # type: ignore[attr-defined]
    resumed = asked(fleet, "resume")
    assert resumed.return_value == 1
    assert "ok: resumed in cell a, b" in resumed.output
    assert "NOT KNOWN to be resumed in cell c (unreachable)" in resumed.output
    assert not fleet.b.summary().paused
    assert asked(fleet, "pause", "only there", "--cell", "b").return_value == 0
    assert not fleet.a.summary().paused
    assert fleet.b.summary().paused


def test_a_yes_goes_to_the_cell_that_has_the_decision(fleet: Fleet, client: Client) -> None:
    mine = next(one for one in fleet.b.decisions(100) if one.approvable)
    taken = fleet.a.decision

    def without(decision_id: str) -> object:
        if decision_id == mine.id:
            raise NotFound(f"no decision {decision_id}")
        return taken(decision_id)

    def refuse(decision_id: str, *_more: object, **_others: object) -> object:
        raise NotFound(f"no decision {decision_id}")

    fleet.a.decision = without  # type: ignore[assignment]
    fleet.a.approve = refuse  # type: ignore[assignment,method-assign]
    fleet.a.reject = refuse  # type: ignore[assignment,method-assign]
    assert client.approve(mine.id).id == mine.id
    assert fleet.b.decision(mine.id).state == "approved"
    with pytest.raises(Conflict):
        client.approve(mine.id)
    with pytest.raises(NotFound):
        client.reject("unknown")
    fleet.listed.add("c", "http://127.0.0.1:9")
    fleet.a.cells._tried = float("-inf")  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="cell c could not be asked for it"):
        client.approve("unknown")


def test_a_cell_that_stands_alone_has_itself() -> None:
    service = FakeService()
    with serving(service) as url, Client(url) as client:
        assert [(one.name, one.own) for one in client.cells()] == [("fleet", True)]
        assert list(client.cells_summary().answers) == ["fleet"]


def test_status_top_report_and_scoreboard_are_of_all_cells(fleet: Fleet, client: Client) -> None:
    fleet.listed.add("c", "http://127.0.0.1:9")
    status = asked(fleet, "status").output
    assert "3 cells: a, b, c; PARTIAL, 1 did not answer" in status
    both = len(fleet.a.gpus()) + len(fleet.b.gpus())
    assert f"{both} GPUs on" in status
    assert f"  b: {len(fleet.b.gpus())} GPUs" in status
    assert asked(fleet, "status", "--check").return_value == 1
    top = asked(fleet, "top", "--once").output
    assert "for 3 cells, PARTIAL" in top
    assert "note: cell c is unreachable" in top
    for words in (["report"], ["scoreboard"]):
        said = asked(fleet, *words).output
        assert "PARTIAL" in said
        assert "\nb:\n" in said


def test_the_report_of_the_pager_is_of_the_cells_that_are_named(fleet: Fleet) -> None:
    told = fleet.b.pager_report().model_copy(update={"gpus": 77})
    fleet.b.pager_report = lambda: told  # type: ignore[method-assign]
    own = asked(fleet, "scoreboard", "--report").output
    assert "of 256 GPUs" in own
    assert "b:" not in own
    other = asked(fleet, "scoreboard", "--report", "--cell", "b").output
    assert "\nb:\n  14.0 days of 77 GPUs" in other
    assert "256 GPUs" not in other
    both = asked(fleet, "scoreboard", "--report", "--cell", "b", "--cell", "a", "--json")
    answers = json.loads(both.output)["answers"]
    assert {name: one["gpus"] for name, one in answers.items()} == {"a": 256, "b": 77}
    unknown = asked(fleet, "scoreboard", "--report", "--cell", "nowhere").exception
    assert isinstance(unknown, BadRequest)
    assert "nowhere" in str(unknown)
    assert "name one of a, b" in str(unknown)


def test_usage_and_versions_are_of_all_cells(fleet: Fleet, client: Client) -> None:
    alone = client.usage("2026-11-16", "2026-11-18", ["namespace"])
    used = asked(fleet, "usage", "--from", "2026-11-16", "--to", "2026-11-18")
    assert "2 cells: a, b" in used.output
    assert f"{2 * alone.total.gpu_hours:,.1f}" in used.output
    sheet = asked(fleet, "usage", "--csv", "--from", "2026-11-16", "--to", "2026-11-18").output
    rows = list(csv.DictReader(io.StringIO(sheet)))
    assert sum(float(row["gpu_hours"]) for row in rows) == pytest.approx(2 * alone.total.gpu_hours, abs=1e-4)
    assert "a/research/notebook on" in asked(fleet, "usage", "--right-size").output
    drift = asked(fleet, "drift", "--pool", "training").output
    assert "pool training, NVIDIA H100 80GB HBM3: 32 hosts" in drift
    one = asked(fleet, "drift", "--pool", "training", "--cell", "b").output
    assert "1 cells: b" in one
    assert ": 16 hosts" in one
    checked = ("drift", "--pool", "lab", "--component", "kernel", "--check")
    assert not asked(fleet, *checked).return_value
    fleet.listed.add("c", "http://127.0.0.1:9")
    fleet.a.cells._tried = float("-inf")  # type: ignore[attr-defined]
    assert asked(fleet, *checked).return_value == 1
    for words in (["usage"], ["usage", "--right-size"], ["drift"]):
        assert "PARTIAL, 1 did not answer" in asked(fleet, *words).output


def test_summaries_add_up() -> None:
    one = FakeService().summary()
    other = one.model_copy(update={"paused": True, "paused_by": "ann", "paused_reason": "works", "gpus": one.gpus * 3,
                                   "utilization_ratio": 0.0})  # fmt: skip
    made = whole.whole_summary({"a": one, "b": other})
    assert made.gpus == one.gpus * 4
    assert made.paused_reason == "in cell b: works"
    assert one.utilization_ratio is not None
    assert made.utilization_ratio == pytest.approx(one.utilization_ratio / 4)
    assert made.findings == {severity: 2 * count for severity, count in one.findings.items()}


def test_a_gpu_that_two_cells_know_is_one() -> None:
    gpus = FakeService().gpus()
    older = [one.model_copy(update={"last_reading": "2020-01-01T00:00:00.000Z", "host": "old"}) for one in gpus]
    found = whole.every_gpu({"a": older, "b": gpus})
    assert [one.uuid for one in found] == [one.uuid for one in gpus]
    assert all(one.host != "old" for one in found if one.last_reading is not None)


def written(fleet: Fleet, *hosts: str) -> httpx2.Response:
    lines = [f"gpu,gpu_uuid=GPU-{host},host={host} temperature_celsius=40 1" for host in hosts]
    return httpx2.post(f"{fleet.url_a}/api/v2/write", content="\n".join(lines))


def test_who_pushes_to_the_wrong_cell_is_told_the_right_one(fleet: Fleet) -> None:
    assert written(fleet, "west-1").status_code == 204, "nobody has said whose it is"
    fleet.listed.known = []
    fleet.listed.add("a", fleet.url_a)
    fleet.listed.add("b", fleet.url_b, ("west-*",))
    fleet.a.cells._tried = float("-inf")  # type: ignore[attr-defined]
    answer = written(fleet, "west-1")
    assert answer.status_code == 421
    error = answer.json()["error"]
    assert error["code"] == "other_cell"
    assert error["details"] == {"host": "west-1", "cell": "b", "url": fleet.url_b}
    mixed = written(fleet, "east-1", "west-1")
    assert mixed.status_code == 400
    assert mixed.json()["error"]["details"]["kept"] == 1
    (refused,) = mixed.json()["error"]["details"]["rejected"]
    assert refused["number"] == 2
    assert f"belongs to cell b: push it to {fleet.url_b}" in refused["problem"]
    orders = httpx2.get(f"{fleet.url_a}/v1/orders", params={"host": "west-1"})
    assert orders.status_code == 421
    assert httpx2.get(f"{fleet.url_a}/v1/orders", params={"host": "east-1"}).status_code == 200


def test_what_a_cell_names_is_its_own_whatever_others_name() -> None:
    listed = Listed()
    listed.add("b", "http://b.test", ("west-*", "gpu-1"))
    mine = CellQueries("a", CellSettings(fleet="gpus", url="http://a.test", hosts=["gpu-*"]), listed, SystemClock())
    assert mine.elsewhere("gpu-1") is None
    assert mine.elsewhere("west-7") == ("b", "http://b.test")
    assert mine.elsewhere("north-7") is None
    mine.close()


def hashed(name: str, listed: Listed, **more: object) -> CellQueries:
    settings = CellSettings.model_validate({"fleet": "gpus", "url": f"http://{name}.test", "hash": True} | more)
    return CellQueries(name, settings, listed, SystemClock())


def test_hosts_are_spread_over_the_cells_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_queries, "LISTED_SECONDS", -1.0)
    hosts, listed, ages = [f"node-{n}" for n in range(300)], Listed(), {"a": 1.0, "b": 1.0, "c": 1.0}

    def tell() -> None:
        listed.known = [KnownCell(name, f"http://{name}.test", 8, age, True, (), 600.0) for name, age in ages.items()]
        # One that takes no share, but has a host by name.
        listed.known.append(KnownCell("d", "http://d.test", 8, 1.0, True, ("node-7",)))

    def homes(cells: CellQueries, own: str) -> dict[str, str]:
        return {host: (cells.elsewhere(host) or (own, ""))[0] for host in hosts}

    tell()
    every = [hashed(name, listed) for name in ages]
    before = homes(every[0], "a")
    assert before == homes(every[1], "b") == homes(every[2], "c"), "whoever is asked says the same"
    assert set(before.values()) == {"a", "b", "c", "d"}
    assert [host for host, cell in before.items() if cell == "d"] == ["node-7"]
    assert [host for host in hosts if every[1].has(host)] == [host for host in hosts if before[host] == "b"]
    # Away for less than the longest that any cell has set: nothing moves.
    ages["c"] = 599.0
    tell()
    assert homes(every[0], "a") == before
    ages["c"] = 601.0
    tell()
    after = homes(every[0], "a")
    assert after == homes(every[1], "b")
    assert "c" not in after.values()
    assert all(after[host] == cell for host, cell in before.items() if cell != "c"), "no other host moves"
    ages["c"] = 1.0
    tell()
    assert homes(every[0], "a") == before
    for cells in every:
        cells.close()


def test_an_agent_that_is_not_at_home_is_taken_by_the_cell_that_has_its_host_alone(fleet: Fleet) -> None:
    def sent(host: str) -> httpx2.Response:
        line = f"gpu,gpu_uuid=GPU-{host},host={host} temperature_celsius=40 1"
        return httpx2.post(f"{fleet.url_a}/api/v2/write", content=line, headers={ASSIGNED_ONLY: "1"})

    def orders(host: str) -> int:
        url = f"{fleet.url_a}/v1/orders"
        return httpx2.get(url, params={"host": host}, headers={ASSIGNED_ONLY: "1"}).status_code

    answer = sent("node-1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "not_assigned")
    assert orders("node-1") == 421
    assert written(fleet, "node-1").status_code == 204, "who is at home is taken"
    cells = fleet.a.cells
    cells._settings = cells._settings.model_copy(update={"hosts": ["node-*"]})  # type: ignore[attr-defined]
    assert (sent("node-1").status_code, orders("node-1")) == (204, 200)
    assert sent("other-1").status_code == 421


def test_an_agent_whose_own_cell_is_gone_asks_the_others(tmp_path: Path) -> None:
    asked_at: list[tuple[str, bool]] = []
    gone = {"a.test"}

    def answer(request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        asked_at.append((host, ASSIGNED_ONLY in request.headers))
        if host in gone:
            raise httpx2.ConnectError("gone")
        if host == "c.test":
            return httpx2.Response(204) if request.method == "POST" else httpx2.Response(200, content=b"[]")
        error = {"code": "other_cell", "message": "it is of c", "details": {"url": "http://c.test"}}
        return httpx2.Response(421, json={"error": error})

    clock, urls = ManualClock(T0), ("http://b.test", "http://c.test")
    spool = Spool(tmp_path / "spool.db", 1 << 30, clock)
    target = PushTarget("http://a.test", "o", "b", "token", cell_urls=urls)
    uplink = Uplink(spool, target, clock, OwnMetrics(), transport=httpx2.MockTransport(answer))
    spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
    for _ in range(8):
        clock.advance(61_000)
        uplink.push()
    assert asked_at == [("a.test", False)] * 5 + [("b.test", True), ("c.test", True)]
    assert spool.batches == 0
    asked_at.clear()
    link = OrderLink("http://a.test", "n", cell_urls=urls, transport=httpx2.MockTransport(answer))
    for _ in range(5):
        with pytest.raises(Unavailable):
            link.orders()
    assert link.orders() == []
    assert asked_at == [("a.test", False)] * 5 + [("b.test", True), ("c.test", True)]
    # Nobody there either: it comes back, and goes round.
    gone |= {"b.test", "c.test"}
    asked_at.clear()
    spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
    for _ in range(12):
        clock.advance(61_000)
        uplink.push()
    assert {host for host, _ in asked_at} == {"a.test", "b.test", "c.test"}
    assert spool.batches == 1


class Cells:
    """Two brains behind one transport: `a` sends everything on."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, list[str]()
        self.away = False

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.host)
        if request.url.host != "a.test":
            if self.away:
                raise httpx2.ConnectError("gone")
            return httpx2.Response(204) if request.method == "POST" else httpx2.Response(200, content=b"[]")
        error = {"code": "other_cell", "message": "host n is of cell b", "details": {"url": self.url}}
        return httpx2.Response(421, json={"error": error})


def pushing(folder: Path, brains: Cells, *allowed: str) -> tuple[Uplink, Spool, ManualClock]:
    clock = ManualClock(T0)
    spool = Spool(folder / "spool.db", 1 << 30, clock)
    target = PushTarget("http://a.test", "o", "b", "token", cell_urls=allowed)
    return Uplink(spool, target, clock, OwnMetrics(), transport=httpx2.MockTransport(brains)), spool, clock


def test_an_agent_goes_on_to_the_cell_that_it_is_sent_to(tmp_path: Path) -> None:
    brains = Cells("http://b.test/")
    uplink, spool, clock = pushing(tmp_path, brains, "http://b.test")
    for _ in range(3):
        spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
        clock.advance(10_000)
        uplink.push()
    assert brains.asked == ["a.test", "b.test", "b.test"]
    assert spool.batches == 0
    assert spool.parked_lines() == 0
    brains.away = True
    spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
    for _ in range(12):
        clock.advance(100_000)
        uplink.push()
    assert "a.test" in brains.asked[3:], "its own address is asked again where the other does not answer"
    assert spool.batches == 1
    uplink.close()
    spool.close()


def test_an_agent_follows_nobody_to_a_strange_address(tmp_path: Path) -> None:
    brains = Cells("http://evil.test")
    uplink, spool, clock = pushing(tmp_path, brains, "http://b.test")
    spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
    for _ in range(3):
        clock.advance(100_000)
        uplink.push()
    assert set(brains.asked) == {"a.test"}
    assert spool.batches == 1
    uplink.close()
    spool.close()
    link = OrderLink("http://a.test", "n", transport=httpx2.MockTransport(brains), cell_urls=("http://b.test",))
    with pytest.raises(Unavailable, match="421"):
        link.orders()
    link.close()


def test_two_brains_that_name_each_other_do_not_turn_an_agent_round_for_ever(tmp_path: Path) -> None:
    asked: list[str] = []

    def brains(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.host)
        other = "http://b.test" if request.url.host == "a.test" else "http://a.test"
        return httpx2.Response(421, json={"error": {"code": "other_cell", "message": "", "details": {"url": other}}})

    clock = ManualClock(T0)
    spool = Spool(tmp_path / "spool.db", 1 << 30, clock)
    target = PushTarget("http://a.test", "o", "b", cell_urls=("http://a.test", "http://b.test"))
    uplink = Uplink(spool, target, clock, OwnMetrics(), transport=httpx2.MockTransport(brains))
    spool.put("gpu,gpu_uuid=g,host=n temperature_celsius=1 1\n", 1)
    for _ in range(20):
        uplink.push()
    assert len(asked) == MOST_MOVES + 1
    assert spool.batches == 1
    uplink.close()
    spool.close()


def test_orders_are_asked_for_where_the_host_belongs() -> None:
    brains = Cells("http://b.test")
    link = OrderLink("http://a.test", "n", transport=httpx2.MockTransport(brains), cell_urls=("http://b.test",))
    assert link.orders() == []
    assert link.orders() == []
    assert brains.asked == ["a.test", "b.test", "b.test"]
    brains.away = True
    with pytest.raises(Unavailable, match=r"no brain answers at http://b\.test"):
        link.orders()
    with pytest.raises(Unavailable):
        link.orders()
    assert brains.asked[-2:] == ["a.test", "b.test"]
    link.close()
