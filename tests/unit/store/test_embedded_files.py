"""What is on disk before it counts, and what the embedded store makes of files that are not as it left them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.domain.atomic_file import make_folder
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.store.embedded import migrate as embedded_migrate
from tocsin.store.embedded.backup import restore
from tocsin.store.embedded.chunks import Ask
from tocsin.store.embedded.segment_index import Gone, Segments
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import StoreUnavailable
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import gpu, reading

DAY0 = 1_795_000_000_000 // DAY * DAY
FOREVER = Retention(10**6 * DAY, 10**6 * DAY, 10**6 * DAY)
POWER = "gpu_power_watts"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "deep" / "store.db")
    opened.init()
    yield opened
    opened.close()


def fill(store: SqliteStore, watts: float) -> None:
    """An hour of one GPU in a segment."""
    store.write(Batch([reading(gpu(0), DAY0 + n, power_watts=watts + n / 7) for n in range(100)]))
    store.maintain(DAY0 + 2 * HOUR, FOREVER)


def power(store: SqliteStore) -> list[float]:
    found: list[float] = store.series("GPU-00000000", [POWER], DAY0, DAY0 + HOUR).values[:, 0].tolist()
    return found


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files and folders in the order in which they were brought to disk."""
    names: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        # A file that is not whole yet has a name of its own around the one that it gets.
        names.append(re.sub(r"^\.(.*)\.[0-9a-f]{8}\.new$", r"\1", Path(f"/proc/self/fd/{handle}").readlink().name))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_a_segment_and_all_folders_above_are_on_disk_before_it_counts(
    store: SqliteStore, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Segments.add

    def add(*args: object) -> None:
        synced.append("counts")
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Segments, "add", add)
    fill(store, 1)
    (path,) = store.path.with_name("store.db.segments").iterdir()
    assert synced == ["deep", path.name, "store.db.segments", "counts"]


def test_new_folders_are_on_disk(tmp_path: Path, synced: list[str]) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]


def test_copies_are_on_disk_when_backup_and_restore_return(
    store: SqliteStore, tmp_path: Path, synced: list[str]
) -> None:
    fill(store, 1)
    store.close()
    name = next(store.path.with_name("store.db.segments").iterdir()).name
    synced.clear()
    store.backup(tmp_path / "copy.db")
    assert synced == [tmp_path.name, name, "copy.db.segments", tmp_path.name]
    store.close()
    synced.clear()
    restore(tmp_path / "copy.db", store.path)
    assert synced == ["deep", name, "store.db.restored.segments", "store.db.segments", "deep"]
    assert len(power(store)) == 100


def test_another_segment_under_a_name_that_was_read_before_is_read_anew(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "other.db")
    for one, watts in ((store, 1), (other, 500)):
        fill(one, watts)
    expected = power(other)
    assert power(store) != expected
    other.backup(tmp_path / "copy.db")
    store.close()
    restore(tmp_path / "copy.db", store.path)
    assert (power(store), store.damaged()) == (expected, [])
    other.close()


def test_what_others_put_among_the_segments_stays(store: SqliteStore) -> None:
    fill(store, 1)
    folder = store.path.with_name("store.db.segments")
    (folder / "lost+found").mkdir()
    (folder / "README").write_text("ours")
    (folder / "half.parquet.tmp").write_text("half")
    store.close()
    store.maintain(DAY0, FOREVER)
    assert len(power(store)) == 100
    names = {path.name for path in folder.iterdir()}
    assert {"lost+found", "README"} < names
    assert "half.parquet.tmp" not in names


def test_a_path_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"store\.path.*cannot be used"):
        SqliteStore(tmp_path / "file" / "store.db").init()


def test_a_lock_that_cannot_be_written_ends_the_round_alone(store: SqliteStore) -> None:
    store.path.with_name("store.db.upkeep").unlink(missing_ok=True)
    store.path.with_name("store.db.upkeep").mkdir()
    with pytest.raises(StoreUnavailable, match="upkeep"):
        store.maintain(DAY0, FOREVER)
    store.write(Batch([reading(gpu(0), DAY0, power_watts=1)]))
    assert power(store) == [1.0]


def test_a_segment_that_upkeep_removed_is_not_called_damaged(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    ask = Ask(DAY0, DAY0 + HOUR)
    with store._reading() as db:
        (segment,) = store._segments.found(db, ask)
    store.prune(DAY0 + HOUR)
    store.maintain(DAY0 + 2 * HOUR, FOREVER)
    with pytest.raises(Gone):
        store._segments.read(segment, ask, last_try=True)
    monkeypatch.setattr(Segments, "found", lambda *_: [segment])
    with pytest.raises(StoreUnavailable, match="replaced faster"):
        power(store)
    monkeypatch.undo()
    assert (store.damaged(), power(store)) == ([], [])


def test_opening_that_failed_midway_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of columns that were written in the transaction that failed are written again."""
    store = SqliteStore(tmp_path / "store.db")
    real = embedded_migrate.bring_over

    def fails(db: object, chunks: object, gatherer: object) -> None:
        db.execute("BEGIN")  # type: ignore[attr-defined]
        block = store._gatherer.gather([reading(gpu(0), DAY0, power_watts=1)], store._numbers.of(db, [reading()]))  # type: ignore[arg-type]
        chunks.insert(db, block)  # type: ignore[attr-defined]
        db.execute("ROLLBACK")  # type: ignore[attr-defined]
        db.execute("SELECT * FROM no_such_table")  # type: ignore[attr-defined]

    monkeypatch.setattr("tocsin.store.embedded.store.bring_over", fails)
    with pytest.raises(StoreUnavailable, match="no_such_table"):
        store.init()
    monkeypatch.setattr("tocsin.store.embedded.store.bring_over", real)
    store.write(Batch([reading(gpu(1), DAY0, temperature_celsius=40)]))
    store.write(Batch([reading(gpu(0), DAY0, power_watts=2)]))
    assert [dict(r.values) for r in store.latest(0)] == [{POWER: 2.0}, {"gpu_temperature_celsius": 40.0}]
    store.close()
