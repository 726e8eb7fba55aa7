"""A brain that reads 10,000 GPUs of 20 metrics each from a VictoriaMetrics: from the query to the readings.

Run without --benchmark-only it is a tenth of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.dcgm.fields import field_numbered, is_old, names_numbered, readable_ids
from tocsin.collector.prometheus_history.http import HistoryClient
from tocsin.collector.promql.fleet import PromqlFleet
from tocsin.collector.promql.series import SeriesReader
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import SECOND, SystemClock
from tocsin.runtime.interpreter import steady
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import servers
from tocsin_testing.dcgm_site import Point, labels_of

pytestmark = pytest.mark.server

GPUS, SMALL, PER_HOST, SCRAPE_MS, ROUNDS = 10_000, 1_000, 8, 30 * SECOND, 3
LIMIT_SECONDS = 10.0


def names() -> list[str]:
    """Twenty fields of dcgm-exporter that feed a row each, the last XID among them."""
    plain = [n for n in readable_ids() if is_old(n) and (one := field_numbered(n)) is not None and not one.spec.label]
    found = dict.fromkeys(names_numbered(number)[0] for number in plain)
    return ["DCGM_FI_DEV_XID_ERRORS", *[name for name in found if name != "DCGM_FI_DEV_XID_ERRORS"]][:20]


def scrape(url: str, gpus: int, at_ms: int, value: float) -> None:
    """One scrape of every exporter."""
    hosts = gpus // PER_HOST
    for first in range(0, hosts, 125):
        text = "".join(
            Point(name, labels_of(host, gpu, UUID=f"GPU-{host:08d}-1111-2222-3333-{gpu:012d}"), value, at_ms).text()
            for host in range(first, first + 125)
            for gpu in range(PER_HOST)
            for name in names()
        )
        httpx2.post(f"{url}/api/v1/import/prometheus", content=text.encode(), timeout=60).raise_for_status()


def test_a_round_over_a_large_fleet_takes_less_than_ten_seconds(
    tmp_path: Path, benchmark: BenchmarkFixture, say: Callable[[str], None]
) -> None:
    assert len(names()) == 20
    gpus = SMALL if benchmark.disabled else GPUS
    clock = SystemClock()
    with servers.victoria_metrics(tmp_path) as url, steady(clock):
        settings = PromqlSettings(url=url, timeout_seconds=60)
        begun = clock.now_ms()
        for ago in (2, 1):
            scrape(url, gpus, begun - ago * SCRAPE_MS, 1.0)
        client = HistoryClient(url, attempts=1, timeout_seconds=60, clock=clock)
        reader, fleet = SeriesReader(settings, client), PromqlFleet(90 * SECOND, OwnMetrics())
        wall, own = [], []
        for step in range(ROUNDS):
            scrape(url, gpus, clock.now_ms(), float(step % 2))
            httpx2.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
            start, cpu = time.monotonic(), time.process_time()
            now = clock.now_ms()
            batch = fleet.batch(reader.read(now), now)
            wall.append(time.monotonic() - start)
            own.append(time.process_time() - cpu)
            assert len(batch.readings) == gpus
            assert all(len(one.values) + len(one.missing) >= 20 for one in batch.readings[:100])
        client.close()
    say(
        f"{gpus:,} GPUs, 20 metrics each, out of VictoriaMetrics: the first round {wall[0]:.1f} s, the fastest later "
        f"one {min(wall[1:]):.1f} s, of it {min(own[1:]):.1f} s CPU of the brain"
    )
    # Beside other tests a round waits for processors: there the own work of a smaller one is bounded, of most of them.
    assert (median(own) if benchmark.disabled else max(wall)) < LIMIT_SECONDS * gpus / GPUS
    benchmark.pedantic(lambda: None)
