"""The brain and the command line look after the embedded store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, ManualClock, SystemClock
from tocsin.runtime.brain.assembly import open_brain
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.builders import T0, reading

HOUR0 = T0 // HOUR * HOUR


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": folder / "brain" / "store.db"},
            "journal": {"path": folder / "brain" / "journal.db"},
            "forecast": {"worker": False},
        }
    )


def segments(settings: Settings) -> list[Path]:
    return sorted(settings.store.path.with_name("store.db.segments").glob("*.parquet"))


def test_the_brain_compacts_and_counts_what_it_cannot_read(tmp_path: Path) -> None:
    settings, clock = settings_in(tmp_path), ManualClock(HOUR0)
    running = open_brain(settings, clock)
    brain = running.brain
    brain.accept(Batch([reading(at_ms=HOUR0 + n * 1000, power_watts=n / 7) for n in range(3_000)]))
    clock.advance(2 * HOUR)
    brain.prune()
    assert brain.metrics.value("tocsin_store_damaged_segments") == 0
    (path,) = segments(settings)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert list(brain.store.readings(HOUR0, HOUR0 + HOUR)) == []
    brain.prune()
    assert brain.metrics.value("tocsin_store_damaged_segments") == 1
    running.stop()


def test_the_brain_leaves_the_store_to_who_looks_after_it(tmp_path: Path) -> None:
    settings, clock = settings_in(tmp_path), ManualClock(HOUR0)
    running = open_brain(settings, clock)
    running.brain.accept(Batch([reading(at_ms=HOUR0, power_watts=1)]))
    clock.advance(2 * HOUR)
    other = SqliteStore(settings.store.path)
    with other._upkeep.alone():
        running.brain.prune()
    assert segments(settings) == []
    running.brain.prune()
    assert len(segments(settings)) == 1
    running.stop()


def test_the_command_does_a_round(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "var" / "brain" / "store.db")
    now = SystemClock().now_ms()
    ages = (3 * HOUR, 3 * HOUR, 800 * DAY)
    store.write(Batch([reading(at_ms=now - age + n, power_watts=1) for n, age in enumerate(ages)]))
    store.close()
    done = subprocess.run(
        [sys.executable, "-m", "tocsin.cli", "store", "prune"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ok: 1 rows removed, 2 compacted, 0 rolled up, 0 joined\n"
