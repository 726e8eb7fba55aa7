"""A brain that follows a VictoriaMetrics to which the agents of 10,000 GPUs push: a look at all that is new."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.config.settings import RulesSettings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.runtime.brain.brain import FleetMemory
from tocsin.runtime.brain.store_follower import StoreFollower
from tocsin.store.factory import open_store
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import scale, servers

pytestmark = pytest.mark.server

GPUS, LOOKS, TRIES = 10_000, 3, 10
FLEET, NAMES = scale.fleet(GPUS), scale.PLAIN[:60]
FRESH_MS = 180_000


def push(url: str, step: int) -> None:
    """One reading of every GPU, as the agents of their nodes send it."""
    readings = scale.readings(FLEET, NAMES, SystemClock().now_ms(), step)
    for at in range(0, GPUS, 400):
        text = encode(Batch(readings[at : at + 400]))
        sent = httpx2.post(f"{url}/api/v2/write", params={"precision": "ms"}, content=text, timeout=60)
        assert sent.status_code == 204


def test_a_look_at_a_fleet_costs_less_than_half_the_interval(
    tmp_path: Path, benchmark: BenchmarkFixture, say: Callable[[str], None]
) -> None:
    if benchmark.disabled:
        pytest.skip("ten thousand GPUs are for where something is measured")
    with servers.victoria_metrics(tmp_path) as url:
        kind = StoreKind.VICTORIAMETRICS
        store = open_store(StoreSettings(kind=kind, url=url, path=tmp_path / "store.db"))
        store.init()
        memory, clock, pause = FleetMemory(), SystemClock(), threading.Event()

        def take(batch: Batch) -> Batch:
            memory.put(batch)
            return batch

        follower = StoreFollower(store, memory.latest, memory.has_event, take, clock, FRESH_MS, OwnMetrics(), 10.0)
        for _ in range(TRIES):  # series that are new to the server are found after about ten seconds
            before = memory.count
            push(url, 0)
            pause.wait(2.0)
            follower.look()
            if memory.count - before == GPUS:
                break
        wall, own = [], []
        for step in range(1, LOOKS + 1):
            push(url, step)
            httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
            before, begun, cpu = memory.count, time.monotonic(), time.process_time()
            follower.look()
            wall.append(time.monotonic() - begun)
            own.append(time.process_time() - cpu)
            assert memory.count - before == GPUS
        store.close()
    interval = RulesSettings().evaluate_seconds
    say(
        f"a look at one reading of {GPUS:,} GPUs, {len(NAMES)} metrics each, in VictoriaMetrics, fastest of {LOOKS}: "
        f"{min(wall):.1f} s, of it {min(own):.1f} s CPU of the brain; the interval is {interval:.0f} s"
    )
    assert min(own) < interval / 2
    benchmark.pedantic(lambda: None)
