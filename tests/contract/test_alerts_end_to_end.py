"""From a fault in a simulated fleet to a webhook: a real agent's page, a real Prometheus with the shipped rules, a real
Alertmanager with the shipped routes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from pytest_httpserver import HTTPServer

from tocsin.collector.exporter import MetricsServer
from tocsin.collector.simulated import SimulatedSource, from_settings
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.runtime.agent.process import Agent
from tocsin_testing import servers
from tocsin_testing.builders import T0
from tocsin_testing.dashboards import ROOT

pytestmark = pytest.mark.server

ALERTS = ROOT / "grafana" / "alerts"
VICTIM = 3


class Site:
    """An agent over a simulated fleet, and what the receivers were told."""

    def __init__(self, receiver: HTTPServer) -> None:
        self._receiver = receiver
        self.url = ""
        plain = Settings()
        simulation = plain.simulation.model_copy(update={"gpus": 8, "fault_rate_scale": 0.0})
        self.clock = ManualClock(T0)
        self.source: SimulatedSource = from_settings(simulation, T0)
        self.agent = Agent(plain, self.source, self.clock)
        self.agent.read()

    @property
    def gpu(self) -> str:
        """UUID of the GPU that the faults go into."""
        return self.source.gpus()[VICTIM].uuid

    def live(self, steps: int) -> None:
        """That many intervals of ten seconds."""
        for _ in range(steps):
            self.clock.advance(10_000)
            self.agent.read()

    def evaluated(self) -> list[str]:
        """When each group of rules was evaluated last."""
        groups = httpx2.get(f"{self.url}/api/v1/rules").json()["data"]["groups"]
        return [group["lastEvaluation"] for group in groups]

    def firing(self) -> set[str]:
        """Alerts that fire, as Prometheus says."""
        found = httpx2.get(f"{self.url}/api/v1/alerts").json()["data"]["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}

    def told(self, way: str, status: str = "firing") -> dict[str, dict[str, Any]]:
        """Alerts that one receiver was told of, by name."""
        bodies = [json.loads(r.get_data()) for r, _ in self._receiver.log if r.path == f"/{way}"]
        return {a["labels"]["alertname"]: a for body in bodies for a in body["alerts"] if a["status"] == status}


def until(met: Callable[[], bool], what: str) -> None:
    never = threading.Event()
    for _ in range(600):
        if met():
            return
        never.wait(0.1)
    raise AssertionError(f"{what}: not within a minute")


def routes(receiver: HTTPServer) -> str:
    """The shipped example, with shorter waits, to `receiver`; simulated alerts go out like others here."""
    config = yaml.safe_load((ALERTS / "alertmanager.example.yml").read_text())
    route = config["route"]
    route |= {"group_wait": "1s", "group_interval": "1s"}
    route["routes"] = [each for each in route["routes"] if "simulated" not in each["matchers"][0]]
    for each in config["receivers"]:
        for hook in each.get("webhook_configs", []):
            hook["url"] = receiver.url_for("/" + hook["url"].rsplit("/", 1)[1])
    return yaml.safe_dump(config)


@pytest.fixture
def site(tmp_path: Path, httpserver: HTTPServer) -> Iterator[Site]:
    for way in ("tickets", "oncall"):
        httpserver.expect_request(f"/{way}").respond_with_data("")
    with ExitStack() as stack:
        made = Site(httpserver)
        stack.callback(made.agent.close)
        page = MetricsServer(made.agent.registry, "127.0.0.1", 0)
        stack.callback(page.close)
        manager = stack.enter_context(servers.alertmanager(tmp_path, routes(httpserver)))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS / "*.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
            "scrape_configs": [{"job_name": "tocsin", "static_configs": [{"targets": [f"127.0.0.1:{page.port}"]}]}],
        }
        url = stack.enter_context(servers.prometheus(tmp_path, yaml.safe_dump(config)))
        made.url = url
        with httpx2.Client(base_url=url) as client:

            def scraped() -> bool:
                answer = client.get("/api/v1/query", params={"query": "count(gpu_temperature_celsius)"}).json()
                return bool(answer["data"]["result"])

            until(scraped, "the first scrape")
        yield made


def test_a_gpu_that_asks_for_a_reset_is_told_of_once_with_its_cause(site: Site) -> None:
    site.source.fleet.inject("gsp_timeout", str(VICTIM))
    site.live(20)
    until(lambda: "GpuRecoveryAction" in site.told("oncall"), "the page")
    alert = site.told("oncall")["GpuRecoveryAction"]
    assert alert["labels"]["gpu_uuid"] == site.gpu
    assert alert["labels"]["severity"] == "critical"
    assert alert["labels"]["simulated"] == "true"
    assert alert["annotations"]["description"].startswith(
        f"{alert['labels']['host']} GPU {VICTIM}: the driver's verdict is 1 "
    )
    assert alert["annotations"]["runbook_url"].endswith("/alerts/#gpurecoveryaction")
    assert "GpuPowerBrake" not in site.told("oncall")


def test_an_error_of_the_bus_is_told_of_although_the_gpu_is_gone(site: Site) -> None:
    site.source.fleet.inject("fallen_off_bus", str(VICTIM))
    site.live(125)
    until(lambda: {"GpuXidBus", "GpuLost"} <= site.told("oncall").keys(), "the pages")
    labels = site.told("oncall")["GpuXidBus"]["labels"]
    assert (labels["gpu_uuid"], labels["xid"], labels["gpu_index"]) == (site.gpu, "79", str(VICTIM))


def test_a_quiet_fleet_says_nothing(site: Site) -> None:
    site.live(5)
    seen = site.evaluated()
    until(lambda: all(now > then for now, then in zip(site.evaluated(), seen, strict=True)), "an evaluation")
    assert site.firing() == set()
    assert site.told("oncall") == {}
    assert site.told("tickets") == {}
