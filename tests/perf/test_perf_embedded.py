"""The embedded store at the size of a fleet, against the same readings in two other shapes: one wide SQLite row each,
and SQLite for the newest hour with Parquet files by polars (`tocsin_testing.polars_store`).

History is a day of 193 GPUs at 10 s with 60 metrics: 10^8 values. They come from the simulated fleet, with the steps in
which it reports (whole degrees, milliwatts, hundredths of a utilisation, the six digits of DCGM's ratios): 16 GPUs are
simulated, of their metrics the 60 that take the most different values are kept, and every further GPU lives the day of
one of them shifted by some hours. Run without --benchmark-only it is an hour of 16 GPUs, for correctness alone.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.domain.reading import Reading
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import T0, gpu
from tocsin_testing.polars_store import PolarsStore

Say = Callable[[str], None]

START = T0 // DAY * DAY
EVERY = 10 * SECOND
METRICS, SIMULATED, SHIFT = 60, 16, 720
BASELINE_GPUS = 16
KEEP = Retention(7 * DAY, 90 * DAY, 730 * DAY)
FLEET = 8_000
TICK = f"a tick of {FLEET:,} GPUs x {METRICS} metrics, durable: {FLEET * METRICS:,} values"
NEWEST = f"the newest reading of {FLEET:,} GPUs x {METRICS} metrics"
NODE = 8
BY_NODE = f"{NEWEST}, written {NODE} GPUs at a time"


@dataclass
class Telemetry:
    """A simulated day, float64[GPUs, steps, metrics], from which any number of GPUs is told."""

    steps: int
    gpus: int
    fleet: int
    names: list[str] = field(default_factory=list)

    @cached_property
    def cube(self) -> npt.NDArray[np.float64]:
        fleet = SimulatedFleet(FleetSpec(gpus=SIMULATED, seed=7, start_ms=START, interval_ms=EVERY))
        batches = (fleet.step().readings for _ in range(self.steps))
        first = next(batches)
        names = sorted({name for reading in first for name in reading.values if "{" not in name})
        cube = np.full((SIMULATED, self.steps, len(names)), np.nan)
        for step, readings in enumerate((first, *batches)):
            cube[:, step] = [[reading.values.get(name, np.nan) for name in names] for reading in readings]
        lively = sorted(range(len(names)), key=lambda place: -len(np.unique(cube[:, :, place])))[:METRICS]
        self.names = [names[place] for place in lively]
        return np.ascontiguousarray(cube[:, :, lively])

    def row(self, number: int, step: int) -> list[float]:
        shifted = (step + number // SIMULATED * SHIFT) % self.steps
        found: list[float] = self.cube[number % SIMULATED, shifted].tolist()
        return found

    def tick(self, step: int, count: int) -> list[Reading]:
        at_ms = START + step * EVERY
        rows = (self.row(number, step) for number in range(count))
        return [
            Reading(gpu(number), at_ms, {k: v for k, v in zip(self.names, row, strict=True) if v == v})
            for number, row in enumerate(rows)
        ]


@dataclass
class History:
    """A filled store, with what filling took."""

    store: SqliteStore
    telemetry: Telemetry
    values: int
    writing: float
    upkeep: float
    reader: str
    polars: PolarsStore
    polars_upkeep: float

    @property
    def bytes_per_value(self) -> float:
        folder = self.store.path.with_name(self.store.path.name + ".segments")
        return sum(path.stat().st_size for path in folder.iterdir()) / self.values


@pytest.fixture(scope="module")
def telemetry(request: pytest.FixtureRequest) -> Telemetry:
    quick = request.config.getoption("benchmark_disable")
    return Telemetry(HOUR // EVERY, SIMULATED, 200) if quick else Telemetry(DAY // EVERY, 193, FLEET)


READER = """
import random, sys, time
from pathlib import Path
from tocsin.store.embedded.store import SqliteStore
store, names = SqliteStore(Path(sys.argv[1])), sys.argv[2].split(",")
times = []
for line in sys.stdin:
    begun = time.perf_counter()
    newest = store.latest_columns(names, 0)
    one = store.series(random.choice(newest.gpus), names[:1], 0, 2**62)
    assert len(set(one.at_ms.tolist())) == len(one.at_ms) > 0
    times.append(time.perf_counter() - begun)
    print(len(times), flush=True)
store.close()
times.sort()
print(f"{len(times)} reads, median {times[len(times) // 2] * 1e3:.0f} ms, slowest {times[-1] * 1e3:.0f} ms")
"""


@pytest.fixture(scope="module")
def history(telemetry: Telemetry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    path = tmp_path_factory.mktemp("history") / "store.db"
    store = SqliteStore(path)
    store.init()
    polars = PolarsStore(path.with_name("polars.db"))
    values, writing = 0, 0.0
    cube = telemetry.cube
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path), ",".join(telemetry.names)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert len(cube) == SIMULATED
    for start in range(0, telemetry.steps, 60):
        ticks = range(start, min(start + 60, telemetry.steps))
        batch = Batch([reading for step in ticks for reading in telemetry.tick(step, telemetry.gpus)])
        values += sum(len(reading.values) for reading in batch.readings)
        begun = time.perf_counter()
        store.write(batch)
        writing += time.perf_counter() - begun
        polars.write(batch.readings)
        # The other process reads while this one goes on.
        reader.stdin.write("read\n")
        reader.stdin.flush()
    begun = time.perf_counter()
    store.maintain(START + DAY + HOUR, KEEP)
    upkeep = time.perf_counter() - begun
    out, _ = reader.communicate()
    assert reader.returncode == 0, "the second process met an error"
    begun = time.perf_counter()
    polars.compact()
    polars_upkeep = time.perf_counter() - begun
    with closing(polars.db):
        yield History(store, telemetry, values, writing, upkeep, out.splitlines()[-1], polars, polars_upkeep)
    store.close()


class Wide:
    """The baseline: a row per reading, a column per metric, an index over GPU and instant."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        columns = ", ".join(f'"{name}" REAL' for name in names)
        self.db.execute(f"CREATE TABLE reading (gpu TEXT, at_ms INTEGER, {columns}, PRIMARY KEY (gpu, at_ms))")

    def write(self, readings: list[Reading]) -> None:
        marks = ", ".join("?" * (len(self.names) + 2))
        rows = [(r.gpu.uuid, r.at_ms, *map(r.values.get, self.names)) for r in readings]
        self.db.execute("BEGIN")
        self.db.executemany(f"INSERT OR REPLACE INTO reading VALUES ({marks})", rows)
        self.db.execute("COMMIT")

    def series(self, uuid: str, names: list[str]) -> npt.NDArray[np.float64]:
        chosen = ", ".join(f'"{name}"' for name in names)
        query = f"SELECT {chosen} FROM reading WHERE gpu = ? ORDER BY at_ms"
        return np.array(self.db.execute(query, (uuid,)).fetchall(), dtype=np.float64)

    def newest(self, names: list[str]) -> npt.NDArray[np.float64]:
        chosen = ", ".join(f'"{name}"' for name in names)
        query = f"SELECT {chosen}, MAX(at_ms) FROM reading GROUP BY gpu ORDER BY gpu"
        return np.array(self.db.execute(query).fetchall(), dtype=np.float64)[:, :-1]


@pytest.fixture(scope="module")
def wide(telemetry: Telemetry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wide]:
    """A day of a few of the GPUs in the baseline."""
    assert len(telemetry.cube) == SIMULATED
    made = Wide(tmp_path_factory.mktemp("wide") / "wide.db", telemetry.names)
    for start in range(0, telemetry.steps, 60):
        ticks = range(start, min(start + 60, telemetry.steps))
        made.write([reading for step in ticks for reading in telemetry.tick(step, BASELINE_GPUS)])
    with closing(made.db):
        yield made


def other(kind: str, folder: Path, telemetry: Telemetry) -> PolarsStore | Wide:
    """One of the shapes beside."""
    return PolarsStore(folder / "polars.db") if "polars" in kind else Wide(folder / "wide.db", telemetry.names)


def smallest(benchmark: BenchmarkFixture) -> float:
    return float(benchmark.stats.stats.min)


# ---------------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", ["embedded", "baseline_polars", "baseline_wide_rows"])
@pytest.mark.benchmark(group=TICK)
def test_writing_a_tick(benchmark: BenchmarkFixture, say: Say, telemetry: Telemetry, tmp_path: Path, kind: str) -> None:
    assert len(telemetry.cube) == SIMULATED
    ticks = iter([telemetry.tick(step, telemetry.fleet) for step in range(5)])
    if kind == "embedded":
        store = SqliteStore(tmp_path / "store.db")
        store.init()
        benchmark.pedantic(lambda: store.write(Batch(next(ticks))), rounds=4, warmup_rounds=1)
        assert len(store.latest_columns(telemetry.names, 0).gpus) == telemetry.fleet
        store.close()
    else:
        baseline = other(kind, tmp_path, telemetry)
        benchmark.pedantic(lambda: baseline.write(next(ticks)), rounds=4, warmup_rounds=1)
        baseline.db.close()
    if not benchmark.disabled:
        say(f"{TICK}, {kind}: {FLEET * METRICS / smallest(benchmark) / 1e6:.1f} million values/s")


@pytest.mark.benchmark(group="a round of upkeep that finds nothing due")
def test_a_day_is_written_and_compacted_while_another_process_reads(
    benchmark: BenchmarkFixture, say: Say, history: History, wide: Wide
) -> None:
    done = benchmark(history.store.maintain, START + DAY + HOUR, KEEP)
    assert (done.compacted, done.joined, done.rolled, done.removed, done.damaged) == (0, 0, 0, 0, 0)
    size = wide.path.stat().st_size + wide.path.with_name(wide.path.name + "-wal").stat().st_size
    there = np.isfinite(np.concatenate([wide.series(f"GPU-{n:08d}", wide.names) for n in range(BASELINE_GPUS)]))
    beside = size / int(there.sum())
    written, compacted = (history.values / seconds / 1e6 for seconds in (history.writing, history.upkeep))
    sustained = history.values / (history.writing + history.upkeep) / 1e6
    say(
        f"a day, {history.values:,} values: written at {written:.1f}, compacted at {compacted:.1f}, so sustained "
        f"{sustained:.1f} million values/s, while a second process made {history.reader}"
    )
    by_polars = history.polars.bytes() / history.values
    sizes = f"{history.bytes_per_value:.2f} bytes per value, polars {by_polars:.2f}, wide rows {beside:.2f}"
    say(f"the same day by polars: compacted at {history.values / history.polars_upkeep / 1e6:.1f} million values/s")
    say(f"history on disk: {sizes}")
    assert history.bytes_per_value <= 1.5
    assert history.bytes_per_value < beside / 3


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("kind", ["embedded", "baseline_polars", "baseline_wide_rows"])
@pytest.mark.benchmark(group=NEWEST)
def test_the_newest_of_a_fleet(
    benchmark: BenchmarkFixture, say: Say, telemetry: Telemetry, tmp_path: Path, kind: str
) -> None:
    assert len(telemetry.cube) == SIMULATED
    ticks = [telemetry.tick(step, telemetry.fleet) for step in range(3)]
    if kind == "embedded":
        store = SqliteStore(tmp_path / "store.db")
        for tick in ticks:
            store.write(Batch(tick))
        found = benchmark(store.latest_columns, telemetry.names, START).values
        store.close()
    else:
        baseline = other(kind, tmp_path, telemetry)
        for tick in ticks:
            baseline.write(tick)
        found = benchmark(baseline.newest, telemetry.names)
        baseline.db.close()
    newest = np.array([telemetry.row(number, 2) for number in range(telemetry.fleet)])
    np.testing.assert_array_equal(found, newest)
    if not benchmark.disabled:
        say(f"{NEWEST}, {kind}: {smallest(benchmark) * 1e3:.1f} ms")


@pytest.mark.parametrize("kind", ["embedded", "baseline_polars", "baseline_wide_rows"])
@pytest.mark.benchmark(group=BY_NODE)
def test_the_newest_of_a_fleet_that_is_written_node_by_node(
    benchmark: BenchmarkFixture, say: Say, telemetry: Telemetry, tmp_path: Path, kind: str
) -> None:
    """As agents push; another connection than the one that wrote reads."""
    assert len(telemetry.cube) == SIMULATED
    ticks = [telemetry.tick(step, telemetry.fleet) for step in range(2)]
    nodes = [tick[start : start + NODE] for tick in ticks for start in range(0, len(tick), NODE)]
    begun = time.perf_counter()
    if kind != "embedded":
        baseline = other(kind, tmp_path, telemetry)
        for node in nodes:
            baseline.write(node)
        writing = time.perf_counter() - begun
        found = benchmark(baseline.newest, telemetry.names)
        baseline.db.close()
    else:
        store = SqliteStore(tmp_path / "store.db")
        for node in nodes:
            store.write(Batch(node))
        writing = time.perf_counter() - begun
        with closing(store), closing(SqliteStore(store.path)) as reader:
            found = benchmark(reader.latest_columns, telemetry.names, START).values
    np.testing.assert_array_equal(found, [telemetry.row(number, 1) for number in range(telemetry.fleet)])
    if not benchmark.disabled:
        say(f"{BY_NODE}, {kind}: {smallest(benchmark) * 1e3:.1f} ms; a write {writing / len(nodes) * 1e3:.2f} ms")


@pytest.mark.parametrize("metrics", [METRICS, 1], ids=["60_metrics", "1_metric"])
@pytest.mark.parametrize("kind", ["embedded", "baseline_polars", "baseline_wide_rows"])
@pytest.mark.benchmark(group="the day of one GPU: 8,640 rows")
def test_the_day_of_one_gpu(
    benchmark: BenchmarkFixture, say: Say, history: History, wide: Wide, kind: str, metrics: int
) -> None:
    """Segments of hours: those of the last two days are not joined yet, which is the slower case."""
    names = history.telemetry.names[:metrics]
    chance = random.Random(1)
    if kind == "embedded":

        def read() -> tuple[int, npt.NDArray[np.float64]]:
            number = chance.randrange(history.telemetry.gpus)
            return number, history.store.series(f"GPU-{number:08d}", names, START, START + DAY).values
    elif kind == "baseline_polars":

        def read() -> tuple[int, npt.NDArray[np.float64]]:
            number = chance.randrange(history.telemetry.gpus)
            return number, history.polars.series(f"GPU-{number:08d}", names, START, START + DAY)
    else:

        def read() -> tuple[int, npt.NDArray[np.float64]]:
            number = chance.randrange(BASELINE_GPUS)
            return number, wide.series(f"GPU-{number:08d}", names)

    number, found = benchmark.pedantic(read, rounds=15, warmup_rounds=1)
    steps = range(history.telemetry.steps)
    expected = np.array([history.telemetry.row(number, step)[:metrics] for step in steps])
    np.testing.assert_array_equal(found, expected)
    if not benchmark.disabled:
        median = float(benchmark.stats.stats.median)
        what = "all 60 metrics" if metrics > 1 else "one metric"
        say(f"24 h of one GPU, {what}, {kind}: {smallest(benchmark) * 1e3:.1f} ms, median {median * 1e3:.1f}")
