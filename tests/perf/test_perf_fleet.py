"""1,000 nodes of 8 GPUs, 60 metrics every 10 s, through spool and uplink into real receivers; and read back whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.spool import Spool
from tocsin.collector.uplink import PushTarget, Uplink
from tocsin.config.settings import Settings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, SystemClock
from tocsin.domain.reading import Reading
from tocsin.store.factory import open_store
from tocsin.store.grid import columns_of
from tocsin.store.line_protocol.encode import encode
from tocsin.store.port import Columns
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import scale, servers
from tocsin_testing.brain_child import start_brain

pytestmark = pytest.mark.server

NODES, EVERY = 1_000 if scale.measuring else 40, 10 * SECOND
FLEET = scale.fleet(NODES * scale.GPUS_PER_NODE)
NAMES = scale.PLAIN[:60]
VALUES = len(FLEET) * len(NAMES)
TICKS = 5
START = SystemClock().now_ms() // EVERY * EVERY - 10 * MINUTE
Say = Callable[[str], None]


def tick(step: int) -> list[Batch]:
    """What the agents of all nodes read at one instant."""
    found = scale.readings(FLEET, NAMES, START + step * EVERY, step)
    return [Batch(found[at : at + scale.GPUS_PER_NODE]) for at in range(0, len(found), scale.GPUS_PER_NODE)]


class Feed:
    """All nodes' batches through one spool and one uplink, with the CPU time that encoding takes of it."""

    def __init__(self, folder: Path, url: str) -> None:
        clock = SystemClock()
        self.own = OwnMetrics()
        self._spool = Spool(folder / "spool.db", 1 << 30, clock)
        self._uplink = Uplink(self._spool, PushTarget(url, "tocsin", "tocsin", timeout_seconds=60), clock, self.own)
        self.encoding = 0.0

    def run(self, batches: list[Batch]) -> None:
        for batch in batches:
            begun = time.process_time()
            text = encode(batch)
            self.encoding += time.process_time() - begun
            self._spool.put(text, len(batch.readings))
        self._uplink.push()
        assert self._spool.batches == 0, "the receiver did not take everything"

    def close(self) -> None:
        self._uplink.close()
        self._spool.close()
        assert self.own.value("tocsin_dropped_total", what="line", reason="refused") == 0


@pytest.fixture(scope="module")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("vm")) as url:
        yield url


def feed(benchmark: BenchmarkFixture, say: Say, folder: Path, url: str, receiver: str) -> None:
    line = Feed(folder, url)
    steps = iter(range(TICKS))
    benchmark.pedantic(line.run, setup=lambda: ((tick(next(steps)),), {}), rounds=TICKS, iterations=1)
    line.close()
    if not benchmark.disabled:
        usual, first = benchmark.stats.stats.median, benchmark.stats.stats.data[0]
        say(
            f"{NODES} nodes into {receiver}: {VALUES / usual:,.0f} values/s from reading to acknowledgement, "
            f"{EVERY / SECOND / usual:.1f} times as fast as they come, and the first of {TICKS}, which creates all "
            f"series, in {first:.1f} s; encoding {TICKS * VALUES / line.encoding / 1e6:.2f} million values/s of a core"
        )


def stored(url: str) -> int:
    """Samples of `NAMES` in a VictoriaMetrics."""
    httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
    total = 0.0
    for name in NAMES:
        data = {"query": f"sum(count_over_time({name}[1h]))", "nocache": "1"}
        result = httpx2.post(f"{url}/api/v1/query", data=data, timeout=60).json()["data"]["result"]
        total += float(result[0]["value"][1])
    return int(total)


@pytest.mark.benchmark(group="one reading of 8,000 GPUs, 60 metrics each, from 1,000 nodes: 480,000 values")
def test_victoriametrics_takes_a_fleet(benchmark: BenchmarkFixture, say: Say, tmp_path: Path, victoria: str) -> None:
    feed(benchmark, say, tmp_path, victoria, "VictoriaMetrics")
    assert stored(victoria) == VALUES * (1 if benchmark.disabled else TICKS)


@pytest.mark.benchmark(group="one reading of 8,000 GPUs, 60 metrics each, from 1,000 nodes: 480,000 values")
def test_a_brain_takes_a_fleet(benchmark: BenchmarkFixture, say: Say, tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "brain" / "store.db"},
            "journal": {"path": tmp_path / "brain" / "journal.db"},
            "api": {"listen": "127.0.0.1:0"},
            "forecast": {"every_seconds": 86_400, "worker": False},
        }
    )
    process, url = start_brain(settings)
    try:
        feed(benchmark, say, tmp_path, url, "a brain with the embedded store")
    finally:
        process.terminate()
        process.join(30)
    store = open_store(settings.store)
    store.init()
    found = store.latest_columns(NAMES, START)
    store.close()
    assert len(found.gpus) == len(FLEET)
    assert np.isfinite(found.values).all()


@pytest.mark.parametrize("metrics", [NAMES, NAMES[:3]], ids=["60_metrics", "3_metrics"])
@pytest.mark.benchmark(group="the newest reading of 8,000 GPUs from VictoriaMetrics as arrays")
def test_the_newest_of_a_fleet(
    benchmark: BenchmarkFixture, say: Say, tmp_path: Path, victoria: str, metrics: tuple[str, ...]
) -> None:
    store = open_store(
        StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=victoria, path=tmp_path / "words.db", timeout_seconds=60)
    )
    store.init()
    newest = START + 10 * EVERY
    store.write(Batch(scale.readings(FLEET, NAMES, newest)))
    httpx2.get(f"{victoria}/internal/force_flush", timeout=60).raise_for_status()
    found = benchmark.pedantic(store.latest_columns, args=(metrics, START), rounds=2, iterations=1)
    store.close()
    assert found.at_ms.tolist() == [newest] * len(FLEET)
    assert np.isfinite(found.values).all()
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        say(f"the newest of {len(metrics)} metrics of 8,000 GPUs from VictoriaMetrics: {seconds:.2f} s")


FEW = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_utilization_ratio")
INSTANTS = 30


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSettings]:
    """A VictoriaMetrics with 5 minutes of 3 metrics of all GPUs."""
    folder = tmp_path_factory.mktemp("columns")
    with servers.victoria_metrics(folder) as url:
        settings = StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=url, path=folder / "words.db", timeout_seconds=60)
        store = open_store(settings)
        store.init()
        for step in range(INSTANTS):
            store.write(Batch(scale.readings(FLEET, FEW, START + step * EVERY, step)))
        store.close()
        httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
        yield settings


def by_rows(readings: Iterator[Reading]) -> Columns:
    return columns_of(FEW, readings)


@pytest.mark.parametrize("way", ["columns", "baseline_readings_row_by_row"])
@pytest.mark.benchmark(group="the last 5 minutes of 8,000 GPUs from VictoriaMetrics as arrays: 720,000 values")
def test_reading_a_fleet(benchmark: BenchmarkFixture, say: Say, filled: StoreSettings, way: str) -> None:
    store = open_store(filled)
    store.init()
    span = (START, START + INSTANTS * EVERY)
    read: Callable[[], Columns] = (
        (lambda: store.columns(FEW, *span)) if way == "columns" else (lambda: by_rows(store.readings(*span)))
    )
    found = benchmark.pedantic(read, rounds=2, iterations=1)
    store.close()
    assert found.values.shape == (len(FLEET) * INSTANTS, len(FEW))
    assert np.isfinite(found.values).all()
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        say(f"the last 5 minutes of 3 metrics of 8,000 GPUs from VictoriaMetrics, {way}: {seconds:.2f} s")
