"""The embedded store is killed at random instants while it writes, compacts, joins and rolls up."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pytest

from tocsin.domain.clock import DAY, MINUTE
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.chaos import until
from tocsin_testing.killed_store import GPUS, KEEP, STEP, start_store

KILLS = 12
START = 1_795_000_000_000 // DAY * DAY
NEVER = threading.Event()


def run_until_killed(path: Path, number: int, writes: int, seconds: float, told: Path) -> None:
    """A process that goes on from minute `number` and is killed, which is so many `seconds` after so many `writes`."""
    before = len(told.read_bytes())
    process = start_store(path, number, START, told)
    until(lambda: told.read_bytes().count(b"\n", before) >= writes or not process.is_alive(), "writes that are kept")
    NEVER.wait(seconds)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_acknowledged_reading_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    path, told, chance = tmp_path / "store.db", tmp_path / "told", random.Random(20261121)
    told.touch()
    acknowledged: list[int] = []
    for _ in range(KILLS):
        number = acknowledged[-1] + STEP if acknowledged else 0
        run_until_killed(path, number, chance.randrange(1, 60), chance.uniform(0.0, 0.05), told)
        acknowledged = [int(line) for line in told.read_text().splitlines()]
    store = SqliteStore(path)
    found = store.series("GPU-2", ["gpu_power_watts", 'gpu_nvlink_up{link="0"}'], 0, 2**62)
    everyone = store.columns(["gpu_power_watts"], 0, 2**62)
    kept = found.values[:, 0].tolist()
    with store._reading() as db:
        (rolled,) = db.execute("SELECT COUNT(*) FROM segment WHERE step_ms > 0").fetchone()
    assert set(acknowledged) <= {int(value) for value in kept}
    assert len(kept) == len(set(kept))
    assert kept == [(at - START) / MINUTE for at in found.at_ms.tolist()]
    assert len(everyone.at_ms) == GPUS * len(kept)
    assert set(found.values[:, 1].tolist()) == {1.0}
    assert store.damaged() == []
    # What the last one had begun goes with the next upkeep.
    store.maintain(START + (acknowledged[-1] + STEP) * MINUTE, KEEP)
    listed = {name for (name,) in _names(store)}
    assert {p.name for p in path.with_name("store.db.segments").iterdir()} <= listed
    assert rolled > 0
    store.close()


def _names(store: SqliteStore) -> list[tuple[str]]:
    with store._reading() as db:
        names = db.execute("SELECT name FROM segment").fetchall()
    return [*names, *((name.replace(".parquet", ".variants.parquet"),) for (name,) in names)]
