"""A brain on standby takes a large fleet over, with telemetry in VictoriaMetrics and the journal in PostgreSQL.

Beside it one that has not seen the fleet: it judges at once too, and reads the past meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, SECOND, ManualClock, SystemClock
from tocsin.domain.reading import Reading
from tocsin.journal.postgres.connections import open_database
from tocsin.journal.postgres.journal import PostgresJournal
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.schema import prepare
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.brain import Handover
from tocsin.runtime.brain.periodic import Periodic
from tocsin.runtime.brain.succession import Borrowed, SharedJournal
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec
from tocsin.store.factory import open_store
from tocsin.store.port import StoreUnavailable
from tocsin_testing import scale, servers

pytestmark = pytest.mark.server
EVERY_MS, SPAN_MS = MINUTE, 35 * MINUTE
SMALL, LARGE = 32, 10_000
MOST_SECONDS = 10.0
"""From the lease to a brain that has judged; the wait for it, and the end of the turn on standby, come before."""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds from the lease to the end of the first evaluation, of them CPU of the brain; what it hands over.

    `past` is how long it read the past then, 0 where it knew it."""

    wall: float
    cpu: float
    past: float
    gpus: int
    handover: Handover


def filled(settings: Settings, gpus: int, end_ms: int) -> None:
    """A store with readings of every minute."""
    spec = FleetSpec(gpus=gpus, seed=5, start_ms=end_ms - DAY, interval_ms=EVERY_MS, scenario=scenario_of(None))
    fleet = SimulatedFleet(replace(spec, fault_rate_scale=0.0))
    steps = [fleet.step().readings for _ in range(3)]
    store = open_store(settings.store)
    store.init()
    for number, at_ms in enumerate(range(end_ms - SPAN_MS, end_ms + 1, EVERY_MS)):
        store.write(Batch([Reading(one.gpu, at_ms, one.values) for one in steps[number % len(steps)]]))
    store.close()


@contextmanager
def leased(settings: Settings) -> Iterator[DatabaseLease]:
    database = open_database(settings.journal)
    prepare(database)
    lease = DatabaseLease(database, "bench", settings.journal.lease_seconds, SystemClock())
    lease.tick()
    keeper = Periodic("lease", lease.tick, 0.25, SystemClock())
    keeper.start()
    try:
        yield lease
    finally:
        keeper.stop()
        lease.release()
        database.close()


def taken_over(settings: Settings, now_ms: int, seen: Handover | None) -> Took:
    """By a brain that has `seen` the fleet, or else reads its past, here without a pause."""
    clock = ManualClock(now_ms)
    with leased(settings) as lease:
        begun, cpu = time.monotonic(), time.process_time()
        journal = PostgresJournal.open(open_database(settings.journal), clock, lease)
        running = open_brain(settings, clock, place=SharedJournal(journal, Borrowed(lease), handover=seen))
        running.brain.tick()
        wall, own = time.monotonic() - begun, time.process_time() - cpu
        begun = time.monotonic()
        while (warming := running.brain.rules.warming) is not None:
            # As its thread does: what a busy store does not answer is asked again.
            with suppress(StoreUnavailable):
                warming.look()
            if warming.done:
                running.brain.tick()
        past = time.monotonic() - begun
        running.stop()
    return Took(wall, own, past, len(running.brain.gpus), running.brain.handover())


def test_a_takeover_goes_on_from_what_was_seen(
    tmp_path: Path, benchmark: BenchmarkFixture, say: Callable[[str], None]
) -> None:
    gpus, now_ms = LARGE if scale.measuring else SMALL, SystemClock().now_ms() // MINUTE * MINUTE
    with servers.postgres() as server, servers.victoria_metrics(tmp_path) as url:
        settings = Settings.model_validate(
            {
                "store": {"kind": "victoriametrics", "url": url, "path": tmp_path / "beside.db"},
                "journal": {"path": tmp_path / "none.db", "url": server.url},
                "forecast": {"worker": False, "models": tmp_path / "models"},
            }
        )
        filled(settings, gpus, now_ms)
        httpx2.get(f"{url}/internal/force_flush", timeout=60.0).raise_for_status()
        cold = taken_over(settings, now_ms + SECOND, None)
        warm = taken_over(settings, now_ms + 2 * SECOND, cold.handover)
    assert (cold.gpus, warm.gpus) == (gpus, gpus)
    say(
        f"takeover over {gpus:,} GPUs read every {EVERY_MS // SECOND} s, VictoriaMetrics and PostgreSQL: "
        f"{warm.wall:.1f} s from the lease to the end of the first evaluation, {warm.cpu:.1f} s CPU of the brain; by "
        f"one that has not seen them: {cold.wall:.1f} s, {cold.cpu:.1f} s CPU, and {cold.past:.0f} s more until its "
        "rules know the past"
    )
    benchmark.pedantic(lambda: None)
    if scale.measuring:
        assert warm.wall < MOST_SECONDS
