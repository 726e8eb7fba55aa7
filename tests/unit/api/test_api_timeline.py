"""Endpoints of the timeline and of the journal in pages, over the fake service and over a real brain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.client.client import Client
from tocsin.client.errors import BadRequest, Denied
from tocsin.client.models import JournalQuery, TimelineQuery
from tocsin.config.access import AccessScope, ApiSettings, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import ActionKind
from tocsin.journal import page as page_module
from tocsin.journal.export import export
from tocsin.journal.file_past import FilePast
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving

SECRET = "a-secret-0123456789"


def http_for(service: FakeService, role: Role, *scopes: AccessScope) -> TestClient:
    token = Token(name="olga", role=role, secret=SecretStr(SECRET), scopes=list(scopes))
    app = create_app(service, ApiSettings(tokens=[token]))
    return TestClient(app, client=("127.0.0.1", 1), headers={"Authorization": f"Bearer {SECRET}"})


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A small fleet, one of whose GPUs was throttled and verified."""
    folder = tmp_path_factory.mktemp("timeline")
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 32, "fault_rate_scale": 0.0},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"confirmations": 1, "boot_grace_seconds": 0, "settle_seconds": 60},
        }
    )
    made = Demo(demo_settings(wanted, folder), T0)
    made.service.inject("fan_failure", "25", "ann")
    for _ in range(240):
        made.step()
        waiting = made.service.timeline(TimelineQuery(waiting=True, actions=(ActionKind.THROTTLE,)), 0, 10).items
        if waiting:
            made.service.approve(waiting[0].id, "ann")
        if made.service.timeline(TimelineQuery(states=(DecisionState.DONE, DecisionState.FAILED)), 0, 10).items:
            break
    yield made
    made.running.stop()


@pytest.fixture(scope="module")
def client(demo: Demo) -> Iterator[Client]:
    with serving(demo.service) as base, Client(base) as made:  # type: ignore[arg-type]
        yield made


def throttled(client: Client) -> str:
    ended = (DecisionState.DONE, DecisionState.FAILED)
    return client.timeline(TimelineQuery(states=ended, actions=(ActionKind.THROTTLE,))).items[-1].id


def test_the_timeline_has_what_was_done_and_leaves_notifications_out(client: Client) -> None:
    found = client.timeline()
    assert found.total == len(found.items) >= 1
    assert ActionKind.NOTIFY not in {one.action for one in found.items}
    assert ActionKind.NOTIFY in found.actions
    told = client.timeline(TimelineQuery(actions=(ActionKind.NOTIFY,)))
    assert {one.action for one in told.items} == {ActionKind.NOTIFY}
    assert sum(found.states.values()) == found.total


@pytest.mark.parametrize("field", ["rule", "pool", "text"])
def test_each_filter_leaves_what_it_names(client: Client, field: str) -> None:
    first = client.timeline().items[0]
    good = {"rule": first.rule, "pool": first.subject.pool, "text": first.subject.host.upper()}[field]
    assert first.id in {one.id for one in client.timeline(TimelineQuery(**{field: good})).items}  # type: ignore[arg-type]
    assert client.timeline(TimelineQuery(**{field: "nothing of that name"})).total == 0  # type: ignore[arg-type]


def test_a_story_has_every_entry_about_a_decision_in_order(client: Client) -> None:
    story = client.story(throttled(client))
    kinds = [entry.kind for entry in story.entries]
    assert kinds[:2] == ["decision", "verdict"]
    assert [kind for kind in kinds if kind != "verdict"] == [
        "decision", "approval", "execution_started", "verification", "verification", "outcome"
    ]  # fmt: skip
    assert [e.seq for e in story.entries] == sorted(e.seq for e in story.entries)
    assert story.settle_s == 60
    assert story.decision.outcome is not None
    assert story.decision.approved_by == "ann"


def test_the_journal_goes_backwards_from_the_newest(client: Client) -> None:
    seen: list[int] = []
    before: int | None = None
    while True:
        page = client.journal_page(before=before, limit=7)
        seen += [entry.seq for entry in page.entries]
        if page.next_before is None:
            break
        before = page.next_before
    assert seen == list(range(page.head, 0, -1))


def test_a_page_says_down_to_which_instant_it_has_looked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.journal_page(limit=3)
    assert first.next_before == first.entries[-1].seq
    assert first.reached == to_iso(first.entries[-1].at_ms)
    monkeypatch.setattr(page_module, "MOST_LOOKED_AT", 3)
    found = client.journal_page(JournalQuery(text="no such words"), before=first.head + 1)
    assert (found.entries, found.next_before, found.reached) == ([], first.next_before, first.reached)
    assert client.journal_page(before=2).reached is None


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        (JournalQuery(kinds=("approval", "outcome")), {"approval", "outcome"}),
        (JournalQuery(people=True), {"approval", "injection"}),
        (JournalQuery(actor="ann", kinds=("approval",)), {"approval"}),
        (JournalQuery(actor="nobody"), set()),
        (JournalQuery(end_ms=T0 - 10**9), set()),
        (JournalQuery(text="no such words % _"), set()),
    ],
)
def test_the_journal_is_filtered(client: Client, query: JournalQuery, kinds: set[str]) -> None:
    assert {entry.kind for entry in client.journal_page(query, limit=1000).entries} == kinds


def test_entries_that_name_a_decision_by_id_come_with_its_sentence(client: Client) -> None:
    page = client.journal_page(JournalQuery(kinds=("approval",)))
    assert page.told[str(page.entries[0].payload["decision"])].startswith("Throttle ")


def test_the_journal_of_one_host_is_found(client: Client) -> None:
    story = client.story(throttled(client))
    found = client.journal_page(JournalQuery(text=story.decision.subject.name), limit=1000).entries
    assert {"finding_opened", "decision", "execution_started"} <= {entry.kind for entry in found}


def test_the_export_is_what_the_command_writes(client: Client, demo: Demo) -> None:
    path: Path = demo.settings.journal.path
    for form in ("jsonl", "cef"):
        sent = b"".join(client.export_journal(form)).decode()  # type: ignore[arg-type]
        assert sent.splitlines() == list(export(FilePast(path), form))  # type: ignore[arg-type]
        assert sent.endswith("\n")
    some = b"".join(client.export_journal("jsonl", JournalQuery(kinds=("approval",)))).decode()
    assert {json.loads(line)["kind"] for line in some.splitlines()} == {"approval"}


def test_an_unknown_kind_is_named(client: Client) -> None:
    for call in (client.journal_page, lambda q: list(client.export_journal("cef", q))):
        with pytest.raises(BadRequest, match="is no kind of entry"):
            call(JournalQuery(kinds=("aproval",)))
    with pytest.raises(BadRequest, match="is no kind of entry"):
        client.journal(kinds=["aproval"])


def test_undo_over_the_api_gives_back_what_was_taken(client: Client, demo: Demo) -> None:
    ended = (DecisionState.DONE, DecisionState.GOAL_NOT_REACHED)
    done = TimelineQuery(states=ended, actions=(ActionKind.THROTTLE,))
    for _ in range(40):
        # Of what has cooled down already the throttle is given back by itself.
        hot = [one.id for one in client.timeline(done).items if not one.undone_by]
        if hot:
            break
        demo.step()
    identity = hot[0]
    waiting = client.undo(identity, "the job is worth it").by
    assert (waiting.action, waiting.asked_by) == (ActionKind.RESTORE, "loopback")
    assert client.story(identity).decision.undone_by == waiting.id
    with pytest.raises(Conflict, match="is being undone already"):
        client.undo(identity)
    for _ in range(40):
        demo.step()
        if client.story(waiting.id).decision.outcome is not None:
            break
    ended = client.story(waiting.id)
    assert ended.decision.state is DecisionState.DONE, ended.decision
    assert [e.actor for e in ended.entries if e.kind in {"decision", "approval"}] == ["loopback", "loopback"]
    assert client.story(identity).decision.undo_problem == "throttle is in effect no more"


def test_undo_needs_an_operator_and_a_scope_that_covers_the_inverse() -> None:
    service = FakeService()
    done = next(one for one in service.decisions(100) if one.action is ActionKind.THROTTLE)
    path, body = f"/v1/decisions/{done.id}/undo", {"reason": "x"}
    assert http_for(service, Role.VIEWER).post(path, json=body).status_code == 403
    narrow = AccessScope(actions=["throttle"])
    assert http_for(service, Role.OPERATOR, narrow).post(path, json=body).json()["error"]["code"] == "scope_lacking"
    wide = AccessScope(actions=["restore"], pools=[done.subject.pool])
    assert http_for(service, Role.OPERATOR, wide).post(path, json=body).status_code == 200


def test_an_undo_without_inverse_is_one_clear_refusal() -> None:
    service = FakeService()
    waiting = next(one for one in service.decisions(100) if one.action is ActionKind.RESET_GPU)
    answer = http_for(service, Role.OPERATOR).post(f"/v1/decisions/{waiting.id}/undo", json={})
    assert answer.status_code == 409
    assert "nothing undoes reset gpu" in answer.json()["error"]["message"]
    plain = http_for(service, Role.OPERATOR).post(f"/v1/decisions/{waiting.id}/undo", content="{}")
    assert plain.status_code == 415


def test_agents_neither_read_nor_take_the_journal_away() -> None:
    http = http_for(FakeService(), Role.AGENT)
    for path in ("/v1/journal/page", "/v1/journal/export", "/v1/timeline"):
        assert http.get(path).status_code == 403
    token = Token(name="a", role=Role.AGENT, secret=SecretStr(SECRET))
    settings = ApiSettings(tokens=[token])
    with serving(FakeService(), settings) as base, Client(base, SECRET) as client, pytest.raises(Denied):
        list(client.export_journal("jsonl"))
