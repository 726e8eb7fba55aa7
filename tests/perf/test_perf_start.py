"""A brain starts anew over the store of a large fleet that is read every 10 s; beside reading half an hour of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, SECOND, ManualClock
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.warm_up import OFTEN_MS
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing import scale
from tocsin_testing.builders import T0
from tocsin_testing.started_brain import cost_of_start, settings_in

EVERY_MS = 10 * SECOND
SMALL, LARGE = 32, 10_000
MOST = 2.0
"""Times what reading all of the half hour costs that a start may cost."""


def run_for(folder: Path, gpus: int, span_ms: int) -> int:
    """A brain that is told a reading of each GPU every `EVERY_MS`, and ends; the instant of its end."""
    clock = ManualClock(T0)
    spec = FleetSpec(gpus=gpus, seed=5, start_ms=T0 - DAY, interval_ms=EVERY_MS, scenario=scenario_of(None))
    fleet = SimulatedFleet(replace(spec, fault_rate_scale=0.0))
    steps = [fleet.step().readings for _ in range(3)]
    running = open_brain(settings_in(folder), clock)
    for number in range(span_ms // EVERY_MS):
        clock.advance(EVERY_MS)
        found = [Reading(one.gpu, clock.now_ms(), one.values) for one in steps[number % len(steps)]]
        running.brain.accept(Batch(found))
    running.stop()
    return clock.now_ms()


def test_a_start_costs_little_more_than_reading_half_an_hour(
    tmp_path: Path, benchmark: BenchmarkFixture, say: Callable[[str], None]
) -> None:
    gpus = LARGE if scale.measuring else SMALL
    now_ms = run_for(tmp_path, gpus, OFTEN_MS + 5 * MINUTE)
    started = cost_of_start(tmp_path, now_ms)
    assert started.gpus == gpus
    store = SqliteStore(settings_in(tmp_path).store.path)
    begun = time.process_time()
    read = sum(1 for _ in store.readings(now_ms - OFTEN_MS, now_ms + 1))
    all_of_it = time.process_time() - begun
    store.close()
    assert read == gpus * (OFTEN_MS // EVERY_MS + 1)
    say(
        f"start of a brain over {gpus:,} GPUs read every {EVERY_MS // SECOND} s: {started.wall:.0f} s, "
        f"{started.cpu:.0f} s CPU, {started.bytes / 1e6:.0f} MB at most; reading half an hour: {all_of_it:.0f} s CPU"
    )
    benchmark.pedantic(lambda: None)
    if scale.measuring:
        assert started.cpu < MOST * all_of_it
