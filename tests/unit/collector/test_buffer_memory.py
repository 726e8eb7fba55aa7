"""The spool with memory behind it: what the disk refuses waits, and every loss is counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collector import spool as module
from tocsin.collector.spool import Buffer, Spool
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

BIG = 1 << 30


class Disk:
    """Makes the disk refuse what is written while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for name in ("put_packed", "settle"):
            monkeypatch.setattr(Spool, name, self._refusing(getattr(Spool, name)))

    def _refusing(self, real):
        def call(*arguments: object) -> object:
            if self.full:
                raise sqlite3.OperationalError("database or disk is full")
            return real(*arguments)

        return call


class Bench:
    """A buffer on one clock."""

    def __init__(self, folder: Path, memory_bytes: int = BIG) -> None:
        self.path = folder / "spool.db"
        self.clock = ManualClock(T0)
        self.own = OwnMetrics()
        self.buffer = Buffer(self.path, BIG, self.clock, self.own, memory_bytes=memory_bytes)

    def texts(self) -> list[str]:
        return [batch.text for batch in self.buffer.peek(BIG)]

    def lost(self, what: str, reason: str = "spool_failed") -> float:
        return self.own.value("tocsin_dropped_total", what=what, reason=reason)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.buffer.close()


def test_what_is_put_is_on_disk(bench: Bench) -> None:
    assert bench.buffer.put("a", 1)
    assert bench.texts() == ["a"]
    assert (bench.buffer.batches, bench.buffer.in_memory) == (1, 0)
    assert bench.own.value("tocsin_spool_batches") == 1


def test_what_the_disk_refuses_waits_in_memory_and_goes_first(bench: Bench, disk: Disk) -> None:
    bench.buffer.put("on disk", 1)
    disk.full = True
    assert not bench.buffer.put("b", 2)
    assert not bench.buffer.put("c", 3)
    assert bench.own.value("tocsin_spool_memory_batches") == 2
    assert bench.texts() == ["b", "c"], "what would be lost first goes first"
    bench.buffer.settle(bench.buffer.peek(BIG))
    assert bench.texts() == ["on disk"]
    assert bench.buffer.batches == 1


def test_memory_moves_to_the_disk_when_that_takes_it_again(bench: Bench, disk: Disk) -> None:
    disk.full = True
    for text in "abc":
        bench.buffer.put(text, 1)
    disk.full = False
    assert bench.buffer.put("d", 1)
    assert bench.buffer.in_memory == 0
    assert bench.texts() == ["a", "b", "c", "d"]
    bench.buffer.close()
    again = Spool(bench.path, BIG, bench.clock)
    assert [batch.text for batch in again.peek(BIG)] == ["a", "b", "c", "d"]
    again.close()


def test_a_long_memory_moves_step_by_step(bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSHED_AT_ONCE", 2)
    disk.full = True
    for n in range(5):
        bench.buffer.put(str(n), 1)
    disk.full = False
    bench.buffer.put("5", 1)
    assert bench.buffer.in_memory == 3
    bench.buffer.put("6", 1)
    bench.buffer.put("7", 1)
    assert bench.buffer.in_memory == 0
    assert sorted(bench.texts()) == [str(n) for n in range(8)]


def test_memory_is_bounded_and_what_goes_is_counted(tmp_path: Path, disk: Disk) -> None:
    bench = Bench(tmp_path, memory_bytes=100)
    disk.full = True
    for n in range(40):
        bench.buffer.put(f"batch {n}", 3, 2)
    kept = bench.texts()
    lost = 40 - len(kept)
    assert kept == [f"batch {n}" for n in range(lost, 40)]
    assert bench.buffer.size <= 100
    assert (bench.lost("batch"), bench.lost("reading"), bench.lost("event")) == (lost, 3 * lost, 2 * lost)
    bench.buffer.close()


def test_what_is_in_memory_at_the_end_is_moved_or_counted(tmp_path: Path, disk: Disk) -> None:
    for full, lost in ((False, 0), (True, 2)):
        bench = Bench(tmp_path / str(full))
        disk.full = True
        bench.buffer.put("a", 1, 1)
        bench.buffer.put("b", 1)
        disk.full = full
        bench.buffer.close()
        bench.buffer.close()
        disk.full = False
        spool = Spool(bench.path, BIG, bench.clock)
        assert spool.batches == 2 - lost
        spool.close()
        assert (bench.lost("batch"), bench.lost("reading"), bench.lost("event")) == (lost, lost, lost // 2)


def test_what_cannot_be_removed_from_a_full_disk_is_not_sent_twice(bench: Bench, disk: Disk) -> None:
    bench.buffer.put("a", 1)
    bench.buffer.put("b", 1)
    disk.full = True
    bench.buffer.settle(bench.buffer.peek(1), [("bad", "no fields")])
    assert bench.texts() == ["b"]
    assert bench.buffer.batches == 1
    assert bench.buffer.parked_lines() == 1
    disk.full = False
    bench.buffer.settle(bench.buffer.peek(BIG))
    assert bench.buffer.batches == 0
    assert [parked.line for parked in Spool(bench.path, BIG, bench.clock).parked()] == ["bad"]


def test_parked_lines_are_bounded_in_memory_too(bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARKED_LINES", 10)
    disk.full = True
    assert bench.buffer.settle([], [(f"line {n}", "bad") for n in range(15)]) == 5
    assert bench.buffer.parked_lines() == 10


def test_an_agent_that_starts_on_a_full_disk_begins_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True

    def connect(*arguments: object, **more: object) -> sqlite3.Connection:
        if full:
            raise sqlite3.OperationalError("disk I/O error")
        return real(*arguments, **more)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(module, "_is_full", lambda _: True)
    bench = Bench(tmp_path)
    bench.buffer.put("a", 1)
    assert (bench.buffer.in_memory, bench.texts()) == (1, ["a"])
    full = False
    bench.clock.advance(9 * SECOND)
    bench.buffer.put("b", 1)
    assert bench.buffer.in_memory == 2, "not tried at every batch"
    bench.clock.advance(2 * SECOND)
    bench.buffer.put("c", 1)
    assert bench.buffer.in_memory == 0
    assert bench.texts() == ["a", "b", "c"]
    bench.buffer.close()


def test_a_wrong_place_is_still_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"agent\.spool = .*cannot be used"):
        Buffer(tmp_path / "file" / "spool.db", BIG, ManualClock(T0), OwnMetrics())


def test_a_file_damaged_in_use_is_moved_aside_and_counted(bench: Bench) -> None:
    for n in range(200):
        bench.buffer.put(f"batch {n} " + "x" * 100, 1)
    with sqlite3.connect(bench.path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    size = bench.path.stat().st_size
    with bench.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    taken = [bench.buffer.put(f"later {n}", 1) for n in range(400)]
    assert taken[-1], "a fresh file takes batches"
    assert list(bench.path.parent.glob("spool.db.damaged-*"))
    assert bench.lost("spool", "damaged") == 1
    assert all(text.startswith("later") for text in bench.texts())


def test_a_file_damaged_before_the_start_is_counted(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(b"this is no database" * 100)
    bench = Bench(tmp_path)
    assert bench.lost("spool", "damaged") == 1
    bench.buffer.close()


def test_the_age_of_what_waits(bench: Bench, disk: Disk) -> None:
    def age() -> float:
        return bench.own.value("tocsin_spool_oldest_seconds")

    assert age() == 0
    bench.buffer.put("a", 1)
    bench.clock.advance(30 * SECOND)
    disk.full = True
    bench.buffer.put("b", 1)
    bench.clock.advance(5 * SECOND)
    assert age() == 35
    bench.clock.set(T0 - 3_600_000)
    assert age() == 0, "a clock that was set back makes nothing young"


def test_a_bound_on_disk_counts_readings_and_events(tmp_path: Path) -> None:
    own = OwnMetrics()
    buffer = Buffer(tmp_path / "spool.db", 100, ManualClock(T0), own)
    for n in range(20):
        buffer.put(f"batch {n} {'abcdefghij'[n % 10] * n}", 4, 1)
    lost = 20 - buffer.batches
    counted = [own.value("tocsin_dropped_total", what=w, reason="spool_full") for w in ("batch", "reading", "event")]
    assert counted == [lost, 4 * lost, lost]
    assert lost > 0
    buffer.close()


def test_a_spool_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    with sqlite3.connect(path) as old:
        old.executescript(
            "CREATE TABLE batch (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL,"
            " readings INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL);"
            "CREATE TABLE parked (id INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL UNIQUE,"
            " at_ms INTEGER NOT NULL, line TEXT NOT NULL, problem TEXT NOT NULL);"
            "INSERT INTO batch VALUES (7, 1, 2, 11, x'789c4b040000620062'); PRAGMA user_version = 1;"
        )
    old.close()
    bench = Bench(tmp_path)
    bench.buffer.put("b", 1, 1)
    assert bench.texts() == ["a", "b"]
    bench.buffer.close()
