"""Writing readings to the embedded store, against one row per metric."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.builders import T0, gpu

GPUS = 200
NAMES = [spec.name for spec in METRICS.values() if spec.entity == "gpu" and not spec.label][:60]
FLEET = [gpu(n, host=f"node-{n // 8}") for n in range(GPUS)]


def tick(step: int) -> list[Reading]:
    values = dict.fromkeys(NAMES, 0.25 + step % 7 / 100)
    return [Reading(which, T0 + step * SECOND, values) for which in FLEET]


@pytest.mark.benchmark(group=f"write {GPUS} readings of {len(NAMES)} metrics, durable")
def test_the_embedded_store(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    store, steps = SqliteStore(tmp_path / "store.db"), count()
    store.init()
    benchmark.pedantic(lambda: store.write(Batch(readings=tick(next(steps)))), rounds=15, warmup_rounds=1)
    assert len(list(store.latest(0))) == GPUS
    store.close()


@pytest.mark.benchmark(group=f"write {GPUS} readings of {len(NAMES)} metrics, durable")
def test_baseline_one_row_per_metric(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    db, steps = sqlite3.connect(tmp_path / "long.db", isolation_level=None), count()
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE sample (gpu TEXT, at_ms INTEGER, metric TEXT, value REAL, PRIMARY KEY (gpu, metric, at_ms))"
    )

    def write() -> None:
        rows = [(r.gpu.uuid, r.at_ms, name, value) for r in tick(next(steps)) for name, value in r.values.items()]
        db.execute("BEGIN")
        db.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?)", rows)
        db.execute("COMMIT")

    benchmark.pedantic(write, rounds=15, warmup_rounds=1)
    db.close()
