"""The view of one node without a brain: its own source, or the page of its agent."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.client.models import GpuState
from tocsin.collector.exporter import FleetCollector
from tocsin.collector.source import Source
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.rules.load import load_rules
from tocsin.runtime.agent.node_view import AgentPage, NodeFeed, agent_feed, local_feed
from tocsin_testing.builders import T0

GPU = Gpu("GPU-0000beef-0000-4000-8000-000000000001", "node-1", 0, "NVIDIA H100 80GB HBM3", pool="training")
SLICE = Gpu("MIG-0000beef-0000-4000-8000-000000000009", "node-1", 0, parent=GPU.uuid, mig_profile="1g.10gb")
VALUES = {"gpu_temperature_celsius": 60.0, "gpu_utilization_ratio": 0.9, "gpu_power_watts": 500.0}


class Given:
    """A source that gives `readings`."""

    name = "given"

    def __init__(self, *readings: Reading) -> None:
        self.readings = list(readings)

    def gpus(self) -> list[Gpu]:
        return [reading.gpu for reading in self.readings]

    def read(self, now_ms: int) -> Batch:
        return Batch(readings=[replace(reading, at_ms=now_ms) for reading in self.readings])

    def close(self) -> None:
        return


def feed_of(source: Source, clock: ManualClock) -> NodeFeed:
    return NodeFeed("test", source, load_rules(None), clock, 2.0)


def page_of(*readings: Reading) -> str:
    registry = CollectorRegistry()
    collector = FleetCollector(ManualClock(T0), 60.0)
    collector.update("nvml", readings)
    registry.register(collector)
    return generate_latest(registry).decode()


def test_states_are_those_of_the_rules_as_they_hold() -> None:
    clock = ManualClock(T0)
    source = Given(Reading(GPU, T0, VALUES))
    feed = feed_of(source, clock)
    assert [gpu.state for gpu in feed.look().gpus] == [GpuState.OK]
    source.readings = [Reading(GPU, T0, VALUES | {"gpu_row_remap_failure": 1.0})]
    clock.advance(2_000)
    look = feed.look()
    assert look.gpus[0].state is GpuState.CRITICAL
    assert look.gpus[0].finding
    assert (look.summary, look.decisions, look.role) == (None, (), "")
    source.readings = [Reading(GPU, T0, {}, dict.fromkeys(VALUES, Missing.LOST))]
    clock.advance(2_000)
    assert feed.look().gpus[0].state is GpuState.LOST
    source.readings = [Reading(SLICE, T0, VALUES)]
    assert [gpu.uuid for gpu in feed.look().gpus] == [SLICE.uuid], "what is no longer enumerated is gone"


def test_a_gpu_in_full_has_the_course_of_the_looks() -> None:
    clock = ManualClock(T0)
    feed = feed_of(Given(Reading(GPU, T0, VALUES)), clock)
    for _ in range(3):
        feed.look()
        clock.advance(2_000)
    detail = feed.detail(GPU.uuid)
    assert detail.series["gpu_utilization_ratio"] == [0.9, 0.9, 0.9]
    assert detail.series["gpu_memory_used_ratio"] == [None, None, None]
    assert detail.span_s == 6.0
    assert detail.values["gpu_power_watts"] == 500.0
    with pytest.raises(InputError, match="no longer there"):
        feed.detail("GPU-none")


def test_nothing_is_decided_without_a_brain() -> None:
    feed = feed_of(Given(), ManualClock(T0))
    assert not feed.look().may_decide
    with pytest.raises(Conflict, match="no brain"):
        feed.approve("abc")
    with pytest.raises(Conflict, match="no brain"):
        feed.reject("abc", "")


def test_this_node_by_the_simulated_source() -> None:
    settings = Settings()
    settings = settings.model_copy(update={"simulation": settings.simulation.model_copy(update={"gpus": 16})})
    feed = local_feed(settings, "simulated", ManualClock(T0), 2.0)
    look = feed.look()
    assert len(look.gpus) == 16
    assert look.simulated
    assert feed.origin == "this node (simulated)"
    feed.close()
    with pytest.raises(InputError, match="no source has this name"):
        local_feed(settings, "simulatd", ManualClock(T0), 2.0)


def test_the_page_of_an_agent_gives_back_what_it_was_made_of() -> None:
    given = [
        Reading(GPU, T0, VALUES | {'gpu_pcie_throughput_bytes_per_second{direction="rx"}': 5.0}),
        Reading(SLICE, T0, {"gpu_memory_used_ratio": 0.25}),
    ]
    page = page_of(*given)
    source = AgentPage(
        "http://node-1:9835", transport=httpx2.MockTransport(lambda _request: httpx2.Response(200, text=page))
    )
    read = {reading.gpu.uuid: reading for reading in source.read(T0).readings}
    known = {key: value for key, value in given[0].values.items() if key.partition("{")[0] in page}
    assert {key: read[GPU.uuid].values[key] for key in known} == known
    assert read[SLICE.uuid].gpu.parent == GPU.uuid
    assert (read[GPU.uuid].gpu.index, read[GPU.uuid].gpu.pool) == (0, "training")
    look = agent_feed(Settings(), source, ManualClock(T0), 2.0).look()
    assert look.origin == "agent http://node-1:9835/metrics"
    assert {gpu.host for gpu in look.gpus} == {"node-1"}


@pytest.mark.parametrize(
    ("status", "page", "said"),
    [(200, "up 1\n", "not that of an agent"), (200, "<html>", "not that of an agent"), (404, "", "answers 404")],
)
def test_another_page_is_no_agent(status: int, page: str, said: str) -> None:
    source = AgentPage(
        "http://node-1:9835/metrics",
        transport=httpx2.MockTransport(lambda _request: httpx2.Response(status, text=page)),
    )
    with pytest.raises(Unavailable, match=said):
        source.read(T0)
    source.close()


def test_an_agent_that_is_no_url() -> None:
    with pytest.raises(InputError, match="is no http or https URL"):
        AgentPage("node-1:9835")
