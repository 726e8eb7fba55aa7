"""The journal above the charts: each entry that is worth it once, in order, whatever Grafana does meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.config.grafana import GrafanaSettings
from tocsin.config.load import load_settings
from tocsin.domain.annotation import Annotation
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.journal.journal import Journal
from tocsin.runtime.brain.annotations import (
    ANNOTATED,
    Annotations,
    AnnotationTarget,
    GrafanaTarget,
    StoreTarget,
    grafana_json,
)
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

TOKEN = "glsa_0123456789abcdef"
GPU = Subject(SubjectKind.GPU, "GPU-1", "node-1", "train")
DECISION = Decision(
    "xid_bus", GPU, ActionKind.CORDON, Mode.ACT, Severity.CRITICAL, Category.HARDWARE, T0, T0 + MINUTE, "k",
    "It fell off.",
)  # fmt: skip


class GrafanaDouble:
    """Grafana's annotations API as its documentation has it: no key, so that a second post is a second one."""

    def __init__(self, server: HTTPServer) -> None:
        self.kept: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.status = 200
        self.loses_answers = 0
        server.expect_request("/base/api/annotations").respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        self.tokens.add(request.headers["Authorization"])
        if self.status != 200:
            return Response('{"message": "no"}', self.status)
        if request.method == "GET":
            wanted = set(request.args.getlist("tags"))
            low, high = int(request.args["from"]), int(request.args["to"])
            found = [one for one in self.kept if wanted <= set(one["tags"]) and low <= one["time"] <= high]
            return Response(json.dumps(found[: int(request.args["limit"])]), 200)
        self.kept.append(request.get_json())
        if self.loses_answers:
            self.loses_answers -= 1
            return Response("gateway", 502)
        return Response(json.dumps({"message": "Annotation added", "id": len(self.kept)}), 200)


class World:
    """A journal, a place and a clock; `tick` looks, after the rest that a failure asks for."""

    def __init__(self, folder: Path, place: AnnotationTarget) -> None:
        self.clock = ManualClock(T0)
        self.journal = Journal.open(folder / "journal.db", self.clock)
        self.place = place
        self.metrics = OwnMetrics()
        self.restart()

    def restart(self) -> None:
        def decision_of(name: str) -> Decision | None:
            return DECISION if name == DECISION.id else None

        def subject_of(_name: str) -> Subject:
            return GPU

        self.annotations = Annotations(self.journal, [self.place], self.clock, self.metrics, decision_of, subject_of)

    def tick(self) -> None:
        self.clock.advance(MINUTE)
        self.annotations.tick()

    def count(self, outcome: str) -> float:
        return self.metrics.value("tocsin_annotations_total", place=self.place.name, outcome=outcome)


@pytest.fixture
def grafana(httpserver: HTTPServer) -> GrafanaDouble:
    return GrafanaDouble(httpserver)


@pytest.fixture
def world(tmp_path: Path, httpserver: HTTPServer, grafana: GrafanaDouble) -> Iterator[World]:
    place = GrafanaTarget(GrafanaSettings(url=httpserver.url_for("/base/"), token=SecretStr(TOKEN)))
    made = World(tmp_path, place)
    yield made
    made.annotations.close()
    made.journal.close()


def executed(journal: Journal) -> None:
    about = {"decision": DECISION.id, "key": DECISION.key}
    journal.append(EntryKind.EXECUTION_STARTED, {**about, "action": "cordon", "executor": "kubernetes"})
    journal.append(EntryKind.OUTCOME, {**about, "outcome": {"status": "succeeded", "executor": "kubernetes"}})


def test_an_executed_action_is_marked_at_its_start_and_at_its_end(world: World, grafana: GrafanaDouble) -> None:
    executed(world.journal)
    world.tick()
    begun, ended = grafana.kept
    assert begun["text"] == "Begun: cordon. It fell off."
    assert ended["text"] == "Succeeded: cordon by kubernetes. It fell off."
    assert {"tocsin", "outcome", "host:node-1", "gpu:GPU-1", "pool:train", "action:cordon"} <= set(ended["tags"])
    assert begun["time"] == T0
    assert grafana.tokens == {f"Bearer {TOKEN}"}
    assert world.count("written") == 2


def test_a_pause_is_a_mark_and_then_a_span(world: World, grafana: GrafanaDouble) -> None:
    world.journal.append(EntryKind.PAUSE, {"reason": "power works"}, actor="ann")
    world.tick()
    world.journal.append(EntryKind.RESUME, {}, actor="bob")
    world.tick()
    first, whole = grafana.kept
    assert first["text"] == "Actions paused by ann: power works."
    assert "timeEnd" not in first
    assert whole["text"] == "Actions paused by ann: power works. Ended by bob."
    assert (whole["time"], whole["timeEnd"]) == (T0, T0 + MINUTE)


def test_an_incident_names_its_place_also_when_it_ends(world: World, grafana: GrafanaDouble) -> None:
    world.journal.append(EntryKind.INCIDENT_OPENED, {"id": "i1", "sentence": "node-1 GPU 3 fell off the bus."})
    world.tick()
    world.restart()
    world.journal.append(EntryKind.INCIDENT_CLOSED, {"id": "i1"})
    world.tick()
    opened, closed = grafana.kept
    assert "host:node-1" in opened["tags"]
    assert "host:node-1" in closed["tags"]
    assert closed["text"].startswith("node-1 GPU 3 fell off the bus.")
    assert closed["timeEnd"] > closed["time"]


def test_other_entries_are_no_marks(world: World, grafana: GrafanaDouble) -> None:
    for kind in set(EntryKind) - ANNOTATED:
        world.journal.append(kind, {"id": "x"})
    world.journal.append(EntryKind.RESUME, {}, actor="bob")
    world.tick()
    assert grafana.kept == [], "and an end without a beginning is none either"


def test_a_restart_shows_nothing_twice_and_loses_nothing(world: World, grafana: GrafanaDouble) -> None:
    executed(world.journal)
    world.tick()
    world.journal.append(EntryKind.BREAKER_TRIPPED, {"reason": "3 root causes"})
    world.restart()
    world.tick()
    world.restart()
    world.tick()
    assert [one["text"].split(":")[0] for one in grafana.kept] == ["Begun", "Succeeded", "Breaker tripped by tocsin"]


def test_what_was_posted_before_a_kill_is_found_again(world: World, grafana: GrafanaDouble, tmp_path: Path) -> None:
    executed(world.journal)
    path = tmp_path / "journal.db.annotations"
    world.journal.append(EntryKind.PAUSE, {"reason": "x"})
    world.tick()
    known = json.loads(path.read_text())
    entry = next(iter(world.journal.entries(after=1, limit=1)))
    path.write_text(json.dumps(known | {"grafana": [entry.seq, entry.hash]}))
    world.restart()
    world.tick()
    assert len(grafana.kept) == 3, "killed between the post and the note of it"


def test_an_answer_that_is_lost_is_looked_for(world: World, grafana: GrafanaDouble) -> None:
    world.journal.append(EntryKind.PAUSE, {"reason": "x"})
    grafana.loses_answers = 1
    world.tick()
    assert world.count("retried") == 1
    world.tick()
    assert len(grafana.kept) == 1
    assert world.count("written") == 1


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_while_grafana_refuses_marks_wait(world: World, grafana: GrafanaDouble, status: int) -> None:
    grafana.status = status
    executed(world.journal)
    world.tick()
    world.tick()
    assert world.count("retried") == 2
    grafana.status = 200
    world.tick()
    assert len(grafana.kept) == 2


def test_between_two_tries_there_is_a_rest(world: World, grafana: GrafanaDouble) -> None:
    grafana.status = 500
    executed(world.journal)
    world.tick()
    for _ in range(5):
        world.annotations.tick()
    assert world.count("retried") == 1


def test_what_grafana_refuses_for_good_holds_up_nothing(world: World, grafana: GrafanaDouble) -> None:
    world.journal.append(EntryKind.PAUSE, {"reason": "x"})
    world.tick()
    grafana.status = 400
    world.journal.append(EntryKind.RESUME, {}, actor="bob")
    world.tick()
    assert world.count("given_up") == 1
    grafana.status = 200
    executed(world.journal)
    world.tick()
    assert len(grafana.kept) == 3


def test_a_grafana_that_is_away_is_tried_again(tmp_path: Path) -> None:
    place = GrafanaTarget(GrafanaSettings(url="http://127.0.0.1:9", token=SecretStr(TOKEN)))
    world = World(tmp_path, place)
    world.journal.append(EntryKind.PAUSE, {"reason": "x"})
    world.tick()
    assert world.count("retried") == 1
    sent = place.put(Annotation("k", "pause", T0, "t", "ann"), doubtful=False)
    assert (sent.ok, sent.again, sent.certain) == (False, True, True)
    assert TOKEN not in sent.detail
    place.close()
    world.journal.close()


def test_a_file_that_cannot_be_read_costs_the_past_and_no_more(
    world: World, grafana: GrafanaDouble, tmp_path: Path
) -> None:
    executed(world.journal)
    world.tick()
    (tmp_path / "journal.db.annotations").write_text("{")
    world.restart()
    world.journal.append(EntryKind.PAUSE, {"reason": "x"})
    world.tick()
    assert len(grafana.kept) == 3


def test_a_file_of_another_journal_is_not_believed(world: World, grafana: GrafanaDouble, tmp_path: Path) -> None:
    executed(world.journal)
    (tmp_path / "journal.db.annotations").write_text('{"grafana": [1, "0000"]}')
    world.restart()
    world.tick()
    assert grafana.kept == []


def test_simulated_marks_say_so_or_stay_away(httpserver: HTTPServer, grafana: GrafanaDouble) -> None:
    mark = Annotation("k", "pause", T0, "t", "ann", simulated=True)
    assert "simulated" in grafana_json(mark)["tags"]  # type: ignore[operator]
    settings = GrafanaSettings(url=httpserver.url_for("/base"), token=SecretStr(TOKEN), simulated=False)
    place = GrafanaTarget(settings)
    assert place.put(mark, doubtful=False).ok
    assert grafana.kept == []
    place.close()


@pytest.mark.parametrize(("error", "again"), [(StoreUnavailable("away"), True), (StoreRejected("no"), False)])
def test_a_store_that_fails_is_tried_again_or_given_up(error: Exception, again: bool) -> None:
    class Failing:
        def mark(self, marks: object) -> None:
            raise error

    sent = StoreTarget(Failing()).put(Annotation("k", "pause", T0, "t", "ann"), doubtful=False)
    assert (sent.ok, sent.again) == (False, again)


def test_settings_need_a_token_and_a_sound_url() -> None:
    with pytest.raises(ValidationError, match="token is needed"):
        GrafanaSettings(url="https://grafana.example.com")
    with pytest.raises(ValidationError, match="must start with"):
        GrafanaSettings(url="ftp://grafana.example.com", token=SecretStr(TOKEN))
    assert GrafanaSettings().url == ""


def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    secret, path = tmp_path / "token", tmp_path / "tocsin.toml"
    secret.write_text(TOKEN + "\n")
    secret.chmod(0o600)
    path.write_text(f'[grafana]\nurl = "https://grafana.example.com"\ntoken_file = "{secret}"\n')
    assert load_settings(path).grafana.token.get_secret_value() == TOKEN
