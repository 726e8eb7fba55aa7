"""Orders over HTTP, and the agent's hands that speak to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.client.agent import OrderLink
from tocsin.client.wire import adapter, to_json
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderReport, OrderState, ThrottleOrderParameters
from tocsin.runtime.agent.companions import Companions, Context
from tocsin.runtime.agent.order_worker import Actuator, open_order_worker, thermal_settings
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService
from tocsin_testing.node_world import FakeMachine, FakePower, Node

AGENT = "agent-secret-0123456789"
NODE_1 = "node-1-secret-0123456789"
VIEWER = "viewer-secret-0123456789"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    tokens = [
        Token(name="agents", role=Role.AGENT, secret=SecretStr(AGENT)),
        Token(name="one", role=Role.AGENT, secret=SecretStr(NODE_1), host="node-1"),
        Token(name="eyes", role=Role.VIEWER, secret=SecretStr(VIEWER)),
    ]
    return TestClient(create_app(service, ApiSettings(tokens=tokens)))


def order(**more: object) -> Order:
    base = Order("hot|GPU-a|throttle@GPU-a", "d", "node-1", "GPU-a", ActionKind.THROTTLE, T0, T0 + 3600 * SECOND)
    return replace(base, **more)  # type: ignore[arg-type]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_an_agent_gets_its_own_orders_and_reports_them(http: TestClient, service: FakeService) -> None:
    service.order_service.queue.post([order()])
    answer = http.get("/v1/orders?host=node-1", headers=bearer(NODE_1))
    assert answer.status_code == 200
    (sent,) = answer.json()
    assert (sent["gpu"], sent["action"], sent["lease_s"]) == ("GPU-a", "throttle", 900.0)
    report = to_json(OrderReport(order(), OrderState.APPLIED, "limit 600 W", T0, 700_000, 700_000, 600_000, 600_000))
    path = f"/v1/orders/{sent['id']}/report"
    taken = http.post(path, json=report, headers=bearer(NODE_1))
    assert (taken.status_code, taken.json()) == (200, {"known": True})
    standing = service.order_service.queue.standing(order().key)
    assert standing is not None
    assert standing.state is OrderState.APPLIED


def test_a_node_speaks_for_itself_alone(http: TestClient, service: FakeService) -> None:
    service.order_service.queue.post([order(host="node-2")])
    assert http.get("/v1/orders?host=node-2", headers=bearer(NODE_1)).status_code == 403
    report = to_json(OrderReport(order(host="node-2"), OrderState.APPLIED, "", T0))
    path = f"/v1/orders/{order().id}/report"
    body = report
    assert http.post(path, json=body, headers=bearer(NODE_1)).status_code == 403
    disguised = to_json(OrderReport(order(host="node-1"), OrderState.APPLIED, "", T0))
    answer = http.post(path, json=disguised, headers=bearer(NODE_1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


def test_viewers_get_no_orders(http: TestClient) -> None:
    assert http.get("/v1/orders?host=node-1", headers=bearer(VIEWER)).status_code == 403


def test_a_report_goes_to_the_path_of_its_order(http: TestClient) -> None:
    body = to_json(OrderReport(order(), OrderState.APPLIED, "", T0))
    assert http.post("/v1/orders/other/report", json=body, headers=bearer(AGENT)).status_code == 400


def test_orders_and_reports_survive_the_wire() -> None:
    sent = order(
        epoch=3, parameters=ThrottleOrderParameters(power_limit_watts=500), lease_seconds=900.0, simulated=True
    )
    assert adapter(Order).validate_python(to_json(sent)) == sent
    report = OrderReport(sent, OrderState.FAILED, "why", T0, 1, 2, 3, 4, {"celsius_per_watt": 0.1})
    assert adapter(OrderReport).validate_json(adapter(OrderReport).dump_json(report)) == report


class Hands:
    """An actuator over the API of a fake service and a driver in memory."""

    def __init__(self, http: TestClient, folder: Path, url: str = "http://testserver") -> None:
        self.node = Node(folder, power=FakePower())
        self.power = self.node.power
        self.power.celsius["GPU-a"] = 84.0
        self.own = OwnMetrics()
        self.up = True
        self._http = http
        values = {
            "node": {"allow": ["throttle"], "brain_url": url, "token": NODE_1, "marker_folder": str(folder)},
            "agent": {"host": "node-1", "hook_socket": ""},
        }
        settings = Settings.model_validate(values)
        companions = Companions(Context(settings, self.node.clock, self.own, "nvml"), [])
        self.actuator: Actuator = open_order_worker(
            settings, self.node.clock, self.own, companions, power=self.power, reset=FakeMachine(),
            transport=httpx2.MockTransport(self._pass_on),
        )  # fmt: skip

    def _pass_on(self, request: httpx2.Request) -> httpx2.Response:
        if not self.up:
            raise httpx2.ConnectError("refused")
        url = str(request.url).removeprefix("http://testserver")
        answer = self._http.request(request.method, url, content=request.content, headers=dict(request.headers))
        return httpx2.Response(answer.status_code, content=answer.content)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.node.clock.advance(SECOND)
            self.actuator.turn()

    def page(self) -> str:
        return generate_latest(self.own.registry).decode()


@pytest.fixture
def hands(http: TestClient, tmp_path: Path) -> Iterator[Hands]:
    made = Hands(http, tmp_path / "limits")
    yield made
    made.actuator.close()


def test_hands_take_an_order_and_the_brain_hears_of_it(hands: Hands, service: FakeService) -> None:
    service.order_service.queue.post([order()])
    hands.turns(10)
    standing = service.order_service.queue.standing(order().key)
    assert standing is not None
    assert standing.report is not None
    assert (standing.state, standing.report.enforced_after_mw) == (OrderState.APPLIED, 597_500)
    page = hands.page()
    assert "tocsin_limits_engaged 1.0" in page
    assert 'tocsin_limit_writes_total{outcome="written"} 1.0' in page


def test_a_brain_that_falls_silent_loses_its_limit(hands: Hands, service: FakeService) -> None:
    service.order_service.queue.post([order()])
    hands.turns(10)
    hands.up = False
    hands.turns(910)
    assert hands.node.watts == 700
    assert "tocsin_limits_engaged 0.0" in hands.page()
    hands.up = True
    hands.turns(6)
    standing = service.order_service.queue.standing(order().key)
    assert standing is not None
    assert standing.state is OrderState.EXPIRED


def test_hands_that_end_give_back_and_say_so(hands: Hands, service: FakeService) -> None:
    service.order_service.queue.post([order()])
    hands.turns(10)
    hands.actuator.close()
    standing = service.order_service.queue.standing(order().key)
    assert standing is not None
    assert (hands.node.watts, standing.state) == (700, OrderState.RESTORED)


def test_a_brain_that_answers_nonsense_is_unavailable() -> None:
    link = OrderLink("http://b", "n", transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=b"[{}]")))
    with pytest.raises(Unavailable, match="cannot be read"):
        link.orders()
    with pytest.raises(Unavailable, match="cannot be read"):
        link.report(OrderReport(order(), OrderState.APPLIED, "", T0))
    link.close()


def test_settings_that_contradict_each_other_are_refused() -> None:
    settings = Settings.model_validate({"node": {"engage_margin_c": 15.0}})
    with pytest.raises(InputError, match=r"node\.release_margin_c"):
        thermal_settings(settings.node)
