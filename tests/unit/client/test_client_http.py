"""The typed client against the real server over the fake fleet."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import httpx2
import pytest
from pydantic import SecretStr, ValidationError

from tocsin.client import control, models
from tocsin.client.client import Client
from tocsin.client.errors import BadRequest, Denied, NotFound, ServerFault
from tocsin.client.wire import adapter
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Conflict, Unavailable
from tocsin.domain.finding import Evidence
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.servers import free_port

HOT = fleet.uuid(*fleet.HOT)
SECRET = "a-viewer-secret-0123"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeService()) as base:
        yield base


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def test_reads_come_typed(client: Client) -> None:
    assert client.healthy()
    assert client.ready().ready
    assert client.me() == control.Whoami(name="loopback", role="admin")
    assert client.summary().gpus == len(client.gpus()) == 64
    assert client.gpu(HOT).summary.state is models.GpuState.CRITICAL
    assert client.findings() == [*fleet.FINDINGS, fleet.POOL_FINDING]
    assert client.predictions() == fleet.PREDICTIONS
    assert [i.root for i in client.incidents()] == client.findings()
    assert client.scoreboard().predictions.hits == 38
    assert client.diagnoses() == fleet.DIAGNOSES
    assert client.diagnoses("no-such-host") == []
    assert client.verify_journal().ok
    assert client.metrics().startswith("# HELP tocsin_")


def test_a_series_is_asked_for_by_milliseconds(client: Client) -> None:
    start = fleet.NOW_MS - HOUR
    series = client.series(HOT, ["gpu_power_watts"], start, fleet.NOW_MS, max_points=30)
    assert series.start == series.at[0] == to_iso(start)
    assert len(series.metrics["gpu_power_watts"]) == 30


def test_decisions_are_settled(client: Client) -> None:
    first, second = [d for d in client.decisions(state=DecisionState.HELD) if d.approvable]
    assert second.held_by == ["capacity", "approval"]
    assert client.approve(first.id).approved_by == "loopback"
    assert client.reject(second.id, "busy").state is DecisionState.REJECTED
    assert client.decision(first.id).state is DecisionState.APPROVED
    with pytest.raises(Conflict, match="is approved"):
        client.approve(first.id)


def test_control(client: Client) -> None:
    assert client.pause("night").paused_reason == "night"
    assert not client.resume().paused
    assert not client.reset_breaker().breaker.tripped
    assert client.inject("gsp_timeout", HOT).gpu == HOT
    kinds = ["pause", "breaker_reset"]
    assert [e.kind for e in client.journal(kinds=kinds)] == kinds


def test_writes_say_which_lines_were_refused(client: Client) -> None:
    client.write("gpu x=1 1")
    with pytest.raises(BadRequest) as caught:
        client.write("gpu x=1 1\nnonsense")
    assert caught.value.code == "lines_rejected"
    assert caught.value.details["rejected"] == [{"number": 2, "problem": "no timestamp"}]


def test_errors_carry_the_server_s_message(client: Client) -> None:
    with pytest.raises(NotFound, match="there is no endpoint"):
        client.gpu("GPU/../x")
    with pytest.raises(NotFound, match="no decision 0 is on record"):
        client.decision("0")
    with pytest.raises(BadRequest, match="did you mean gpu_power_watts"):
        client.series(HOT, ["gpu_power_wats"])
    with pytest.raises(BadRequest, match="is no fault"):
        client.inject("volcano", HOT)


def test_a_viewer_s_token_reads_and_no_more() -> None:
    token = Token(name="v", role=Role.VIEWER, secret=SecretStr(SECRET))
    with serving(FakeService(), ApiSettings(tokens=[token])) as url:
        with Client(url, SECRET) as client:
            assert client.me().name == "v"
            with pytest.raises(Denied, match="token v is viewer; this needs operator or admin"):
                client.pause()
        with Client(url) as client, pytest.raises(Denied, match="send a token"):
            client.summary()


def test_a_store_that_is_down_and_a_brain_that_is_not_ready() -> None:
    service = FakeService()
    service.store_down = True
    service.not_ready = ["no reading yet"]
    with serving(service) as url, Client(url) as client:
        assert client.ready() == control.Readiness(ready=False, reasons=["no reading yet"])
        with pytest.raises(Unavailable, match="the store does not answer"):
            client.write("gpu x=1 1")


def test_where_no_brain_answers() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        assert not client.healthy()
        with pytest.raises(Unavailable, match="no brain answers at http://127"):
            client.summary()
    with Client("not a url") as client, pytest.raises(Unavailable, match="correct the URL"):
        client.summary()


@pytest.mark.parametrize(
    ("status", "content", "says"),
    [
        (200, b"<html>a proxy</html>", "what answers at http://brain is no brain"),
        (200, b'{"gpus": 3}', "are client and brain of one version"),
        (502, b"bad gateway", "answers 502, which is not of this API"),
        (500, b'{"error": {"code": "internal_error", "message": "see the log", "details": {}}}', "see the log"),
    ],
)
def test_an_answer_that_is_not_of_this_api(status: int, content: bytes, says: str) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=content))
    with Client("http://brain", transport=transport) as client, pytest.raises(ServerFault, match=says):
        client.summary()


def test_a_slow_brain_is_said_to_be_slow() -> None:
    def slow(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("slow", request=request)

    transport = httpx2.MockTransport(slow)
    with Client("http://brain", transport=transport) as client, pytest.raises(Unavailable, match="did not answer"):
        client.summary()


def test_wire_models_are_frozen_and_strict() -> None:
    ready = control.Readiness(ready=True)
    with pytest.raises(ValidationError):
        ready.ready = False  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        control.Readiness.model_validate({"ready": True, "raedy": 1})
    with pytest.raises(ValidationError, match="finite number"):
        adapter(Evidence).validate_python({"name": "x", "text": "x", "at": to_iso(0), "value": float("nan")})
    with pytest.raises(ValidationError, match="match pattern"):
        adapter(Evidence).validate_python({"name": "x", "text": "x", "at": "2026-11-21 03:54"})
    with pytest.raises(ValidationError, match="Unexpected keyword"):
        adapter(Evidence).validate_python({"name": "x", "text": "x", "at": to_iso(0), "valeu": 1.0})


def test_every_endpoint_for_people_has_a_method() -> None:
    from tocsin.api.app import create_app

    source = "".join(inspect.getsource(part) for part in Client.__mro__ if part.__module__.startswith("tocsin"))
    paths = create_app(FakeService(), ApiSettings()).openapi()["paths"]
    # Agents ask for their orders by a client of their own; Prometheus, Alertmanager, OpenTelemetry, ticket systems and
    # Slack bring theirs.
    pushed = {"/api/v1/write", "/v1/metrics", "/v1/alertmanager", "/v1/desk", "/v1/slack/interactive"}
    without = {"/ping", "/api/v2/ping", "/v1/orders", "/v1/orders/{order_id}/report", *pushed}
    pieces = {path: [piece for piece in re.split(r"\{\w+\}", path) if piece] for path in paths}
    lacking = [path for path, parts in pieces.items() if not all(part in source for part in parts)]
    assert set(lacking) - without == set()
