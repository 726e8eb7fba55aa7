"""One yes for all that wait for the same action about the same cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.models import DecisionOut, TimelineItem, TimelineQuery
from tocsin.config.access import AccessScope, Role, Token
from tocsin.config.settings import ApiSettings, Settings
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import ActionKind
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving

HOT = 8
"""GPUs of the host whose fans fail: the others have its warm air."""
SECRET = "a-secret-0123456789"
QUERY = TimelineQuery(waiting=True, actions=(ActionKind.THROTTLE,))


def http_for(service: FakeService, *scopes: AccessScope) -> TestClient:
    token = Token(name="olga", role=Role.OPERATOR, secret=SecretStr(SECRET), scopes=list(scopes))
    app = create_app(service, ApiSettings(tokens=[token]))
    return TestClient(app, client=("127.0.0.1", 1), headers={"Authorization": f"Bearer {SECRET}"})


@pytest.fixture
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A host all of whose GPUs run hot, each with a job of its own."""
    folder = tmp_path_factory.mktemp("alike")
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 32, "fault_rate_scale": 0.0},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"confirmations": 1, "boot_grace_seconds": 0},
        }
    )
    made = Demo(demo_settings(wanted, folder), T0)
    for gpu in (24, 25, 26):
        made.service.inject("fan_failure", str(gpu), "ann")
    for _ in range(240):
        made.step()
        if len(made.service.timeline(QUERY, 0, 10).items) == HOT:
            break
    yield made
    made.running.stop()


def of_one_cause(items: Sequence[TimelineItem]) -> list[TimelineItem]:
    """Those of the cause of which most wait: a GPU that ran hot minutes before the others has one of its own."""
    ((most, _),) = Counter(one.incident for one in items).most_common(1)
    return [one for one in items if one.incident == most]


def test_all_hot_gpus_of_a_host_are_throttled_by_one_yes(demo: Demo) -> None:
    with serving(demo.service) as base, Client(base) as client:  # type: ignore[arg-type]
        every = client.timeline(QUERY).items
        assert len(every) == HOT
        items = of_one_cause(every)
        assert len(items) >= HOT - 2
        assert {one.alike for one in items} == {len(items) - 1}
        done = CliRunner().invoke(cli, ["approve", items[1].id, "--alike", "--api-url", base], standalone_mode=False)
        assert done.exception is None
        assert all(one.id in done.output for one in items)
        assert {client.decision(one.id).state for one in items} == {DecisionState.APPROVED}
        others = {one.id for one in every} - {one.id for one in items}
        assert {client.decision(one).state for one in others} <= {DecisionState.HELD}
        assert {one.alike for one in client.timeline(TimelineQuery(actions=(ActionKind.THROTTLE,))).items} == {0}
        with pytest.raises(Conflict):
            client.approve_alike(items[0].id)


def test_what_merely_stands_on_many_gpus_has_no_cause_to_share(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    items = of_one_cause(demo.service.timeline(QUERY, 0, 10).items)
    assert len(demo.service.alike(items[0].id)) == len(items) - 1 >= HOT - 3
    monkeypatch.setattr("tocsin.queries.alike.is_standing", lambda finding: True)
    assert demo.service.alike(items[0].id) == []
    assert {one.alike for one in demo.service.timeline(QUERY, 0, 10).items} == {0}


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeService, DecisionOut, DecisionOut]:
    """A service, a decision that waits, and another that waits as it does."""
    service = FakeService()
    one, other = [each for each in service.decisions(10) if each.approvable][:2]
    monkeypatch.setattr(service, "alike", lambda identity: [other] if identity == one.id else [])
    return service, one, other


def test_what_the_scope_does_not_reach_waits_on(room: tuple[FakeService, DecisionOut, DecisionOut]) -> None:
    service, one, other = room
    assert (one.subject.pool, one.action) != (other.subject.pool, other.action)
    http = http_for(service, AccessScope(pools=[one.subject.pool], actions=[one.action.value]))
    assert [each["id"] for each in http.post(f"/v1/decisions/{one.id}/approve-alike", json={}).json()] == [one.id]
    assert service.decision(other.id).state is DecisionState.HELD
    beyond = http_for(service, AccessScope(pools=["other-*"]))
    assert beyond.post(f"/v1/decisions/{other.id}/approve-alike", json={}).status_code == 403
    assert service.decision(other.id).state is DecisionState.HELD


def test_what_waits_no_more_takes_nothing_from_the_rest(room: tuple[FakeService, DecisionOut, DecisionOut]) -> None:
    service, one, other = room
    service.reject(other.id, "ann", "no")
    http = http_for(service)
    assert [each["id"] for each in http.post(f"/v1/decisions/{one.id}/approve-alike", json={}).json()] == [one.id]
    assert service.decision(other.id).state is DecisionState.REJECTED
    assert http.post(f"/v1/decisions/{one.id}/approve-alike", json={}).status_code == 409
    assert http.post("/v1/decisions/nowhere/approve-alike", json={}).status_code == 404
