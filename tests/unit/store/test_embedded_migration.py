"""A store of schema version 1, as its own code wrote it, is brought over without loss."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.store.embedded import migrate as embedded_migrate
from tocsin.store.embedded.backup import restore
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import T0, gpu, reading, xid

FILE = Path(__file__).parents[2] / "data" / "store" / "version1.db.gz"
RICH = gpu(1, pool="training", rack="r1", labels={"a b": "c,d=e"}, serial="165", pci_bus_id="00000000:3b:00.0")
MIG = Gpu("MIG-1", "node-1", parent=RICH.uuid, mig_profile="1g.10gb", simulated=True)
FOREVER = Retention(10**14, 10**14, 10**14)


def written() -> list[Reading]:
    """What the file holds, by instant, then UUID."""
    found = []
    for step in range(300):
        at = T0 + step * 30_000
        values = {"gpu_power_watts": 300 + step / 7, "gpu_temperature_celsius": float(40 + step % 20)}
        missing = {"gpu_fan_speed_ratio": Missing.UNSUPPORTED} if step % 2 else {}
        if step % 5 == 0:
            pid = variant("gpu_process_memory_used_bytes", "pid", str(step + 10))
            values |= {variant("gpu_nvlink_up", "link", "0"): 1.0, pid: 2.0**30 + step}
            missing |= {variant("gpu_nvlink_up", "link", "9"): Missing.LOST}
        found.append(Reading(RICH, at, values, missing))
        if step % 3 == 0:
            found.append(Reading(MIG, at + 1, {"gpu_energy_joules_total": 2.0**53 + 2 * step}))
    found.append(Reading(gpu(2), T0 + 7, {}, {"gpu_power_watts": Missing.LOST}))
    return sorted(found, key=lambda r: (r.at_ms, r.gpu.uuid))


def rest() -> Batch:
    subject = Subject(SubjectKind.GPU, "GPU-00000001", "node-1", "training")
    finding = Finding("hot", subject, Severity.WARNING, Category.THERMAL, ActionKind.NOTIFY, T0, T0 + 5, "it is hot")
    prediction = Prediction(
        subject=subject,
        target="temperature above 85",
        at_ms=T0,
        horizon_ms=3_600_000,
        status=PredictionStatus.CROSSING,
        model="trend",
        model_version="1",
        sentence="in an hour",
        probability=0.75,
    )
    return Batch((), [xid(79, gpu(1)), xid(48, gpu(2), T0 + 9)], [finding], [prediction])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "store.db"
    with gzip.open(FILE) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return target


def check(store: SqliteStore) -> None:
    assert list(store.readings(0, T0 + 100 * HOUR)) == written()
    assert [asdict(g) for g in store.gpus()] == [asdict(RICH), asdict(gpu(2)), asdict(MIG)]
    assert [r.at_ms - T0 for r in store.latest(0)] == [299 * 30_000, 7, 297 * 30_000 + 1]
    assert store.events(0, T0 + HOUR) == rest().events
    assert store.findings(0, T0 + HOUR) == rest().findings
    assert store.predictions(0, T0 + HOUR) == rest().predictions


def test_all_of_it_is_there(path: Path) -> None:
    store = SqliteStore(path)
    check(store)
    store.maintain(T0 + 2 * HOUR, FOREVER)
    check(store)
    store.write(Batch(readings=[reading(gpu(2), T0 + 7, power_watts=5)]))
    assert dict(next(store.readings(T0 + 7, T0 + 8)).values) == {"gpu_power_watts": 5.0}
    store.close()
    with closing(sqlite3.connect(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert not tables & {"reading", "metric"}


def test_a_migration_that_was_killed_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_migrate, "_SLICE", 50)
    real, calls = embedded_migrate._slice, []

    def dies(*args: object) -> int:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded_migrate, "_slice", dies)
    with pytest.raises(KeyboardInterrupt):
        SqliteStore(path).init()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT COUNT(*) FROM reading").fetchone()[0] == len(written()) - 150
    store = SqliteStore(path)
    check(store)
    store.close()


def test_a_backup_of_the_old_version_can_be_restored(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "other" / "store.db"
    restore(path, target)
    store = SqliteStore(target)
    check(store)
    store.close()
