"""Every query of the Prometheus dashboards: promtool reads it, and a real server has data for it.

The server scrapes the brain of a simulated fleet and a real agent over a simulated fleet. What no simulator has is
asked of an exporter that shows each metric of the table once, and named below.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import httpx2
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tocsin.collector.exporter import FleetCollector, MetricsServer
from tocsin.collector.simulated import from_settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Reading
from tocsin.queries.views import decision_out
from tocsin.runtime.agent.process import Agent
from tocsin.runtime.demo import Demo, demo_settings
from tocsin.telemetry.metrics import COLLECTED, OWN_METRICS, OwnMetrics
from tocsin_testing import needs, servers
from tocsin_testing.builders import T0, gpu
from tocsin_testing.dashboards import NAMES, ROOT, Asked, asked, filled, load, small

pytestmark = pytest.mark.server

NOT_SIMULATED = {
    ("fleet", "What the driver asks for"): "no simulated GPU has a verdict at this instant",
    ("node", "The host itself"): "companion host_load does not run beside a simulated fleet",
    ("node", "Busiest network port"): "companion network does not run beside a simulated fleet",
    ("node", "Packets sent again"): "as above",
    ("node", "Network ports down"): "as above",
    ("predictions", "Features that have shifted"): "asked once a day of past is there",
    ("predictions", "Error of calibration"): "nothing has come due within minutes",
    ("predictions", "Predictions that have come due"): "nothing has come due within minutes",
    ("actions", "Losses and failures in ten minutes"): "nothing is lost and nothing fails",
    ("actions", "Slowest twentieth"): "nobody has asked the API",
}
"""Panels that an exporter of everything answers for, with the reason."""


def test_promtool_reads_every_query(tmp_path: Path) -> None:
    found = [*asked("prometheus"), *marks()]
    rules = [{"record": f"panel:{place}", "expr": filled(query.text)} for place, query in enumerate(found)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [needs.program("promtool", "prometheus"), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def marks() -> list[Asked]:
    """Queries of annotations."""
    found = [mark for name in NAMES for mark in load("prometheus", name)["annotations"]["list"] if "expr" in mark]
    return [Asked("annotations", mark["name"], mark["expr"]) for mark in found]


def everything() -> CollectorRegistry:
    """Each metric of the table, and each of our own, once."""
    own = OwnMetrics()
    for name, spec in OWN_METRICS.items():
        labels = dict.fromkeys(spec.labels, "x")
        if name in COLLECTED:
            continue
        if spec.kind == "counter":
            own.count(name, 3, **labels)
        elif spec.kind == "gauge":
            own.set(name, 1, **labels)
        else:
            own.observe(name, 0.2, **labels)
    collector = FleetCollector(ManualClock(T0), max_age_seconds=60.0)
    own.registry.register(collector)
    keys = [variant(s.name, s.label, "0") if s.label else s.name for s in METRICS.values()]
    collector.update("nvml", [Reading(gpu(0), T0, dict.fromkeys(keys, 1.0))])
    return own.registry


class Fleet:
    """A brain over a simulated fleet, and an agent over another; `step` is an interval of both."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        settings = small()
        self.demo = Demo(demo_settings(settings, folder), T0)
        stack.callback(self.demo.running.stop)
        self.clock = ManualClock(T0)
        own = settings.model_copy(
            update={
                "agent": settings.agent.model_copy(
                    update={
                        "push_url": "http://127.0.0.1:9/",
                        "spool": folder / "spool.db",
                        "push_timeout_seconds": 0.1,
                    }
                )
            }
        )
        source = from_settings(settings.simulation, T0)
        self.agent = Agent(own, source, self.clock)
        stack.callback(self.agent.close)
        source.fleet.inject("app_crash", "3")

    def approve(self) -> None:
        """Everything that waits for a person, and five minutes until it is done."""
        for status in self.demo.brain.statuses():
            if decision_out(status).approvable:
                self.demo.service.approve(status.decision.id, "ann")
        for _ in range(30):
            if any(status.outcome and status.decision.action != "notify" for status in self.demo.brain.statuses()):
                return
            self.step()
        raise AssertionError("nothing was done within five minutes")

    def step(self) -> None:
        """Ten seconds."""
        self.demo.step()
        self.clock.advance(10_000)
        self.agent.tick()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """URL of a Prometheus by what it scrapes: `simulated`, or `everything`."""
    folder = tmp_path_factory.mktemp("promql")
    with ExitStack() as stack:
        fleet = Fleet(folder, stack)
        for _ in range(26):
            fleet.step()
        fleet.demo.brain.forecast()
        fleet.approve()
        pages = {"simulated": [fleet.demo.brain.metrics.registry, fleet.agent.registry], "everything": [everything()]}
        urls = {}
        for name, registries in pages.items():
            ports = []
            for registry in registries:
                server = MetricsServer(registry, "127.0.0.1", 0)
                stack.callback(server.close)
                ports.append(server.port)
            # A site of one cell has no label for it.
            label = "" if name == "simulated" else ", labels: {cell: west}"
            targets = ", ".join(f"'127.0.0.1:{port}'" for port in ports)
            config = (
                "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
                f"scrape_configs: [{{job_name: tocsin, static_configs: [{{targets: [{targets}]{label}}}]}}]\n"
            )
            place = folder / name
            place.mkdir()
            urls[name] = stack.enter_context(servers.prometheus(place, config))
        # Two scrapes at least, and a change between them.
        until(urls["simulated"], "count(count_over_time(tocsin_build_info[1m]) >= 2) == 2")
        fleet.step()
        until(urls["everything"], "min(count_over_time(tocsin_build_info[1m])) >= 2")
        until(urls["simulated"], "count(count_over_time(tocsin_build_info[1m]) >= 4) == 2")
        yield urls
        _client().close()
        _client.cache_clear()


def until(url: str, query: str, tries: int = 600) -> None:
    """Ask until there is an answer; fail after a minute."""
    never = threading.Event()
    for _ in range(tries):
        if result(url, query):
            return
        never.wait(0.1)
    raise AssertionError(f"{query} has no answer")


@cache
def _client() -> httpx2.Client:
    """One for all: each would read the authorities of TLS anew."""
    return httpx2.Client(timeout=30.0)


def result(url: str, query: str) -> list[object]:
    """What an instant query finds."""
    answer = _client().get(f"{url}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    found: list[object] = answer["data"]["result"]
    return found


def test_every_panel_has_data(answers: dict[str, str]) -> None:
    empty = []
    for query in asked("prometheus"):
        where = "everything" if (query.board, query.panel) in NOT_SIMULATED else "simulated"
        try:
            # A scrape that a busy machine lets run out leaves a gap until the next.
            until(answers[where], filled(query.text), tries=25)
        except AssertionError:
            empty.append((query.board, query.panel, query.text))
    assert not empty, "\n".join(map(str, empty))


def test_every_annotation_is_answered(answers: dict[str, str]) -> None:
    for query in marks():
        result(answers["simulated"], filled(query.text))
    until(answers["simulated"], 'tocsin_journal_entries_total{kind="incident_opened"}')


def test_what_is_not_simulated_is_a_panel() -> None:
    there = {(query.board, query.panel) for query in asked("prometheus")}
    assert set(NOT_SIMULATED) <= there


def test_a_cell_is_chosen_by_the_label_that_its_scrape_gives(answers: dict[str, str]) -> None:
    (count,) = (one.text for one in asked("prometheus") if (one.board, one.panel) == ("fleet", "GPUs that report"))
    until(answers["everything"], filled(count.replace("$cell", "west")))
    assert result(answers["everything"], filled(count.replace("$cell", "east"))) == []
    assert result(answers["simulated"], filled(count.replace("$cell", "west"))) == []


def test_variables_find_pools_hosts_and_gpus(answers: dict[str, str]) -> None:
    for variable in load("prometheus", "gpu")["templating"]["list"][1:]:
        metric, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        until(answers["simulated"], f"count by ({label}) ({filled(metric)})")


def test_victoriametrics_reads_every_query_and_alert(tmp_path: Path) -> None:
    groups = [yaml.safe_load(path.read_text())["groups"] for path in (ROOT / "grafana" / "alerts").glob("*.yaml")]
    rules = [rule["expr"] for found in groups for group in found for rule in group["rules"]]
    with servers.victoria_metrics(tmp_path) as url:
        for text in [*rules, *(filled(query.text) for query in [*asked("prometheus"), *marks()])]:
            result(url, text)
