"""Files of an embedded store, damaged at random, and what may be read of them: less than was written, nothing else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import T0

START = T0 // HOUR * HOUR
FOREVER = Retention(10**6 * HOUR, 10**6 * HOUR, 10**6 * HOUR)
GPUS, INSTANTS = 6, 40
SUFFIXES = ("", "-wal", ".head")

Facts = Mapping[tuple[str, object], object]


def readings(hour: int) -> list[Reading]:
    """An hour of a few GPUs: plain values and variants, reasons and owners."""
    found = []
    for number in range(GPUS):
        gpu = Gpu(f"GPU-{number}", f"node-{number // 2}", number % 2, model="H200", labels={"a": str(number)})
        for step in range(INSTANTS):
            values = {
                "gpu_power_watts": 300 + number + step / 7,
                "gpu_temperature_celsius": 40.0 + step % 9,
                variant("gpu_nvlink_up", "link", str(step % 3)): float(step % 2),
            }
            missing = {"gpu_energy_joules_total": Missing.DENIED} if step % 5 == 0 else {}
            owners = (Owner(step, "train"),) if step % 4 == 0 else ()
            found.append(Reading(gpu, START + hour * HOUR + step * MINUTE, values, missing, owners))
    return found


def words(number: int) -> Batch:
    """An event, a finding and a prediction of their own."""
    subject = Subject(SubjectKind.GPU, f"GPU-{number % GPUS}", "node-0", "default")
    at = START + number * MINUTE
    event = Event(EventKind.XID, subject.name, "node-0", at, 79, f"fallen off the bus {number}")
    finding = Finding(
        "xid", subject, Severity.CRITICAL, Category.HARDWARE, ActionKind.DRAIN, at, at, f"GPU {number} is gone",
        evidence=(Evidence("xid", "79", at, 79.0),),
    )  # fmt: skip
    prediction = Prediction(
        subject, "fault", at, HOUR, PredictionStatus.LIKELY, "m", "1", f"likely {number}", probability=number / 100
    )
    return Batch([], [event], [finding], [prediction])


def fill(path: Path, *, killed: bool) -> None:
    """A store with a segment of one hour and chunks of two more.

    Where it was `killed`, those of the last hour are in the log of the file, else all are in the file itself.
    """
    original = path.with_name("open.db")
    store = SqliteStore(original)
    with closing(store):
        store.write(Batch(readings(0)))
        store.maintain(START + 2 * HOUR, FOREVER)
        for hour in (1, 2):
            for part in (slice(0, 100), slice(100, None)):
                store.write(Batch(readings(hour)[part]))
            for number in range(hour * 20, hour * 20 + 20):
                store.write(words(number))
            if hour == 1 or not killed:
                writer = store._database._writer
                assert writer is not None
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        copy(original, path)
    for suffix in (*SUFFIXES, "-shm", ".lock", ".upkeep"):
        original.with_name(original.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(original.with_name(original.name + ".segments"))


def copy(source: Path, target: Path) -> None:
    for suffix in SUFFIXES:
        shutil.copyfile(source.with_name(source.name + suffix), target.with_name(target.name + suffix))
    shutil.copytree(source.with_name(source.name + ".segments"), target.with_name(target.name + ".segments"))


def facts(store: SqliteStore) -> Facts:
    """All that a store says, piece by piece."""
    found: dict[tuple[str, object], object] = {}
    everything = (0, START + 100 * HOUR)
    for gpu in store.gpus():
        found["gpu", gpu.uuid] = (gpu.host, gpu.index, gpu.model, gpu.pool, dict(gpu.labels), gpu.simulated)
    for one in store.readings(*everything):
        found["reading", (one.gpu.uuid, one.at_ms)] = (one.gpu.host, dict(one.values), dict(one.missing), one.owners)
    columns = store.columns(["gpu_power_watts"], *everything)
    for row, at in enumerate(columns.at_ms.tolist()):
        found["power", (columns.gpus[columns.gpu[row]], at)] = columns.values[row, 0]
    for event in store.events(*everything):
        found["event", event.id] = event
    for finding in store.findings(*everything):
        found["finding", finding.id] = finding
    for prediction in store.predictions(*everything):
        found["prediction", prediction.id] = prediction
    for newest in store.latest(0):
        said = newest.gpu.host, dict(newest.values), dict(newest.missing), newest.owners
        found["newest", newest.gpu.uuid] = newest.at_ms, said
    now = store.latest_columns(["gpu_power_watts"], 0)
    for row, at in enumerate(now.at_ms.tolist()):
        found["newest power", now.gpus[now.gpu[row]]] = at, float(now.values[row, 0])
    return found


@dataclass(frozen=True)
class Blow:
    """Where a file was damaged and how."""

    file: str
    at: int
    old: bytes
    new: bytes


def damage(path: Path, chance: random.Random) -> Blow:
    """Change some bytes of one file of the store at `path`."""
    segments = sorted(path.with_name(path.name + ".segments").iterdir())
    log = path.with_name(path.name + "-wal")
    file = chance.choice([path, path, log if log.stat().st_size else path, chance.choice(segments)])
    data = bytearray(file.read_bytes())
    # As often near the beginning and the end, where heads and footers are, as anywhere; mostly where something is.
    for _ in range(chance.choice([1, 50])):
        places = [chance.randrange(len(data)), chance.randrange(min(len(data), 8192)), -1 - chance.randrange(2000)]
        at = chance.choice(places) % len(data)
        if data[at]:
            break
    width = chance.choice([1, 1, 1, 16, 512])
    at = at // 512 * 512 if width == 512 else at
    old = bytes(data[at : at + width])
    if width == 512:
        new = bytes(len(old))
    elif width == 16:
        new = chance.randbytes(len(old))
    else:
        new = bytes([old[0] ^ (1 << chance.randrange(8))])
    data[at : at + len(new)] = new
    file.write_bytes(data)
    return Blow(file.name, at, old[:32], new[:32])


def lost_of(store: SqliteStore) -> int:
    """What the store counts as lost."""
    return store.damaged_rows() + len(store.damaged())
