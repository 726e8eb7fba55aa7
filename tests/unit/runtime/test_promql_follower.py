"""The source `promql` in the brain: what an agent says outranks it, and what it does when the server is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tocsin.cli.status import own_metrics
from tocsin.cli.status_lines import health_lines, needs_a_look
from tocsin.client.control import Readiness
from tocsin.collector.promql.series import SeriesReader
from tocsin.config.promql import PromqlSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.event import Event
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.runtime.brain.promql_follower import PromqlFollower
from tocsin.store.port import StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.dcgm_site import Point, labels_of
from tocsin_testing.fake_prometheus import FakePrometheus

SCRAPE = 15 * SECOND
URL = "http://prometheus:9090"


class Site:
    """Two GPUs that a server scrapes, and a memory that takes what follows from it."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.fake = FakePrometheus([])
        self.memory = FleetMemory()
        self.own = OwnMetrics()
        self.refuses = False
        self.events: list[Event] = []
        self.client = self.fake.client(URL)
        settings = PromqlSettings(url=URL)
        self.follower = PromqlFollower(
            SeriesReader(settings, self.client),
            settings,
            newest=self.memory.latest,
            recalled=self.memory.is_recalled,
            accept=self.accept,
            clock=self.clock,
            fresh_ms=2 * MINUTE,
            metrics=self.own,
        )

    def accept(self, batch: Batch) -> None:
        if self.refuses:
            raise StoreUnavailable("no room")
        self.memory.put(batch)
        self.events += batch.events

    def round(self, xid: int = 0, after_ms: int = SCRAPE) -> None:
        self.clock.advance(after_ms)
        now = self.clock.now_ms() - 2 * SECOND
        for which in (0, 1):
            values = {"DCGM_FI_DEV_GPU_TEMP": 50.0, "DCGM_FI_DEV_XID_ERRORS": float(xid)}
            self.fake.scrape(Point(name, labels_of(1, which), value, now) for name, value in values.items())
        self.follower.look()

    def taken(self, outcome: str) -> float:
        return self.own.value("tocsin_promql_readings_total", outcome=outcome)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.client.close()


def test_an_agent_of_the_host_outranks_the_server_and_gives_way_when_it_is_gone(site: Site) -> None:
    site.round()
    assert site.taken("taken") == 2
    agent = gpu(0, uuid="GPU-1-0", host="Node-1-by-its-agent")
    for _ in range(3):
        site.memory.put(Batch(readings=[reading(agent, site.clock.now_ms(), temperature_celsius=70)]))
        site.round(xid=79)
    kept = site.memory.reading("GPU-1-0")
    assert kept is not None
    assert kept.values == {"gpu_temperature_celsius": 70.0}
    assert (site.taken("agent"), site.taken("taken")) == (3, 5)
    assert {event.gpu for event in site.events} == {"GPU-1-1"}, "the agent tells what happens to its own"
    site.round(xid=79, after_ms=3 * MINUTE)
    assert site.taken("taken") == 7
    assert len(site.events) == 1, "what happened in the agent's time is not told again"


def test_another_gpu_of_the_agents_host_is_the_agents_too(site: Site) -> None:
    site.memory.put(Batch(readings=[reading(gpu(7, host="node-1"), T0 + SCRAPE)]))
    site.round()
    assert (site.taken("agent"), site.taken("taken")) == (2, 0)


def test_what_the_store_had_before_the_start_is_no_agent(site: Site) -> None:
    site.memory.recall(Batch(readings=[reading(gpu(0, uuid="GPU-1-0"), T0 - SECOND)]))
    site.round()
    assert site.taken("taken") == 2


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        ("401 no", "access"),
        ("422 what", "query"),
        ("404 gone", "not_prometheus"),
        ("413 too long", "too_large"),
    ],
)
def test_a_server_that_fails_is_counted_rested_and_taken_up_again(site: Site, failure: str, outcome: str) -> None:
    site.round()
    site.fake.failures = [failure] * 20
    for _ in range(4):
        site.round()
    assert site.own.value("tocsin_promql_rounds_total", outcome=outcome) == 3, "after the second failure it rests"
    assert site.own.value("tocsin_promql_up", server=URL) == 0
    assert site.own.value("tocsin_source_failures_total", source="promql") == 3
    site.fake.failures = []
    for _ in range(5):
        site.round()
    assert site.own.value("tocsin_promql_up", server=URL) == 1
    latest = site.memory.reading("GPU-1-1")
    assert latest is not None
    assert latest.at_ms == site.clock.now_ms() - 2 * SECOND


def test_an_event_waits_for_the_store(site: Site) -> None:
    site.round()
    site.refuses = True
    site.round(xid=79)
    assert site.own.value("tocsin_dropped_total", what="reading", reason="store_unavailable") == 2
    site.refuses = False
    site.round(xid=79)
    site.round(xid=79)
    assert sorted(event.gpu for event in site.events) == ["GPU-1-0", "GPU-1-1"]


def test_status_says_how_the_server_is(site: Site) -> None:
    from prometheus_client import generate_latest

    ready = Readiness(ready=True, reasons=[])

    def lines() -> list[str]:
        service = own_metrics(generate_latest(site.own.registry).decode())
        assert needs_a_look(service) is any("nothing can be read" in line for line in health_lines(ready, service))
        return [line for line in health_lines(ready, service) if line.startswith("promql")]

    assert lines() == []
    site.round()
    assert lines() == ["promql: 2 GPUs in the last answers"]
    site.fake.failures = ["401 no"]
    site.round()
    assert lines() == ["promql: nothing can be read (the log of the brain has the reason; see docs/promql.md)"]
