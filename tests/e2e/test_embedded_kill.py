"""The embedded store is killed at random instants while it writes, compacts, joins and rolls up."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tocsin.domain.clock import DAY, MINUTE
from tocsin.store.embedded.store import SqliteStore

KILLS = 20
START = 1_795_000_000_000 // DAY * DAY

WORK = """
import sys
from pathlib import Path
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.reading import Gpu
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention

store, number, start = SqliteStore(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
keep = Retention(DAY // 4, 10**6 * DAY, 10**6 * DAY)
fleet = [Gpu(f"GPU-{n}", "node-1", n) for n in range(4)]
link = variant("gpu_nvlink_up", "link", "0")

while True:
    for _ in range(6):
        now = start + number * MINUTE
        store.write(Batch(readings=[Reading(g, now, {"gpu_power_watts": float(number), link: 1.0}) for g in fleet]))
        print(number, flush=True)
        number += 10
    store.maintain(now, keep)
"""


def run_until_killed(path: Path, number: int, writes: int, seconds: float) -> list[int]:
    """Minutes that a process acknowledged before it was killed, which was so many `seconds` after so many `writes`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(path), str(number), str(START)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(writes)]
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    out, err = process.communicate()
    killer.join()
    assert process.returncode == -signal.SIGKILL, err.decode()
    # A line that the kill cut short was never read whole: its write may or may not be there.
    return [int(line) for line in (b"".join(lines) + out).split(b"\n")[:-1] if line.isdigit()]


def test_no_acknowledged_reading_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    path, chance = tmp_path / "store.db", random.Random(20261121)
    acknowledged: list[int] = []
    number = 0
    for _ in range(KILLS):
        acknowledged += run_until_killed(path, number, chance.randrange(1, 60), chance.uniform(0.0, 0.05))
        number = acknowledged[-1] + 10
    store = SqliteStore(path)
    found = store.series("GPU-2", ["gpu_power_watts", 'gpu_nvlink_up{link="0"}'], 0, 2**62)
    everyone = store.columns(["gpu_power_watts"], 0, 2**62)
    kept = found.values[:, 0].tolist()
    with store._reading() as db:
        (rolled,) = db.execute("SELECT COUNT(*) FROM segment WHERE step_ms > 0").fetchone()
    listed = {name for (name,) in _names(store)}
    assert set(acknowledged) <= {int(value) for value in kept}
    assert len(kept) == len(set(kept))
    assert kept == [(at - START) / MINUTE for at in found.at_ms.tolist()]
    assert len(everyone.at_ms) == 4 * len(kept)
    assert set(found.values[:, 1].tolist()) == {1.0}
    assert store.damaged() == []
    assert {p.name for p in path.with_name("store.db.segments").iterdir()} <= listed
    assert rolled > 0
    store.close()


def _names(store: SqliteStore) -> list[tuple[str]]:
    with store._reading() as db:
        names = db.execute("SELECT name FROM segment").fetchall()
    return [*names, *((name.replace(".parquet", ".variants.parquet"),) for (name,) in names)]
