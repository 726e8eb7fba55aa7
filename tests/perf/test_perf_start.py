"""A brain starts anew over the store of a large fleet that is read every 10 s; beside reading half an hour of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, SECOND, ManualClock
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.warm_up import OFTEN_MS
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec
from tocsin_testing import scale
from tocsin_testing.builders import T0
from tocsin_testing.process_cost import forget_peak, peak_bytes

EVERY_MS = 10 * SECOND
SMALL, LARGE = 32, 10_000


def settings(folder: Path) -> Settings:
    plain = Settings()
    return plain.model_copy(
        update={
            "store": plain.store.model_copy(update={"path": folder / "store.db"}),
            "journal": plain.journal.model_copy(update={"path": folder / "journal.db"}),
            "forecast": plain.forecast.model_copy(update={"worker": False, "models": folder / "models"}),
        }
    )


def run_for(folder: Path, gpus: int, span_ms: int) -> ManualClock:
    """A brain that is told a reading of each GPU every `EVERY_MS`, and ends."""
    clock = ManualClock(T0)
    spec = FleetSpec(
        gpus=gpus, seed=5, start_ms=T0 - DAY, interval_ms=EVERY_MS, fault_rate_scale=0.0, scenario=scenario_of(None)
    )
    fleet = SimulatedFleet(spec)
    steps = [fleet.step().readings for _ in range(3)]
    running = open_brain(settings(folder), clock)
    for number in range(span_ms // EVERY_MS):
        clock.advance(EVERY_MS)
        found = [Reading(one.gpu, clock.now_ms(), one.values) for one in steps[number % len(steps)]]
        running.brain.accept(Batch(found))
    running.stop()
    return clock


def test_a_start_costs_no_more_than_reading_half_an_hour(
    tmp_path: Path, benchmark: BenchmarkFixture, say: Callable[[str], None]
) -> None:
    gpus = LARGE if scale.measuring else SMALL
    clock = run_for(tmp_path, gpus, OFTEN_MS + 5 * MINUTE)
    forget_peak()
    begun, cpu = time.monotonic(), time.process_time()
    running = open_brain(settings(tmp_path), clock)
    wall, own, most = time.monotonic() - begun, time.process_time() - cpu, peak_bytes(os.getpid())
    assert len(running.brain.gpus) == gpus
    now = clock.now_ms()
    cpu = time.process_time()
    read = sum(1 for _ in running.brain.store.readings(now - OFTEN_MS, now + 1))
    all_of_it = time.process_time() - cpu
    running.stop()
    assert read == gpus * (OFTEN_MS // EVERY_MS + 1)
    say(
        f"start of a brain over {gpus:,} GPUs read every {EVERY_MS // SECOND} s: {wall:.0f} s, {own:.0f} s CPU, "
        f"{most / 1e6:.0f} MB at most; to read half an hour of them: {all_of_it:.0f} s CPU"
    )
    benchmark.pedantic(lambda: None)
    if scale.measuring:
        assert own < all_of_it
