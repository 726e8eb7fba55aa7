"""The whole way of a mock fleet, byte for byte: what the agent exports of it, and the line protocol of one reading.

TOCSIN_UPDATE_GOLDEN=1 writes the files anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.reading import Reading
from tocsin.runtime.agent.process import Agent
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import a100, h100, split
from tocsin_testing.mock_nvml import MockFleet

GOLDEN = Path(__file__).parents[1] / "data" / "mock_fleet"
PLACE = NodeIdentity("node-1", "training", "rack-7", {"team": "vision"})


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    alone = {
        "kernel_log": "off",
        "hook_socket": "",
        "attribution": False,
        "host_load": False,
        "network": False,
        "host_errors": False,
        "versions": False,
    }
    settings = Settings.model_validate({"agent": alone})
    clock = ManualClock(T0)
    with MockFleet(tmp_path, [h100(0), split(a100(1), "3g.40gb")]).loaded():
        made = Agent(settings, NvmlSource(PynvmlLibrary(), PLACE), clock)
        made.read()
        clock.advance(10 * SECOND)
        yield made
        made.close()


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TOCSIN_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_page_of_a_fleet_is_the_recorded_one(agent: Agent) -> None:
    assert len(agent.read().readings) == 3
    registry = CollectorRegistry()
    registry.register(agent.exporter)
    text = generate_latest(registry).decode()
    check("metrics.prom", text)
    page = set(generate_latest(agent.registry).decode().splitlines())
    assert set(text.splitlines()) <= page, "the agent's page has all of it, and its own metrics besides"


def test_the_line_protocol_of_one_reading_is_the_recorded_one(agent: Agent) -> None:
    readings = agent.read().readings
    text = encode(Batch(readings=[readings[0]]))
    check("reading.lp", text)
    found = decode(text, precision="ms", now_ms=T0 + 10 * SECOND)
    assert found.rejected == []
    (back,) = found.batch.readings
    assert isinstance(back, Reading)
    assert back == readings[0]
