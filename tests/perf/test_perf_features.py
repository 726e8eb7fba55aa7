"""Features of a large fleet in array operations: compared with a plain loop over GPUs, and with reading the store.

Run without --benchmark-only it is a small fleet, for correctness alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.metrics import METRICS, MetricKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.builder import FeatureBuilder, save
from tocsin.forecaster.features.feed import Condenser, StoreFeed
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import examples_now
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import Columns
from tocsin_testing.scale import fleet, matrix

Say = Callable[[str], None]

STEP = 10 * MINUTE
START = 1_795_000_000_000 // DAY * DAY
FLEET, DEMO, PLAIN_GPUS = 8_000, 64, 40
PLAN = FeaturePlan()
KEYS = tuple(name for name in PLAN.metrics if "{" not in name)
HISTORY = 150
GROUP = "features of a fleet at one instant, after one more step"


def counters() -> np.ndarray:
    return np.array([METRICS[name].kind is MetricKind.COUNTER for name in KEYS])


def rows(gpus: list[Gpu], step: int) -> Columns:
    """One reading of each GPU at the end of `step`; counters grow."""
    uuids = tuple(sorted(gpu.uuid for gpu in gpus))
    values = matrix(KEYS, len(gpus), step)
    values[:, counters()] = np.arange(len(gpus))[:, None] % 7 * (step + 1.0)
    at_ms = np.full(len(gpus), START + (step + 1) * STEP)
    return Columns(uuids, KEYS, np.arange(len(gpus), dtype=np.int32), at_ms, values)


def built(gpus: list[Gpu], steps: int) -> FeatureBuilder:
    builder = FeatureBuilder(PLAN, gpus)
    for step in range(steps):
        builder.update(rows(gpus, step))
    return builder


class Loop:
    """The plain way: for each GPU the readings of a day, from which level, growth and mean over three windows come.

    It gives a quarter of the features, and knows neither resets, frozen values nor peers.
    """

    windows = (6, 36, 144)

    def __init__(self) -> None:
        self._past: dict[str, deque[list[float]]] = {}

    def update(self, columns: Columns) -> None:
        for row, number in enumerate(columns.gpu):
            past = self._past.setdefault(columns.gpus[number], deque(maxlen=145))
            past.append(columns.values[row].tolist())

    def table(self) -> dict[str, list[float]]:
        found = {}
        for uuid, past in self._past.items():
            held = list(past)
            features = list(held[-1])
            for window in self.windows:
                part = held[-window:]
                features += [newest - oldest for newest, oldest in zip(held[-1], part[0], strict=True)]
                features += [sum(column) / len(part) for column in zip(*part, strict=True)]
            found[uuid] = features
        return found


@pytest.mark.benchmark(group=GROUP)
def test_features_of_a_fleet(benchmark: BenchmarkFixture, say: Say) -> None:
    size = PLAIN_GPUS if benchmark.disabled else FLEET
    gpus = fleet(size)
    builder = built(gpus, HISTORY)
    ticks = iter([rows(gpus, HISTORY + turn) for turn in range(8)])

    def turn() -> tuple[int, ...]:
        tick = next(ticks)
        builder.update(tick)
        return examples_now(builder, int(tick.at_ms[0])).features.shape

    assert benchmark.pedantic(turn, rounds=5, warmup_rounds=1) == (size, len(builder.names))
    held = sum(array.nbytes for array in save(builder).values())
    if not benchmark.disabled:
        plain = _plain_seconds()
        mine = float(benchmark.stats.stats.median)
        say(
            f"{len(builder.names)} features and 96 x 40 sequences of {size:,} GPUs: {mine:.2f} s, arrays of "
            f"{held / 1e6:.0f} MB; a plain loop over GPUs, {7 * len(KEYS)} features, {plain * size / PLAIN_GPUS:.2f} s"
        )
        assert mine < plain * size / PLAIN_GPUS


def _plain_seconds() -> float:
    gpus = fleet(PLAIN_GPUS)
    loop = Loop()
    for step in range(HISTORY):
        loop.update(rows(gpus, step))
    last = rows(gpus, HISTORY)
    begin = time.perf_counter()
    loop.update(last)
    loop.table()
    return time.perf_counter() - begin


@pytest.mark.benchmark(group=GROUP)
def test_baseline_a_loop_over_forty_gpus(benchmark: BenchmarkFixture) -> None:
    gpus = fleet(PLAIN_GPUS)
    loop = Loop()
    for step in range(HISTORY):
        loop.update(rows(gpus, step))
    last = rows(gpus, HISTORY)

    def turn() -> int:
        loop.update(last)
        return len(loop.table())

    assert benchmark.pedantic(turn, rounds=3, warmup_rounds=1) == PLAIN_GPUS


@pytest.mark.parametrize("size", [DEMO, FLEET])
def test_a_tick_from_a_warm_store(benchmark: BenchmarkFixture, tmp_path: Path, say: Say, size: int) -> None:
    """Reading what ten minutes brought, and the features; beside the reading alone."""
    gpus = fleet(DEMO if benchmark.disabled else size)
    store = SqliteStore(tmp_path / "store.db")
    store.init()
    builder = FeatureBuilder(PLAN, gpus)
    feed = StoreFeed(builder, store, START)
    turns, step = 3 if benchmark.disabled else 5, iter(range(8))

    def fill() -> None:
        tick = rows(gpus, next(step))
        readings = [
            Reading(gpus[number], int(at), dict(zip(KEYS, map(float, values), strict=True)))
            for number, at, values in zip(tick.gpu, tick.at_ms, tick.values, strict=True)
        ]
        store.write(Batch(readings=readings))

    def turn() -> int:
        now_ms = START + (feed.fed_ms - START + STEP) // STEP * STEP
        feed.until(now_ms)
        return len(examples_now(builder, now_ms))

    assert benchmark.pedantic(turn, setup=fill, rounds=turns) == len(gpus)
    assert builder.late == 0
    if not benchmark.disabled:
        begin = time.perf_counter()
        store.columns(PLAN.metrics, feed.fed_ms - STEP, feed.fed_ms)
        reading = time.perf_counter() - begin
        mine = float(benchmark.stats.stats.median)
        say(f"tick of {size:,} GPUs from the embedded store: {mine:.3f} s, of which reading {reading:.3f} s")
        assert mine < (10.0 if size == FLEET else 0.2)
    store.close()


def test_features_of_a_long_past_fit_into_memory(say: Say) -> None:
    """What a GPU takes stands still once the longest window is full, and is half of what whole planes would take."""
    plan = FeaturePlan(windows_ms=(HOUR, DAY, 3 * DAY))
    simulated = SimulatedFleet(FleetSpec(32, 7, START, STEP, 1.0))
    builder, condenser = FeatureBuilder(plan, simulated.gpus), Condenser(plan)
    held = []
    for _ in range(2):
        for _ in range(5 * DAY // STEP // 2):
            batch = simulated.step()
            builder.update(condenser.columns(batch.readings), batch.events)
        held.append(sum(array.nbytes for array in save(builder).values()) / 32)
    rings = builder.parts.rings
    planes = sum(array.nbytes for _, array in rings.state()) / 32
    whole = (rings.fine + rings.coarse) * len(plan.names) * (np.float32().nbytes + np.bool_().nbytes)
    say(f"closed steps of one GPU over 3 days: {planes / 1e3:.0f} kB, as whole matrices {whole / 1e3:.0f} kB")
    assert held[1] < 2 * held[0]
    assert planes < whole / 2
