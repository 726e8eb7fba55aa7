"""The spool: order, bound, parked lines, damage."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collector import spool as module
from tocsin.collector.spool import Spool
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin_testing.builders import T0

BIG = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent" / "spool.db"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    made = Spool(path, BIG, ManualClock(T0))
    yield made
    made.close()


def noise(length: int, seed: int) -> str:
    """Text that does not compress well."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def test_first_in_first_out_until_settled(spool: Spool) -> None:
    for n in range(3):
        spool.put(f"line {n}\n", 1)
    assert [b.text for b in spool.peek(BIG)] == ["line 0\n", "line 1\n", "line 2\n"]
    assert [b.text for b in spool.peek(BIG)] == ["line 0\n", "line 1\n", "line 2\n"], "a look takes nothing away"
    spool.settle(spool.peek(BIG)[:1])
    assert [b.text for b in spool.peek(BIG)] == ["line 1\n", "line 2\n"]
    assert spool.batches == 2


def test_a_look_is_bounded_but_never_empty(spool: Spool) -> None:
    for n in range(4):
        spool.put(str(n) * 100, 1)
    assert len(spool.peek(250)) == 2
    assert len(spool.peek(1)) == 1


def test_it_survives_closing(path: Path) -> None:
    first = Spool(path, BIG, ManualClock(T0))
    first.put("a", 2)
    first.put("b", 3)
    size = first.size
    first.close()
    second = Spool(path, BIG, ManualClock(T0))
    assert [(b.text, b.readings) for b in second.peek(BIG)] == [("a", 2), ("b", 3)]
    assert (second.batches, second.size) == (2, size)
    second.close()


def test_the_oldest_go_at_the_bound_and_are_counted(path: Path) -> None:
    spool = Spool(path, 10_000, ManualClock(T0))
    dropped = [spool.put(noise(1_000, n), 5) for n in range(30)]
    assert spool.size <= 10_000
    lost = sum(d.batches for d in dropped)
    assert lost == 30 - spool.batches
    assert sum(d.readings for d in dropped) == 5 * lost
    assert [d.batches for d in dropped[:10]] == [0] * 10, "nothing goes before the bound"
    assert [b.text for b in spool.peek(BIG)] == [noise(1_000, n) for n in range(lost, 30)]
    spool.close()


def test_a_batch_beyond_the_bound_is_dropped_and_counted(path: Path) -> None:
    spool = Spool(path, 1_000, ManualClock(T0))
    assert spool.put(noise(5_000, 1), 7).readings == 7
    assert (spool.batches, spool.size) == (0, 0)
    spool.close()


def test_parked_lines_are_kept_once_with_their_problem(spool: Spool) -> None:
    spool.put("good\nbad\n", 2)
    spool.settle(spool.peek(BIG), [("bad", "no fields")])
    spool.settle([], [("bad", "no fields")])
    assert [(p.line, p.problem, p.at_ms) for p in spool.parked()] == [("bad", "no fields", T0)]
    assert spool.parked_lines() == 1
    assert spool.batches == 0


def test_parked_lines_are_bounded(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARKED_LINES", 10)
    assert spool.settle([], [(f"line {n}", "bad") for n in range(15)]) == 5
    assert [p.line for p in spool.parked()] == [f"line {n}" for n in range(5, 15)]


def test_settling_twice_is_no_error(spool: Spool) -> None:
    spool.put("a", 1)
    batches = spool.peek(BIG)
    spool.settle(batches)
    spool.settle(batches)
    assert (spool.batches, spool.size) == (0, 0)


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_spool_is_moved_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    spool = Spool(path, BIG, ManualClock(T0))
    spool.put("a", 1)
    assert spool.batches == 1
    assert path.with_name(f"spool.db.damaged-{T0}").read_bytes() == content
    spool.close()


def test_a_batch_that_cannot_be_unpacked_has_no_text(path: Path, spool: Spool) -> None:
    spool.put("a", 1)
    spool.put("b", 1)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE batch SET body = x'00ff' WHERE id = 1")
    other.close()
    assert [b.text for b in spool.peek(BIG)] == ["", "b"]


def test_a_newer_file_is_left_alone(path: Path) -> None:
    Spool(path, BIG, ManualClock(T0)).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(InputError, match="newer version of Tocsin"):
        Spool(path, BIG, ManualClock(T0))
    assert path.exists()


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"agent\.spool = .*cannot be used"):
        Spool(tmp_path / "file" / "spool.db", BIG, ManualClock(T0))
