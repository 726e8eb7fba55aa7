"""The constants behind `tocsin size`: what a GPU sends, what keeping it takes, and what a brain over a fleet costs.

Readings are those of the simulated fleet: 112 metrics and 135 values a GPU, with 93 reasons for what is missing. Run
without --benchmark-only everything is small, for correctness alone.
"""

from __future__ import annotations

import gzip
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.uplink import GZIP_LEVEL
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND, SystemClock
from tocsin.domain.reading import Reading
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.line_protocol.encode import encode
from tocsin.store.upkeep import Retention, Upkeep
from tocsin_testing import servers
from tocsin_testing.brain_child import start_brain
from tocsin_testing.builders import T0
from tocsin_testing.process_cost import cost

Say = Callable[[str], None]

EVERY = 10 * SECOND
START = T0 // DAY * DAY
STEPS = {0: "as taken", 60 * SECOND: "by the minute", 600 * SECOND: "by ten minutes"}


def fleet(gpus: int, start_ms: int = START) -> SimulatedFleet:
    return SimulatedFleet(FleetSpec(gpus=gpus, seed=7, start_ms=start_ms, interval_ms=EVERY))


def nodes(readings: list[Reading]) -> list[str]:
    """What the agent of each node sends of one instant."""
    by_host = groupby(sorted(readings, key=lambda one: one.gpu.host), key=lambda one: one.gpu.host)
    return [encode(Batch(list(found)), packed=True) for _, found in by_host]


@pytest.mark.benchmark(group="compress one reading of 8 nodes of 8 GPUs", timer=time.process_time)
def test_what_a_reading_is_on_its_way(benchmark: BenchmarkFixture, say: Say) -> None:
    readings = list(fleet(64).step().readings)
    texts = nodes(readings)
    sent = benchmark.pedantic(
        lambda: [gzip.compress(text.encode(), GZIP_LEVEL) for text in texts], rounds=3, iterations=1
    )
    kept = [zlib.compress(text.encode(), 1) for text in texts]
    values = sum(len(one.values) for one in readings) / len(readings)
    say(
        f"a reading of a GPU: {values:.0f} values, {sum(map(len, texts)) / len(readings):.0f} bytes of line protocol, "
        f"{sum(map(len, sent)) / len(readings):.0f} sent, {sum(map(len, kept)) / len(readings):.0f} in the spool"
    )
    assert sum(map(len, sent)) < sum(map(len, texts)) / 5


@pytest.mark.benchmark(group="keep a reading of 8 GPUs for two years")
def test_what_a_reading_is_on_disk(benchmark: BenchmarkFixture, say: Say, tmp_path: Path) -> None:
    """Three days of 8 GPUs, of which one each ends in every age of the embedded store."""
    days = 3 if benchmark.enabled else 1 / 12
    told = fleet(8)
    with closing(SqliteStore(tmp_path / "store.db")) as store:
        store.init()
        for _ in range(round(days * DAY / HOUR)):
            store.write(Batch([reading for _ in range(HOUR // EVERY) for reading in told.step().readings]))
        end_ms = START + round(days * DAY)
        keep = Retention(DAY, 2 * DAY, 730 * DAY)

        def rounds() -> None:
            while store.maintain(end_ms + HOUR, keep) != Upkeep():
                pass

        benchmark.pedantic(rounds, rounds=1)
    query = "SELECT step_ms, sum(size), sum(height) FROM segment WHERE retired_ms IS NULL GROUP BY step_ms"
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        found = db.execute(query).fetchall()
    for step_ms, size, rows in found:
        say(f"a row {STEPS[step_ms]} on disk: {size / rows:.0f} bytes")
    assert len(found) == (3 if benchmark.enabled else 1)


@pytest.mark.benchmark(group="write 40 readings of 8 nodes of 8 GPUs, node by node")
def test_what_a_reading_is_before_it_is_packed(benchmark: BenchmarkFixture, say: Say, tmp_path: Path) -> None:
    """As agents push: each node's reading is a transaction of its own, and a chunk until its hour is packed."""
    ticks = [list(told.step().readings) for told in [fleet(64)] for _ in range(40 if benchmark.enabled else 4)]
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as store:
        store.init()
        empty = path.stat().st_size

        def write() -> None:
            for readings in ticks:
                for _, found in groupby(sorted(readings, key=lambda one: one.gpu.host), key=lambda one: one.gpu.host):
                    store.write(Batch(list(found)))

        benchmark.pedantic(write, rounds=1)
    # Closing it has put its log into the file.
    size = (path.stat().st_size - empty) / sum(map(len, ticks))
    say(f"a row before its hour is packed: {size:.0f} bytes")
    assert size > 0


def gauge(url: str, name: str) -> float:
    """Sum of a metric of VictoriaMetrics over its kinds of parts in files."""
    lines = httpx2.get(f"{url}/metrics", timeout=60).text.splitlines()
    kinds = ('{type="storage/small"}', '{type="storage/big"}', '{type="indexdb"}')
    return sum(float(line.split()[1]) for line in lines if line.startswith(tuple(name + kind for kind in kinds)))


def in_files(url: str, rows: int) -> None:
    """Wait until so many samples are out of memory."""
    end, pause = time.monotonic() + 60, threading.Event()
    while gauge(url, "vm_rows") < rows:
        assert time.monotonic() < end, "the server keeps its samples in memory"
        httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
        pause.wait(0.5)


@pytest.mark.server
@pytest.mark.benchmark(group="write six hours of 16 GPUs into VictoriaMetrics")
def test_what_a_value_is_in_victoriametrics(benchmark: BenchmarkFixture, say: Say, tmp_path: Path) -> None:
    sixths = 36 if benchmark.enabled else 1
    told = fleet(16, SystemClock().now_ms() - sixths * HOUR // 6)

    def write(url: str) -> int:
        values = 0
        for _ in range(sixths):
            readings = [reading for _ in range(60) for reading in told.step().readings]
            values += sum(len(reading.values) for reading in readings)
            text = encode(Batch(readings), info=False)
            answer = httpx2.post(f"{url}/api/v2/write", params={"precision": "ms"}, content=text.encode(), timeout=60)
            answer.raise_for_status()
        return values

    with servers.victoria_metrics(tmp_path) as url:
        values = benchmark.pedantic(write, args=(url,), rounds=1)
        in_files(url, values)
        size = gauge(url, "vm_data_size_bytes")
    assert values > 0
    if benchmark.enabled:  # an hour's tenth is still in memory
        say(f"a value in VictoriaMetrics: {size / values:.2f} bytes on disk, index and reasons for what is missing too")
        assert size > 0


EVALUATED_SECONDS = 60.0
"""Four evaluations and one forecast."""


def feed(url: str, told: SimulatedFleet, ticks: int) -> None:
    """Send `ticks` readings of all nodes, each node by itself, until all are acknowledged."""
    with httpx2.Client(timeout=60) as client:
        for _ in range(ticks):
            for text in nodes(list(told.step().readings)):
                body = gzip.compress(text.encode(), GZIP_LEVEL)
                answer = client.post(
                    f"{url}/api/v2/write?precision=ms", content=body, headers={"Content-Encoding": "gzip"}
                )
                answer.raise_for_status()


@pytest.mark.parametrize("gpus", [8, 64, 1_000, 10_000])
@pytest.mark.benchmark(group="a brain over a fleet takes three readings of every GPU")
def test_what_a_brain_costs(benchmark: BenchmarkFixture, say: Say, tmp_path: Path, gpus: int) -> None:
    """CPU of taking readings in, CPU of judging and forecasting while nothing comes, and memory after both.

    The two are measured apart, because a machine that is too slow for the pace of the readings would evaluate more
    often for each of them than a fleet of this size does.
    """
    if benchmark.disabled and gpus > 8:
        pytest.skip("one fleet is enough where nothing is measured")
    ticks, pause = (3, EVALUATED_SECONDS) if benchmark.enabled else (1, 0.1)
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "api": {"listen": "127.0.0.1:0", "limits": {"requests_per_second": 10_000, "request_burst": 100_000}},
            "forecast": {"models": tmp_path / "models", "every_seconds": 60},
        }
    )
    process, url = start_brain(settings)
    assert process.pid is not None
    try:
        told = fleet(gpus, SystemClock().now_ms() - (ticks + 1) * EVERY)
        feed(url, told, 1)
        before, begun = cost(process.pid), time.monotonic()
        benchmark.pedantic(feed, args=(url, told, ticks), rounds=1)
        fed, wrote = cost(process.pid), time.monotonic() - begun
        threading.Event().wait(pause)
        judged, waited = cost(process.pid), time.monotonic() - begun - wrote
        seen = httpx2.get(f"{url}/v1/fleet", timeout=60).json()
    finally:
        process.terminate()
        process.join(60)
    assert seen["gpus"] == told.spec.gpus
    judging = (judged.cpu_seconds - fed.cpu_seconds) / waited
    taking = max(fed.cpu_seconds - before.cpu_seconds - judging * wrote, 0.0) / ticks
    say(
        f"a brain over {gpus:,} GPUs that are read every 10 s: {judging + taking / (EVERY / SECOND):.3f} cores, "
        f"{judging:.3f} of them for judging; {judged.bytes / 1e6:.0f} MB with its worker"
    )
