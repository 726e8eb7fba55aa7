"""History of the embedded store: compaction, segments, late readings, damage, leftovers, readers beside upkeep."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Reading
from tocsin.store.embedded import segments
from tocsin.store.embedded.backup import restore
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import StoreUnavailable
from tocsin.store.upkeep import Retention, interrupt
from tocsin_testing.builders import gpu, reading

DAY0 = 1_795_000_000_000 // DAY * DAY
FOREVER = Retention(10**6 * DAY, 10**6 * DAY, 10**6 * DAY)
POWER = "gpu_power_watts"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.db")
    opened.init()
    yield opened
    opened.close()


def fill(store: SqliteStore, hours: int, gpus: int = 3, step_ms: int = 5 * MINUTE) -> list[Reading]:
    """Readings of some GPUs over some hours, written hour by hour."""
    made = []
    for hour in range(hours):
        batch = [
            reading(gpu(n), DAY0 + hour * HOUR + at, power_watts=hour * 100 + at / 7 + n)
            for at in range(0, HOUR, step_ms)
            for n in range(gpus)
        ]
        store.write(Batch(readings=batch))
        made += batch
    return made


def files(store: SqliteStore) -> list[Path]:
    folder = store.path.with_name(store.path.name + ".segments")
    return sorted(folder.iterdir()) if folder.is_dir() else []


def hot(store: SqliteStore) -> int:
    with store._reading() as db:
        return int(db.execute("SELECT COALESCE(SUM(height), 0) FROM chunk").fetchone()[0])


def live(store: SqliteStore) -> list[str]:
    with store._reading() as db:
        query = "SELECT name FROM segment WHERE retired_ms IS NULL AND problem IS NULL ORDER BY newest, id"
        return [name for (name,) in db.execute(query)]


def everything(store: SqliteStore) -> list[Reading]:
    return list(store.readings(0, DAY0 + 100 * DAY))


def test_an_hour_that_is_over_becomes_a_segment(store: SqliteStore) -> None:
    written = fill(store, 3)
    done = store.maintain(DAY0 + 2 * HOUR + 10 * MINUTE, FOREVER)
    assert (done.compacted, len(files(store)), hot(store)) == (2 * 36, 2, 36)
    assert everything(store) == written
    assert store.maintain(DAY0 + 2 * HOUR + 10 * MINUTE, FOREVER).compacted == 0


def test_a_segment_is_sorted_by_gpu_and_time_and_told_apart_by_its_statistics(store: SqliteStore) -> None:
    batch = [reading(gpu(n), DAY0 + at, power_watts=1) for at in range(0, HOUR, 500) for n in range(3)]
    store.write(Batch(readings=batch))
    store.maintain(DAY0 + 2 * HOUR, FOREVER)
    (path,) = files(store)
    with pq.ParquetFile(path) as file:
        keys = file.read(columns=["gpu", "at_ms"])
        spans = [file.metadata.row_group(n).column(0).statistics for n in range(file.num_row_groups)]
    order = np.lexsort((keys.column("at_ms").to_numpy(), keys.column("gpu").to_numpy()))
    assert (np.diff(order) == 1).all()
    assert len(spans) == 3
    assert all(before.max <= after.min for before, after in pairwise(spans))


def test_late_readings_are_merged_at_once_and_with_the_next_round(store: SqliteStore) -> None:
    fill(store, 1, step_ms=10 * SECOND)
    store.maintain(DAY0 + 2 * HOUR, FOREVER)
    late = [reading(gpu(0), DAY0, temperature_celsius=50), reading(gpu(0), DAY0 + 1, power_watts=5)]
    store.write(Batch(readings=late))
    for rounds in range(2):
        found = list(store.readings(DAY0, DAY0 + 2, gpus={"GPU-00000000"}))
        assert [dict(r.values) for r in found] == [
            {POWER: 0.0, "gpu_temperature_celsius": 50.0},
            {POWER: 5.0},
        ]
        assert (hot(store), len(live(store))) == ((2, 1), (0, 2))[rounds]
        store.maintain(DAY0 + 2 * HOUR, FOREVER)


def test_late_readings_of_one_gpu_do_not_rewrite_those_of_all(store: SqliteStore) -> None:
    fill(store, 1, step_ms=10 * SECOND)
    store.maintain(DAY0 + 2 * HOUR, FOREVER)
    (first,) = live(store)
    for number in range(30):
        store.write(Batch(readings=[reading(gpu(0), DAY0 + number, power_watts=number)]))
        store.maintain(DAY0 + 2 * HOUR, FOREVER)
    assert first in live(store)
    assert len(live(store)) < 7
    values = store.series("GPU-00000000", [POWER], DAY0, DAY0 + 30).values[:, 0]
    assert values.tolist() == list(range(30))


def test_the_hours_of_a_day_become_one(store: SqliteStore) -> None:
    written = fill(store, 30)
    store.maintain(DAY0 + 31 * HOUR, FOREVER)
    assert len(live(store)) == 30
    done = store.maintain(DAY0 + 4 * DAY - 1, FOREVER)
    assert (done.joined, len(live(store))) == (24 * 36, 1 + 6)
    assert everything(store) == written


def test_files_that_were_replaced_wait_for_their_readers(store: SqliteStore) -> None:
    fill(store, 24)
    store.maintain(DAY0 + 25 * HOUR, FOREVER)
    store.maintain(DAY0 + 4 * DAY, FOREVER)
    assert len(files(store)) == 25
    store.maintain(DAY0 + 4 * DAY + 9 * MINUTE, FOREVER)
    assert len(files(store)) == 25
    store.maintain(DAY0 + 4 * DAY + 11 * MINUTE, FOREVER)
    assert [path.name for path in files(store)] == live(store)


def test_processes_that_come_and_go_never_widen_a_segment(store: SqliteStore) -> None:
    def one(n: int) -> Reading:
        values = {variant("gpu_process_memory_used_bytes", "pid", str(1_000 * n + k)): float(k) for k in range(3)}
        return Reading(gpu(n % 4), DAY0 + n * MINUTE, {POWER: float(n), **values})

    written = [one(n) for n in range(50)]
    store.write(Batch(readings=written))
    store.maintain(DAY0 + 2 * HOUR, FOREVER)
    wide, long = (pq.read_schema(path).names for path in files(store))
    assert wide == ["gpu", "at_ms", POWER]
    assert long == ["gpu", "name", "at_ms", "whole", "value"]
    assert everything(store) == written
    name = variant("gpu_process_memory_used_bytes", "pid", "1000")
    found = store.series("GPU-00000001", [name, POWER], DAY0, DAY0 + 6 * MINUTE)
    np.testing.assert_array_equal(found.values, [[0.0, 1.0], [np.nan, 5.0]])


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 3] ^= 0x10
    elif how == "cut":
        del content[len(content) // 2 :]
    elif how == "empty":
        content.clear()
    path.unlink() if how == "gone" else path.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "gone"])
def test_a_damaged_segment_is_set_aside_and_the_rest_is_read(store: SqliteStore, how: str) -> None:
    written = fill(store, 3, step_ms=SECOND)
    store.maintain(DAY0 + 3 * HOUR + 10 * MINUTE, FOREVER)
    damage(files(store)[1], how)
    store.close()
    with capture_logs() as logs:
        found = everything(store)
    assert found == [r for r in written if not DAY0 + HOUR <= r.at_ms < DAY0 + 2 * HOUR]
    assert [(e["event"], Path(e["segment"]).name) for e in logs] == [("segment set aside", store.damaged()[0][0])]
    assert logs[0]["problem"]
    assert store.maintain(DAY0 + 9 * DAY, FOREVER).damaged == 1
    assert everything(store) == found
    assert len(list(store.latest(0))) == 3


def test_what_a_killed_round_left_behind_is_removed(store: SqliteStore) -> None:
    fill(store, 2)
    store.maintain(DAY0 + HOUR + 10 * MINUTE, FOREVER)
    (kept,) = files(store)
    for name in ("1-2-0-00000099.parquet", "1-2-0-00000099.variants.parquet", "x.parquet.tmp"):
        kept.with_name(name).write_bytes(b"half")
    store.close()
    store.maintain(DAY0 + HOUR + 20 * MINUTE, FOREVER)
    assert len(everything(store)) == 72
    assert files(store) == [kept]


def test_a_disk_that_is_full_costs_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(store, 2)
    real, calls = segments.pq.write_table, []

    def full(*args: object, **more: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **more)

    monkeypatch.setattr(segments.pq, "write_table", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.maintain(DAY0 + 3 * HOUR, FOREVER)
    assert (len(files(store)), hot(store)) == (1, 36)
    assert everything(store) == written
    store.maintain(DAY0 + 3 * HOUR, FOREVER)
    assert (len(files(store)), hot(store)) == (2, 0)
    assert everything(store) == written


def test_only_one_looks_after_the_files(store: SqliteStore) -> None:
    other = SqliteStore(store.path)
    with store._upkeep.alone(), pytest.raises(Conflict):
        other.maintain(DAY0, FOREVER)
    other.maintain(DAY0, FOREVER)
    other.close()


def test_a_round_that_is_interrupted_goes_on_with_the_next(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(store, 2)
    real = segments.write

    def first(path: Path, block: object) -> int:
        interrupt(store)
        return real(path, block)  # type: ignore[arg-type]

    monkeypatch.setattr(segments, "write", first)
    assert store.maintain(DAY0 + 3 * HOUR, FOREVER).compacted == 0
    assert (len(live(store)), hot(store)) == (1, 36)
    assert everything(store) == written
    monkeypatch.undo()
    assert store.maintain(DAY0 + 3 * HOUR, FOREVER).compacted == 36
    assert everything(store) == written


def test_readers_see_all_and_each_once_while_upkeep_runs(store: SqliteStore) -> None:
    expected = len(fill(store, 30, gpus=2))
    counts: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set() or len(counts) < 3:
            counts.append(sum(1 for _ in store.readings(0, DAY0 + 10 * DAY)))

    thread = threading.Thread(target=look)
    thread.start()
    for hour in range(1, 30):
        store.maintain(DAY0 + hour * HOUR + 6 * MINUTE, FOREVER)
    store.maintain(DAY0 + 4 * DAY, FOREVER)
    over.set()
    thread.join()
    assert set(counts) == {expected}


READ = """
import sys
from pathlib import Path
from tocsin.store.embedded.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
seen = 0
while seen < int(sys.argv[2]):
    found = store.columns(["gpu_power_watts"], 0, 2**62)
    keys = set(zip(found.gpu.tolist(), found.at_ms.tolist()))
    assert len(keys) == len(found.at_ms) >= seen, (len(keys), len(found.at_ms), seen)
    assert len(store.latest_columns(["gpu_power_watts"], 0).gpus) <= 3
    seen = len(keys)
print(seen)
store.close()
"""


def test_another_process_reads_while_this_one_writes_and_compacts(store: SqliteStore) -> None:
    total = 12 * 36
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, str(store.path), str(total)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        for hour in range(12):
            for at in range(0, HOUR, 5 * MINUTE):
                when = DAY0 + hour * HOUR + at
                store.write(Batch(readings=[reading(gpu(n), when, power_watts=at) for n in range(3)]))
            store.maintain(DAY0 + (hour + 1) * HOUR + 10 * MINUTE, FOREVER)
        out, err = reader.communicate(timeout=60)
    finally:
        reader.kill()
    assert (out.decode().strip(), err.decode()) == (str(total), "")
    assert len(live(store)) == 12


def test_backup_and_restore_take_the_segments_along(store: SqliteStore, tmp_path: Path) -> None:
    written = fill(store, 3)
    with_variants = Reading(gpu(0), DAY0 + 5, {variant("gpu_nvlink_up", "link", "0"): 1.0})
    store.write(Batch(readings=[with_variants]))
    store.maintain(DAY0 + 2 * HOUR + 10 * MINUTE, FOREVER)
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    store.backup(copy)
    store.prune(DAY0 + 9 * DAY)
    store.maintain(DAY0 + 9 * DAY, FOREVER)
    assert everything(store) == []
    store.close()
    restore(copy, store.path)
    assert {(r.gpu.uuid, r.at_ms) for r in everything(store)} == {
        *((r.gpu.uuid, r.at_ms) for r in written),
        ("GPU-00000000", DAY0 + 5),
    }
    assert store.series("GPU-00000000", [variant("gpu_nvlink_up", "link", "0")], DAY0, DAY0 + 9).values[-1] == [1.0]


def test_a_backup_of_the_version_before_keeps_its_segments(store: SqliteStore, tmp_path: Path) -> None:
    written = fill(store, 2)
    store.maintain(DAY0 + 3 * HOUR, FOREVER)
    copy = tmp_path / "copy.db"
    store.backup(copy)
    store.close()
    with closing(sqlite3.connect(copy)) as db:
        for column in ("severity", "remedy"):
            db.execute(f"ALTER TABLE event DROP COLUMN {column}")
        for table in ("gpu", "chunk", "segment", "event", "finding", "prediction"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN sum")
        db.execute("ALTER TABLE chunk DROP COLUMN rest")
        db.execute("ALTER TABLE segment DROP COLUMN sums")
        db.execute("DROP TABLE damaged")
        db.execute("PRAGMA user_version = 2")
    restore(copy, store.path)
    assert everything(store) == written
    assert store.damaged_rows() == 0


def test_a_backup_that_lacks_a_segment_is_not_restored(store: SqliteStore, tmp_path: Path) -> None:
    fill(store, 2)
    store.maintain(DAY0 + 3 * HOUR, FOREVER)
    copy = tmp_path / "copy.db"
    store.backup(copy)
    next((tmp_path / "copy.db.segments").iterdir()).unlink()
    written = everything(store)
    store.close()
    with pytest.raises(InputError, match="lacks a file of its segments"):
        restore(copy, store.path)
    assert everything(store) == written


def test_a_cut_in_the_middle_of_a_segment_keeps_the_rest(store: SqliteStore) -> None:
    written = fill(store, 2)
    store.maintain(DAY0 + 3 * HOUR, FOREVER)
    store.write(Batch(readings=[reading(gpu(0), DAY0 + 1, power_watts=1)]))
    assert store.prune(DAY0 + 20 * MINUTE) == 4 * 3 + 1
    assert everything(store) == [r for r in written if r.at_ms >= DAY0 + 20 * MINUTE]
    assert store.prune(DAY0 + 20 * MINUTE) == 0
