"""What only the embedded store has: schema, migrations, backup and restore, readers beside a writer."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store.embedded.backup import restore
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store.db"


def filled(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    store.init()
    store.write(Batch(readings=[reading(gpu(n), temperature_celsius=40 + n) for n in range(3)], events=[xid(79)]))
    return store


def test_a_name_that_no_table_has_is_kept(path: Path) -> None:
    store = filled(path)
    later = Reading(gpu(0), T0 + 1, {"gpu_gone_total": 5.0}, {"gpu_also_gone": Missing.LOST})
    store.write(Batch(readings=[later]))
    (found,) = store.readings(T0 + 1, T0 + 2)
    assert (dict(found.values), dict(found.missing)) == (dict(later.values), dict(later.missing))
    store.close()


def test_owners_come_back(path: Path) -> None:
    owners = (Owner(7, "python", pod="train-0", namespace="ml", pod_uid="u-1"), Owner(8, slurm_job="42.0", user="ann"))
    store = filled(path)
    store.write(Batch(readings=[replace(reading(gpu(0), T0 + 1, power_watts=1), owners=owners)]))
    store.write(Batch(readings=[reading(gpu(0), T0 + 1, temperature_celsius=50)]))
    assert [r.owners for r in store.readings(T0, T0 + 2, gpus={"GPU-00000000"})] == [(), owners]
    assert [r.owners for r in store.latest(T0)] == [owners, (), ()]
    store.write(Batch(readings=[replace(reading(gpu(0), T0 + 1, power_watts=2), owners=owners[:1])]))
    assert next(iter(store.latest(T0))).owners == owners[:1]
    store.close()


def test_backup_of_a_store_in_use_and_restore(path: Path, tmp_path: Path) -> None:
    store = filled(path)
    copy = tmp_path / "copy.db"
    store.backup(copy)
    with pytest.raises(InputError, match="exists"):
        store.backup(copy)
    store.write(Batch(readings=[reading(gpu(9))]))
    store.close()
    restore(copy, path)
    again = SqliteStore(path)
    assert [g.uuid for g in again.gpus()] == [f"GPU-{n:08d}" for n in range(3)]
    assert [event.code for event in again.events(T0, T0 + 1)] == [79]
    again.close()


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_what_is_no_store_is_not_restored(path: Path, tmp_path: Path, content: bytes) -> None:
    filled(path).close()
    bad = tmp_path / "bad.db"
    bad.write_bytes(content)
    with pytest.raises(InputError, match="use another backup"):
        restore(bad, path)
    store = SqliteStore(path)
    assert len(store.gpus()) == 3
    store.close()


def test_a_newer_or_foreign_file_is_one_clear_error(path: Path, tmp_path: Path) -> None:
    filled(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE of_the_future (id INTEGER)")
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="schema version 99"):
        SqliteStore(path).init()
    foreign = tmp_path / "text.db"
    foreign.write_text("hello " * 1000)
    with pytest.raises(InputError, match=r"store\.path"):
        SqliteStore(foreign).init()


def test_a_full_disk_loses_nothing_that_was_accepted(path: Path) -> None:
    store = filled(path)
    writer = store._database._writer
    assert writer is not None
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreUnavailable, match="full"):
        store.write(Batch(readings=[reading(gpu(n), T0 + n, power_watts=n / 7) for n in range(5_000)]))
    writer.execute("PRAGMA max_page_count = 1000000")
    store.write(Batch(readings=[reading(gpu(4_000), T0 + 1, temperature_celsius=60)]))
    assert {g.uuid for g in store.gpus()} == {f"GPU-{n:08d}" for n in (0, 1, 2, 4_000)}
    store.close()


def test_another_process_reads_while_this_one_writes(path: Path) -> None:
    store = filled(path)
    code = (
        "import sys; from pathlib import Path; from tocsin.store.embedded.store import SqliteStore\n"
        "s = SqliteStore(Path(sys.argv[1])); print(len(list(s.latest(0)))); s.close()"
    )
    store.write(Batch(readings=[reading(gpu(3))]))
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    store.close()
    assert done.stdout.strip() == "4"


def test_a_value_that_does_not_fit_costs_its_batch_and_mixes_up_nothing(path: Path) -> None:
    store = filled(path)
    bad = Batch(readings=[reading(gpu(7), temperature_celsius=51)], events=[xid(2**64)])
    with pytest.raises(StoreRejected):
        store.write(bad)
    store.write(Batch(readings=[reading(gpu(8), temperature_celsius=60)]))
    store.write(Batch(readings=[reading(gpu(7), temperature_celsius=70)]))
    found = {r.gpu.uuid: r.values["gpu_temperature_celsius"] for r in store.latest(0)}
    assert found["GPU-00000008"] == 60.0
    assert found["GPU-00000007"] == 70.0
    store.close()


def test_threads_that_come_and_go_leave_no_connection_behind(path: Path) -> None:
    store = filled(path)
    for _ in range(30):
        thread = threading.Thread(target=lambda: list(store.latest(0)))
        thread.start()
        thread.join()
    assert len(store._database._idle) == 1
    store.close()


def test_a_store_in_use_is_not_replaced(path: Path, tmp_path: Path) -> None:
    store = filled(path)
    copy = tmp_path / "copy.db"
    store.backup(copy)
    with pytest.raises(Conflict, match="in use"):
        restore(copy, path)
    store.close()
    restore(copy, path)


def test_a_folder_with_odd_characters_is_a_folder(tmp_path: Path) -> None:
    store = filled(tmp_path / "a#b c?d%20" / "store.db")
    assert len(list(store.latest(0))) == 3
    store.close()


@pytest.mark.parametrize("name", [f.name for f in fields(Gpu) if f.name != "uuid"])
def test_every_attribute_that_changes_is_kept(path: Path, name: str) -> None:
    store = filled(path)
    before = gpu(0)
    values = {"index": 7, "simulated": True, "labels": {"a": "b"}}
    after = replace(before, **{name: values.get(name, "other")})
    store.write(Batch(readings=[reading(after, T0 + 1)]))
    assert asdict(store.gpus()[0]) == asdict(after) != asdict(before)
    store.close()
