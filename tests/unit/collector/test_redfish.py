"""Management controllers over Redfish: what is wrong, within bounds, by one session, told and taken back."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from pytest_httpserver import HTTPServer

from tocsin.collector.redfish.client import MAX_BYTES, MOST_REQUESTS, SESSIONS, RedfishClient, RedfishFailed
from tocsin.collector.redfish.companion import Redfish, controller
from tocsin.collector.redfish.walk import Look, Walk
from tocsin.config.redfish import RedfishSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.node_fault import NodeFault
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading

OK = {"State": "Enabled", "Health": "OK"}
BAD = {"State": "Enabled", "Health": "Critical"}


def link(name: str) -> dict[str, str]:
    return {"@odata.id": f"/redfish/v1/{name}"}


def members(*names: str) -> dict[str, Any]:
    return {"Members": [link(name) for name in names]}


def excerpt(reading_: float | None, sensor: str) -> dict[str, Any]:
    return {"Reading": reading_, "DataSourceUri": f"/redfish/v1/{sensor}"}


def site() -> dict[str, Any]:
    """A node with new resources, beside it a shelf with old ones, and a coolant distribution unit; all is well."""
    return {
        "": {"Chassis": link("Chassis"), "ThermalEquipment": link("ThermalEquipment")},
        "Chassis": members("Chassis/1", "Chassis/shelf"),
        "Chassis/1": {
            "Name": "Tray",
            "ThermalSubsystem": link("T"),
            "Thermal": link("old-T"),
            "PowerSubsystem": link("P"),
        },
        "T": {"Fans": link("Fans"), "LeakDetection": link("Leaks"), "CoolantConnectors": link("Hoses")},
        "old-T": {"Fans": [{"Name": "Fan 1", "Status": BAD}]},
        "Fans": members("Fans/1", "Fans/2"),
        "Fans/1": {"Name": "Fan 1", "Status": OK},
        "Fans/2": {"Name": "Fan 2", "Status": {"State": "Absent", "Health": "Critical"}},
        "Leaks": {"LeakDetectors": link("Detectors")},
        "Detectors": members("Detectors/1", "Detectors/2"),
        "Detectors/1": {"Name": "pump", "DetectorState": "OK"},
        "Detectors/2": {"Name": "spare", "DetectorState": "Unavailable"},
        "Hoses": {"Members": []},
        "P": {"PowerSupplies": link("PSUs")},
        "PSUs": members("PSUs/1"),
        "PSUs/1": {"Name": "PSU 1", "LineInputStatus": "Normal", "Status": OK},
        "Chassis/shelf": {"Name": "Shelf", "Thermal": link("shelf-T"), "Power": link("shelf-P")},
        "shelf-T": {"Fans": [{"FanName": "Blower", "Status": OK}, "nonsense"]},
        "shelf-P": {"PowerSupplies": [{"MemberId": "7", "Status": OK}]},
        "ThermalEquipment": {"CDUs": link("CDUs")},
        "CDUs": members("CDUs/1"),
        "CDUs/1": {"Name": "CDU", "LeakDetection": link("unit-leaks"), "SecondaryCoolantConnectors": link("Rack")},
        "unit-leaks": {"LeakDetectorGroups": [{"Detectors": [{"DeviceName": "rope", "DetectorState": "OK"}]}]},
        "Rack": members("Rack/1"),
        "Rack/1": {
            "Name": "Supply",
            "FlowLitersPerMinute": excerpt(40.0, "flow"),
            "SupplyTemperatureCelsius": excerpt(31.5, "warmth"),
        },
        "flow": {"Thresholds": {"LowerCritical": {"Reading": 20}, "LowerCaution": {"Reading": 30}}, "Status": OK},
        "warmth": {"Thresholds": {"UpperCaution": {"Reading": 45}}, "Status": OK},
    }


class Bmc:
    """A controller that has `resources`, and, with `password`, asks for a session."""

    def __init__(self, resources: dict[str, Any], password: str = "") -> None:
        self.resources = resources
        self.password = password
        self.tokens: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked.append((request.method, path))
        if path == SESSIONS:
            if json.loads(request.content) != {"UserName": "reader", "Password": self.password}:
                return httpx2.Response(401, json={})
            self.tokens.add(f"t{len(self.asked)}")
            where = {"X-Auth-Token": max(self.tokens), "Location": f"https://bmc.test{SESSIONS}/9"}
            return httpx2.Response(201, json={}, headers=where)
        if self.password and request.headers.get("X-Auth-Token", "") not in self.tokens:
            return httpx2.Response(401, json={})
        found = self.resources.get(path.removeprefix("/redfish/v1").strip("/"))
        if isinstance(found, bytes):
            return httpx2.Response(200, content=found)
        return httpx2.Response(404, json={}) if found is None else httpx2.Response(200, json=found)

    def client(self, clock: ManualClock, password: str = "") -> RedfishClient:
        http = httpx2.Client(transport=httpx2.MockTransport(self.answer), base_url="https://bmc.test")
        return RedfishClient(http, clock, 10.0, "reader" if password else "", password)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def look(resources: dict[str, Any], clock: ManualClock) -> Look:
    client = Bmc(resources).client(clock)
    client.begin()
    return Walk(client.get).run()


def test_a_sound_site_has_no_fault_and_figures_of_its_coolant(clock: ManualClock) -> None:
    found = look(site(), clock)
    assert (found.faults, found.failed) == ({}, []), "old resources beside new ones are not read"
    assert found.known == {*NodeFault} & {51, 52, 53, 54, 55}
    assert (found.flows, found.supplies) == ([40.0], [31.5])


@pytest.mark.parametrize(
    ("resource", "changed", "kind", "words"),
    [
        (
            "Detectors/1",
            {"DetectorState": "Critical"},
            NodeFault.LEAK,
            "leak detector pump of Tray is Critical",
        ),
        (
            "unit-leaks",
            {"LeakDetectorGroups": [{"Detectors": [{"DeviceName": "rope", "DetectorState": "Warning"}]}]},
            NodeFault.LEAK,
            "leak detector rope of CDU is Warning",
        ),
        (
            "Rack/1",
            {"FlowLitersPerMinute": excerpt(25, "flow")},
            NodeFault.COOLANT_FLOW,
            "coolant flow, Supply of CDU: 25, below its limit of 30",
        ),
        (
            "Rack/1",
            {"SupplyTemperatureCelsius": excerpt(46, "warmth")},
            NodeFault.COOLANT_TEMPERATURE,
            "coolant supply temperature, Supply of CDU: 46, above its limit of 45",
        ),
        (
            "flow",
            {"Thresholds": {}, "Status": BAD},
            NodeFault.COOLANT_FLOW,
            "coolant flow, Supply of CDU: 40, Critical",
        ),
        ("Fans/1", {"Status": BAD}, NodeFault.FAN, "fan Fan 1 of Tray is Critical"),
        ("shelf-T", {"Fans": [{"FanName": "Blower", "Status": BAD}]}, NodeFault.FAN, "fan Blower of Shelf is Critical"),
        ("PSUs/1", {"Status": BAD}, NodeFault.POWER_SUPPLY, "power supply PSU 1 of Tray is Critical"),
        (
            "PSUs/1",
            {"LineInputStatus": "LossOfInput"},
            NodeFault.POWER_SUPPLY,
            "power supply PSU 1 of Tray has lost its input",
        ),
    ],
)
def test_each_part_that_fails_is_named(
    resource: str, changed: dict[str, Any], kind: NodeFault, words: str, clock: ManualClock
) -> None:
    resources = site()
    resources[resource] = {**resources[resource], **changed}
    assert look(resources, clock).faults == {kind: [words]}


def test_what_cannot_be_read_leaves_the_rest_alone(clock: ManualClock) -> None:
    resources = site() | {"Fans/1": b"[" * 60_000, "P": [1], "warmth": b"x" * (MAX_BYTES + 1), "shelf-T": {"Fans": 3}}
    resources["CDUs/1"] |= {"LeakDetection": {"@odata.id": "https://elsewhere.test/redfish/v1/"}}
    resources["Rack/1"] |= {"FlowLitersPerMinute": excerpt(None, "flow")}
    resources["Detectors/1"] = {"Name": "a", "DetectorState": "Critical"}
    found = look(resources, clock)
    assert list(found.faults) == [NodeFault.LEAK]
    assert len(found.failed) == 4
    resources["Chassis"] = members(*["Chassis/1"] * 64)
    assert any(f"more than {MOST_REQUESTS} resources" in problem for problem in look(resources, clock).failed)
    with pytest.raises(RedfishFailed, match="HTTP status 404"):
        look({}, clock)


def test_one_session_is_used_taken_anew_where_it_ended_and_closed(clock: ManualClock) -> None:
    bmc = Bmc(site(), "secret")
    client = bmc.client(clock, "secret")
    for _ in range(2):
        client.begin()
        assert Walk(client.get).run().failed == []
    assert [method for method, path in bmc.asked if path == SESSIONS] == ["POST"]
    bmc.tokens.clear()
    client.begin()
    assert Walk(client.get).run().failed == []
    assert [method for method, path in bmc.asked if path == SESSIONS] == ["POST", "POST"]
    client.close()
    assert bmc.asked[-1] == ("DELETE", f"{SESSIONS}/9")
    closed_to_us = bmc.client(clock, "secret")
    closed_to_us.begin()
    bmc.tokens.clear()
    for _ in range(3):
        with pytest.raises(RedfishFailed, match="HTTP status 401"):
            closed_to_us.get("/redfish/v1/")
    assert [method for method, path in bmc.asked if path == SESSIONS] == ["POST"] * 3, "one log-in for a look"
    with pytest.raises(RedfishFailed, match="log-in refused, HTTP status 401"):
        Bmc(site(), "secret").client(clock, "wrong").begin()


def batch() -> Batch:
    return Batch(readings=[reading(gpu(n), T0, power_watts=9.0) for n in range(2)])


def test_a_fault_is_told_again_while_it_stands_and_taken_back_by_a_full_look(clock: ManualClock) -> None:
    bmc, own, rung = Bmc(site()), OwnMetrics(), []
    companion = Redfish({"b": bmc.client(clock)}, 60.0, "x", clock, own, lambda: rung.append(1))

    def told(ask: bool = True) -> list[tuple[int, str]]:
        if ask:
            companion.ask()
        made = companion.enrich(batch(), clock.now_ms())
        return [(event.code, event.message) for event in made.events]

    assert told() == []
    values = companion.enrich(batch(), T0).readings[1].values
    assert (values["coolant_flow_liters_per_minute"], values["coolant_supply_temperature_celsius"]) == (40.0, 31.5)
    bmc.resources["Fans/1"] = {"Name": "Fan 1", "Status": BAD}
    assert told() == [(54, "fan Fan 1 of Tray is Critical")]
    assert (len(rung), told()) == (1, [])
    clock.advance(5 * MINUTE)
    assert told() == [(54, "fan Fan 1 of Tray is Critical")]
    whole = dict(bmc.resources)
    del bmc.resources["Fans/1"]
    assert told() == [], "a look that is not full takes nothing back"
    bmc.resources = whole | {"Fans/1": {"Name": "Fan 1", "Status": OK}}
    assert told() == [(154, "over: fan Fan 1 of Tray is Critical")]
    bmc.resources["Detectors/1"] = {"Name": "a", "DetectorState": "Critical"}
    assert [code for code, _ in told()] == [51]
    bmc.resources = {}
    clock.advance(601 * SECOND)
    assert told() == [], "what was said long ago is not the present"
    assert own.value("tocsin_redfish_looks_total", outcome="partly") == 1
    assert own.value("tocsin_redfish_looks_total", outcome="failed") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"urls": ["bmc"]}, "must be https://HOST"),
        ({"urls": ["http://bmc"], "username": "reader", "password": "x"}, "never sent without TLS"),
        ({"urls": ["https://bmc"], "username": "reader"}, "belong together"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RedfishSettings.model_validate(fields)


def test_certificates_are_checked_unless_set_otherwise(tmp_path: Path, clock: ManualClock) -> None:
    ours, another = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("localhost").configure_cert(context)
    for ca, name in ((ours, "good"), (another, "bad")):
        ca.cert_pem.write_to_path(str(tmp_path / name))
    with HTTPServer(ssl_context=context) as server:
        server.expect_request("/redfish/v1/").respond_with_json({"Name": "root"})

        def ask(**more: Any) -> dict[str, Any]:
            url = server.url_for("").rstrip("/")
            client = controller(url, RedfishSettings.model_validate({"urls": [url], **more}), clock)
            try:
                client.begin()
                return client.get("/redfish/v1/")
            finally:
                client.close()

        assert ask(ca_file=tmp_path / "good") == ask(verify=False) == {"Name": "root"}
        with pytest.raises(RedfishFailed, match="certificate"):
            ask(ca_file=tmp_path / "bad")
