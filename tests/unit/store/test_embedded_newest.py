"""What the embedded store says is newest: of each GPU the row of its newest instant, whole, whoever wrote it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Reading
from tocsin.store.embedded import chunks
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import T0, gpu, reading

POWER, TEMPERATURE = "gpu_power_watts", "gpu_temperature_celsius"
LINK = variant("gpu_nvlink_crc_flit_errors_total", "link", "3")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store.db")
    for node in range(4):
        made.write(Batch([reading(gpu(2 * node + n), T0, power_watts=node, temperature_celsius=n) for n in (0, 1)]))
    yield made
    made.close()


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The height of each chunk that is unpacked."""
    found: list[int] = []
    real = chunks.unpack_alike

    def counted(rows: Sequence[Sequence[Any]], *args: Any) -> object:
        found.extend(row[1] for row in rows)
        return real(rows, *args)

    monkeypatch.setattr(chunks, "unpack_alike", counted)
    return found


def newest(store: SqliteStore, since_ms: int = 0) -> dict[str, float]:
    found = store.latest_columns([POWER], since_ms)
    return dict(zip(found.gpus, found.values[:, 0].tolist(), strict=True))


def test_only_chunks_of_the_newest_instants_are_read(store: SqliteStore, unpacked: list[int]) -> None:
    for at in range(1, 4):
        store.write(Batch([reading(gpu(n), T0 + at, power_watts=n) for n in range(7)]))
    found = store.latest_columns([TEMPERATURE, "gpu_sm_clock_hertz", POWER], T0)
    assert found.gpus == tuple(f"GPU-{n:08d}" for n in range(8))
    assert found.at_ms.tolist() == [T0 + 3] * 7 + [T0]
    expected = [[np.nan, np.nan, n] for n in range(7)] + [[1, np.nan, 3]]
    np.testing.assert_array_equal(found.values, expected)
    # The four of the first tick, in one of which is the GPU that fell silent, and that of the last one.
    assert unpacked == [2, 2, 2, 2, 7]
    assert store.latest_columns([POWER], T0 + 4).gpus == ()
    assert store.latest_columns([LINK], T0 + 1).gpus == found.gpus[:7]


def test_compaction_changes_nothing(store: SqliteStore, unpacked: list[int]) -> None:
    before = newest(store)
    store.maintain(T0 + 2 * HOUR, Retention(9 * DAY, 90 * DAY, 730 * DAY))
    unpacked.clear()
    assert newest(store) == before
    assert unpacked == []


def test_readings_of_a_second_connection_are_seen_at_once(store: SqliteStore) -> None:
    other = SqliteStore(store.path)
    other.write(Batch([reading(gpu(3), T0, power_watts=50), reading(gpu(4), T0 + 1, power_watts=60)]))
    assert (newest(store)["GPU-00000003"], newest(store)["GPU-00000004"]) == (50.0, 60.0)
    for store_ in (store, other):
        store_.write(Batch([reading(gpu(n), T0 + 2, power_watts=n) for n in range(8)]))
    assert newest(other) == newest(store) == {f"GPU-{n:08d}": float(n) for n in range(8)}
    other.write(Batch([reading(gpu(n), T0 + 3, power_watts=n) for n in range(8)]))
    assert len(newest(store, T0 + 3)) == len(newest(other, T0 + 3)) == 8
    other.close()


def test_a_gpu_that_fell_silent_before_is_there_too(store: SqliteStore) -> None:
    path = store.path
    store.close()
    again = SqliteStore(path)
    again.write(Batch([reading(gpu(5), T0 + 1, power_watts=9)]))
    found = again.latest_columns([POWER, TEMPERATURE], 0)
    np.testing.assert_array_equal(found.values[:, 0], [0, 0, 1, 1, 2, 9, 3, 3])
    np.testing.assert_array_equal(found.values[:, 1], [0, 1, 0, 1, 0, np.nan, 0, 1])
    assert found.at_ms.tolist() == [T0, T0, T0, T0, T0, T0 + 1, T0, T0]
    again.close()


def test_a_name_of_no_table_is_found_by_its_name_alone(store: SqliteStore) -> None:
    store.write(Batch([Reading(gpu(0), T0 + 1, {"gpu_gone_total": 5.0})]))
    assert store.latest_columns(["gpu_gone_total"], T0 + 1).values.tolist() == [[5.0]]
    assert store.columns(["gpu_gone_total"], T0 + 1, T0 + 2).values.tolist() == [[5.0]]
    assert store.series("GPU-00000000", ["gpu_gone_total"], T0 + 1, T0 + 2).values.tolist() == [[5.0]]


def test_threads_that_read_see_whole_rows_that_never_go_back(store: SqliteStore) -> None:
    over = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        last = 0
        while not over.is_set():
            found = store.latest_columns([POWER, TEMPERATURE], T0 + 1)
            rows = zip(found.at_ms.tolist(), found.values.tolist(), strict=True)
            wrong.extend(row for row in rows if row[1] != [row[0] - T0, T0 - row[0]])
            newest_ms = max(found.at_ms.tolist(), default=0)
            if newest_ms < last:
                wrong.append((newest_ms, last))
            last = newest_ms

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(1, 200):
        some = [reading(gpu(n), T0 + at, power_watts=at, temperature_celsius=-at) for n in range(8)]
        store.write(Batch(some))
        if at % 50 == 0:
            store.prune(T0 + at)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert newest(store) == {f"GPU-{n:08d}": 199.0 for n in range(8)}


def test_a_row_that_is_newer_than_its_gpu_has_on_record_stands_in_nobodys_way(tmp_path: Path) -> None:
    """As one that came in after its hour was rolled up."""
    store = SqliteStore(tmp_path / "store.db")
    store.write(Batch([reading(gpu(n), T0, power_watts=n) for n in (0, 1)]))
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("UPDATE gpu SET last_ms = last_ms - ? WHERE id = 2", (HOUR,))
    again = SqliteStore(tmp_path / "store.db")
    assert newest(again, T0) == {"GPU-00000000": 0.0}
    assert [one.gpu.uuid for one in again.latest(T0)] == ["GPU-00000000"]
    again.close()
